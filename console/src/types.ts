/** What the server sends; see docs/adr/0039. Fields that a newer server adds are ignored. */

export type OperationType = "query" | "mutation" | "subscription";
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };
export type Schema = boolean | { [keyword: string]: any };

export interface Identity {
  id: string;
  scopes: string[];
}

export interface Session {
  identity: Identity | null;
  login: boolean;
  mayObserve: boolean;
  mayShowValues: boolean;
  mayActAs: boolean;
  mayApprove: boolean;
  mayRunJournal: boolean;
  title: string;
  version: string;
  expires?: number | null;
}

export interface OperationSummary {
  id: string;
  type: OperationType;
  title: string | null;
  summary: string | null;
  tags: string[];
  source: string | null;
  destructive?: boolean | null;
}

export interface OperationDetail {
  id: string;
  type: OperationType;
  title: string | null;
  description: string | null;
  tags: string[];
  version?: string | null;
  source: string | null;
  access: Access | null;
  annotations?: { [name: string]: unknown } | null;
  timeout?: number | null;
  examples: unknown[];
  inputSchema: Schema | null;
  outputSchema: Schema | null;
  tokens: number;
}

export interface Access {
  public?: boolean;
  requiredScopes?: string[];
  requiredScopesAny?: string[] | null;
  resources?: { type: string; action: string }[] | null;
}

/** null: this server has no surface for it. */
export interface Snippets {
  curl: string | null;
  python: string | null;
  mcp: string | null;
}

export interface Envelope {
  data?: Json;
  meta: { source: string; [name: string]: any };
}

export interface CallFailure {
  code: string;
  message: string;
  retryable?: boolean;
  retryAfterMs?: number;
  details?: any;
}

export interface Progress {
  progress: number;
  total?: number | null;
  message?: string | null;
}

export interface Question {
  questionId: string;
  kind: "elicit" | "sample" | "roots";
  /** Of the MCP request. */
  params?: any;
}

export interface CallRecord {
  time: number;
  requestId: string;
  parentRequestId?: string;
  operationId: string;
  outcome: string;
  ms: number;
  server: string;
  via: string;
  caller?: string;
  inputBytes?: number;
  outputBytes?: number;
  items?: number;
}

export interface Approval {
  id: string;
  operationId: string;
  identity?: string | null;
  input: Json;
  message?: string | null;
  since: number;
  expires?: number | null;
}

export interface OperationFigures {
  id: string;
  calls: number;
  errors: number;
  p50?: number | null;
  p95?: number | null;
  p99?: number | null;
  /** Upper bounds in ms, and how many calls are below them and above the one before. */
  histogram?: [number | null, number][];
  byCode?: { [code: string]: number };
}

export interface ServerFigures {
  id: string;
  name: string;
  kind: string;
  version: string;
  status: string;
  inFlight?: number;
  lastSeen?: number | null;
  started?: number;
  operations?: number;
  calls: number;
  errors: number;
  spokes?: number | null;
}

/** Counters since the start of the server; rates are differences. */
export interface Statistics extends ServerFigures {
  busiest: { id: string; calls: number; errors: number }[];
  /** When the server had these figures, in its time. */
  measured: number;
}

export interface SourceReport {
  name: string;
  kind: string;
  state: string;
  operations?: number;
  skipped?: { kind: string; name: string; reason: string }[];
  warnings?: string[];
  error?: string | null;
}

export interface JournalTask {
  id: string;
  operationId: string;
  state: string;
  attempts: number;
  lastError?: { code: string; message: string | null } | null;
  since?: number | null;
}

export interface Journal {
  name: string;
  operations: { id: string; waiting: number; claimed: number; buried: number }[];
  tasks: JournalTask[];
  more: boolean;
  error?: string | null;
}

export interface System {
  servers: ServerFigures[];
  sources: SourceReport[];
  operations: OperationFigures[];
  journal: Journal | null;
}
