/** One operation: try it, read about it, see what was called before. */

import { type ReactNode, useState } from "react";

import { remembered } from "../calls";
import { useDetail } from "../catalogue";
import { compact, isObject, pretty } from "../json";
import { fromHtml, Markdown } from "../markdown";
import { go } from "../router";
import { useStore } from "../store";
import { ago, count, duration, line } from "../text";
import type { Access, OperationDetail } from "../types";
import { Icon } from "../ui/icons";
import { Badge, Button, CopyButton, Notice, OperationId, Outcome, Tabs, TypeMark } from "../ui/parts";
import { SchemaView } from "../ui/schema";
import { setDraft } from "./draft";
import { TryIt } from "./try";

const TABS = [
  { id: "try", name: "Try it" },
  { id: "reference", name: "Reference" },
  { id: "history", name: "History" },
];

export function OperationPane({ id, tab }: { id: string; tab: string }): ReactNode {
  const { detail, problem } = useDetail(id);
  const about = detail?.title || fromHtml(detail?.description ?? "").trim().split(/\n\s*\n/, 1)[0];
  return (
    <>
      <header className="detail-head">
        <button type="button" className="button quiet square back" aria-label="Back to the list" onClick={() => go("operations")}>
          <Icon name="left" />
        </button>
        {detail && <TypeMark type={detail.type} />}
        <div className="detail-title">
          <h1><OperationId id={id} /></h1>
          {about && about !== id && <span className="muted"><Markdown text={about.slice(0, 300)} inline /></span>}
        </div>
        <CopyButton text={() => id} label="Copy the id" />
        {detail && <Marks detail={detail} />}
      </header>
      <Tabs label="Views of the operation" tabs={TABS} active={tab} onChange={(next) => go("operations", id, next, true)} />
      {problem && <Notice tone="bad">{problem}</Notice>}
      {detail && (
        <div className={`detail-body tab-${tab}`} role="tabpanel" aria-label={tab}>
          {tab === "reference" ? <Reference detail={detail} /> : tab === "history" ? <History id={id} /> : <TryIt detail={detail} />}
        </div>
      )}
      {!detail && !problem && <p className="loading muted">Loading…</p>}
    </>
  );
}

function Marks({ detail }: { detail: OperationDetail }): ReactNode {
  const { access, tokens, source } = detail;
  const annotations = detail.annotations ?? {};
  const scopes = [...(access?.requiredScopes ?? []), ...(access?.requiredScopesAny ?? [])];
  return (
    <div className="marks">
      {annotations.deprecated === true && <Badge tone="warn">deprecated</Badge>}
      {(annotations.destructiveHint === true || annotations.destructive === true) && <Badge tone="bad" title="May delete or overwrite">destructive</Badge>}
      {(annotations.readOnlyHint === true || annotations.readOnly === true) && <Badge tone="good" title="Changes nothing">read-only</Badge>}
      {access?.public && <Badge tone="good" title="Callable without a login">public</Badge>}
      {scopes.length > 0 && <Badge title={`Scopes: ${line(scopes.join(", "))}`}><Icon name="lock" size={11} /> {line(scopes.slice(0, 2).join(", "), 60)}</Badge>}
      {source && <Badge title="Source">{line(source, 40)}</Badge>}
      <Badge title="What the description costs a language model">{count(tokens)} tokens</Badge>
    </div>
  );
}

