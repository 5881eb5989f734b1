/** The serving side: operations with their descriptions, and the state of each call that is being served. */

import { isObject, type ResponseEnvelope } from "./envelope.ts";
import { CallError } from "./errors.ts";
import { given, type CallCredit, type CallRequested, type Identity } from "./events.ts";

export interface AccessControl {
  /** Anonymous callers may call it, too. */
  public?: boolean;
  requiredScopes?: string[];
  requiredScopesAny?: string[];
  resources?: { type: string; action: string }[];
}

export interface CallOptions {
  /** 30 s by default for a call, none for a subscription. */
  timeoutMs?: number;
  signal?: AbortSignal;
  /** The address of the server that has to handle it. */
  to?: string;
  stickyKey?: string;
  traceparent?: string;
  tracestate?: string;
  /** The call of a handler, on behalf of whose caller this one is made. */
  context?: Context;
  onProgress?(progress: number, total?: number, message?: string): void;
}

export interface SubscribeOptions extends CallOptions {
  /** Items that may be in flight or buffered; 64 by default. */
  credits?: number;
}

export type Items<T> = AsyncGenerator<ResponseEnvelope<T>, void, undefined>;

export interface Caller {
  /** Call a query or mutation. Rejects with a CallError. */
  call<T = unknown>(operationId: string, input?: unknown, options?: CallOptions): Promise<ResponseEnvelope<T>>;
  /** Iterate over the items of a subscription; leaving the loop stops it. Throws a CallError. */
  subscribe<T = unknown>(operationId: string, input?: unknown, options?: SubscribeOptions): Items<T>;
}

export interface Context {
  readonly requestId: string;
  /** The caller, written by the hub; undefined if it is anonymous. */
  readonly identity: Identity | undefined;
  /** Aborted when the caller gives up or is gone, or at the deadline. */
  readonly signal: AbortSignal;
  /** Milliseconds since 1970. */
  readonly deadline: number | undefined;
  /** The request itself, with its trace context. */
  readonly request: CallRequested;
  /** Report progress, if the caller asked for it. */
  progress(progress: number, total?: number, message?: string): void;
  /** Call on behalf of the caller, within the deadline. The hub denies it unless the token of this peer delegates. */
  call: Caller["call"];
  subscribe: Caller["subscribe"];
}

export type JsonSchema = Record<string, unknown> | boolean;

interface Described {
  id: string;
  title?: string;
  description?: string;
  tags?: string[];
  version?: string;
  /** Announced to the hub; `validate` checks. */
  inputSchema?: JsonSchema;
  outputSchema?: JsonSchema;
  /** Without it, any identity may call. */
  access?: AccessControl;
  /** Return what is wrong with an input, or nothing. */
  validate?(input: unknown): string | undefined;
}

export interface ValueOperation extends Described {
  type: "query" | "mutation";
  handler(input: any, context: Context): unknown;
}

export interface StreamOperation extends Described {
  type: "subscription";
  handler(input: any, context: Context): AsyncIterable<unknown> | Iterable<unknown>;
}

export type Operation = ValueOperation | StreamOperation;

/** Return the description of an operation for a hub. */
export function describe(operation: Operation): Record<string, unknown> {
  const { id, type, title, description, tags, version, inputSchema, outputSchema, access } = operation;
  const { requiredScopes: required_scopes = [], requiredScopesAny: required_scopes_any = [], resources = [] } = access ?? {};
  const rules = access && { public: access.public ?? false, required_scopes, required_scopes_any, resources };
  return given({ id, type, title, description, tags, version, inputSchema, outputSchema, access: rules });
}

/** Return the error of a caller that may not call an operation, or undefined if it may. */
export function accessError(operation: Operation, identity: Identity | undefined): CallError | undefined {
  const { id, access = {} } = operation;
  if (access.public) return undefined;
  if (identity === undefined) return new CallError("UNAUTHENTICATED", `${id} requires an authenticated caller`);
  const scopes = identity.scopes ?? [];
  const holds = (scope: string) => scopes.includes(scope) || scopes.includes("*");
  const missing = (access.requiredScopes ?? []).filter((scope) => !holds(scope));
  if (missing.length > 0) return new CallError("ACCESS_DENIED", `${id}: missing scope ${missing.join(", ")}`);
  const anyOf = access.requiredScopesAny ?? [];
  if (anyOf.length > 0 && !anyOf.some(holds)) {
    return new CallError("ACCESS_DENIED", `${id}: one of these scopes is needed: ${anyOf.join(", ")}`);
  }
  const resources = new Map(Object.entries(identity.resources ?? {}));
  for (const { type, action } of access.resources ?? []) {
    const held = [...(resources.get(type) ?? []), ...(resources.get("*") ?? [])];
    if (!scopes.includes("*") && !held.includes(action) && !held.includes("*")) {
      return new CallError("ACCESS_DENIED", `${id}: '${action}' on '${type}' is needed`);
    }
  }
  return undefined;
}

/** Describe operations: the ids in `input.operations`, by default all. */
export function* described(input: unknown, operations: ReadonlyMap<string, Operation>, only: (each: Operation) => boolean) {
  const wanted = isObject(input) && Array.isArray(input["operations"]) ? new Set(input["operations"]) : undefined;
  for (const operation of operations.values()) {
    if ((wanted === undefined || wanted.has(operation.id)) && only(operation)) yield describe(operation);
  }
}

/** The credits of a producer. */
export class Credits {
  #granted: number;
  #sent = 0;
  #wake: (() => void) | undefined;

  constructor(initial: number | undefined) {
    this.#granted = initial ?? Infinity;
  }

  grant(event: CallCredit): void {
    this.#granted = Math.max(this.#granted, event.total ?? this.#granted + event.n);
    if (this.#sent < this.#granted) this.stop();
  }

  /** Wake the producer, because there are credits or the call has ended. */
  stop(): void {
    this.#wake?.();
    this.#wake = undefined;
  }

  /** Wait until an item may be sent, or until the call has ended. */
  async ready(signal: AbortSignal): Promise<void> {
    while (this.#sent >= this.#granted && !signal.aborted) await new Promise<void>((resolve) => (this.#wake = resolve));
  }

  /** Count an item, and return its number. */
  take(): number {
    return ++this.#sent;
  }
}
