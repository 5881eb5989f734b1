/** The operations of the server: their list, their details, and search. */

import { useEffect, useState } from "react";

import { get, logins, Problem } from "./api";
import { Store, useStore } from "./store";
import type { OperationDetail, OperationSummary, OperationType } from "./types";

export interface Catalogue {
  operations: OperationSummary[];
  byId: Map<string, OperationSummary>;
  revision: string | null;
  problem: string | null;
  loading: boolean;
}

const EMPTY: Catalogue = { operations: [], byId: new Map(), revision: null, problem: null, loading: true };
export const catalogue = new Store<Catalogue>(EMPTY);
const details = new Map<string, OperationDetail>();
const MAX_DETAILS = 300;

const lowered = (type: string): OperationType => type.toLowerCase() as OperationType;

export async function loadCatalogue(): Promise<void> {
  try {
    const found = await get<{ revision: string; operations: OperationSummary[] }>("operations");
    const operations = found.operations.map((each) => ({ ...each, type: lowered(each.type), tags: each.tags ?? [] }));
    operations.sort((a, b) => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0));
    if (found.revision !== catalogue.value.revision) details.clear();
    const byId = new Map(operations.map((each) => [each.id, each]));
    catalogue.set({ operations, byId, revision: found.revision, problem: null, loading: false });
  } catch (error) {
    const problem = error instanceof Problem && error.status === 401 ? null : (error as Error).message;
    catalogue.update((value) => ({ ...value, problem, loading: false }));
  }
}

async function loadDetail(id: string, signal: AbortSignal): Promise<OperationDetail> {
  const found = await get<OperationDetail>(`operations/${encodeURIComponent(id)}`, signal);
  const detail = { ...found, type: lowered(found.type) };
  if (details.size >= MAX_DETAILS) details.delete(details.keys().next().value as string);
  details.set(id, detail);
  return detail;
}

/** The operation, or why it cannot be shown. */
export function useDetail(id: string | null): { detail: OperationDetail | null; problem: string | null } {
  const revision = useStore(catalogue).revision;
  const login = useStore(logins);
  const [state, setState] = useState<{ id: string | null; detail: OperationDetail | null; problem: string | null }>({
    id: null,
    detail: null,
    problem: null,
  });
  useEffect(() => {
    if (id === null) return;
    const known = details.get(id);
    if (known) {
      setState({ id, detail: known, problem: null });
      return;
    }
    const stop = new AbortController();
    loadDetail(id, stop.signal).then(
      (detail) => setState({ id, detail, problem: null }),
      (error: Error) => {
        if (!stop.signal.aborted) setState({ id, detail: null, problem: error.message });
      },
    );
    return () => stop.abort();
  }, [id, revision, login]);
  return state.id === id ? state : { detail: (id !== null && details.get(id)) || null, problem: null };
}

/** Rank operations without the server: words in the id count more than words in the summary. */
export function localSearch(operations: OperationSummary[], query: string): OperationSummary[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const ranked: { operation: OperationSummary; score: number }[] = [];
  for (const operation of operations) {
    const id = operation.id.toLowerCase();
    const rest = `${operation.title ?? ""} ${operation.summary ?? ""} ${operation.tags.join(" ")}`.toLowerCase();
    let score = 0;
    for (const word of words) {
      const at = id.indexOf(word);
      if (at >= 0) score += at === 0 ? 12 : /[a-z0-9]/.test(id[at - 1] ?? "") ? 6 : 9;
      else if (rest.includes(word)) score += 3;
      else {
        score = -1;
        break;
      }
    }
    if (score > 0) ranked.push({ operation, score: score - id.length / 1000 });
  }
  ranked.sort((a, b) => b.score - a.score);
  return ranked.slice(0, 200).map((each) => each.operation);
}

/** What a query finds: at once by its words, then in the order of the server's ranking. */
export function useSearch(query: string): OperationSummary[] | null {
  const { operations, byId } = useStore(catalogue);
  const [served, setServed] = useState<{ query: string; ids: string[] } | null>(null);
  const words = query.trim();
  useEffect(() => {
    if (words === "") return;
    const stop = new AbortController();
    const timer = window.setTimeout(() => {
      get<{ ids: string[] }>(`search?q=${encodeURIComponent(words.slice(0, 200))}&limit=100`, stop.signal).then(
        (found) => setServed({ query: words, ids: found.ids }),
        () => undefined, // the local ranking stays
      );
    }, 120);
    return () => {
      window.clearTimeout(timer);
      stop.abort();
    };
  }, [words]);
  if (words === "") return null;
  const local = localSearch(operations, words);
  if (served?.query !== words) return local;
  const ranked = served.ids.flatMap((id) => byId.get(id) ?? []);
  const seen = new Set(served.ids);
  return [...ranked, ...local.filter((each) => !seen.has(each.id))];
}

