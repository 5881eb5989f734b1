/** Validation in the page, by a validator that interprets schemas: one that compiles them needs `unsafe-eval`. */

import { type OutputUnit, type SchemaDraft, Validator } from "@cfworker/json-schema";

import { isObject, rounded } from "../json";
import type { Schema } from "../types";

export interface FieldProblem {
  /** A JSON Pointer. */
  path: string;
  message: string;
  /** A missing field: worth a message only once the form has been sent. */
  isMissing?: boolean;
}

const validators = new WeakMap<object, Validator>();
const MAX_PROBLEMS = 100;

function draftOf(schema: { [keyword: string]: any }): SchemaDraft {
  const named = String(schema.$schema ?? "");
  if (named.includes("draft-04")) return "4";
  if (/draft-0[67]/.test(named)) return "7";
  return named.includes("2019-09") ? "2019-09" : "2020-12";
}

function validatorOf(schema: { [keyword: string]: any }): Validator {
  let found = validators.get(schema);
  if (!found) {
    found = new Validator(rounded(schema), draftOf(schema), false);
    validators.set(schema, found);
  }
  return found;
}

/** The problems of a value. None if the schema cannot be used here: the server has the last word. */
export function problemsOf(schema: Schema | null, value: unknown): FieldProblem[] {
  if (!isObject(schema)) return [];
  try {
    const { valid, errors } = validatorOf(schema).validate(rounded(value));
    return valid ? [] : leaves(errors).slice(0, MAX_PROBLEMS).map(readable);
  } catch {
    return [];
  }
}

export function matches(schema: any, value: unknown, root: any): boolean {
  if (typeof schema === "boolean") return schema;
  try {
    const whole = { ...schema, $defs: { ...root?.$defs, ...schema.$defs }, definitions: { ...root?.definitions, ...schema.definitions } };
    return new Validator(whole, draftOf(root ?? {}), true).validate(rounded(value)).valid;
  } catch {
    return false;
  }
}

const UNIONS = new Set(["anyOf", "oneOf"]);
const WRAPPERS = new Set(["$ref", "$dynamicRef", "properties", "items", "prefixItems", "allOf", "additionalProperties", "if", "then", "else", "dependentSchemas", "patternProperties", "contains", "unevaluatedProperties"]);

/** The errors that say something: those inside wrappers, and of a union only those of the option that fits best. */
function leaves(errors: OutputUnit[]): OutputUnit[] {
  const unions = errors.filter((each) => UNIONS.has(each.keyword));
  const dropped = new Set<OutputUnit>();
  for (const union of unions) {
    const branches = new Map<string, OutputUnit[]>();
    for (const each of errors) {
      if (!each.keywordLocation.startsWith(`${union.keywordLocation}/`)) continue;
      const branch = each.keywordLocation.slice(union.keywordLocation.length + 1).split("/")[0] ?? "";
      branches.set(branch, [...(branches.get(branch) ?? []), each]);
    }
    const rank = (list: OutputUnit[]): number =>
      list.length + (list.some((each) => each.instanceLocation === union.instanceLocation && /type|const|enum/.test(each.keyword)) ? 1000 : 0);
    const best = [...branches.values()].sort((a, b) => rank(a) - rank(b))[0];
    const keep = best && branches.size > 0 && rank(best) < 1000 ? new Set(best) : new Set<OutputUnit>();
    for (const list of branches.values()) for (const each of list) if (!keep.has(each)) dropped.add(each);
    if (keep.size > 0) dropped.add(union);
  }
  return errors.filter((each) => {
    if (dropped.has(each)) return false;
    if (!WRAPPERS.has(each.keyword)) return true;
    // `additionalProperties: false` reports itself, and has nothing inside.
    return each.keyword === "additionalProperties" && !errors.some((other) => other !== each && other.instanceLocation.startsWith(`${each.instanceLocation}/`) && other.keyword !== "false");
  });
}

function readable(unit: OutputUnit): FieldProblem {
  const path = unit.instanceLocation.replace(/^#/, "");
  const missing = /required property "(.*)"/.exec(unit.error);
  if (unit.keyword === "required" && missing) {
    const name = (missing[1] ?? "").replaceAll("~", "~0").replaceAll("/", "~1");
    return { path: `${path}/${name}`, message: "This field is required.", isMissing: true };
  }
  const expected = /Expected "(.*)"/.exec(unit.error);
  if (unit.keyword === "type" && expected) return { path, message: `Expected ${expected[1]!.replaceAll('", "', " or ")}.` };
  if (unit.keyword === "enum") return { path, message: unit.error.replace("Instance does not match any of", "Choose one of").slice(0, 300) };
  if (unit.keyword === "const") return { path, message: unit.error.replace("Instance does not match", "Expected").slice(0, 300) };
  if (UNIONS.has(unit.keyword)) return { path, message: "This value matches none of the alternatives." };
  if (unit.keyword === "false" || unit.keyword === "additionalProperties") return { path, message: "This field is unknown." };
  return { path, message: unit.error.replace(/^Instance/, "This value").slice(0, 300) };
}
