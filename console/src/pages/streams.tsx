/** What runs now: subscriptions, calls that ask, and approvals that wait for a person. */

import { type ReactNode, useState } from "react";

import { post, session } from "../api";
import { forget, type Run, runs } from "../calls";
import { catalogue } from "../catalogue";
import { approvals } from "../live";
import { go, route } from "../router";
import { usePulse, useStore } from "../store";
import { ago, count, line, visible } from "../text";
import type { Approval } from "../types";
import { Sparkline } from "../ui/charts";
import { Button, Empty, OperationId, TypeMark } from "../ui/parts";
import { JsonTree } from "../ui/tree";
import { QuestionBox } from "./question";
import { ProgressBar, RunView } from "./run";
import { useSeconds } from "./stream";

export function StreamsPage(): ReactNode {
  const all = useStore(runs);
  const waiting = useStore(approvals);
  const { operations } = useStore(catalogue);
  const { id } = useStore(route);
  const subscriptions = operations.filter((each) => each.type === "subscription");
  const shown = all.filter((each) => each.type === "subscription" || each.state === "running");
  const chosen = shown.find((each) => String(each.id) === id) ?? shown[0] ?? null;
  const questions = all.flatMap((run) => (run === chosen ? [] : run.questions.map((question) => ({ run, question }))));
  return (
    <div className="page streams">
      <header className="page-head">
        <h1>Streams</h1>
        <span className="muted">{count(shown.filter((each) => each.state === "running").length)} running</span>
        <span className="grow" />
        {subscriptions.length > 0 && (
          <select aria-label="Start a subscription" value="" onChange={(event) => go("operations", event.target.value, "try")}>
            <option value="" disabled>Start a subscription…</option>
            {subscriptions.slice(0, 500).map((each) => <option key={each.id} value={each.id}>{line(each.id, 100)}</option>)}
          </select>
        )}
      </header>
      {waiting.length + questions.length > 0 && (
        <section aria-label="Waiting for you">
          <h2>Waiting for you</h2>
          <div className="boxes">
            {waiting.map((each) => <ApprovalBox key={each.id} approval={each} />)}
            {questions.map(({ run, question }) => <QuestionBox key={question.questionId} run={run} question={question} named />)}
          </div>
        </section>
      )}
      {shown.length === 0 ? (
        waiting.length === 0 && questions.length === 0 && (
          <Empty icon="streams" title="Nothing runs">
            Subscriptions that you start, calls that ask you something, and calls that wait for an approval appear here.
          </Empty>
        )
      ) : (
        <div className="stream-split">
          <ul className="stream-list" aria-label="Calls of this page">
            {shown.map((run) => <StreamRow key={run.id} run={run} isChosen={run === chosen} />)}
          </ul>
          {chosen && (
            <div className="stream-pane">
              <RunView key={chosen.id} run={chosen} previous={[]} />
            </div>
          )}
        </div>
      )}
    </div>
  );
}

function StreamRow({ run, isChosen }: { run: Run; isChosen: boolean }): ReactNode {
  usePulse(run.pulse);
  useSeconds(run.state === "running");
  run.tick();
  const isRunning = run.state === "running";
  const state = run.pausedSince !== null ? "paused" : run.questions.length > 0 ? "asks" : run.state;
  return (
    <li className={isChosen ? "chosen" : ""}>
      <button type="button" className="stream-row" aria-current={isChosen} onClick={() => go("streams", String(run.id))}>
        <TypeMark type={run.type} />
        <OperationId id={run.operationId} />
        <span className={`state ${state}`}>{state}</span>
        {run.type === "subscription" ? <><span className="figure">{count(run.received)}</span><Sparkline values={run.rates} width={70} height={18} label={`Items per second of ${line(run.operationId, 60)}`} /></> : run.progress && <ProgressBar progress={run.progress} />}
      </button>
      {isRunning ? <Button icon="stop" kind="quiet" label={`Stop ${line(run.operationId, 60)}`} onClick={() => run.cancel()} /> : <Button icon="close" kind="quiet" label={`Remove ${line(run.operationId, 60)}`} onClick={() => forget(run)} />}
    </li>
  );
}

function ApprovalBox({ approval }: { approval: Approval }): ReactNode {
  useSeconds();
  const [reason, setReason] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const decide = async (approve: boolean): Promise<void> => {
    setBusy(true);
    try {
      await post(`approvals/${encodeURIComponent(approval.id)}`, reason.trim() === "" ? { approve } : { approve, reason });
      approvals.update((list) => list.filter((each) => each.id !== approval.id));
    } catch (error) {
      setProblem((error as Error).message);
      setBusy(false);
    }
  };
  const mayApprove = useStore(session)?.mayApprove === true;
  return (
    <article className="approval">
      <header>
        <h3>Approve <OperationId id={approval.operationId} />?</h3>
        <span className="muted">asked by {approval.identity ? <bdi>{line(approval.identity, 60)}</bdi> : "an anonymous caller"} {ago(approval.since)} ago{approval.expires ? `, expires in ${ago(Date.now() - (approval.expires - Date.now()))}` : ""}</span>
      </header>
      {approval.message && <p>{visible(approval.message)}</p>}
      <JsonTree value={approval.input ?? null} open={2} />
      {problem && <p className="field-errors" role="alert">{line(problem)}</p>}
      {mayApprove && <div className="buttons">
        <Button kind="primary" icon="check" disabled={isBusy} onClick={() => void decide(true)}>Approve</Button>
        <Button kind="danger" icon="close" disabled={isBusy} onClick={() => void decide(false)}>Reject</Button>
        <input type="text" aria-label="Reason" placeholder="Reason (optional)" value={reason} onInput={(event) => setReason((event.target as HTMLInputElement).value)} />
      </div>}
    </article>
  );
}
