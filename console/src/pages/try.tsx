/** Write an input as a form and as JSON, run the operation, look at the result. */

import { type ReactNode, useEffect, useMemo, useRef } from "react";

import { send, session } from "../api";
import { type Run, runs, startRun } from "../calls";
import { hasNoFields, initialInput, isEmptyInput } from "../form/prepare";
import { type FieldProblem, problemsOf } from "../form/validator";
import { compact, isObject, pretty } from "../json";
import { Store, stored, useStore } from "../store";
import { bytes, line, plural } from "../text";
import type { Identity, OperationDetail, Snippets } from "../types";
import { Icon } from "../ui/icons";
import { Editor, SchemaForm } from "../ui/lazy";
import { Button, CopyButton, Empty, Popover, Segments } from "../ui/parts";
import { draftOf, drafts, put, setDraft, typed } from "./draft";
import { RunView } from "./run";

type Mode = "form" | "json" | "both";
const mode = stored<Mode>("mode", "both");
const deadlines = new Store<Record<string, number>>({});
/** Not stored: who acts as somebody else should not still do so tomorrow. */
const actAs = new Store({ id: "", scopes: "" });
const MAX_EDITED = 300_000;

export function TryIt({ detail }: { detail: OperationDetail }): ReactNode {
  const { id, inputSchema } = detail;
  const draft = draftOf(id, useStore(drafts));
  const shown = useStore(mode);
  const mine = useStore(runs).filter((each) => each.operationId === id);
  const run = mine[0] ?? null;
  const problems = useMemo(() => problemsOf(inputSchema, draft.value), [inputSchema, draft.value]);
  const visible = useMemo(() => (draft.isSent ? problems : problems.filter((each) => !each.isMissing)), [problems, draft.isSent]);
  const known = useMemo(() => withServerProblems(visible, run, draft.value), [visible, run, run?.failure, draft.value]);
  const schema = isObject(inputSchema) ? inputSchema : {};
  const isEmpty = isEmptyInput(schema);
  useEffect(() => {
    if (!drafts.value.has(id)) setDraft(id, initialInput(schema));
  }, [id]);
  const isChecked = draft.syntax === null && problems.length === 0;

  const start = (force = false): void => {
    if (!isChecked && !(force && draft.syntax === null)) {
      put(id, { ...draft, isSent: true });
      window.setTimeout(focusFirstProblem, 50);
      return;
    }
    put(id, { ...draft, isSent: true });
    const identity = session.value?.mayActAs ? identityOf(actAs.value) : null;
    const deadlineMs = deadlines.value[id];
    startRun(id, detail.type, draft.value, { ...(deadlineMs ? { deadlineMs } : {}), ...(identity ? { actAs: identity } : {}) });
  };
  const latest = useRef(start);
  latest.current = start;
  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.defaultPrevented && !document.querySelector("dialog[open]")) {
        event.preventDefault();
        latest.current();
      }
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);

  const form = (
    <div className="input-form">
      {draft.syntax !== null && <p className="field-errors">The JSON is not valid: the form shows the last input that was.</p>}
      {isEmpty ? <p className="muted">This operation takes no input.</p> : hasNoFields(schema) ? <p className="muted">This operation declares no fields. Write its input as JSON.</p> : <SchemaForm schema={schema} value={draft.value} problems={known} onChange={(value) => put(id, { ...draftOf(id, drafts.value), value, text: pretty(value ?? {}), syntax: null })} onRun={() => start()} />}
    </div>
  );
  const editor = (
    <div className="input-json">
      {draft.text.length <= MAX_EDITED ? (
        <Editor label="Input as JSON" value={draft.text} problems={known} onChange={(text) => put(id, typed(draftOf(id, drafts.value), text))} onRun={() => latest.current()} />
      ) : (
        <p className="muted pad">The input has {bytes(draft.text.length)}: too much to edit as JSON. Change it in the form.</p>
      )}
      {draft.syntax !== null && <p className="field-errors pad">{line(draft.syntax)}</p>}
    </div>
  );
  return (
    <div className="try">
      <div className="try-input">
      <div className="input-head">
        <h2>Input</h2>
        <Segments label="How the input is shown" active={shown} onChange={(value) => mode.set(value as Mode)} options={[{ id: "form", name: "Form" }, { id: "json", name: "JSON" }, { id: "both", name: "Both" }]} />
        <span className="grow" />
        <Examples detail={detail} />
        <Button kind="quiet" onClick={() => setDraft(id, initialInput(schema))}>Reset</Button>
      </div>
      <div className={`input ${shown}`}>
        {shown !== "json" && form}
        {shown !== "form" && editor}
      </div>
      <RunBar detail={detail} run={run} value={draft.value} count={draft.syntax !== null ? 1 : problems.length} isSent={draft.isSent} onRun={start} />
      </div>
      <div className="try-result">
        {run ? <RunView key={run.id} run={run} previous={mine.slice(1)} outputSchema={detail.outputSchema} /> : <Empty icon="play" title="No result yet"><kbd>Ctrl</kbd> <kbd>Enter</kbd> runs the operation from anywhere on this page.</Empty>}
      </div>
    </div>
  );
}

