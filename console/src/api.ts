/** Requests to the server. A rejected session opens the login box and leaves the page as it is. */

import { compact, parseJson } from "./json";
import { Store } from "./store";
import type { Session } from "./types";

const BASE = new URL("api/", document.baseURI.replace(/[#?].*$/, ""));

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details?: any,
  ) {
    super(message);
  }
}

/** null until the server has answered for the first time. */
export const session = new Store<Session | null>(null);
/** Why the login box is open; null if it is closed. */
export const loginReason = new Store<string | null>(null);
/** Grows with every login: pages that depend on the identity load again. */
export const logins = new Store(0);

export const ENDED = "Your session has ended. Log in to go on; nothing on this page is lost.";

export function address(path: string): string {
  return new URL(path, BASE).href;
}

interface Options {
  method?: string;
  body?: unknown;
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

/** Send a request and return the response, if it is a success. */
export async function send(path: string, options: Options = {}): Promise<Response> {
  const method = options.method ?? (options.body === undefined ? "GET" : "POST");
  const headers: Record<string, string> = { ...options.headers };
  if (method !== "GET") headers["X-Opwire-Console"] = "1";
  if (options.body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(address(path), {
      method,
      headers,
      body: options.body === undefined ? undefined : compact(options.body),
      signal: options.signal ?? null,
      credentials: "same-origin",
      redirect: "error",
      // The list of operations is revalidated by its ETag.
      cache: "no-cache",
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, "UNREACHABLE", "The server cannot be reached. It may have stopped, or the network is gone.");
  }
  if (response.ok) return response;
  const problem = await readProblem(response);
  if (response.status === 401 && path !== "session") loginReason.update((reason) => reason ?? (session.value?.identity ? ENDED : ""));
  throw problem;
}

async function readProblem(response: Response): Promise<Problem> {
  let found: any = {};
  try {
    found = await response.json();
  } catch {
    // not a problem document: a proxy answered
  }
  const message = found.detail ?? found.title ?? `The server answered ${response.status} ${response.statusText}.`;
  return new Problem(response.status, String(found.code ?? `HTTP ${response.status}`), String(message), found.details);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return parseJson(await (await send(path, { signal })).text()) as T;
}

/** Send a command whose answer does not matter. */
export async function post(path: string, body: unknown): Promise<void> {
  await send(path, { body });
}

export async function loadSession(): Promise<void> {
  session.set(await get<Session>("session"));
}

export async function login(credentials: { token: string } | { link: string }): Promise<void> {
  await send("session", { body: credentials });
  enter(await get<Session>("session"));
}

function enter(found: Session): void {
  session.set(found);
  loginReason.set(null);
  logins.update((value) => value + 1);
}

/** Close the login box if another tab has logged in: they share the session. */
export async function enterWithOthers(): Promise<void> {
  if (loginReason.value === null) return;
  const found = await get<Session>("session").catch(() => null);
  if (found?.identity) enter(found);
}

export async function logout(): Promise<void> {
  await send("session", { method: "DELETE" });
  await loadSession();
  logins.update((value) => value + 1);
}
