/** A peer of a hub: it calls what others serve, serves operations of its own, and reconnects after a loss. */

import { CallTable, Inbox, type OpenCall, type Reaction } from "./calls.ts";
import { toEnvelope, type ResponseEnvelope } from "./envelope.ts";
import { CallError, knownCode } from "./errors.ts";
import {
  failed, given, HUB, MAX_MESSAGE, type CallEvent, type CallRequested, type InvalidEvent, type RefusedOperation,
} from "./events.ts";
import {
  accessError, Credits, described, type Caller, type CallOptions, type Context, type Items, type Operation, type SubscribeOptions,
} from "./served.ts";
import { later, Session, type Listener, type Timer, type WebSocketClass } from "./session.ts";

export interface ConnectOptions {
  /** Authenticates this peer; a function is called for a new one at every connection. */
  token?: string | (() => string | Promise<string>);
  /** By default the global one; for Node 20 that of the package `ws`. */
  WebSocket?: WebSocketClass;
  /** The name of this peer in listings. */
  name?: string;
  /** The default timeout of calls that are made and served. */
  timeoutMs?: number;
  connectTimeoutMs?: number;
  maxMessage?: number;
  /** Calls that are served at once; others are rejected with RATE_LIMITED. */
  maxCalls?: number;
  /** Called with exceptions of handlers, refused announcements and failed connections. */
  onError?(error: unknown, where: string): void;
  /** Called after a connection was lost, and after it is there again. */
  onLost?(error: CallError): void;
  onConnected?(): void;
}

/** Connect to a hub. Rejects with UNAUTHENTICATED if the token is invalid, and UNAVAILABLE if it cannot be reached. */
export async function connect(url: string, options: ConnectOptions = {}): Promise<Peer> {
  const peer = new Peer(url, options);
  await peer.start();
  return peer;
}

type Sink = Pick<OpenCall, "value" | "end">;
type Timers = { timer: Timer | undefined; progress: Timer | undefined };
type Received = { event: CallRequested; caller: string; session: Session };
/** A call that is being served. */
type Served = Received & Timers & { credits: Credits; stopping: AbortController; over: boolean };

const STEADY_MS = 5_000; // a connection that lasted longer was not refused
const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 2_000;
const FOR_GOOD = [1002, 1003, 1007, 4400]; // close codes after which a reconnection would end in the same way
const REMEMBERED = 10_000; // ended requests, so that none runs twice
const BREATH = 64; // items of a stream after which others run
const PROGRESS_MS = 100;
const ABOUT = "opwire.about";
const OPERATIONS = "opwire.operations";

export class Peer implements Caller {
  readonly url: string;
  /** Resolves when the peer is closed, with the error if that was not by `close`. */
  readonly closed: Promise<CallError | undefined>;
  #options: ConnectOptions;
  #session: Session | undefined;
  #calls = new CallTable();
  #served = new Map<string, Served>();
  #past = new Set<string>();
  #operations = new Map<string, Operation>();
  #contexts = new WeakMap<Context, Served>();
  #isClosed = false;
  #close!: (error?: CallError) => void;
  #pause: Timer | undefined;
  #reconnecting = false;
  #attempt = 0;
  #since = 0;
  #started = Date.now();

  constructor(url: string, options: ConnectOptions) {
    this.url = url;
    this.#options = options;
    this.closed = new Promise((resolve) => (this.#close = resolve));
  }

  async start(): Promise<void> {
    await this.#open().catch((error: CallError) => {
      this.#shut(error);
      throw error;
    });
  }

