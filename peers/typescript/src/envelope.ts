/** Response envelopes: `{data, meta}`, where `meta.source` says what kind of meta it is. */

export interface LocalMeta {
  source: "local";
  operationId: string;
  timestamp: number;
  encoding?: "base64";
}

export interface HttpMeta {
  source: "http";
  statusCode: number;
  headers: Record<string, string>;
  contentType: string;
  eventType?: string;
  lastEventId?: string;
  setCookie?: string[];
  encoding?: "base64";
}

export interface ContentBlock {
  type: string;
  [field: string]: unknown;
}

export interface McpMeta {
  source: "mcp";
  isError: boolean;
  content: ContentBlock[];
  structuredContent?: unknown;
  _meta?: Record<string, unknown>;
}

export type ResponseMeta = LocalMeta | HttpMeta | McpMeta;

export interface ResponseEnvelope<T = unknown> {
  data: T;
  meta: ResponseMeta;
}

export type JsonObject = Record<string, unknown>;

export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Return whether a value is an envelope: it has a meta with a known source and the fields which that requires. */
export function isResponseEnvelope(value: unknown): value is ResponseEnvelope {
  if (!isObject(value) || !isObject(value["meta"])) return false;
  const meta = value["meta"];
  switch (meta["source"]) {
    case "local":
      return typeof meta["operationId"] === "string" && Number.isFinite(meta["timestamp"]);
    case "http":
      return (
        Number.isFinite(meta["statusCode"]) && isObject(meta["headers"]) && typeof meta["contentType"] === "string"
      );
    case "mcp":
      return typeof meta["isError"] === "boolean" && Array.isArray(meta["content"]);
    default:
      return false;
  }
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
