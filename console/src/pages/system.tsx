/** Servers, sources, figures by operation, and the journal of durable tasks. */

import { type ReactNode, useEffect, useMemo, useState } from "react";

import { get, logins, post, type Problem, session } from "../api";
import { figures, SAMPLES, watchProblem } from "../live";
import { go } from "../router";
import { usePulse, useStore } from "../store";
import { ago, count, duration, line, plural, sentence } from "../text";
import type { Journal, OperationFigures, SourceReport, System } from "../types";
import { Histogram, Sparkline } from "../ui/charts";
import { Button, Empty, Notice, OperationId, Outcome } from "../ui/parts";

export function SystemPage(): ReactNode {
  usePulse(figures.pulse);
  const login = useStore(logins);
  const missing = useStore(watchProblem);
  const [system, setSystem] = useState<System | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const load = (): Promise<void> =>
    get<System>("system").then(
      (found) => {
        setSystem(found);
        setProblem(null);
      },
      (error: Problem) => setProblem(error),
    );
  useEffect(() => {
    void load();
    const timer = window.setInterval(() => document.visibilityState === "visible" && void load(), 3000);
    return () => window.clearInterval(timer);
  }, [login]);
  if (problem?.status === 403) return <Empty icon="system" title="The figures are closed to you">Seeing them needs the scope <code>opwire:observe</code>.</Empty>;
  if (!system) return problem ? <Notice tone="bad">{line(problem.message)}</Notice> : <p className="loading muted">Loading…</p>;
  return (
    <div className="page system">
      <header className="page-head"><h1>System</h1>{problem && <span className="muted">Not current: {line(problem.message)}</span>}</header>
      {missing && <Notice tone="bad">{sentence(missing)}</Notice>}
      <Servers system={system} />
      <Sources sources={system.sources} />
      <Operations operations={system.operations} />
      {system.journal && <JournalTable journal={system.journal} onChange={load} />}
    </div>
  );
}

const MAX_SERVERS = 12;

function Servers({ system }: { system: System }): ReactNode {
  const [isAll, setAll] = useState(false);
  const latest = figures.latest;
  // Those with a problem first, behind a hub itself: 50 spokes would hide them, and what follows.
  const order = (each: System["servers"][number]): number => (each.kind !== "spoke" ? 0 : each.status !== "serving" ? 1 : 2);
  const servers = [...system.servers].sort((a, b) => order(a) - order(b)).slice(0, isAll ? undefined : MAX_SERVERS);
  return (
    <section aria-label="Servers">
      <h2>Servers</h2>
      {system.servers.length === 0 && <p className="muted">No figures were received yet.</p>}
      <div className="cards">
        {servers.map((each) => {
          const isThis = latest !== null && each.id === latest.id;
          const series = isThis ? figures.server : null;
          const isGone = each.status === "gone";
          return (
            <article key={each.id} className="card">
              <header>
                <span className={`dot ${isGone ? "bad" : each.status === "serving" ? "good" : "warn"}`} aria-hidden="true" />
                <strong>{line(each.name, 60)}</strong>
                <span className="muted">{line(each.kind, 20)}</span>
                <span className="grow" />
                <span className="muted">{line(each.version, 30)}</span>
              </header>
              <dl>
                <div><dt>State</dt><dd>{line(each.status, 20)}</dd></div>
                <div><dt>Calls</dt><dd>{count(each.calls)}</dd></div>
                <div><dt>Errors</dt><dd className={each.errors > 0 ? "bad-text" : ""}>{count(each.errors)}</dd></div>
                {each.inFlight !== undefined && <div><dt>In flight</dt><dd>{count(each.inFlight)}</dd></div>}
                {each.spokes != null && <div><dt>Spokes</dt><dd>{count(each.spokes)}</dd></div>}
                {each.operations !== undefined && <div><dt>Operations</dt><dd>{count(each.operations)}</dd></div>}
                {each.lastSeen != null && <div><dt>Last seen</dt><dd>{ago(each.lastSeen)}</dd></div>}
                {each.started !== undefined && <div><dt>Up</dt><dd>{ago(each.started)}</dd></div>}
              </dl>
              {series && series.length > 1 && (
                <div className="card-chart">
                  <Sparkline values={series} slots={SAMPLES} width={200} height={32} label="Calls per second in the last three minutes" />
                  <span className="figure"><strong>{(series.at(-1) ?? 0).toFixed(1)}</strong>/s</span>
                </div>
              )}
            </article>
          );
        })}
      </div>
      {system.servers.length > servers.length && <Button kind="quiet" onClick={() => setAll(true)}>Show all {count(system.servers.length)} servers</Button>}
    </section>
  );
}

