/** One connection to a hub: from the hello to the end. After a loss, the peer opens another session. */

import { CallError, knownCode } from "./errors.ts";
import {
  InvalidEvent, MARGIN, readEvent, SUBPROTOCOL, VERSION, type CallEvent, type RefusedOperation, type SessionEvent, type SessionRequest,
} from "./events.ts";

/** The part of the WebSocket API that is used: browsers, Node 22, Deno and Bun have it, and `ws` for Node 20. */
export interface WebSocketLike {
  readonly bufferedAmount: number;
  readonly protocol: string;
  send(data: string): void;
  close(code?: number, reason?: string): void;
  addEventListener(type: string, listener: (event: any) => void): void;
}

export type WebSocketClass = new (url: string, protocols?: string | string[]) => WebSocketLike;

/** What a session reports. `size` is the length of a message in characters. */
export interface Listener {
  received(session: Session, event: CallEvent, size: number): void;
  invalid(session: Session, event: InvalidEvent): void;
  left(session: Session, peer: string, reason: string): void;
  lost(session: Session, error: CallError): void;
}

type Limits = { maxMessage: number; connectTimeoutMs: number };
export type SessionOptions = Limits & { WebSocket: WebSocketClass; token: string | undefined };

const PATIENCE_MS = 10_000; // without a sign that the hub is deciding
const MAX_BACKLOG = 16 * 1024 * 1024; // characters that wait to be sent
const LOW_BACKLOG = 1024 * 1024; // above it, subscriptions pause
const MAX_DELAY = 2 ** 31 - 1; // milliseconds of a timer
const MISSED = 3; // heartbeats without any message, after which the hub counts as gone
const CHUNK = 500; // operations in an announcement
const encoder = new TextEncoder();

type Answer = Extract<SessionEvent, { type: "session.done" | "session.here" }>;

type Settling<T> = { resolve(value: T): void; reject(error: CallError): void };
type Asked = Settling<Answer> & { timer: Timer };
export type Timer = ReturnType<typeof setTimeout>;

/** Start a timer; a time beyond the range of timers is its largest. */
export function later(milliseconds: number, callback: () => void): Timer {
  return setTimeout(callback, Math.max(0, Math.min(milliseconds, MAX_DELAY)));
}

export class Session {
  address = "";
  /** The hub accepts no new requests. */
  leaving = false;
  #socket: WebSocketLike;
  #listener: Listener;
  #maxMessage: number;
  #maxReceived: number;
  #welcomed: Settling<Session> | undefined;
  #asked = new Map<number, Asked>();
  #next = 1;
  #ended = false;
  #silent = 0; // heartbeats in a row
  #heartbeat: ReturnType<typeof setInterval> | undefined;

  /** Connect. Rejects with UNAVAILABLE, or with the error of the hub. */
  static async open(url: string, listener: Listener, options: SessionOptions): Promise<Session> {
    let session: Session | undefined;
    let timer: Timer | undefined;
    try {
      return await new Promise<Session>((resolve, reject) => {
        session = new Session(url, listener, options, { resolve, reject });
        const late = new CallError("UNAVAILABLE", `the hub did not answer within ${options.connectTimeoutMs} ms`);
        timer = later(options.connectTimeoutMs, () => reject(late));
      });
    } catch (error) {
      session?.end(1000);
      if (error instanceof CallError) throw error;
      throw new CallError("UNAVAILABLE", `the hub cannot be reached: ${(error as Error).message}`, { cause: error });
    } finally {
      clearTimeout(timer);
    }
  }

