/** The inputs that are being written, by operation. They outlive a change of the page, not a reload. */

import { parseInput, pretty } from "../json";
import { Store } from "../store";

export interface Draft {
  value: unknown;
  text: string;
  /** Why the text is not JSON; the form then shows the last value that was. */
  syntax: string | null;
  /** Whether the input was sent once: from then on missing fields are marked. */
  isSent: boolean;
}

export const drafts = new Store<ReadonlyMap<string, Draft>>(new Map());
const MAX_DRAFTS = 200;

export function put(id: string, draft: Draft): void {
  drafts.update((value) => {
    const next = new Map(value);
    next.delete(id);
    next.set(id, draft);
    if (next.size > MAX_DRAFTS) next.delete(next.keys().next().value as string);
    return next;
  });
}

export function setDraft(id: string, value: unknown): void {
  put(id, { value, text: pretty(value ?? {}), syntax: null, isSent: false });
}

export function draftOf(id: string, all: ReadonlyMap<string, Draft>): Draft {
  return all.get(id) ?? { value: {}, text: "{}", syntax: null, isSent: false };
}

export function typed(draft: Draft, text: string): Draft {
  try {
    return { ...draft, text, value: parseInput(text), syntax: null };
  } catch (error) {
    return { ...draft, text, syntax: (error as Error).message };
  }
}