function Reference({ detail }: { detail: OperationDetail }): ReactNode {
  const { description, examples, inputSchema, outputSchema, access, annotations, source, tags } = detail;
  const facts: [string, ReactNode][] = [];
  facts.push(["Source", source ? line(source) : "this program"]);
  if (detail.version) facts.push(["Version", line(detail.version, 60)]);
  if (tags.length > 0) facts.push(["Tags", tags.map((each) => <Badge key={each}>{line(each, 60)}</Badge>)]);
  facts.push(["Access", <AccessRule access={access} />]);
  if (detail.timeout) facts.push(["Time limit", duration(detail.timeout * 1000)]);
  facts.push(["Token cost", `${count(detail.tokens)} tokens in a model's list of tools`]);
  for (const [name, value] of Object.entries(annotations ?? {})) facts.push([line(name, 60), <code>{line(typeof value === "string" ? value : compact(value))}</code>]);
  return (
    <div className="reference">
      {description ? <Markdown text={description} /> : <p className="muted">This operation has no description.</p>}
      <dl className="facts">
        {facts.map(([name, value], index) => (
          <div key={index}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <SchemaSection title="Input" schema={inputSchema} />
      <SchemaSection title="Output" schema={outputSchema} none="Unknown: the source does not describe its result." />
      {examples.length > 0 && (
        <section>
          <h2>Examples</h2>
          {examples.slice(0, 20).map((example, index) => (
            <Example key={index} example={example} id={detail.id} />
          ))}
        </section>
      )}
    </div>
  );
}

function AccessRule({ access }: { access: Access | null }): ReactNode {
  if (access?.public) return "Public: no login needed";
  const all = access?.requiredScopes ?? [];
  const any = access?.requiredScopesAny ?? [];
  const resources = access?.resources ?? [];
  if (all.length + any.length + resources.length === 0) return "Any identity";
  return (
    <>
      {all.length > 0 && <>All of {all.map((each) => <code key={each}>{line(each, 80)} </code>)}</>}
      {any.length > 0 && <>One of {any.map((each) => <code key={each}>{line(each, 80)} </code>)}</>}
      {resources.map((each, index) => <code key={index}>{line(`${each.action} ${each.type}`, 80)} </code>)}
    </>
  );
}

function SchemaSection({ title, schema, none = "None." }: { title: string; schema: unknown; none?: string }): ReactNode {
  const [isRaw, setRaw] = useState(false);
  return (
    <section>
      <h2>
        {title}
        {isObject(schema) && (
          <>
            <Button kind="quiet" pressed={isRaw} onClick={() => setRaw(!isRaw)}>JSON Schema</Button>
            <CopyButton text={() => pretty(schema)} label={`Copy the schema of the ${title.toLowerCase()}`} />
          </>
        )}
      </h2>
      {!isObject(schema) ? <p className="muted">{none}</p> : isRaw ? <pre className="code" tabIndex={0}>{pretty(schema)}</pre> : <SchemaView schema={schema} />}
    </section>
  );
}

/** The input of an example: examples are `{input, output?, …}` or bare inputs. */
function exampleInput(example: unknown): unknown {
  return isObject(example) && "input" in example ? example.input : example;
}

function Example({ example, id }: { example: unknown; id: string }): ReactNode {
  const named = isObject(example) && "input" in example;
  const title = named ? (example.summary ?? example.title ?? example.name ?? example.description) : null;
  return (
    <div className="example">
      {title && <p>{line(title)}</p>}
      <pre className="code" tabIndex={0}>{pretty(exampleInput(example))}</pre>
      {named && example.output !== undefined && <pre className="code output" tabIndex={0}>{pretty(example.output)}</pre>}
      <Button icon="play" onClick={() => { setDraft(id, exampleInput(example)); go("operations", id, "try"); }}>Use this input</Button>
    </div>
  );
}

function History({ id }: { id: string }): ReactNode {
  const all = useStore(remembered);
  const list = all.filter((each) => each.operationId === id);
  if (list.length === 0) return <p className="muted pad">Nothing was called yet. The history is kept in this browser only.</p>;
  return (
    <div className="history">
      <div className="history-head">
        <span className="muted">Kept in this browser only.</span>
        <Button icon="trash" kind="quiet" onClick={() => remembered.update((value) => value.filter((each) => each.operationId !== id))}>Forget these</Button>
        <Button kind="quiet" onClick={() => remembered.set([])}>Forget all {count(all.length)}</Button>
      </div>
      <ul>
        {list.map((each, index) => (
          <li key={index}>
            <Outcome code={each.outcome} />
            <span className="muted">{ago(each.at)} ago</span>
            <span className="muted">{duration(each.ms)}</span>
            <code>{line(compact(each.input), 160)}</code>
            <Button onClick={() => { setDraft(id, each.input); go("operations", id, "try"); }}>Use</Button>
          </li>
        ))}
      </ul>
    </div>
  );
}