function Sources({ sources }: { sources: SourceReport[] }): ReactNode {
  if (sources.length === 0) return null;
  return (
    <section aria-label="Sources">
      <h2>Sources</h2>
      <ul className="sources">
        {sources.map((each) => {
          const skipped = each.skipped ?? [];
          return (
            <li key={each.name}>
              <div className="source-row">
                <span className={`dot ${each.error || each.state === "failed" ? "bad" : each.state === "loaded" ? "good" : "warn"}`} aria-hidden="true" />
                <strong>{line(each.name, 60)}</strong>
                <span className="muted">{line(each.kind, 30)}</span>
                <span>{line(each.state, 30)}</span>
                <span className="muted">{plural(each.operations ?? 0, "operation")}</span>
                {skipped.length > 0 && <span className="warn-text">{count(skipped.length)} skipped</span>}
              </div>
              {(each.warnings ?? []).slice(0, 20).map((text, index) => <p key={index} className="warn-text">{line(text, 500)}</p>)}
              {each.error && <Notice tone="bad">{line(each.error, 500)}</Notice>}
              {skipped.length > 0 && (
                <details>
                  <summary>What was skipped, and why</summary>
                  <table className="data">
                    <thead><tr><th scope="col">What</th><th scope="col">Why</th></tr></thead>
                    <tbody>{skipped.slice(0, 200).map((entry, index) => <tr key={index}><td><code>{line(`${entry.kind} ${entry.name}`, 200)}</code></td><td className="wrap">{line(entry.reason, 500)}</td></tr>)}</tbody>
                  </table>
                  {skipped.length > 200 && <p className="muted">and {count(skipped.length - 200)} more</p>}
                </details>
              )}
            </li>
          );
        })}
      </ul>
    </section>
  );
}

type Order = "calls" | "errors" | "p50" | "p95" | "p99";

