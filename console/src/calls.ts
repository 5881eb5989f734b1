/** Calls that this page has started. They go on while other pages are shown. */

import { address, Problem, send } from "./api";
import { compact, parseJson } from "./json";
import { serverEvents } from "./sse";
import { Pulse, Store, stored } from "./store";
import type { CallFailure, Envelope, Identity, OperationType, Progress, Question } from "./types";

export const MAX_ITEMS = 1_000;
const MAX_ITEM_BYTES = 16_000_000;
const MAX_RUNS = 50;
/** Browsers open six connections to a server: one is for events, and one has to stay free for everything else. */
const MAX_RUNNING = 4;

export interface StreamItem {
  number: number;
  time: number;
  envelope: Envelope;
  bytes: number;
}

export type RunState = "running" | "done" | "failed" | "cancelled";

export class Run {
  readonly pulse = new Pulse(80);
  readonly startedAt = Date.now();
  state: RunState = "running";
  requestId: string | null = null;
  progress: Progress | null = null;
  questions: Question[] = [];
  envelope: Envelope | null = null;
  bytes: number | null = null;
  download: string | null = null;
  failure: CallFailure | null = null;
  ms: number | null = null;
  items: StreamItem[] = [];
  received = 0;
  discarded = 0;
  pausedSince: number | null = null;
  /** Items of each of the last 60 seconds, the newest last. */
  rates: number[] = new Array<number>(60).fill(0);
  #held = 0;
  #second = Math.floor(Date.now() / 1000);
  #abort = new AbortController();
  #resume: (() => void) | null = null;
  #paused: Promise<void> | undefined;

  constructor(
    readonly id: number,
    readonly operationId: string,
    readonly type: OperationType,
    readonly input: unknown,
    readonly options: { deadlineMs?: number; actAs?: Identity },
  ) {}

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  cancel(): void {
    if (this.state === "running") this.end("cancelled");
    this.#abort.abort();
    this.resume();
  }

