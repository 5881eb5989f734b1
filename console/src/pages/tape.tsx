/** The calls through this server, as they end. The list stands still while it is read or paused; the tape goes on. */

import { type ReactNode, useEffect, useMemo, useRef, useState } from "react";

import { get, Problem, session } from "../api";
import { compact } from "../json";
import { useKeys } from "../keys";
import { MAX_RECORDS, sentFilter, showValues, tape, watchProblem } from "../live";
import { go } from "../router";
import { usePulse, useStore } from "../store";
import { bytes, clock, count, duration, line, plural, sentence } from "../text";
import type { CallRecord } from "../types";
import { saveText } from "../ui/media";
import { Badge, Button, Empty, Notice, OperationId, Outcome, SearchBox, Segments } from "../ui/parts";
import { JsonTree } from "../ui/tree";
import { VirtualList } from "../ui/virtual";
import { useSeconds } from "./stream";

type Shown = "all" | "errors";

/** `operation:`, `caller:`, `outcome:`, `via:` and `server:` select a column; other words are looked for everywhere. */
function matcher(filter: string, shown: Shown): (record: CallRecord) => boolean {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean).slice(0, 8); // as the server does
  const columns: Record<string, (record: CallRecord) => string> = {
    operation: (each) => each.operationId,
    caller: (each) => each.caller ?? "",
    outcome: (each) => each.outcome,
    via: (each) => each.via,
    server: (each) => each.server,
    id: (each) => each.requestId,
  };
  const tests = words.map((word) => {
    const colon = word.indexOf(":");
    const column = colon > 0 ? columns[word.slice(0, colon)] : undefined;
    const wanted = column ? word.slice(colon + 1) : word;
    if (column) return (record: CallRecord) => column(record).toLowerCase().includes(wanted);
    return (record: CallRecord) => `${record.operationId} ${record.caller ?? ""} ${record.outcome} ${record.via} ${record.server} ${record.requestId}`.toLowerCase().includes(wanted);
  });
  return (record) => (shown === "all" || record.outcome !== "OK") && tests.every((test) => test(record));
}

export function TapePage(): ReactNode {
  usePulse(tape.pulse);
  const me = useStore(session);
  const keeps = useStore(showValues);
  const [filter, setFilter] = useState("");
  const [shown, setShown] = useState<Shown>("all");
  const [frozen, setFrozen] = useState<CallRecord[] | null>(null);
  const [chosen, setChosen] = useState<CallRecord | null>(null);
  const source = frozen ?? tape.records;
  const newest = source[source.length - 1];
  const records = useMemo(() => {
    const test = matcher(filter, shown);
    return filter.trim() === "" && shown === "all" ? source : source.filter(test);
  }, [source, newest, source.length, filter, shown]);
  const rate = useRate();
  useSeconds(rate > 0); // it falls without calls, too
  const isSent = useSentFilter(filter);
  const missing = useStore(watchProblem);
  const flip = (): void => setFrozen(frozen === null ? [...tape.records] : null);
  const move = (step: number): void => {
    const at = chosen ? records.indexOf(chosen) : records.length;
    const next = records[Math.max(0, Math.min(records.length - 1, at + step))];
    if (next) {
      if (frozen === null) setFrozen([...tape.records]);
      setChosen(next);
    }
  };
  useKeys({ p: flip, j: () => move(1), k: () => move(-1), Escape: () => setChosen(null) });
  if (me && !me.mayObserve) return <Empty icon="tape" title="The tape is closed to you">Watching calls needs the scope <code>opwire:observe</code>.</Empty>;
  return (
    <div className="page tape">
      <header className="page-head">
        <h1>Tape</h1>
        <Button icon={frozen ? "play" : "pause"} pressed={frozen !== null} onClick={flip}>{frozen ? "Resume" : "Pause"}</Button>
        <span className="figure"><strong>{count(rate)}</strong> {isSent ? "matching calls/s" : "calls/s"}</span>
        <Segments label="Which calls" active={shown} onChange={(value) => setShown(value as Shown)} options={[{ id: "all", name: "All" }, { id: "errors", name: "Errors" }]} />
        {me?.mayShowValues && <Button icon={keeps ? "eye" : "lock"} pressed={keeps} title="Keep inputs and outputs while this page is open; secrets stay hidden" onClick={() => showValues.set(!keeps)}>Values</Button>}
        <span className="grow" />
        <SearchBox label="Filter, such as caller:alice" shortcut value={filter} onChange={setFilter} />
        <Button kind="quiet" onClick={() => { tape.clear(); setFrozen(null); setChosen(null); }}>Clear</Button>
        <Button kind="quiet" icon="download" onClick={() => saveText(records.map(compact).join("\n"), "calls.jsonl", "application/x-ndjson")}>JSON lines</Button>
      </header>
      <div>
        {missing && <Notice tone="bad">{sentence(missing)}</Notice>}
        <p className="muted small" role="status">
        {frozen ? `Paused: ${count(Math.max(0, tape.records.length - frozen.length))} newer calls wait. ` : ""}
        {plural(records.length, "call")} shown of {count(tape.received + tape.dropped)} seen{tape.received > MAX_RECORDS ? `; the newest ${count(MAX_RECORDS)} are kept` : ""}.
        {tape.dropped > 0 ? ` ${plural(tape.dropped, "call was", "calls were")} only counted: there were more than a page can show. Errors come first.` : ""}
        {isSent ? " The server sends only calls that match the filter." : ""}
        </p>
      </div>
      <div className={`tape-split${chosen ? " with-detail" : ""}`}>
        {records.length === 0 ? (
          <Empty icon="tape" title={tape.records.length === 0 ? "No calls yet" : "No call matches"}>Calls appear here when they end. Inputs and outputs are not part of the tape.</Empty>
        ) : (
          <VirtualList
            className="calls"
            role="table"
            label="Calls"
            count={records.length}
            rowHeight={26}
            follow={frozen === null && chosen === null}
            reveal={chosen ? records.indexOf(chosen) : null}
            header={<TapeHead />}
            row={(index) => <TapeRow key={`${records[index]!.requestId}-${records[index]!.time}`} record={records[index]!} isChosen={records[index] === chosen} onChoose={(record) => { if (frozen === null) setFrozen([...tape.records]); setChosen(record === chosen ? null : record); }} />}
          />
        )}
        {chosen && <CallDetail record={chosen} all={source} onClose={() => setChosen(null)} onChoose={setChosen} />}
      </div>
    </div>
  );
}

