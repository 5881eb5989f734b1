/** The items of one subscription: newest last, at most 1,000, filtered while they arrive. */

import { type ReactNode, useEffect, useMemo, useReducer, useState } from "react";

import { MAX_ITEMS, type Run, type StreamItem } from "../calls";
import { compact } from "../json";
import { useKeys } from "../keys";
import { usePulse } from "../store";
import { ago, bytes, clock, count, line, plural } from "../text";
import { Sparkline } from "../ui/charts";
import { saveText } from "../ui/media";
import { Button, SearchBox } from "../ui/parts";
import { JsonTree } from "../ui/tree";
import { VirtualList } from "../ui/virtual";

export function StreamView({ run }: { run: Run }): ReactNode {
  usePulse(run.pulse);
  useSeconds(run.state === "running");
  const [filter, setFilter] = useState("");
  const [chosen, setChosen] = useState<StreamItem | null>(null);
  run.tick();
  const items = useMemo(() => matching(run.items, filter), [run.items, run.items.length, run.received, filter]);
  const isRunning = run.state === "running";
  const isPaused = run.pausedSince !== null;
  const flip = (): void => (isPaused ? run.resume() : run.pause());
  useKeys({ p: flip });
  return (
    <div className="stream">
      <div className="stream-head">
        {isRunning && <Button icon={isPaused ? "play" : "pause"} pressed={isPaused} onClick={flip}>{isPaused ? "Resume" : "Pause"}</Button>}
        <span className="figure"><strong>{count(run.received)}</strong> {run.received === 1 ? "item" : "items"}</span>
        <span className="figure"><strong>{count(run.rates.at(-2) ?? 0)}</strong>/s</span>
        <Sparkline values={run.rates} label={`Items per second in the last minute, now ${run.rates.at(-2) ?? 0}`} />
        <span className="grow" />
        <SearchBox label="Filter items" value={filter} onChange={setFilter} />
        <Button kind="quiet" onClick={() => run.clear()}>Clear</Button>
        <Button kind="quiet" icon="download" label="Save the items as JSON lines" onClick={() => saveText(run.items.map((each) => compact(each.envelope)).join("\n"), "items.jsonl", "application/x-ndjson")} />
      </div>
      {isPaused && <p className="pressure" role="status">Paused for {ago(run.pausedSince)}: nothing is read, so back-pressure holds the operation back. After a minute the server ends it.</p>}
      {run.discarded > 0 && <p className="muted small">The newest {count(MAX_ITEMS)} items are kept; {plural(run.discarded, "older one was", "older ones were")} let go.</p>}
      {items.length === 0 ? (
        <p className="muted pad">{run.received === 0 ? (isRunning ? "Waiting for the first item…" : "It ended without an item.") : "No item matches."}</p>
      ) : (
        <VirtualList
          className="items"
          label="Items"
          count={items.length}
          rowHeight={26}
          follow={chosen === null}
          row={(index) => {
            const item = items[index]!;
            return (
              <button key={item.number} type="button" role="listitem" className={`row item${item === chosen ? " chosen" : ""}`} onClick={() => setChosen(item === chosen ? null : item)}>
                <span className="muted number">{item.number}</span>
                <span className="muted">{clock(item.time)}</span>
                <code>{line(compact(item.envelope.data), 240)}</code>
                <span className="muted number">{bytes(item.bytes)}</span>
              </button>
            );
          }}
        />
      )}
      {chosen && (
        <div className="chosen-item">
          <div className="run-head"><strong>Item {count(chosen.number)}</strong><span className="grow" /><Button icon="close" kind="quiet" label="Close the item" onClick={() => setChosen(null)} /></div>
          <JsonTree value={chosen.envelope} open={3} />
        </div>
      )}
    </div>
  );
}

function matching(items: StreamItem[], filter: string): StreamItem[] {
  const words = filter.trim().toLowerCase();
  return words === "" ? items : items.filter((each) => compact(each.envelope.data).toLowerCase().includes(words));
}

/** Draw again every second, for rates and ages. */
export function useSeconds(isOn = true): void {
  const [, redraw] = useReducer((value: number) => value + 1, 0);
  useEffect(() => {
    if (!isOn) return;
    const timer = window.setInterval(() => redraw(), 1000);
    return () => window.clearInterval(timer);
  }, [isOn]);
}
