/** JSON in which integers beyond 2^53 stay exact: they are BigInt in memory. */

const LONG_NUMBER = /\d{16}/;
type Raw = { rawJSON?: (text: string) => unknown };

function revive(_key: string, value: unknown, context?: { source?: string }): unknown {
  if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
  const source = context?.source;
  return source !== undefined && /^-?\d{16,}$/.test(source) ? BigInt(source) : value;
}

function replace(_key: string, value: unknown): unknown {
  if (typeof value !== "bigint") return value;
  return (JSON as Raw).rawJSON?.(String(value)) ?? String(value);
}

export function parseJson(text: string): any {
  return LONG_NUMBER.test(text) ? JSON.parse(text, revive as (key: string, value: unknown) => unknown) : JSON.parse(text);
}

export function compact(value: unknown): string {
  return JSON.stringify(value, replace) ?? "null";
}

export function pretty(value: unknown): string {
  return JSON.stringify(value, replace, 2) ?? "null";
}

export function isObject(value: unknown): value is { [key: string]: any } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
