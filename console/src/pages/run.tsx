/** One call of this page: its progress, its questions, and what came out of it. */

import { type ReactNode, useMemo, useState } from "react";

import { downloadAddress, type Run } from "../calls";
import { differences } from "../diff";
import { compact, isObject, pretty } from "../json";
import { usePulse } from "../store";
import { bytes, count, duration, line, textOf, visible } from "../text";
import type { Envelope, Progress, Schema } from "../types";
import { Editor } from "../ui/lazy";
import { MediaView, mediaOf, saveAs, saveText } from "../ui/media";
import { Badge, Button, CopyButton, Notice, Outcome, Tabs } from "../ui/parts";
import { DataTable, tableRows } from "../ui/table";
import { JsonTree } from "../ui/tree";
import { problemsOf } from "../form/validator";
import { QuestionBox } from "./question";
import { StreamView } from "./stream";

/** Larger results are not validated here: it would take a second, and the server has done it. */
const MAX_CHECKED = 500_000;

export function RunView({ run, previous, outputSchema }: { run: Run; previous: Run[]; outputSchema?: Schema | null }): ReactNode {
  usePulse(run.pulse);
  return (
    <section className="run" aria-label="Result">
      <RunHead run={run} />
      {run.progress && run.state === "running" && <ProgressBar progress={run.progress} />}
      {run.questions.map((question) => <QuestionBox key={question.questionId} run={run} question={question} />)}
      {run.failure && <Failure run={run} />}
      {run.state === "cancelled" && <Notice tone="info">Cancelled. The operation may have done a part of its work.</Notice>}
      {run.type === "subscription" && <StreamView run={run} />}
      {run.download !== null && <TooLarge run={run} />}
      {run.envelope && <ResultView run={run} envelope={run.envelope} previous={previous} outputSchema={outputSchema ?? null} />}
    </section>
  );
}

function RunHead({ run }: { run: Run }): ReactNode {
  const isToolError = run.envelope?.meta.isError === true;
  const meta = run.envelope?.meta;
  return (
    <div className="run-head" role="status">
      {run.state === "running" ? <span className="outcome dim"><span className="spinner" aria-hidden="true" /> {run.questions.length > 0 ? "waiting for an answer" : "running"}</span> : <Outcome code={run.state === "done" ? (isToolError ? "TOOL_ERROR" : "OK") : run.state === "cancelled" ? "CANCELLED" : (run.failure?.code ?? "ERROR")} />}
      {run.ms !== null && <span>{duration(run.ms)}</span>}
      {run.bytes !== null && <span>{bytes(run.bytes)}</span>}
      {meta?.source === "http" && <Badge tone={meta.statusCode < 400 ? "good" : "bad"}>HTTP {textOf(meta.statusCode)}</Badge>}
      {meta && <Badge title="Where the result comes from">{line(meta.source, 20)}</Badge>}
      {run.options.actAs && <Badge tone="warn">as {line(run.options.actAs.id, 40)}</Badge>}
      <span className="grow" />
      {run.requestId && <code className="muted request-id" title="Request id">{line(run.requestId, 40)}</code>}
    </div>
  );
}

export function ProgressBar({ progress }: { progress: Progress }): ReactNode {
  const { total, message } = progress;
  const share = total ? Math.min(1, progress.progress / total) : null;
  return (
    <div className="progress">
      <progress value={share ?? undefined} max={1} aria-label="Progress" />
      <span className="muted">{share === null ? count(progress.progress) : `${Math.round(share * 100)} %`}{message ? ` · ${line(message)}` : ""}</span>
    </div>
  );
}

function Failure({ run }: { run: Run }): ReactNode {
  const failure = run.failure!;
  const wait = failure.retryAfterMs;
  return (
    <div className="failure" role="alert">
      <p><strong>{line(failure.code, 60)}</strong> <span>{visible(failure.message)}</span></p>
      {failure.retryable && <p className="muted">{wait ? `Try again in ${duration(wait)}.` : "Trying again may help."}</p>}
      {failure.details !== undefined && failure.details !== null && <JsonTree value={failure.details} open={3} />}
    </div>
  );
}

