/** Schemas as the form generator draws them best. The server's own schema stays the one that is validated. */

import { compact, isObject } from "../json";

const CHILDREN = ["properties", "$defs", "definitions", "patternProperties"];
const SINGLE = ["items", "additionalProperties", "not", "if", "then", "else"];
const LISTS = ["anyOf", "oneOf", "allOf", "prefixItems"];
const MAX_DEPTH = 40;

/** A default that is shown in an empty field. */
export const SHOWN_DEFAULT = "x-opwire-default";

export interface Preparation {
  /** Whether fields are labelled with their names, by which a program sets them, instead of titles for people. */
  named: boolean;
  definitions?: unknown;
}

/**
 * Make `X or null` simply X, since a field can be left out, and write out what the generator does not know.
 *
 * Defaults are not filled in by the generator. Inside of an optional object they would create it, which may mean
 * something else than leaving it out: `web_search_options: {}` switches a search on.
 */
export function prepared(schema: any, how: Preparation, depth = 0): any {
  if (schema === true) return {};
  if (!isObject(schema) || depth > MAX_DEPTH) return schema;
  let result: any = { ...schema };
  if (depth === 0) how = { ...how, definitions: result.$defs ?? result.definitions };
  for (const keyword of ["anyOf", "oneOf"]) {
    const options = result[keyword];
    if (!Array.isArray(options)) continue;
    const some = options.filter((each) => !(isObject(each) && each.type === "null"));
    if (some.length !== 1 || some.length === options.length) continue;
    const { [keyword]: _, ...rest } = result;
    result = { ...(isObject(some[0]) ? some[0] : {}), ...rest };
    if (result.default === null) delete result.default;
  }
  if (Array.isArray(result.enum) && result.enum.length === 1) {
    result.const = result.enum[0];
    delete result.enum;
  }
  if ("default" in result) {
    result[SHOWN_DEFAULT] = result.default;
    delete result.default;
  }
  if (Array.isArray(result.prefixItems) && result.items === undefined) {
    result.items = result.prefixItems;
    delete result.prefixItems;
  }
  for (const keyword of CHILDREN) {
    if (!isObject(result[keyword])) continue;
    const entries = Object.entries(result[keyword]).map(([name, each]): [string, any] => [name, prepared(each, how, depth + 1)]);
    const isNamed = how.named && keyword === "properties";
    result[keyword] = Object.fromEntries(isNamed ? entries.map(([name, each]) => [name, isObject(each) ? { ...each, title: name || '""' } : each]) : entries);
  }
  for (const keyword of SINGLE) {
    if (isObject(result[keyword])) result[keyword] = prepared(result[keyword], how, depth + 1);
  }
  for (const keyword of LISTS) {
    if (Array.isArray(result[keyword])) result[keyword] = result[keyword].map((each: any) => prepared(each, how, depth + 1));
  }
  for (const keyword of ["anyOf", "oneOf"]) {
    if (Array.isArray(result[keyword])) result[keyword] = result[keyword].map((each: any) => withTitle(each, how.definitions));
  }
  return result;
}

/** An alternative of a union with a title, since the generator calls those without one "Option 1". */
function withTitle(option: any, definitions: unknown): any {
  if (!isObject(option) || typeof option.title === "string") return option;
  const reference = typeof option.$ref === "string" ? (option.$ref.split("/").at(-1) ?? "") : null;
  const target = reference !== null && isObject(definitions) && Object.hasOwn(definitions, reference) ? definitions[reference] : null;
  const values = "const" in option ? [option.const] : Array.isArray(option.enum) ? option.enum : null;
  const title = reference !== null
    ? isObject(target) && typeof target.title === "string" ? target.title : reference
    : values !== null ? values.slice(0, 5).map(compact).join(" or ") : [option.type].flat().filter(Boolean).join(" or ");
  return title ? { ...option, title } : option;
}

/** The input to begin with: the plain defaults of its fields. */
export function initialInput(schema: any): { [name: string]: unknown } {
  const properties = isObject(schema) && isObject(schema.properties) ? schema.properties : {};
  const filled = Object.entries(properties).filter(([, each]) => isObject(each) && each.default !== undefined && each.default !== null);
  return Object.fromEntries(filled.map(([name, each]) => [name, each.default]));
}

const TYPED = ["type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf", "properties", "items"];

/** Whether a schema says nothing about the shape of its values: then JSON is typed in. */
export function isUntyped(schema: any): boolean {
  return !isObject(schema) || !TYPED.some((keyword) => keyword in schema);
}

export function isFile(schema: any): boolean {
  return isObject(schema) && (schema.contentEncoding === "base64" || ["binary", "byte", "data-url"].includes(schema.format));
}

/** Whether an operation takes nothing. */
export function isEmptyInput(schema: any): boolean {
  return hasNoFields(schema) && schema.additionalProperties === false;
}

/** Whether a form for these objects would be empty, without a button to add a field. */
export function hasNoFields(schema: any): boolean {
  return isObject(schema) && (schema.type === "object" || schema.additionalProperties === false) && !schema.additionalProperties && Object.keys(schema.properties ?? {}).length === 0 && !["$ref", "anyOf", "oneOf", "allOf", "patternProperties"].some((each) => each in schema);
}
