/** The event stream of the server: calls, figures, approvals, changes. It is opened again whenever it is lost. */

import { address, ENDED, get, loginReason, logins, Problem, session } from "./api";
import { loadCatalogue } from "./catalogue";
import { parseJson } from "./json";
import { Pulse, Store } from "./store";
import type { Approval, CallRecord, Statistics } from "./types";

export const MAX_RECORDS = 10_000;
export const SAMPLES = 90;

export type Connection = "connecting" | "open" | "lost";
export const connection = new Store<Connection>("connecting");
export const lostSince = new Store<number | null>(null);
export const approvals = new Store<Approval[]>([]);
/** Whether the server keeps inputs and outputs for this page. Off until asked for, and again after a reload. */
export const showValues = new Store(false);
/** The filter that the server applies: "" for all calls, of which it sends a part if there are many. */
export const sentFilter = new Store("");
/** What is missing in the calls and figures, and why. */
export const watchProblem = new Store<string | null>(null);

/** The last calls, oldest first. The page draws them when it has time for it. */
export const tape = {
  records: [] as CallRecord[],
  pulse: new Pulse(150),
  received: 0,
  /** Calls without a record: there were more than a page gets, or than it has read. */
  dropped: 0,
  thinned: 0,
  /** Whether calls came without a record in the last seconds. */
  isThinned: () => Date.now() - tape.thinned < 5_000,
  clear(): void {
    tape.records = [];
    tape.pulse.touch();
  },
};

export const figures = {
  latest: null as Statistics | null,
  /** Calls per second, one sample each 2 s: of the server, and of its busiest operations. */
  server: [] as number[],
  operations: new Map<string, number[]>(),
  pulse: new Pulse(200),
};

function record(batch: CallRecord[], dropped: number): void {
  tape.received += batch.length;
  tape.dropped += dropped;
  if (dropped > 0) tape.thinned = Date.now();
  tape.records.push(...batch);
  // Shortened by a tenth at a time: moving 10,000 records for each batch would cost more than the batch.
  if (tape.records.length > MAX_RECORDS * 1.1) tape.records = tape.records.slice(-MAX_RECORDS);
  tape.pulse.touch();
}

let before: Statistics | null = null;

function push(series: number[], value: number): void {
  series.push(value);
  if (series.length > SAMPLES) series.shift();
}

/** Add the rates since the previous figures of the same server. Those of a server elsewhere may come twice. */
function measure(statistics: Statistics): void {
  const previous = before?.id === statistics.id ? before : null;
  if (previous?.measured === statistics.measured) return;
  const seconds = previous ? Math.max(0.1, (statistics.measured - previous.measured) / 1000) : 2;
  const rate = (now: number, then: number | undefined): number => (then === undefined ? 0 : Math.max(0, (now - then) / seconds));
  if (previous) push(figures.server, rate(statistics.calls, previous.calls));
  const then = new Map((previous?.busiest ?? []).map((each) => [each.id, each]));
  for (const each of statistics.busiest ?? []) {
    let series = figures.operations.get(each.id);
    if (series === undefined) {
      if (figures.operations.size >= 500) figures.operations.delete(figures.operations.keys().next().value as string);
      series = [];
      figures.operations.set(each.id, series);
    }
    if (previous) push(series, rate(each.calls, then.get(each.id)?.calls));
  }
  before = statistics;
  figures.latest = statistics;
  figures.pulse.touch();
}

const handlers: Record<string, (data: any) => void> = {
  hello: () => undefined,
  calls: (data: { records: CallRecord[]; dropped: number }) => record(data.records, data.dropped),
  statistics: measure,
  problem: (data: { message: string | null }) => watchProblem.set(data.message),
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
  if (connection.value === "open") connection.set("connecting");
  const query = new URLSearchParams();
  if (showValues.value) query.set("values", "1");
  if (sentFilter.value !== "") query.set("filter", sentFilter.value);
  const stream = new EventSource(address(`events?${query.toString()}`));
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
      if (stream === source) handle(parseJson((event as MessageEvent<string>).data));
    });
  }
}

/** Ask for the session first: an event stream does not say why it was rejected. */
async function again(): Promise<void> {
  try {
    const found = await get<typeof session.value>("session");
    if (found?.identity === null && session.value?.identity) {
      loginReason.set(ENDED);
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
  showValues.subscribe(reconnect);
  sentFilter.subscribe(reconnect);
  window.addEventListener("online", reconnect);
}