  /** Stop reading. The server notices by back-pressure, and stops producing. */
  pause(): void {
    if (this.#paused || this.state !== "running") return;
    this.pausedSince = Date.now();
    this.#paused = new Promise((resolve) => (this.#resume = resolve));
    this.pulse.touch();
  }

  resume(): void {
    this.#resume?.();
    this.#resume = null;
    this.#paused = undefined;
    this.pausedSince = null;
    this.pulse.touch();
  }

  whenReading = (): Promise<void> | undefined => this.#paused;

  end(state: RunState, failure: CallFailure | null = null): void {
    this.state = state;
    this.failure = failure ?? this.failure;
    this.ms ??= Date.now() - this.startedAt;
    this.questions = [];
    this.pulse.touch();
    runs.update((list) => [...list]);
  }

  add(envelope: Envelope): void {
    this.tick();
    const bytes = compact(envelope.data).length;
    this.received += 1;
    this.items.push({ number: this.received, time: Date.now(), envelope, bytes });
    this.#held += bytes;
    this.rates[this.rates.length - 1]! += 1;
    if (this.items.length > MAX_ITEMS * 1.1 || this.#held > MAX_ITEM_BYTES) this.#shorten();
    this.pulse.touch();
  }

  #shorten(): void {
    let keep = Math.min(this.items.length, MAX_ITEMS);
    let held = this.items.slice(-keep).reduce((sum, each) => sum + each.bytes, 0);
    while (keep > 1 && held > MAX_ITEM_BYTES / 2) {
      held -= this.items[this.items.length - keep]!.bytes;
      keep -= 1;
    }
    this.discarded += this.items.length - keep;
    this.items = this.items.slice(-keep);
    this.#held = held;
  }

  clear(): void {
    this.items = [];
    this.#held = 0;
    this.pulse.touch();
  }

  /** Move the rates on to the current second. */
  tick(): void {
    const now = Math.floor(Date.now() / 1000);
    const passed = Math.min(now - this.#second, this.rates.length);
    if (passed <= 0) return;
    this.rates = [...this.rates.slice(passed), ...new Array<number>(passed).fill(0)];
    this.#second = now;
  }
}

export const runs = new Store<Run[]>([]);
let lastId = 0;

export function startRun(
  operationId: string,
  type: OperationType,
  input: unknown,
  options: { deadlineMs?: number; actAs?: Identity } = {},
): Run {
  lastId += 1;
  const run = new Run(lastId, operationId, type, input, options);
  runs.update((list) => {
    const all = [run, ...list];
    // Running calls are never forgotten.
    return all.filter((each, index) => index < MAX_RUNS || each.state === "running");
  });
  const running = runs.value.filter((each) => each.state === "running").length;
  if (running > MAX_RUNNING) {
    const message = `${MAX_RUNNING} calls of this page are running, which is as many as a browser has connections for. Stop one of them first.`;
    run.end("failed", { code: "TOO_MANY_CALLS", message });
  } else void follow(run);
  return run;
}

export function forget(run: Run): void {
  run.cancel();
  runs.update((list) => list.filter((each) => each !== run));
}

async function follow(run: Run): Promise<void> {
  try {
    const { operationId, input } = run;
    const response = await send("call", {
      body: { operationId, input, ...run.options },
      signal: run.signal,
      headers: { Accept: "text/event-stream" },
    });
    if (response.body === null) throw new Error("The answer has no body.");
    for await (const { event, data } of serverEvents(response.body, run.whenReading)) apply(run, event, data);
    if (run.state === "running") {
      run.end("failed", { code: "LOST", message: "The connection was lost before the call ended. It may have run.", retryable: false });
    }
  } catch (error) {
    if (run.state !== "running") return;
    const failure =
      error instanceof Problem
        ? { code: error.code, message: error.message, details: error.details }
        : { code: "LOST", message: `The connection was lost before the call ended: ${(error as Error).message}` };
    run.end("failed", failure);
  } finally {
    remember(run);
  }
}

function apply(run: Run, event: string, data: any): void {
  if (run.state !== "running") return;
  if (event === "started") run.requestId = data.requestId;
  else if (event === "progress") run.progress = data;
  else if (event === "question") {
    run.questions = [...run.questions, data];
    runs.update((list) => [...list]);
  } else if (event === "questionEnded") {
    run.questions = run.questions.filter((each) => each.questionId !== data.questionId);
    runs.update((list) => [...list]);
  } else if (event === "item") run.add(data.envelope);
  else if (event === "result") {
    run.envelope = data.envelope ?? null;
    run.download = data.download ?? null;
    run.bytes = data.bytes ?? null;
  } else if (event === "error") run.failure = data;
  else if (event === "end") {
    run.ms = data.ms ?? null;
    run.end(run.failure ? "failed" : data.outcome === "CANCELLED" ? "cancelled" : "done");
  }
  run.pulse.touch();
}

export async function answer(run: Run, question: Question, action: "accept" | "decline" | "cancel", content?: unknown): Promise<void> {
  await send(`calls/${encodeURIComponent(run.requestId ?? "")}/answers/${encodeURIComponent(question.questionId)}`, {
    body: content === undefined ? { action } : { action, content },
  });
  run.questions = run.questions.filter((each) => each !== question);
  run.pulse.touch();
  runs.update((list) => [...list]);
}

/** The address of a result that is too large to show; only paths of this server count. */
export function downloadAddress(run: Run): string | null {
  if (run.download === null) return null;
  const found = new URL(run.download, address(""));
  return found.origin === location.origin ? found.href : null;
}

export interface Remembered {
  operationId: string;
  input: unknown;
  at: number;
  outcome: string;
  ms: number | null;
}

const MAX_REMEMBERED = 200;
const MAX_REMEMBERED_INPUT = 8_000;
/** What was called before: in this browser only, newest first. */
export const remembered = stored<Remembered[]>("history", []);

const SECRET = /passw(or)?d|passphrase|secret|token|api[-_]?key|authorization|credential/i;

/** What is stored stays readable for everyone who uses this browser: secrets are not. */
function withoutSecrets(key: string, value: unknown): unknown {
  return typeof value === "string" && SECRET.test(key) ? "***" : value;
}

function remember(run: Run): void {
  const text = JSON.stringify(run.input ?? null, withoutSecrets);
  const input = text.length > MAX_REMEMBERED_INPUT ? null : parseJson(text);
  const outcome = run.state === "done" ? (run.envelope?.meta?.isError ? "TOOL_ERROR" : "OK") : run.state === "cancelled" ? "CANCELLED" : (run.failure?.code ?? "ERROR");
  const entry = { operationId: run.operationId, input, at: run.startedAt, outcome, ms: run.ms };
  remembered.update((list) => [entry, ...list].slice(0, MAX_REMEMBERED));
}