  /** Whether calls can be made now. */
  get connected(): boolean { return this.#session !== undefined && !this.#session.leaving; }

  /** The address of this peer at the hub; it changes with each connection. */
  get address(): string | undefined { return this.#session?.address; }

  /** Calls that are open: made and served. */
  get openCalls(): number { return this.#calls.size + this.#served.size; }

  /** Disconnect. Calls in flight fail with UNAVAILABLE, and handlers are aborted. */
  close(): void { this.#shut(); }

  #shut(error?: CallError): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    clearTimeout(this.#pause); // its attempt never comes
    const session = this.#session;
    this.#session = undefined;
    this.#drop(error ?? new CallError("UNAVAILABLE", "this peer is closed"));
    session?.end(1000);
    this.#close(error);
  }

  // --- connections ---------------------------------------------------------------------------------------------------

  async #open(): Promise<void> {
    const { token, maxMessage = MAX_MESSAGE, connectTimeoutMs = 10_000 } = this.#options;
    const WebSocket = this.#options.WebSocket ?? (globalThis.WebSocket as unknown as WebSocketClass | undefined);
    if (WebSocket === undefined) {
      throw new CallError("INTERNAL", "there is no global WebSocket: pass that of the package ws as options.WebSocket");
    }
    const current = typeof token === "function" ? await token() : token;
    const options = { WebSocket, token: current, maxMessage, connectTimeoutMs };
    const session = await Session.open(this.url, this.#listener, options);
    if (this.#isClosed || session.ended) {
      session.end(1000);
      throw new CallError("UNAVAILABLE", "the connection ended at once");
    }
    this.#session = session;
    this.#since = Date.now();
    if (this.#operations.size > 0) {
      const refused = await session.announce([...this.#operations.keys()]);
      if (refused.length > 0) this.#report(refusal(refused), "announcing again");
    }
  }

  #listener: Listener = {
    received: (session, event, size) => this.#received(session, event, size),
    invalid: (session, event) => this.#invalid(session, event),
    left: (session, peer, reason) => {
      for (const served of this.#served.values()) {
        if (served.caller === peer && served.session === session) this.#stop(served, reason);
      }
    },
    lost: (session, error) => {
      if (session !== this.#session) return; // it is being opened, and that fails
      this.#session = undefined;
      this.#drop(new CallError("UNAVAILABLE", `${error.message} before the call ended`));
      if (this.#isClosed || this.#reconnecting) return; // the loss fails the announcement of the attempt
      this.#guard("onLost", () => this.#options.onLost?.(error));
      this.#reconnecting = true;
      void this.#reconnect(error).finally(() => (this.#reconnecting = false));
    },
  };

  /** End everything that depends on the connection. */
  #drop(error: CallError): void {
    this.#calls.failAll(error);
    for (const served of [...this.#served.values()]) this.#stop(served, error.message);
  }

  async #reconnect(loss: CallError): Promise<void> {
    let error = loss;
    if (Date.now() - this.#since > STEADY_MS) this.#attempt = 0; // else it was dropped at once, and would be again
    while (!this.#isFinal(error)) {
      const longest = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** Math.min(this.#attempt++, 10));
      await new Promise<void>((resolve) => (this.#pause = later(longest * (0.5 + Math.random() / 2), resolve)));
      try {
        await this.#open();
        this.#guard("onConnected", () => this.#options.onConnected?.());
        return;
      } catch (failure) {
        if (this.#isClosed) return;
        error = failure instanceof CallError ? failure : new CallError("UNAVAILABLE", String(failure));
        this.#session?.end(1000); // unknown what is served
        this.#session = undefined;
        this.#report(error, "reconnecting");
      }
    }
    this.#shut(error);
  }

  #isFinal(error: CallError): boolean {
    const { closeCode } = (error.details ?? {}) as { closeCode?: number };
    const refused = error.code === "UNAUTHENTICATED" || closeCode === 4401;
    return (refused && typeof this.#options.token !== "function") || FOR_GOOD.includes(closeCode ?? 0);
  }

  #ready(): Session {
    if (this.#isClosed) throw new CallError("UNAVAILABLE", "this peer is closed");
    if (this.#session === undefined) throw new CallError("UNAVAILABLE", "the hub is not reachable at the moment");
    return this.#session;
  }

  #report(error: unknown, where: string): void {
    this.#guard("onError", () => this.#options.onError?.(error, where), false);
  }

  /** Run a callback of the application; its exceptions end nothing here. */
  #guard(where: string, callback: () => void, report = true): void {
    try {
      callback();
    } catch (error) {
      if (report) this.#report(error, where);
    }
  }

  // --- calling -------------------------------------------------------------------------------------------------------

  async call<T = unknown>(operationId: string, input: unknown = null, options: CallOptions = {}): Promise<ResponseEnvelope<T>> {
    const timeoutMs = options.timeoutMs ?? this.#options.timeoutMs ?? 30_000;
    return new Promise<ResponseEnvelope<T>>((resolve, reject) => {
      this.#request(operationId, input, { ...options, timeoutMs }, undefined, {
        value: (envelope) => (resolve(envelope as ResponseEnvelope<T>), true),
        end: (error) => error && reject(error),
      });
    });
  }

  async *subscribe<T = unknown>(operationId: string, input: unknown = null, options: SubscribeOptions = {}): Items<T> {
    const window = Math.max(1, Math.trunc(options.credits ?? 64));
    const inbox = new Inbox(window);
    const requestId = this.#request(operationId, input, options, window, {
      value: (envelope, size) => inbox.put(envelope, size),
      end: (error) => inbox.end(error),
    });
    let granted = window;
    let taken = 0;
    try {
      for (;;) {
        const item = await inbox.get();
        if (item === undefined) return;
        yield item as ResponseEnvelope<T>;
        if (++taken * 2 < window) continue;
        granted += taken;
        const state = this.#calls.state(requestId);
        if (state !== undefined) {
          const credit = { type: "call.credit", requestId, n: taken, total: granted, received: state.received } as const;
          this.#trySend(credit, state.peer);
        }
        taken = 0;
      }
    } finally {
      this.#giveUp(requestId, new CallError("ABORTED", "the consumer left"), "the consumer left");
    }
  }

  /** Return the addresses of all peers that serve operations. */
  async servers(): Promise<string[]> {
    const answer = await this.#ready().ask({ type: "session.who" });
    return answer.type === "session.here" ? answer.peers : [];
  }

  #request(operationId: string, input: unknown, options: CallOptions, credits: number | undefined, sink: Sink): string {
    const { timeoutMs, signal, to, stickyKey, traceparent, tracestate, context, onProgress } = options;
    const parent = this.#onBehalfOf(context, operationId);
    if (signal?.aborted) throw new CallError("ABORTED", "the call was aborted before it was sent");
    if (timeoutMs !== undefined && !(timeoutMs > 0)) throw new CallError("TIMEOUT", `${operationId}: no time is left`);
    const session = this.#ready();
    if (session.leaving) throw new CallError("UNAVAILABLE", "the hub is about to leave");
    const requestId = randomId();
    const deadline = timeoutMs === undefined ? undefined : Date.now() + timeoutMs;
    const request: CallRequested = given({
      ...{ type: "call.requested" as const, requestId, operationId, input, parentRequestId: parent, timeoutMs, deadline },
      ...{ credits, stickyKey, traceparent, tracestate, progress: onProgress && true, peer: to },
    });
    session.send(request, true);
    const aborted = () => this.#giveUp(requestId, new CallError("ABORTED", "the call was aborted"), "the caller gave up");
    const late = () =>
      this.#giveUp(requestId, new CallError("TIMEOUT", `${operationId} did not respond in time`), "the deadline has passed");
    const timer = timeoutMs === undefined ? undefined : later(timeoutMs, late);
    signal?.addEventListener("abort", aborted);
    this.#calls.add({
      request,
      streams: credits !== undefined,
      ...sink,
      progress: onProgress && ((...report) => this.#guard("onProgress", () => onProgress(...report))),
      release: () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", aborted);
      },
    });
    return requestId;
  }

  /** Return the request on behalf of whose caller a call is made. Only the connection that delivered it can carry it. */
  #onBehalfOf(context: Context | undefined, operationId: string): string | undefined {
    if (context === undefined) return undefined;
    const served = this.#contexts.get(context);
    if (served !== undefined && !served.over && served.session === this.#session) return served.event.requestId;
    throw new CallError(
      "ACCESS_DENIED",
      `${operationId} is called on behalf of a caller whose request ${
        served === undefined ? "came over another connection" : "has ended"
      }: call over the connection that delivered it, while it is served, or without a context as this peer itself`,
    );
  }

  #giveUp(requestId: string, error: CallError, reason: string): void {
    const call = this.#calls.take(requestId);
    if (call === undefined) return;
    this.#trySend({ type: "call.aborted", requestId, reason }, call.peer);
    call.end(error);
  }

  #trySend(event: CallEvent, to: string | undefined): void {
    try {
      this.#session?.send(to === undefined ? event : { ...event, peer: to }, false);
    } catch {
      // The connection is gone, and the call with it.
    }
  }

  // --- events --------------------------------------------------------------------------------------------------------

  #received(session: Session, event: CallEvent, size: number): void {
    const caller = event.peer ?? HUB;
    const served = this.#served.get(keyOf(caller, event.requestId));
    switch (event.type) {
      case "call.requested":
        return served ? undefined : this.#requested(session, event, caller);
      case "call.credit":
        return served?.credits.grant(event);
      case "call.aborted":
        if (served) return this.#stop(served, event.reason ?? "the caller aborted the call");
    }
    this.#react(event.requestId, this.#calls.arrived(event, size));
  }