/** Let the server apply a filter while it sends only a part of the calls; return whether it does. */
function useSentFilter(filter: string): boolean {
  const sent = useStore(sentFilter);
  const wanted = filter.trim().slice(0, 200);
  const isThinned = tape.isThinned();
  useEffect(() => {
    if (sent === wanted || (sent === "" && !isThinned)) return undefined;
    const timer = window.setTimeout(() => sentFilter.set(wanted), 500);
    return () => window.clearTimeout(timer);
  }, [sent, wanted, isThinned]);
  useEffect(() => () => sentFilter.set(""), []);
  return sent !== "";
}

function useRate(): number {
  const samples = useRef<{ at: number; seen: number }[]>([]);
  const now = Date.now();
  const list = samples.current;
  if (list.length === 0 || now - list[list.length - 1]!.at > 100) list.push({ at: now, seen: tape.received + tape.dropped });
  while (list.length > 2 && now - list[0]!.at > 2000) list.shift();
  const first = list[0]!;
  const seconds = (now - first.at) / 1000;
  return seconds < 0.3 ? 0 : Math.round((tape.received + tape.dropped - first.seen) / seconds);
}

const COLUMNS = ["Time", "Operation", "Caller", "Outcome", "Duration", "In", "Out", "Via"];

function TapeHead(): ReactNode {
  return (
    <div className="row call head" role="row">
      {COLUMNS.map((each) => <span key={each} role="columnheader">{each}</span>)}
    </div>
  );
}

function TapeRow({ record, isChosen, onChoose }: { record: CallRecord; isChosen: boolean; onChoose: (record: CallRecord) => void }): ReactNode {
  return (
    <div className={`row call${isChosen ? " chosen" : ""}`} role="row" onClick={() => onChoose(record)}>
      <span role="cell" className="muted">{clock(record.time)}</span>
      <span role="cell">{record.parentRequestId && <span className="nested" title="Called by another call">↳ </span>}<OperationId id={record.operationId} /></span>
      <span role="cell" className="muted">{record.caller ? <bdi>{line(record.caller, 60)}</bdi> : "–"}</span>
      <span role="cell"><Outcome code={record.outcome} /></span>
      <span role="cell" className="number">{duration(record.ms)}</span>
      <span role="cell" className="number muted">{bytes(record.inputBytes)}</span>
      <span role="cell" className="number muted">{record.items !== undefined ? plural(record.items, "item") : bytes(record.outputBytes)}</span>
      <span role="cell" className="muted">{line(record.via, 20)}</span>
    </div>
  );
}

