/** ToolEnvelope V1: the result of a tool as two text blocks, one for people, one for programs. */

import { fromBase64, isObject, toBase64 } from "./envelope.ts";

type Fields = { deprecations?: unknown[]; [field: string]: unknown };
export type ToolEnvelopeMeta = Fields & { tool: string; ts: string; version: 1 };
export type ToolEnvelope<T = unknown> = { payload: T; meta: ToolEnvelopeMeta };
export type TextBlock = { type: "text"; text: string };
/** `ts` is ISO 8601; now by default. */
export type ToolEnvelopeOptions = { tool: string; ts?: string; deprecations?: unknown[] };

const PREFIX = "__ENVELOPE_V1__:";
const ANY_PREFIX = /^__ENVELOPE_V([0-9]+)__:/;

/** Return the text of the block for programs. */
export function encodeToolEnvelope(payload: unknown, options: ToolEnvelopeOptions): string {
  const { tool, ts = new Date().toISOString(), deprecations = [] } = options;
  const meta = { tool, ts, version: 1, ...(deprecations.length > 0 ? { deprecations } : {}) };
  return PREFIX + toBase64(new TextEncoder().encode(JSON.stringify({ payload, meta })));
}

/** Return the two blocks of a result. */
export function toolEnvelopeBlocks(markdown: string, payload: unknown, options: ToolEnvelopeOptions): TextBlock[] {
  return [{ type: "text", text: markdown }, { type: "text", text: encodeToolEnvelope(payload, options) }];
}

/** Parse the text of a block for programs. Throws a TypeError that says what is wrong. */
export function parseToolEnvelope(text: string): ToolEnvelope {
  const prefix = ANY_PREFIX.exec(text);
  if (prefix === null) throw new TypeError("not an envelope block: the text does not begin with __ENVELOPE_V1__:");
  const version = prefix[1]?.replace(/^0+(?=.)/, "") ?? "";
  if (version !== "1") throw new TypeError(`unsupported envelope version ${version.slice(0, 20)}: only 1 can be read`);
  const value = parseJson(decodeLenient(text.slice(prefix[0].length)));
  if (!isObject(value)) throw new TypeError("an envelope block holds a JSON object, this one does not");
  const { payload = null, meta = {} } = value;
  if (!isObject(meta)) throw new TypeError("the envelope's meta is not an object");
  const inner = meta["version"] ?? 1;
  if (inner !== 1) throw new TypeError(`unsupported envelope version ${String(inner).slice(0, 20)}`);
  return { payload, meta: { tool: "", ts: "", ...meta, version: 1 } };
}

/** Return the first valid envelope among content blocks, or undefined. Never throws. */
export function findToolEnvelope(blocks: readonly unknown[]): ToolEnvelope | undefined {
  for (const block of blocks) {
    if (!isObject(block) || block["type"] !== "text" || typeof block["text"] !== "string") continue;
    try {
      return parseToolEnvelope(block["text"]);
    } catch {
      continue; // text for people, or another version
    }
  }
  return undefined;
}

/** Decode base64 as Node does: both alphabets, optional padding, other characters ignored, "=" ends it. */
function decodeLenient(encoded: string): Uint8Array {
  let digits = (encoded.split("=", 1)[0] ?? "").replace(/-/g, "+").replace(/_/g, "/").replace(/[^A-Za-z0-9+/]/g, "");
  if (digits.length % 4 === 1) digits = digits.slice(0, -1); // six bits are not a byte
  return fromBase64(digits);
}

function parseJson(document: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(document));
  } catch (error) {
    throw new TypeError(`the envelope block does not hold readable JSON: ${(error as Error).message}`);
  }
}