  private constructor(url: string, listener: Listener, options: SessionOptions, welcomed: Settling<Session>) {
    this.#listener = listener;
    this.#maxMessage = this.#maxReceived = options.maxMessage;
    this.#welcomed = welcomed;
    const socket = (this.#socket = new options.WebSocket(url, SUBPROTOCOL));
    socket.addEventListener("open", () => {
      if (socket.protocol !== SUBPROTOCOL) return this.#lose(`the server does not speak ${SUBPROTOCOL}`, 1002);
      const { token, maxMessage } = options;
      socket.send(JSON.stringify({ type: "session.hello", version: VERSION, maxMessage, ...(token && { token }) }));
    });
    socket.addEventListener("message", (event: { data: unknown }) => this.#message(event.data));
    socket.addEventListener("error", () => this.#lose("the connection failed", 1006));
    socket.addEventListener("close", (event: { code: number; reason: string }) => {
      const code = Number(event.code);
      this.#lose(`the connection was closed (${code}${event.reason && `: ${event.reason}`})`, code);
    });
  }

  /** Send an event. Throws PAYLOAD_TOO_LARGE, RATE_LIMITED if `bulk` and too much is queued, or UNAVAILABLE. */
  send(event: CallEvent, bulk: boolean): void {
    let message: string;
    try {
      message = JSON.stringify(event);
    } catch (error) {
      throw new CallError("VALIDATION_ERROR", `a value cannot be encoded as JSON: ${(error as Error).message}`);
    }
    const bytes = message.length * 3 <= this.#maxMessage ? 0 : encoder.encode(message).length;
    if (bytes > this.#maxMessage) {
      const size = `the message has ${bytes} bytes, and the limit is ${this.#maxMessage}`;
      throw new CallError("PAYLOAD_TOO_LARGE", size, { details: { bytes, limit: this.#maxMessage } });
    }
    if (bulk && this.#socket.bufferedAmount > MAX_BACKLOG) {
      throw new CallError("RATE_LIMITED", "too much is waiting to be sent");
    }
    this.#write(message);
  }

  get ended(): boolean { return this.#ended; }

  /** Let other tasks run, and wait until little is queued. */
  async breathe(signal: AbortSignal): Promise<void> {
    do await new Promise((resolve) => setTimeout(resolve));
    while (this.#socket.bufferedAmount > LOW_BACKLOG && !this.#ended && !signal.aborted);
  }

  #write(message: string): void {
    if (this.#ended) throw new CallError("UNAVAILABLE", "the connection is gone");
    try {
      this.#socket.send(message);
    } catch (error) {
      throw new CallError("UNAVAILABLE", "the connection is gone", { cause: error });
    }
  }

  /** Send a request about the session, and wait for its answer; longer while the hub is deciding. */
  ask(request: SessionRequest): Promise<Answer> {
    const id = this.#next++;
    return new Promise<Answer>((resolve, reject) => {
      this.#asked.set(id, { resolve, reject, timer: this.#patience(id) });
      try {
        this.#write(JSON.stringify({ ...request, id }));
      } catch (error) {
        this.#take(id)?.reject(error as CallError);
      }
    });
  }

  #patience(id: number): Timer {
    const silent = new CallError("UNAVAILABLE", `the hub did not answer for ${PATIENCE_MS} ms`);
    return later(PATIENCE_MS, () => this.#take(id)?.reject(silent));
  }

  #take(id: number): Asked | undefined {
    const asked = this.#asked.get(id);
    clearTimeout(asked?.timer);
    this.#asked.delete(id);
    return asked;
  }

  /** Announce operations; return those that the hub refuses. */
  async announce(operations: readonly string[]): Promise<RefusedOperation[]> {
    const chunks: string[][] = [];
    for (let start = 0; start < operations.length; start += CHUNK) chunks.push(operations.slice(start, start + CHUNK));
    const answers = await Promise.all(
      chunks.map((chunk) => this.ask({ type: "session.announce", operations: chunk, partial: true })),
    );
    return answers.flatMap((answer) => (answer.type === "session.done" && answer.refused) || []);
  }

  /** End the session; nothing is reported afterwards. */
  end(code: number, reason = "this end is closed"): void {
    if (this.#ended) return;
    this.#ended = true;
    clearInterval(this.#heartbeat);
    const gone = new CallError("UNAVAILABLE", reason);
    for (const id of [...this.#asked.keys()]) this.#take(id)?.reject(gone);
    this.#welcomed?.reject(gone);
    try {
      this.#socket.close(code);
    } catch {
      // The connection was never there.
    }
  }

  #lose(reason: string, closeCode: number): void {
    if (this.#ended) return;
    const before = this.#welcomed;
    const code = closeCode === 4401 ? "UNAUTHENTICATED" : closeCode === 4403 ? "ACCESS_DENIED" : "UNAVAILABLE";
    before?.reject(new CallError(code, reason, { details: { closeCode } }));
    this.end(1000, reason);
    if (!before) this.#listener.lost(this, new CallError("UNAVAILABLE", reason, { details: { closeCode } }));
  }

  #message(data: unknown): void {
    if (this.#ended) return;
    this.#silent = 0;
    if (typeof data !== "string") return this.#lose("the hub sent a binary message", 4400);
    if (data.length > this.#maxReceived + MARGIN) return this.#lose("the hub sent too large a message", 4400);
    let event: CallEvent | SessionEvent;
    try {
      event = readEvent(data);
    } catch (error) {
      return this.#listener.invalid(this, error as InvalidEvent);
    }
    if (event.type.startsWith("session.")) this.#sessionEvent(event as SessionEvent);
    else if (this.#welcomed === undefined) this.#listener.received(this, event as CallEvent, data.length);
  }

  #sessionEvent(event: SessionEvent): void {
    switch (event.type) {
      case "session.welcome": {
        const welcomed = this.#welcomed;
        if (!welcomed) return;
        const { version } = event;
        if (version !== VERSION) return this.#lose(`the hub speaks version ${version} instead of ${VERSION}`, 1002);
        this.address = event.peer;
        this.#maxMessage = Math.min(this.#maxMessage, event.maxMessage);
        this.#heartbeat = setInterval(() => this.#beat(), Math.max(100, Math.min(event.heartbeatMs, MAX_DELAY)));
        this.#welcomed = undefined;
        return welcomed.resolve(this);
      }
      case "session.done":
      case "session.here":
        return this.#take(event.id)?.resolve(event);
      case "session.pending":
        for (const id of event.ids) {
          const asked = this.#asked.get(id);
          if (asked === undefined) continue;
          clearTimeout(asked.timer);
          asked.timer = this.#patience(id);
        }
        return;
      case "session.refused": {
        const error = new CallError(knownCode(event.code, "UNAVAILABLE"), event.message);
        return (event.id ? this.#take(event.id) : this.#welcomed)?.reject(error);
      }
      case "session.left":
        if (event.peer !== undefined) this.#listener.left(this, event.peer, event.reason ?? "the caller is gone");
        return;
      case "session.goaway":
        this.leaving = true;
    }
  }

  /** WebSockets of browsers have no pings: `session.who` is one. */
  #beat(): void {
    if (++this.#silent > MISSED) return this.#lose("nothing was heard of the hub", 1006);
    this.ask({ type: "session.who" }).catch(() => undefined); // the silence is what counts
  }
}
