/** The events of calls and sessions. Incoming ones are untrusted: `readEvent` checks every field that is used. */

import { isObject, isResponseEnvelope, type JsonObject, type ResponseEnvelope } from "./envelope.ts";
import { CallError, knownCode } from "./errors.ts";

export const SUBPROTOCOL = "opwire.v1";
export const VERSION = 1;
/** The address of the hub itself. */
export const HUB = "server";
/** The default limit of a message in bytes, and what a hub may add to it. */
export const MAX_MESSAGE = 1_032_192;
export const MARGIN = 4_352;
const MAX_ID = 1_000;

export type Identity = { id: string; scopes?: string[]; resources?: Record<string, string[]> };

/** `peer` is the sender, in what the hub sends, and the receiver, in what a peer sends. */
type OfCall = { requestId: string; peer?: string; unmatched?: boolean };
type Wishes = { deadline?: number; timeoutMs?: number; credits?: number; stickyKey?: string; progress?: boolean };
type Origin = { parentRequestId?: string; identity?: Identity; traceparent?: string; tracestate?: string };
export type CallRequested = OfCall &
  Wishes &
  Origin & { type: "call.requested"; operationId: string; input?: unknown };

/** The response, or item `seq` of a subscription. */
export type CallResponded = OfCall & { type: "call.responded"; output: ResponseEnvelope; seq?: number };
/** The end of a subscription. */
export type CallCompleted = OfCall & { type: "call.completed"; seq?: number };
type Failure = { details?: unknown; retryable?: boolean; retryAfterMs?: number; notStarted?: boolean };
export type CallFailed = OfCall & Failure & { type: "call.error"; code: string; message: string };
/** From the caller: stop the call. From the server: the call was stopped. */
export type CallAborted = OfCall & { type: "call.aborted"; reason?: string };
/** `n` more items may follow, `total` since the start. */
export type CallCredit = OfCall & { type: "call.credit"; n: number; total?: number; received?: number };
export type CallProgress = OfCall & { type: "call.progress"; progress: number; total?: number; message?: string };

type CallAnswer = CallResponded | CallCompleted | CallFailed | CallProgress;
export type CallEvent = CallRequested | CallAnswer | CallAborted | CallCredit;

export type RefusedOperation = { operation: string; code: string; message: string };

/** What a hub sends about the session. */
export type SessionEvent =
  | { type: "session.welcome"; version: number; peer: string; maxMessage: number; heartbeatMs: number }
  | { type: "session.done"; id: number; refused?: RefusedOperation[] }
  | { type: "session.pending"; ids: number[] }
  | { type: "session.refused"; id?: number; code: string; message: string }
  | { type: "session.here"; id: number; peers: string[] }
  | { type: "session.left"; peer?: string; reason?: string }
  | { type: "session.goaway"; reason?: string };

/** What a peer sends about the session. */
export type SessionRequest =
  | { type: "session.announce"; operations: string[]; partial?: boolean }
  | { type: "session.withdraw"; operations: string[] }
  | { type: "session.who" };

type Check = (value: unknown) => boolean;

const text: Check = (value) => typeof value === "string";
const id: Check = (value) => typeof value === "string" && value.length <= MAX_ID;
const finite: Check = (value) => Number.isFinite(value);
const natural: Check = (value) => Number.isInteger(value) && (value as number) >= 0;
const positive: Check = (value) => natural(value) && value !== 0;
const flag: Check = (value) => typeof value === "boolean";
const anything: Check = () => true;
const texts: Check = (value) => Array.isArray(value) && value.every(text);
const naturals: Check = (value) => Array.isArray(value) && value.every(natural);
const identity: Check = (value) =>
  isObject(value) &&
  text(value["id"]) &&
  texts(value["scopes"] ?? []) &&
  isObject(value["resources"] ?? {}) &&
  Object.values(value["resources"] ?? {}).every(texts);
const refused: Check = (value) =>
  Array.isArray(value) &&
  value.every((each) => isObject(each) && text(each["operation"]) && text(each["code"]) && text(each["message"]));