/** The server's problems with exactly this input, at their fields. */
function withServerProblems(problems: FieldProblem[], run: Run | null, value: unknown): FieldProblem[] {
  const found = run?.failure?.details?.problems;
  if (!Array.isArray(found) || problems.length > 0 || compact(run?.input) !== compact(value)) return problems;
  return found.filter((each) => typeof each?.path === "string").map((each) => ({ path: each.path, message: String(each.message) }));
}

function focusFirstProblem(): void {
  document.querySelector<HTMLElement>(".field.wrong input, .field.wrong select, .field.wrong textarea")?.focus();
}

function identityOf({ id, scopes }: { id: string; scopes: string }): Identity | null {
  return id.trim() === "" ? null : { id: id.trim(), scopes: scopes.split(/[\s,]+/).filter(Boolean) };
}

function Examples({ detail }: { detail: OperationDetail }): ReactNode {
  if (detail.examples.length === 0) return null;
  return (
    <select
      aria-label="Use an example"
      value=""
      onChange={(event) => {
        const example = detail.examples[Number(event.target.value)];
        setDraft(detail.id, isObject(example) && "input" in example ? example.input : example);
      }}
    >
      <option value="" disabled>Example…</option>
      {detail.examples.slice(0, 20).map((example, index) => {
        const title = isObject(example) && "input" in example ? (example.summary ?? example.title ?? example.name) : null;
        return <option key={index} value={index}>{title ? line(String(title), 60) : `Example ${index + 1}`}</option>;
      })}
    </select>
  );
}

function RunBar({ detail, run, value, count, isSent, onRun }: { detail: OperationDetail; run: Run | null; value: unknown; count: number; isSent: boolean; onRun: (force?: boolean) => void }): ReactNode {
  const isRunning = useRunning(run);
  const all = useStore(deadlines);
  const me = useStore(session);
  const other = useStore(actAs);
  const isStream = detail.type === "subscription";
  return (
    <div className="runbar">
      {isRunning ? (
        <Button kind="danger" icon="stop" onClick={() => run?.cancel()}>{isStream ? "Stop" : "Cancel"}</Button>
      ) : (
        <Button kind="primary" icon="play" title="Ctrl+Enter" onClick={() => onRun()}>{isStream ? "Subscribe" : "Run"}</Button>
      )}
      {isSent && count > 0 && !isRunning && (
        <span className="runbar-problems" role="status">
          {plural(count, "problem")} <button type="button" className="link" onClick={() => onRun(true)}>Send anyway</button>
        </span>
      )}
      <label className="inline" title="Deadline in seconds">
        <Icon name="clock" size={14} />
        <span className="sr">Deadline</span>
        <input
          type="number"
          min={0.001}
          step="any"
          placeholder="auto"
          value={all[detail.id] ? String(all[detail.id]! / 1000) : ""}
          onInput={(event) => {
            const seconds = Number((event.target as HTMLInputElement).value);
            const { [detail.id]: _, ...rest } = deadlines.value;
            deadlines.set(seconds > 0 ? { ...rest, [detail.id]: Math.min(Math.round(seconds * 1000), 86_400_000) } : rest);
          }}
        />
        <span className="muted">s</span>
      </label>
      {me?.mayActAs && (
        <Popover summary={identityOf(other) ? `As ${line(other.id, 30)}` : "Act as…"}>
          <label>Identity<input type="text" value={other.id} placeholder="yourself" onInput={(event) => actAs.set({ ...other, id: (event.target as HTMLInputElement).value })} /></label>
          <label>Scopes<input type="text" value={other.scopes} placeholder="shop:read shop:write" onInput={(event) => actAs.set({ ...other, scopes: (event.target as HTMLInputElement).value })} /></label>
          <Button kind="quiet" onClick={() => actAs.set({ id: "", scopes: "" })}>Be yourself again</Button>
        </Popover>
      )}
      <span className="grow" />
      <Copies id={detail.id} value={value} />
    </div>
  );
}

function useRunning(run: Run | null): boolean {
  useStore(runs);
  return run?.state === "running";
}

function Copies({ id, value }: { id: string; value: unknown }): ReactNode {
  const snippet = async (kind: keyof Snippets): Promise<string> => {
    const response = await send("snippets", { body: { operationId: id, input: value } });
    const text = ((await response.json()) as Snippets)[kind];
    if (text === null) throw new Error("This server has no such surface.");
    return text;
  };
  return (
    <div className="copies" role="group" aria-label="Copy this call">
      <Icon name="copy" size={13} />
      <CopyButton label="Copy as curl" text={() => snippet("curl")}>curl</CopyButton>
      <CopyButton label="Copy as Python" text={() => snippet("python")}>Python</CopyButton>
      <CopyButton label="Copy as MCP request" text={() => snippet("mcp")}>MCP</CopyButton>
    </div>
  );
}