function Operations({ operations }: { operations: OperationFigures[] }): ReactNode {
  const [order, setOrder] = useState<Order>("calls");
  const rows = useMemo(() => [...operations].sort((a, b) => (b[order] ?? 0) - (a[order] ?? 0)).slice(0, 100), [operations, order]);
  const heads: [Order, string][] = [["calls", "Calls"], ["errors", "Errors"], ["p50", "p50"], ["p95", "p95"], ["p99", "p99"]];
  const codes = useMemo(() => {
    const found = new Map<string, number>();
    for (const each of operations) for (const [code, amount] of Object.entries(each.byCode ?? {})) found.set(code, (found.get(code) ?? 0) + amount);
    return [...found].filter(([code]) => code !== "OK").sort((a, b) => b[1] - a[1]);
  }, [operations]);
  if (operations.length === 0) return <section aria-label="Operations"><h2>Operations</h2><p className="muted">No calls were seen yet.</p></section>;
  return (
    <section aria-label="Operations">
      <h2>Operations</h2>
      {codes.length > 0 && <p className="codes"><span className="muted">Errors by code</span>{codes.slice(0, 20).map(([code, amount]) => <span key={code}><Outcome code={code} /> {count(amount)}</span>)}</p>}
      <div className="table-scroll" tabIndex={0} role="region" aria-label="Figures by operation">
        <table className="data figures">
          <thead>
            <tr>
              <th scope="col">Operation</th>
              <th scope="col">Calls per second</th>
              {heads.map(([id, name]) => (
                <th key={id} scope="col" className="number" aria-sort={order === id ? "descending" : "none"}><button type="button" onClick={() => setOrder(id)}>{name}</button></th>
              ))}
              <th scope="col" title="On a logarithmic scale">0.05 ms … 1 min</th>
              <th scope="col">Errors by code</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((each) => (
              <tr key={each.id}>
                <td><button type="button" className="link" onClick={() => go("operations", each.id, "try")}><OperationId id={each.id} /></button></td>
                <td><Sparkline values={figures.operations.get(each.id) ?? []} slots={SAMPLES} width={110} height={20} label={`Calls per second of ${line(each.id, 60)}`} /></td>
                <td className="number">{count(each.calls)}</td>
                <td className={`number${each.errors > 0 ? " bad-text" : ""}`}>{count(each.errors)}</td>
                <td className="number">{duration(each.p50)}</td>
                <td className="number">{duration(each.p95)}</td>
                <td className="number">{duration(each.p99)}</td>
                <td><Histogram buckets={(each.histogram ?? []).slice(0, 200)} label={`Latencies of ${line(each.id, 60)}: p50 ${duration(each.p50)}, p99 ${duration(each.p99)}`} /></td>
                <td className="wrap">{Object.entries(each.byCode ?? {}).filter(([code, amount]) => code !== "OK" && amount > 0).slice(0, 4).map(([code, amount]) => <span key={code} className="code-count">{line(code, 30)} {count(amount)} </span>)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {operations.length > rows.length && <p className="muted">The first {rows.length} of {count(operations.length)}.</p>}
    </section>
  );
}

function JournalTable({ journal, onChange }: { journal: Journal; onChange: () => Promise<void> }): ReactNode {
  const mayRun = useStore(session)?.mayRunJournal === true;
  const [problem, setProblem] = useState<string | null>(null);
  const act = async (id: string, action: "retry" | "discard"): Promise<void> => {
    try {
      await post(`journal/${encodeURIComponent(id)}`, { action });
      setProblem(null);
      await onChange();
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  return (
    <section aria-label="Journal">
      <h2>Journal <span className="muted">{line(journal.name, 60)}</span></h2>
      {journal.error && <Notice tone="bad">{line(journal.error)}</Notice>}
      {journal.operations.length > 0 && (
        <ul className="queues">
          {journal.operations.slice(0, 100).map((each) => (
            <li key={each.id}><OperationId id={each.id} /> <span className="muted">{count(each.waiting)} waiting, {count(each.claimed)} running, {count(each.buried)} buried</span></li>
          ))}
        </ul>
      )}
      {problem && <Notice tone="bad">{line(problem)}</Notice>}
      {journal.tasks.length === 0 ? (
        <p className="muted">No task waits, runs or is buried.</p>
      ) : (
        <div className="table-scroll" tabIndex={0} role="region" aria-label="Durable tasks">
          <table className="data">
            <thead><tr><th scope="col">Task</th><th scope="col">Operation</th><th scope="col">State</th><th scope="col" className="number">Attempts</th><th scope="col">Last error</th><th scope="col">Since</th><th scope="col"><span className="sr">Actions</span></th></tr></thead>
            <tbody>
              {journal.tasks.slice(0, 200).map((task) => (
                <tr key={task.id}>
                  <td><code>{line(task.id, 40)}</code></td>
                  <td><OperationId id={task.operationId} /></td>
                  <td className={task.state === "buried" ? "bad-text" : ""}>{line(task.state, 30)}</td>
                  <td className="number">{count(task.attempts)}</td>
                  <td className="wrap">{task.lastError && <><Outcome code={task.lastError.code} /> {line(task.lastError.message, 200)}</>}</td>
                  <td className="muted">{task.since ? `${ago(task.since)} ago` : ""}</td>
                  <td className="actions">{mayRun && task.state === "buried" && <>
                    <Button icon="retry" onClick={() => void act(task.id, "retry")}>Retry</Button>
                    <Button icon="trash" kind="quiet" onClick={() => void act(task.id, "discard")}>Discard</Button>
                  </>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {journal.more && <p className="muted">There are more: these are the oldest.</p>}
    </section>
  );
}
