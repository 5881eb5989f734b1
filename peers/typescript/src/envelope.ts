/** Response envelopes: `{data, meta}`, where `meta.source` says what kind of meta it is. */

export type JsonObject = Record<string, unknown>;

type Encoded = { encoding?: "base64" };
export type LocalMeta = Encoded & { source: "local"; operationId: string; timestamp: number };
type Response = { statusCode: number; headers: Record<string, string>; contentType: string; setCookie?: string[] };
export type HttpMeta = Encoded & Response & { source: "http"; eventType?: string; lastEventId?: string };
export type ContentBlock = { type: string; [field: string]: unknown };
type ToolResult = { isError: boolean; content: ContentBlock[]; structuredContent?: unknown; _meta?: JsonObject };
export type McpMeta = ToolResult & { source: "mcp" };
export type ResponseMeta = LocalMeta | HttpMeta | McpMeta;
export type ResponseEnvelope<T = unknown> = { data: T; meta: ResponseMeta };

export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Return whether a value is an envelope: it has a meta with a known source and the fields which that requires. */
export function isResponseEnvelope(value: unknown): value is ResponseEnvelope {
  if (!isObject(value) || !isObject(value["meta"])) return false;
  const { source, operationId, timestamp, statusCode, headers, contentType, isError, content } = value["meta"];
  if (source === "local") return typeof operationId === "string" && Number.isFinite(timestamp);
  if (source === "http") return Number.isFinite(statusCode) && isObject(headers) && typeof contentType === "string";
  return source === "mcp" && typeof isError === "boolean" && Array.isArray(content);
}

/** Return a handler's result as an envelope: envelopes as they are, bytes as base64, anything else as local data. */
export function toEnvelope(value: unknown, operationId: string): ResponseEnvelope {
  if (isResponseEnvelope(value)) return value;
  const meta: LocalMeta = { source: "local", operationId, timestamp: Date.now() };
  if (value instanceof Uint8Array) return { data: toBase64(value), meta: { ...meta, encoding: "base64" } };
  return { data: value ?? null, meta };
}

/** Return the data of an envelope; base64 is decoded to bytes. */
export function unwrap<T = unknown>(envelope: ResponseEnvelope<T>): T | Uint8Array {
  const { data, meta } = envelope;
  return meta.source !== "mcp" && meta.encoding === "base64" ? fromBase64(String(data)) : data;
}

export function toBase64(bytes: Uint8Array): string {
  let binary = "";
  for (let start = 0; start < bytes.length; start += 8192) {
    binary += String.fromCharCode(...bytes.subarray(start, start + 8192)); // more arguments overflow the stack
  }
  return btoa(binary);
}

/** Decode base64. Throws a DOMException if it is invalid. */
export function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