  #react(requestId: string, reaction: Reaction): void {
    if (reaction === undefined) return;
    if ("abort" in reaction) return this.#trySend({ type: "call.aborted", requestId, reason: reaction.abort }, reaction.to);
    const { deadline } = reaction.again;
    try {
      const again = deadline === undefined ? reaction.again : { ...reaction.again, timeoutMs: deadline - Date.now() };
      this.#ready().send(again, true);
    } catch (error) {
      this.#calls.take(requestId)?.end(error as CallError);
    }
  }

  #invalid(session: Session, event: InvalidEvent): void {
    this.#report(event, "receiving");
    const { requestId, type, peer = HUB } = event;
    if (requestId === undefined) return;
    const error = new CallError("PROTOCOL_ERROR", `invalid event: ${event.message}`);
    if (type !== "call.requested") this.#react(requestId, this.#calls.invalid(requestId, peer, error.message));
    else if (session === this.#session) this.#trySend(failed(requestId, error), peer);
  }

  // --- serving -------------------------------------------------------------------------------------------------------

  /** Serve operations, now and after every reconnection. Rejects if the hub refuses some; the others are served. */
  async serve(...operations: Operation[]): Promise<void> {
    for (const operation of operations) {
      if (!/^[^.]+\../.test(operation.id) || operation.id.startsWith("opwire.")) {
        throw new CallError("VALIDATION_ERROR", `an operation's id is namespace.name, not ${operation.id}`);
      }
    }
    for (const operation of operations) this.#operations.set(operation.id, operation);
    const refused = await this.#ready().announce(operations.map((each) => each.id));
    for (const each of refused) this.#operations.delete(each.operation);
    if (refused.length > 0) throw refusal(refused);
  }

  /** Stop serving operations. Calls in flight go on. */
  async withdraw(...operationIds: string[]): Promise<void> {
    for (const each of operationIds) this.#operations.delete(each);
    await this.#session?.ask({ type: "session.withdraw", operations: operationIds });
  }

  #requested(session: Session, event: CallRequested, caller: string): void {
    const key = keyOf(caller, event.requestId);
    const state = { over: false, timer: undefined, progress: undefined };
    const [credits, stopping] = [new Credits(event.credits), new AbortController()];
    const served: Served = { event, caller, session, credits, stopping, ...state };
    const used = "the request id was used before: use a new one for each call";
    if (this.#past.has(key)) return this.#fail(served, new CallError("PROTOCOL_ERROR", used));
    const most = this.#options.maxCalls ?? 10_000;
    const full = `${most} calls are already in flight`;
    if (this.#served.size >= most) return this.#fail(served, new CallError("RATE_LIMITED", full));
    this.#served.set(key, served);
    this.#run(served).catch((error: unknown) => this.#fail(served, this.#publicError(error, event.operationId)));
  }

  async #run(served: Served): Promise<void> {
    const { event, stopping } = served;
    const operation = this.#find(served);
    const problem = operation.validate?.(event.input ?? null);
    if (problem !== undefined) throw new CallError("VALIDATION_ERROR", `${operation.id}: ${problem}`);
    const streams = operation.type === "subscription";
    if (!streams && event.credits !== undefined) {
      throw new CallError("VALIDATION_ERROR", `${operation.id} is a ${operation.type}: use call(), not subscribe()`);
    }
    const byClock = event.deadline === undefined ? undefined : event.deadline - Date.now();
    const left = event.timeoutMs ?? byClock ?? (streams ? undefined : (this.#options.timeoutMs ?? 30_000));
    if (left !== undefined) {
      if (left <= 0) throw new CallError("TIMEOUT", "the deadline passed before the call was started");
      const late = new CallError("TIMEOUT", `${operation.id} did not respond before its deadline`);
      served.timer = later(left, () => {
        this.#fail(served, late);
        stopping.abort(late);
      });
    }
    const context = this.#context(served, left);
    if (operation.type === "subscription") return this.#stream(served, operation.handler(event.input ?? null, context));
    const output = toEnvelope(await operation.handler(event.input ?? null, context), operation.id);
    this.#reply(served, { type: "call.responded", requestId: event.requestId, output }, true);
  }

  /** Return the operation of a request that its caller may call. */
  #find({ event, caller }: Served): Operation {
    const { operationId, identity } = event;
    const isHub = caller === HUB;
    const may = (each: Operation) => isHub || accessError(each, identity) === undefined;
    if (operationId === OPERATIONS) {
      const items = (input: unknown) => described(input, this.#operations, may);
      return { id: OPERATIONS, type: "subscription", handler: items };
    }
    if (operationId === ABOUT) return { id: ABOUT, type: "query", handler: () => this.#about() };
    const operation = this.#operations.get(operationId);
    if (operation === undefined) throw new CallError("OPERATION_NOT_FOUND", `Operation not found: ${operationId}`);
    const denied = accessError(operation, identity);
    if (denied !== undefined) throw denied;
    return operation;
  }

  #about(): Record<string, unknown> {
    const { name = "opwire-typescript" } = this.#options;
    const inFlight = this.#served.size;
    return { id: this.address, name, version: "0.1.0", started: this.#started, status: "serving", inFlight };
  }

  #context(served: Served, left: number | undefined): Context {
    const { event, stopping } = served;
    const deadline = left === undefined ? undefined : Date.now() + left;
    const nested = (options: CallOptions = {}): CallOptions => {
      const timeoutMs = Math.min(options.timeoutMs ?? Infinity, (deadline ?? Infinity) - Date.now());
      return { signal: stopping.signal, ...options, context, ...(timeoutMs === Infinity ? {} : { timeoutMs }) };
    };
    const context: Context = {
      ...{ requestId: event.requestId, identity: event.identity, signal: stopping.signal, deadline, request: event },
      progress: (progress, total, message) => this.#progress(served, progress, total, message),
      call: (operationId, input, options) => this.call(operationId, input, nested(options)),
      subscribe: (operationId, input, options) => this.subscribe(operationId, input, nested(options)),
    };
    this.#contexts.set(context, served);
    return context;
  }

  async #stream(served: Served, items: AsyncIterable<unknown> | Iterable<unknown>): Promise<void> {
    const { event, credits, session, stopping } = served;
    const { requestId, operationId } = event;
    const iterator = Symbol.asyncIterator in items ? items[Symbol.asyncIterator]() : items[Symbol.iterator]();
    let seq = 0;
    try {
      for (;;) {
        await credits.ready(stopping.signal);
        if (served.over) return;
        const next = await iterator.next();
        if (served.over) return;
        if (next.done) break;
        seq = credits.take();
        const output = toEnvelope(next.value, operationId);
        if (!this.#reply(served, { type: "call.responded", requestId, output, seq }, false)) return;
        if (seq % BREATH === 0) await session.breathe(stopping.signal);
      }
    } finally {
      await iterator.return?.();
    }
    this.#reply(served, { type: "call.completed", requestId, seq }, true);
  }

  /** Send the progress of a call, at most every 100 ms. */
  #progress(served: Served, progress: number, total?: number, message?: string): void {
    const { event } = served;
    if (!event.progress || served.over || served.progress !== undefined || !Number.isFinite(progress)) return;
    served.progress = later(PROGRESS_MS, () => (served.progress = undefined));
    const report = { progress, total: Number.isFinite(total) ? total : undefined, message: message?.slice(0, 2_000) };
    this.#trySend({ type: "call.progress", requestId: event.requestId, ...given(report) } as CallEvent, served.caller);
  }

  /** Send an event of a call that is served; return false if the call has ended. An event too large fails the call. */
  #reply(served: Served, event: CallEvent, final: boolean): boolean {
    if (served.over) return false;
    try {
      served.session.send({ ...event, peer: served.caller }, true);
    } catch (error) {
      if ((error as CallError).code === "UNAVAILABLE") this.#finish(served);
      else this.#fail(served, error as CallError);
      return false;
    }
    if (final) this.#finish(served);
    return true;
  }

  #fail(served: Served, error: CallError): void {
    if (served.over) return;
    this.#finish(served);
    const event = failed(served.event.requestId, error);
    for (const each of [event, failed(event.requestId, new CallError(error.code, error.message.slice(0, 200)))]) {
      try {
        served.session.send({ ...each, peer: served.caller }, false);
        return;
      } catch {
        // Too large with its details, or the connection is gone.
      }
    }
  }

  #stop(served: Served, reason: string): void {
    this.#finish(served);
    served.stopping.abort(new CallError("ABORTED", reason));
    served.credits.stop();
  }

  #finish(served: Served): void {
    const key = keyOf(served.caller, served.event.requestId);
    served.over = true;
    clearTimeout(served.timer);
    clearTimeout(served.progress);
    if (this.#served.get(key) === served) this.#served.delete(key);
    this.#past.add(key);
    if (this.#past.size > REMEMBERED) for (const oldest of this.#past.keys()) return void this.#past.delete(oldest);
  }

  /** Return what the caller may see of an exception: unknown ones contain secrets. */
  #publicError(error: unknown, operationId: string): CallError {
    if (error instanceof CallError) return error;
    const errorId = randomId();
    this.#report(error, `${operationId}, error ${errorId}`);
    return new CallError("EXECUTION_ERROR", "The operation failed.", { details: { errorId } });
  }
}

/** Return 128 random bits; `crypto.randomUUID` is missing in pages without TLS. */
function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function keyOf(caller: string, requestId: string): string {
  return `${caller}\n${requestId}`;
}

function refusal(refused: RefusedOperation[]): CallError {
  const names = refused.slice(0, 5).map((each) => each.operation).join(", ");
  const more = refused.length > 5 ? ` and ${refused.length - 5} more` : "";
  const [first] = refused as [RefusedOperation];
  const details = { operations: refused.map((each) => each.operation) };
  return new CallError(knownCode(first.code, "UNAVAILABLE"), `refused: ${names}${more} (${first.message})`, { details });
}
