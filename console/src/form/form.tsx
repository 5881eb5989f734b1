/** A form for a JSON Schema. The value belongs to the caller; this draws it and reports changes. */

import { withTheme } from "@rjsf/core";
import type { ErrorSchema, RJSFSchema, ValidatorType } from "@rjsf/utils";
import { Component, type ReactNode, useId, useMemo } from "react";

import { compact, rounded } from "../json";
import type { Schema } from "../types";
import { prepared } from "./prepare";
import { theme } from "./theme";
import { type FieldProblem, matches } from "./validator";

const Themed = withTheme(theme);

/** Only used to find the option of a union; problems come from outside. */
const validator: ValidatorType = {
  validateFormData: () => ({ errors: [], errorSchema: {} }),
  isValid: matches,
  rawValidation: () => ({ errors: [] }),
};

const BEHAVIOUR = { emptyObjectFields: "populateRequiredDefaults", arrayMinItems: { populate: "requiredOnly" } } as const;

function errorTree(problems: FieldProblem[]): ErrorSchema {
  const root: any = {};
  for (const { path, message } of problems) {
    let node = root;
    for (const part of path.split("/").slice(1)) {
      const name = part.replaceAll("~1", "/").replaceAll("~0", "~");
      if (!Object.hasOwn(node, name)) Object.defineProperty(node, name, { value: {}, enumerable: true, configurable: true, writable: true });
      node = node[name];
    }
    node.__errors = [...(node.__errors ?? []), message];
  }
  return root as ErrorSchema;
}

/** Names of fields that the generator drops from a value, in silence. */
const RESERVED = /"(__proto__|constructor|prototype)":/;

function Undrawn({ reason }: { reason: string }): ReactNode {
  return <p className="muted">No form can be drawn for this input: {reason}. Write it as JSON.</p>;
}

export interface SchemaFormProps {
  schema: Schema;
  value: unknown;
  onChange: (value: unknown) => void;
  onRun?: () => void;
  problems: FieldProblem[];
  /** Label fields with their titles, for a person who is asked, instead of their names. */
  isTitled?: boolean;
}

export default function SchemaForm({ schema, value, onChange, onRun, problems, isTitled = false }: SchemaFormProps): ReactNode {
  const shape = useMemo(() => prepared(rounded(schema), { named: !isTitled }) as RJSFSchema, [schema, isTitled]);
  const prefix = `form${useId().replace(/\W/g, "")}`; // a page may have several forms
  const errors = useMemo(() => errorTree(problems), [problems]);
  if (RESERVED.test(JSON.stringify(shape)) || RESERVED.test(compact(value))) return <Undrawn reason="it has a field with a name of JavaScript" />;
  return (
    <Fence key={JSON.stringify(shape).length}>
      <Themed
        className="schema-form"
        idPrefix={prefix}
        schema={shape}
        formData={value}
        validator={validator}
        noValidate
        noHtml5Validate
        showErrorList={false}
        extraErrors={errors}
        uiSchema={{ "ui:submitButtonOptions": { norender: true }, "ui:label": false }}
        experimental_defaultFormStateBehavior={BEHAVIOUR}
        onChange={(event: { formData?: unknown }) => onChange(event.formData)}
        onSubmit={() => onRun?.()}
      />
    </Fence>
  );
}

/** A schema that the generator cannot draw costs the form, not the page. */
class Fence extends Component<{ children: ReactNode }, { problem: string | null }> {
  override state = { problem: null as string | null };

  static getDerivedStateFromError(error: Error): { problem: string } {
    return { problem: error.message };
  }

  override render(): ReactNode {
    if (this.state.problem === null) return this.props.children;
    return <Undrawn reason={this.state.problem} />;
  }
}