function TooLarge({ run }: { run: Run }): ReactNode {
  const target = downloadAddress(run);
  return (
    <Notice tone="info" action={target && <Button icon="download" onClick={() => saveAs(target, `${run.operationId.replace(/[^\w.-]/g, "_")}.json`)}>Save</Button>}>
      The result has {bytes(run.bytes)}: too much to show here. It can be saved for one minute.
    </Notice>
  );
}

function ResultView({ run, envelope, previous, outputSchema }: { run: Run; envelope: Envelope; previous: Run[]; outputSchema: Schema | null }): ReactNode {
  const rows = useMemo(() => tableRows(envelope.data), [envelope]);
  const media = useMemo(() => mediaOf(envelope), [envelope]);
  const before = previous.find((each) => each.envelope !== null)?.envelope ?? null;
  const problems = useMemo(() => (outputSchema && envelope.meta.isError !== true && (run.bytes ?? 0) < MAX_CHECKED ? problemsOf(outputSchema, envelope.data) : []), [envelope, outputSchema]);
  const hasRich = media.some((each) => each.text === undefined) || (media.length > 0 && !isObject(envelope.data));
  const tabs = [
    ...(hasRich ? [{ id: "content", name: "Content" }] : []),
    { id: "tree", name: "Result" },
    ...(rows ? [{ id: "table", name: `Table (${count(rows.length)})` }] : []),
    { id: "raw", name: "Envelope" },
    { id: "meta", name: "Meta" },
    ...(before ? [{ id: "diff", name: "Diff" }] : []),
  ];
  const [active, setActive] = useState(tabs[0]!.id);
  return (
    <div className="result">
      <div className="result-head">
        <Tabs label="Views of the result" tabs={tabs} active={active} onChange={setActive} />
        <CopyButton text={() => pretty(envelope.data)} label="Copy the result" />
        <Button icon="download" kind="quiet" label="Save the result" onClick={() => saveText(pretty(envelope.data), `${run.operationId.replace(/[^\w.-]/g, "_")}.json`)} />
      </div>
      {problems.length > 0 && <Notice tone="warn">The result does not match its schema: {line(problems[0]!.path || "/")}: {line(problems[0]!.message)}{problems.length > 1 ? `, and ${problems.length - 1} more` : ""}</Notice>}
      <div className="result-body" role="tabpanel" aria-label={active}>
        {active === "content" && media.map((each, index) => <MediaView key={index} media={each} />)}
        {active === "tree" && <JsonTree value={envelope.data ?? null} />}
        {active === "table" && rows && <DataTable rows={rows} />}
        {active === "raw" && <div className="raw"><Editor label="Envelope as JSON" value={pretty(envelope)} /></div>}
        {active === "meta" && <Meta meta={envelope.meta} />}
        {active === "diff" && before && <Diff before={before.data ?? null} after={envelope.data ?? null} />}
      </div>
    </div>
  );
}

function Meta({ meta }: { meta: Envelope["meta"] }): ReactNode {
  const { headers, ...rest } = meta;
  return (
    <>
      <JsonTree value={rest} open={2} />
      {isObject(headers) && (
        <table className="data headers">
          <thead><tr><th scope="col">Header</th><th scope="col">Value</th></tr></thead>
          <tbody>{Object.entries(headers).slice(0, 200).map(([name, value]) => <tr key={name}><td>{line(name, 80)}</td><td>{line(value, 500)}</td></tr>)}</tbody>
        </table>
      )}
    </>
  );
}

function Diff({ before, after }: { before: unknown; after: unknown }): ReactNode {
  const { found, isComplete } = useMemo(() => differences(before, after), [before, after]);
  if (found.length === 0) return <p className="muted pad">The same as the previous result.</p>;
  return (
    <div className="table-scroll" tabIndex={0} role="region" aria-label="Differences from the previous result">
      <table className="data diff">
        <thead><tr><th scope="col">Path</th><th scope="col">Before</th><th scope="col">Now</th></tr></thead>
        <tbody>
          {found.map((each) => (
            <tr key={each.path} className={each.kind}>
              <td><code>{line(each.path, 200)}</code></td>
              <td>{each.kind !== "added" && <del>{line(compact(each.before), 300)}</del>}</td>
              <td>{each.kind !== "removed" && <ins>{line(compact(each.after), 300)}</ins>}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {!isComplete && <p className="muted pad">Only the first {count(found.length)} differences are shown.</p>}
    </div>
  );
}
