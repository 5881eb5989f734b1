/** A question that an operation asks while it runs, answered here. */

import { type ReactNode, useState } from "react";

import { answer, type Run } from "../calls";
import { problemsOf } from "../form/validator";
import { isObject } from "../json";
import { line, visible } from "../text";
import type { Question } from "../types";
import { SchemaForm } from "../ui/lazy";
import { Button, OperationId } from "../ui/parts";
import { JsonTree } from "../ui/tree";

const TITLES = { elicit: "The operation asks", sample: "The operation wants a model's answer", roots: "The operation asks for roots" };

export function QuestionBox({ run, question, named = false }: { run: Run; question: Question; named?: boolean }): ReactNode {
  const [value, setValue] = useState<unknown>(undefined);
  const [isSent, setSent] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const schema = isObject(question.params?.requestedSchema) ? question.params.requestedSchema : null;
  const problems = schema ? problemsOf(schema, value ?? {}) : [];
  const reply = async (action: "accept" | "decline" | "cancel"): Promise<void> => {
    setSent(true);
    if (action === "accept" && problems.length > 0) return;
    try {
      await answer(run, question, action, action === "accept" ? contentOf(question, value) : undefined);
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  return (
    <section className="question" aria-label="Question">
      <h3>{TITLES[question.kind] ?? "The operation asks"} {named && <OperationId id={run.operationId} />}</h3>
      {typeof question.params?.message === "string" && <p>{visible(question.params.message)}</p>}
      {question.kind === "elicit" && schema && <SchemaForm isTitled schema={schema} value={value ?? {}} problems={isSent ? problems : []} onChange={setValue} onRun={() => void reply("accept")} />}
      {question.kind === "elicit" && typeof question.params?.url === "string" && <p><code>{line(question.params.url, 300)}</code></p>}
      {question.kind === "sample" && (
        <>
          <JsonTree value={question.params?.messages ?? question.params ?? null} open={3} />
          <label className="field">Answer<textarea rows={4} value={String(value ?? "")} onInput={(event) => setValue((event.target as HTMLTextAreaElement).value)} /></label>
        </>
      )}
      {question.kind === "roots" && <label className="field">Roots, one address per line<textarea rows={3} placeholder="file:///srv/project" value={String(value ?? "")} onInput={(event) => setValue((event.target as HTMLTextAreaElement).value)} /></label>}
      {problem && <p className="field-errors" role="alert">{line(problem)}</p>}
      <div className="buttons">
        <Button kind="primary" onClick={() => void reply("accept")}>Answer</Button>
        <Button onClick={() => void reply("decline")}>Decline</Button>
        <Button kind="quiet" onClick={() => void reply("cancel")}>Cancel the question</Button>
      </div>
    </section>
  );
}

/** The answer in the shape of MCP. */
function contentOf(question: Question, value: unknown): unknown {
  if (question.kind === "sample") return { role: "assistant", content: { type: "text", text: String(value ?? "") }, model: "person", stopReason: "endTurn" };
  if (question.kind === "roots") return { roots: String(value ?? "").split("\n").map((each) => each.trim()).filter(Boolean).map((uri) => ({ uri })) };
  return value ?? {};
}