const REQUEST: Record<string, Check> = {
  ...{ input: anything, parentRequestId: text, identity, deadline: finite, timeoutMs: finite, credits: natural },
  ...{ stickyKey: text, traceparent: text, tracestate: text, progress: flag },
};
const FAILURE: Record<string, Check> = { details: anything, retryable: flag, retryAfterMs: finite, notStarted: flag };

/** The fields of each event that a hub may send: required, and optional ones, in which null means absent. */
const FIELDS: ReadonlyMap<string, readonly [Record<string, Check>, Record<string, Check>]> = new Map([
  ["call.requested", [{ operationId: text }, REQUEST]],
  ["call.responded", [{ output: isResponseEnvelope }, { seq: positive }]],
  ["call.completed", [{}, { seq: natural }]],
  ["call.error", [{ code: text, message: text }, FAILURE]],
  ["call.aborted", [{}, { reason: text }]],
  ["call.credit", [{ n: natural }, { total: natural, received: natural }]],
  ["call.progress", [{ progress: finite }, { total: finite, message: text }]],
  ["session.welcome", [{ version: natural, peer: text, maxMessage: positive, heartbeatMs: positive }, {}]],
  ["session.done", [{ id: natural }, { refused }]],
  ["session.pending", [{ ids: naturals }, {}]],
  ["session.refused", [{ code: text, message: text }, { id: natural }]],
  ["session.here", [{ id: natural, peers: texts }, {}]],
  ["session.left", [{}, { peer: text, reason: text }]],
  ["session.goaway", [{}, { reason: text }]],
]);

/** An invalid message. The request that it belongs to is known if `requestId` is. */
export class InvalidEvent extends Error {
  readonly type: string | undefined;
  readonly requestId: string | undefined;
  readonly peer: string | undefined;

  constructor(message: string, value?: JsonObject) {
    super(message);
    const { type, requestId, peer } = value ?? {};
    this.type = typeof type === "string" ? type : undefined;
    this.requestId = id(requestId) ? (requestId as string) : undefined;
    this.peer = typeof peer === "string" ? peer : undefined;
  }
}

/** Parse a message. Throws InvalidEvent. */
export function readEvent(message: string): CallEvent | SessionEvent {
  let value: unknown;
  try {
    value = JSON.parse(message);
  } catch (error) {
    throw new InvalidEvent(`not JSON: ${(error as Error).message}`);
  }
  if (!isObject(value)) throw new InvalidEvent("an event is a JSON object");
  const fields = FIELDS.get(String(value["type"]));
  if (fields === undefined) throw new InvalidEvent(`unknown event ${String(value["type"]).slice(0, 80)}`, value);
  let [required, optional] = fields;
  if (String(value["type"]).startsWith("call.")) {
    required = { requestId: id, ...required };
    optional = { peer: text, unmatched: flag, ...optional };
  }
  const event: JsonObject = { type: value["type"] };
  for (const [name, check] of Object.entries(required)) {
    if (!Object.hasOwn(value, name) || !check(value[name])) throw new InvalidEvent(`invalid or missing ${name}`, value);
    event[name] = value[name];
  }
  for (const [name, check] of Object.entries(optional)) {
    if (!Object.hasOwn(value, name) || value[name] === null) continue;
    if (!check(value[name])) throw new InvalidEvent(`invalid ${name}`, value);
    event[name] = value[name];
  }
  return event as unknown as CallEvent | SessionEvent;
}

type Given<T> = { [K in keyof T]?: Exclude<T[K], undefined> };

/** Return an object without its undefined fields. */
export function given<T extends object>(fields: T): Given<T> & { [K in keyof T as undefined extends T[K] ? never : K]: T[K] } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as never;
}

/** Return the event that reports an error. */
export function failed(requestId: string, error: CallError): CallFailed {
  const { message, details, retryable, retryAfterMs } = error;
  const code = error.foreignCode ?? error.code;
  return given({ type: "call.error", requestId, code, message, details, retryable, retryAfterMs });
}

/** Return the error that an event reports. */
export function errorOf(event: CallFailed): CallError {
  const code = knownCode(event.code, "EXECUTION_ERROR");
  const { message, details, retryable, retryAfterMs } = event;
  const foreignCode = code === event.code ? undefined : event.code;
  return new CallError(code, message, { details, retryable, retryAfterMs, foreignCode });
}
