/** The one error of calls: a code, a message for people, and optional details. */

export const ERROR_CODES = [
  "OPERATION_NOT_FOUND", "ACCESS_DENIED", "UNAUTHENTICATED", "VALIDATION_ERROR",
  "EXECUTION_ERROR", "TIMEOUT", "ABORTED", "UNAVAILABLE", "RATE_LIMITED",
  "PAYLOAD_TOO_LARGE", "PROTOCOL_ERROR", "INTERNAL",
] as const;

export type ErrorCode = (typeof ERROR_CODES)[number];

const RETRYABLE: readonly ErrorCode[] = ["TIMEOUT", "UNAVAILABLE", "RATE_LIMITED"];

type Retry = { retryable?: boolean | undefined; retryAfterMs?: number | undefined };
export type CallErrorOptions = Retry & { details?: unknown; foreignCode?: string | undefined; cause?: unknown };

export class CallError extends Error {
  readonly code: ErrorCode;
  readonly details: unknown;
  readonly retryable: boolean;
  readonly retryAfterMs: number | undefined;
  /** The code of a server that has codes of its own; `code` is then EXECUTION_ERROR. */
  readonly foreignCode: string | undefined;

  constructor(code: ErrorCode, message: string, options: CallErrorOptions = {}) {
    super(message, "cause" in options ? { cause: options.cause } : undefined);
    this.name = "CallError";
    this.code = code;
    this.details = options.details;
    this.retryable = options.retryable ?? RETRYABLE.includes(code);
    this.retryAfterMs = options.retryAfterMs;
    this.foreignCode = options.foreignCode;
  }
}

/** Return the code if it is known; any other one counts as `fallback`. */
export function knownCode(code: string, fallback: ErrorCode): ErrorCode {
  return ERROR_CODES.find((each) => each === code) ?? fallback;
}
