/** The calling side: the calls that are open, and the buffer of a subscription. */

import type { ResponseEnvelope } from "./envelope.ts";
import { CallError } from "./errors.ts";
import { errorOf, HUB, type CallEvent, type CallRequested, type CallResponded } from "./events.ts";

const MAX_EXCESS = 4 * 1024 * 1024; // characters beyond the window, of a producer that ignores credits
const ITEM = 512; // of overhead for each of these
const MOVES = 4; // retries of a request that was not started

/** An open call. `value` returns false if the consumer cannot take more. */
export interface OpenCall {
  request: CallRequested;
  streams: boolean;
  value(envelope: ResponseEnvelope, size: number): boolean;
  end(error?: CallError): void;
  progress: ((progress: number, total?: number, message?: string) => void) | undefined;
  /** Stop its timer, and do not listen to its signal. */
  release(): void;
}

interface Entry extends OpenCall {
  peer: string | undefined;
  answered: boolean;
  movesLeft: number;
  lastSeq: number;
}

type Finish = (error?: CallError, abort?: string) => Reaction;
/** What to do after an event: stop the server, or send the request again. */
export type Reaction = { abort: string; to: string } | { again: CallRequested } | undefined;

/** The open calls. An entry leaves the table in the step that decides its outcome. No I/O. */
export class CallTable {
  #open = new Map<string, Entry>();

  get size(): number { return this.#open.size; }

  add(call: OpenCall): void {
    const peer = call.request.peer;
    const movesLeft = peer === undefined ? MOVES : 0;
    this.#open.set(call.request.requestId, { ...call, peer, answered: false, movesLeft, lastSeq: 0 });
  }

  /** Remove a call; return it with its server, if that is known. */
  take(requestId: string): (OpenCall & { peer: string | undefined }) | undefined {
    const entry = this.#open.get(requestId);
    this.#open.delete(requestId);
    entry?.release();
    return entry;
  }

  /** Fail every call. */
  failAll(error: CallError): void {
    for (const requestId of [...this.#open.keys()]) this.take(requestId)?.end(error);
  }

  /** Return the server of a subscription, and the number of its last item. */
  state(requestId: string): { peer: string | undefined; received: number } | undefined {
    const entry = this.#open.get(requestId);
    return entry && { peer: entry.peer, received: entry.lastSeq };
  }

  /** Fail the call of an invalid event, if its sender may answer. */
  invalid(requestId: string, sender: string, message: string): Reaction {
    const entry = this.#open.get(requestId);
    if (entry === undefined || (entry.peer !== undefined && entry.peer !== sender)) return undefined;
    this.take(requestId)?.end(new CallError("PROTOCOL_ERROR", message));
    return { abort: message, to: sender };
  }

  /** Apply an event of a server. Late, foreign and repeated ones are ignored. */
  arrived(event: CallEvent, size: number): Reaction {
    const sender = event.peer ?? HUB;
    const entry = this.#open.get(event.requestId);
    if (entry === undefined) {
      const item = event.type === "call.responded" && event.seq !== undefined;
      return item ? { abort: "the consumer is gone", to: sender } : undefined;
    }
    if ((event.unmatched && !entry.answered) || (entry.peer !== undefined && entry.peer !== sender)) return undefined;
    if (event.type === "call.progress") {
      entry.progress?.(event.progress, event.total, event.message);
      return undefined;
    }
    entry.peer = sender;
    entry.answered = true;
    const finish: Finish = (error, abort) => {
      this.take(event.requestId)?.end(error);
      return abort === undefined ? undefined : { abort, to: sender };
    };
    switch (event.type) {
      case "call.responded":
        return this.#responded(entry, event, size, finish);
      case "call.completed":
        if (!entry.streams) return finish(new CallError("PROTOCOL_ERROR", "the call was completed without a response"));
        return event.seq === undefined || event.seq === entry.lastSeq ? finish() : finish(lost(entry.lastSeq + 1));
      case "call.error":
        if (event.notStarted && entry.movesLeft > 0 && entry.lastSeq === 0) {
          Object.assign(entry, { movesLeft: entry.movesLeft - 1, peer: undefined, answered: false });
          return { again: entry.request };
        }
        return finish(errorOf(event));
      case "call.aborted":
        return finish(new CallError("ABORTED", event.reason ?? "the server stopped the call"));
      default:
        return undefined;
    }
  }

  #responded(entry: Entry, event: CallResponded, size: number, finish: Finish): Reaction {
    const output = { data: event.output.data ?? null, meta: event.output.meta };
    if (!entry.streams && event.seq !== undefined) {
      const error = new CallError("VALIDATION_ERROR", "this is a subscription: use subscribe(), not call()");
      return finish(error, "a single response was expected");
    }
    if (!entry.streams) {
      entry.value(output, size);
      return finish();
    }
    const seq = event.seq ?? entry.lastSeq + 1;
    if (seq <= entry.lastSeq) return undefined;
    if (seq > entry.lastSeq + 1) return finish(lost(entry.lastSeq + 1), "an item was lost");
    entry.lastSeq = seq;
    if (entry.value(output, size)) return undefined;
    const full = "the consumer is too slow, and the producer ignores credits";
    return finish(new CallError("ABORTED", full), full);
  }
}

function lost(seq: number): CallError {
  return new CallError("UNAVAILABLE", `item ${seq} of the subscription was lost in transit`);
}

/** The buffer of a subscription. */
export class Inbox {
  #window: number;
  #items: ResponseEnvelope[] = [];
  #excess = 0;
  #ended = false;
  #error: CallError | undefined;
  #wake: (() => void) | undefined;

  constructor(window: number) {
    this.#window = window;
  }

  /** Add an item; return false if the buffer is full. */
  put(item: ResponseEnvelope, size: number): boolean {
    if (this.#items.length < this.#window) this.#excess = 0;
    else this.#excess += size + ITEM;
    if (this.#excess > MAX_EXCESS) return false;
    this.#items.push(item);
    this.#wake?.();
    return true;
  }

  end(error?: CallError): void {
    this.#ended = true;
    this.#error = error;
    this.#wake?.();
  }

  /** Return the next item, or undefined at the end. Throws the error of the subscription. */
  async get(): Promise<ResponseEnvelope | undefined> {
    for (;;) {
      const item = this.#items.shift();
      if (item !== undefined) return item;
      if (this.#error !== undefined) throw this.#error;
      if (this.#ended) return undefined;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }
}
