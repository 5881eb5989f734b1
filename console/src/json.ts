/** JSON in which integers beyond 2^53 stay exact: they are BigInt in memory. */

const LONG_NUMBER = /\d{16}/;
type Raw = { rawJSON?: (text: string) => unknown };

function revive(_key: string, value: unknown, context?: { source?: string }): unknown {
  if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
  const source = context?.source;
  return source !== undefined && /^-?\d{16,}$/.test(source) ? BigInt(source) : value;
}

// For all of the page: the generator of forms writes values as JSON, too.
Object.defineProperty(BigInt.prototype, "toJSON", {
  value(this: bigint) {
    return (JSON as Raw).rawJSON?.(String(this)) ?? String(this);
  },
});

export function parseJson(text: string): any {
  return LONG_NUMBER.test(text) ? JSON.parse(text, revive as (key: string, value: unknown) => unknown) : JSON.parse(text);
}

/** Parse what a person has written. A number that this page cannot hold would be sent as null: it is an error. */
export function parseInput(text: string): any {
  if (/\de\+?\d{3}|\d{309}/i.test(text)) JSON.parse(text, finite);
  return parseJson(text);
}

function finite(this: unknown, _key: string, value: unknown, context?: { source?: string }): unknown {
  if ((value === Infinity || value === -Infinity) && !/^-?\d+$/.test(context?.source ?? "")) throw new SyntaxError("A number is too large.");
  return value;
}

/** The value with numbers in place of BigInt, for code that does not know those. */
export function rounded(value: unknown): any {
  return value === undefined ? undefined : JSON.parse(compact(value));
}

export function compact(value: unknown): string {
  return JSON.stringify(value) ?? "null";
}

export function pretty(value: unknown): string {
  return JSON.stringify(value, null, 2) ?? "null";
}

export function isObject(value: unknown): value is { [key: string]: any } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
