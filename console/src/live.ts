/** The event stream of the server: calls, figures, approvals, changes. It is opened again whenever it is lost. */

import { address, get, loadSession, logins, Problem, session } from "./api";
import { loadCatalogue } from "./catalogue";
import { Pulse, Store } from "./store";
import type { Approval, CallRecord, OperationFigures, Statistics } from "./types";

export const MAX_RECORDS = 10_000;
const SAMPLES = 90;

export type Connection = "connecting" | "open" | "lost";
export const connection = new Store<Connection>("connecting");
export const lostSince = new Store<number | null>(null);
export const approvals = new Store<Approval[]>([]);

/** The last calls, oldest first. The page draws them when it has time for it. */
export const tape = {
  records: [] as CallRecord[],
  pulse: new Pulse(150),
  received: 0,
  /** Records that the server has dropped, because this page was too slow. */
  dropped: 0,
  clear(): void {
    tape.records = [];
    tape.pulse.touch();
  },
};

/** Figures over time, by server and by operation: calls per second and errors per second. */
export interface Series {
  calls: number[];
  errors: number[];
}

export const figures = {
  latest: null as Statistics | null,
  server: { calls: [], errors: [] } as Series,
  operations: new Map<string, Series>(),
  pulse: new Pulse(200),
};

function record(batch: CallRecord[], dropped: number): void {
  tape.received += batch.length;
  tape.dropped += dropped;
  tape.records.push(...batch);
  // Shortened by a tenth at a time: moving 10,000 records for each batch would cost more than the batch.
  if (tape.records.length > MAX_RECORDS * 1.1) tape.records = tape.records.slice(-MAX_RECORDS);
  tape.pulse.touch();
}

let before: { at: number; statistics: Statistics } | null = null;

function push(series: number[], value: number): void {
  series.push(value);
  if (series.length > SAMPLES) series.shift();
}

function measure(statistics: Statistics): void {
  const at = Date.now();
  const previous = before?.statistics.id === statistics.id ? before : null;
  const seconds = previous ? Math.max(0.1, (at - previous.at) / 1000) : 2;
  const rate = (now: number, then: number | undefined): number => (then === undefined ? 0 : Math.max(0, (now - then) / seconds));
  push(figures.server.calls, rate(statistics.calls, previous?.statistics.calls));
  push(figures.server.errors, rate(statistics.errors, previous?.statistics.errors));
  const then = new Map<string, OperationFigures>((previous?.statistics.perOperation ?? []).map((each) => [each.id, each]));
  for (const each of statistics.perOperation ?? []) {
    let series = figures.operations.get(each.id);
    if (series === undefined) {
      if (figures.operations.size >= 500) figures.operations.delete(figures.operations.keys().next().value as string);
      series = { calls: [], errors: [] };
      figures.operations.set(each.id, series);
    }
    push(series.calls, rate(each.calls, then.get(each.id)?.calls));
    push(series.errors, rate(each.errors, then.get(each.id)?.errors));
  }
  before = { at, statistics };
  figures.latest = statistics;
  figures.pulse.touch();
}

const handlers: Record<string, (data: any) => void> = {
  hello: () => undefined,
  calls: (data: { records: CallRecord[]; dropped: number }) => record(data.records, data.dropped),
  statistics: measure,
  changed: () => void loadCatalogue(),
  approval: (data: Approval) => approvals.update((list) => [...list.filter((each) => each.id !== data.id), data]),
  approvalEnded: (data: { id: string }) => approvals.update((list) => list.filter((each) => each.id !== data.id)),
};

let source: EventSource | null = null;
let timer: number | undefined;
let attempts = 0;

function open(): void {
  window.clearTimeout(timer);
  source?.close();
  if (session.value === null) return;
  const stream = new EventSource(address(session.value.mayShowValues ? "events?values=1" : "events"));
  source = stream;
  stream.onopen = () => {
    const wasLost = connection.value === "lost";
    attempts = 0;
    connection.set("open");
    lostSince.set(null);
    approvals.set([]); // the server sends those that wait once more
    if (wasLost) void loadCatalogue();
  };
  stream.onerror = () => {
    if (stream !== source) return;
    stream.close();
    connection.set("lost");
    lostSince.update((value) => value ?? Date.now());
    attempts += 1;
    timer = window.setTimeout(() => void again(), Math.min(500 * 2 ** attempts, 8_000));
  };
  for (const [name, handle] of Object.entries(handlers)) {
    stream.addEventListener(name, (event) => {
      if (stream === source) handle(JSON.parse((event as MessageEvent<string>).data));
    });
  }
}

/** Ask for the session first: an event stream does not say why it was rejected. */
async function again(): Promise<void> {
  try {
    const found = await get<typeof session.value>("session");
    if (found?.login && found.identity === null && session.value?.identity) {
      await loadSession();
      return; // the login opens the stream
    }
  } catch (error) {
    if (error instanceof Problem && error.status === 401) return;
  }
  open();
}

export function reconnect(): void {
  attempts = 0;
  open();
}

export function startLive(): void {
  open();
  logins.subscribe(open);
  window.addEventListener("online", reconnect);
}