/** The calls of one tree, parents before children, in the order of their start. */
function family(record: CallRecord, all: CallRecord[]): { record: CallRecord; depth: number }[] {
  const byId = new Map(all.map((each) => [each.requestId, each]));
  let root = record;
  for (let steps = 0; root.parentRequestId && byId.has(root.parentRequestId) && steps < 50; steps += 1) root = byId.get(root.parentRequestId)!;
  const children = new Map<string, CallRecord[]>();
  for (const each of all) {
    if (!each.parentRequestId) continue;
    const list = children.get(each.parentRequestId);
    if (list) list.push(each);
    else children.set(each.parentRequestId, [each]);
  }
  const found: { record: CallRecord; depth: number }[] = [];
  const add = (each: CallRecord, depth: number): void => {
    if (found.length >= 200 || depth > 20) return;
    found.push({ record: each, depth });
    for (const child of (children.get(each.requestId) ?? []).sort((a, b) => a.time - a.ms - (b.time - b.ms))) add(child, depth + 1);
  };
  add(root, 0);
  return found;
}

function Waterfall({ record, all, onChoose }: { record: CallRecord; all: CallRecord[]; onChoose: (record: CallRecord) => void }): ReactNode {
  const calls = useMemo(() => family(record, all), [record, all]);
  const start = Math.min(...calls.map((each) => each.record.time - each.record.ms));
  const end = Math.max(...calls.map((each) => each.record.time));
  const span = Math.max(0.01, end - start);
  return (
    <ol className="waterfall" aria-label="Nested calls">
      {calls.map(({ record: each, depth }) => {
        const from = ((each.time - each.ms - start) / span) * 100;
        return (
          <li key={each.requestId} className={each === record ? "chosen" : ""}>
            <button type="button" onClick={() => onChoose(each)}>
              <span className="waterfall-name" style={{ paddingLeft: `${depth * 12}px` }}><OperationId id={each.operationId} /></span>
              <span className="waterfall-track"><span className={`waterfall-bar ${each.outcome === "OK" ? "good" : "bad"}`} style={{ left: `${Math.min(99, Math.max(0, from))}%`, width: `${Math.max(0.8, Math.min(100 - from, (each.ms / span) * 100))}%` }} /></span>
              <span className="number">{duration(each.ms)}</span>
            </button>
          </li>
        );
      })}
    </ol>
  );
}

function CallDetail({ record, all, onClose, onChoose }: { record: CallRecord; all: CallRecord[]; onClose: () => void; onChoose: (record: CallRecord) => void }): ReactNode {
  const me = useStore(session);
  const keeps = useStore(showValues);
  const facts: [string, ReactNode][] = [
    ["Request", <code>{line(record.requestId, 80)}</code>],
    ["Ended", clock(record.time)],
    ["Duration", duration(record.ms)],
    ["Caller", record.caller ? line(record.caller, 80) : "anonymous"],
    ["Via", line(record.via, 30)],
    ["Server", <code>{line(record.server, 60)}</code>],
    ["Sizes", `${bytes(record.inputBytes) || "?"} in, ${record.items !== undefined ? plural(record.items, "item") : `${bytes(record.outputBytes) || "?"} out`}`],
  ];
  return (
    <aside className="call-detail" aria-label="Call">
      <div className="run-head">
        <Outcome code={record.outcome} />
        <strong className="ellipsis"><OperationId id={record.operationId} /></strong>
        <span className="grow" />
        <Button kind="quiet" onClick={() => go("operations", record.operationId, "try")}>Try it</Button>
        <Button icon="close" kind="quiet" label="Close the call" onClick={onClose} />
      </div>
      <h3>Waterfall</h3>
      <Waterfall record={record} all={all} onChoose={onChoose} />
      <dl className="facts">{facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
      <h3>Values {!keeps && <Badge>hidden</Badge>}</h3>
      {keeps ? <Values key={record.requestId} id={record.requestId} /> : <p className="muted">{me?.mayShowValues ? "Inputs and outputs are kept of calls that end while “Values” is switched on." : <>Seeing inputs and outputs needs the scope <code>opwire:values</code>, and a console of the server itself.</>}</p>}
    </aside>
  );
}

interface CallValues {
  input: unknown;
  output: unknown;
  error: unknown;
  truncated: boolean;
}

function Values({ id }: { id: string }): ReactNode {
  const [found, setFound] = useState<CallValues | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    get<CallValues>(`calls/${encodeURIComponent(id)}`, stop.signal).then(setFound, (error: Error) => {
      if (!stop.signal.aborted) setProblem(error instanceof Problem && error.status === 404 ? "They are not kept: the call ended before “Values” was switched on, or too long ago." : error.message);
    });
    return () => stop.abort();
  }, [id]);
  if (problem) return <Notice tone="info">{line(problem)}</Notice>;
  if (found) {
    const { truncated, ...values } = found;
    return <>{truncated && <p className="muted">Long values are cut.</p>}<JsonTree value={Object.fromEntries(Object.entries(values).filter(([, each]) => each !== null))} open={3} /></>;
  }
  return <p className="muted">Loading…</p>;
}
