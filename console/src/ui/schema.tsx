/** A JSON Schema as an outline: one line per field, nested objects opened on demand. References are followed one level at a time. */

import { type ReactNode, useState } from "react";

import { compact, isObject } from "../json";
import { Markdown } from "../markdown";
import { decoded } from "../router";
import { line, textOf } from "../text";
import { Icon } from "./icons";

type Schema = { [keyword: string]: any };
const MAX_FIELDS = 200;
const MAX_OPTIONS = 50;
const MAX_VISITED = 500;

function resolved(schema: any, root: Schema, seen = 0): Schema {
  if (!isObject(schema)) return {};
  const ref = schema.$ref;
  if (typeof ref !== "string" || !ref.startsWith("#") || seen > 20) return schema;
  let found: any = root;
  for (const part of ref.slice(1).split("/").filter(Boolean)) {
    const name = decoded(part).replaceAll("~1", "/").replaceAll("~0", "~");
    found = isObject(found) && Object.hasOwn(found, name) ? found[name] : undefined;
  }
  return isObject(found) ? { ...resolved(found, root, seen + 1), ...without(schema, "$ref") } : schema;
}

function without(schema: Schema, keyword: string): Schema {
  const { [keyword]: _, ...rest } = schema;
  return rest;
}

function typeOf(schema: Schema, root: Schema, depth = 0): string {
  if (depth > 3) return "…";
  if ("const" in schema) return line(compact(schema.const), 40);
  if (Array.isArray(schema.enum)) return schema.enum.slice(0, 8).map((each: unknown) => line(compact(each), 30)).join(" | ") + (schema.enum.length > 8 ? " | …" : "");
  const union = schema.anyOf ?? schema.oneOf;
  if (Array.isArray(union)) return [...new Set(union.slice(0, 8).map((each: any) => typeOf(resolved(each, root), root, depth + 1)))].join(" | ");
  const type = Array.isArray(schema.type) ? schema.type.map(textOf).join(" | ") : (schema.type ?? (schema.properties ? "object" : schema.items ? "array" : "any"));
  if (type === "array" && isObject(schema.items)) return `${typeOf(resolved(schema.items, root), root, depth + 1)}[]`;
  return line(schema.format ? `${textOf(type)} (${textOf(schema.format)})` : type, 60);
}

const LIMITS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "contentEncoding", "contentMediaType"];

function limitsOf(schema: Schema): string {
  return LIMITS.filter((name) => schema[name] !== undefined).map((name) => `${name} ${line(compact(schema[name]), 60)}`).join(", ");
}

/**
 * The schemas below one: properties, the items of an array, the options of a union.
 *
 * A list of itself, or a union of itself and others, has no end: `budget` bounds the schemas that are looked at.
 */
export function partsOf(schema: Schema, root: Schema, budget = { left: MAX_VISITED }): { name: string; schema: Schema; required: boolean }[] {
  budget.left -= 1;
  if (budget.left < 0) return [];
  if (isObject(schema.properties)) {
    const required = new Set<string>(Array.isArray(schema.required) ? schema.required : []);
    return Object.entries(schema.properties).slice(0, MAX_FIELDS).map(([name, each]) => ({ name, schema: resolved(each, root), required: required.has(name) }));
  }
  const union = schema.anyOf ?? schema.oneOf;
  if (Array.isArray(union)) {
    const options = union.slice(0, MAX_OPTIONS + 1).map((each) => resolved(each, root)).filter((each) => each.type !== "null");
    if (options.length === 1) return partsOf(options[0]!, root, budget);
    return options.some((each) => partsOf(each, root, budget).length > 0) ? options.slice(0, MAX_OPTIONS).map((each, index) => ({ name: textOf(each.title) || `option ${index + 1}`, schema: each, required: false })) : [];
  }
  if (isObject(schema.items)) return partsOf(resolved(schema.items, root), root, budget);
  return [];
}

export function SchemaView({ schema }: { schema: Schema }): ReactNode {
  const top = resolved(schema, schema);
  const parts = partsOf(top, schema);
  if (parts.length === 0) return <p><code className="schema-type">{typeOf(top, schema)}</code> <span className="muted">{limitsOf(top)}</span></p>;
  return (
    <ul className="schema">
      {!isObject(top.properties) && <li className="schema-top"><code className="schema-type">{typeOf(top, schema)}</code></li>}
      {parts.map((each) => <Field key={each.name} {...each} root={schema} level={1} />)}
    </ul>
  );
}

function Field({ name, schema, required, root, level }: { name: string; schema: Schema; required: boolean; root: Schema; level: number }): ReactNode {
  const parts = level > 12 ? [] : partsOf(schema, root);
  const [isOpen, setOpen] = useState(level < 2 && parts.length > 0 && parts.length <= 8);
  const limits = limitsOf(schema);
  return (
    <li>
      <div className="schema-field">
        {parts.length > 0 ? (
          <button type="button" className="tree-mark" aria-expanded={isOpen} aria-label={`Fields of ${line(name, 60)}`} onClick={() => setOpen(!isOpen)}>
            <Icon name={isOpen ? "down" : "right"} size={12} />
          </button>
        ) : (
          <span className="tree-mark" />
        )}
        <code className="schema-name">{line(name, 80)}</code>
        {required && <span className="required" title="required">*<span className="sr"> required</span></span>}
        <code className="schema-type">{typeOf(schema, root)}</code>
        {"default" in schema && <span className="muted">= {line(compact(schema.default), 60)}</span>}
        {limits && <span className="muted">{limits}</span>}
      </div>
      {schema.description && <div className="schema-text"><Markdown text={textOf(schema.description).slice(0, 1000)} inline /></div>}
      {isOpen && <ul>{parts.map((each) => <Field key={each.name} {...each} root={root} level={level + 1} />)}</ul>}
    </li>
  );
}
