/** The differences of two JSON values, by path. */

import { compact, isObject } from "./json";

export interface Difference {
  path: string;
  kind: "added" | "removed" | "changed";
  before?: unknown;
  after?: unknown;
}

const MAX_DIFFERENCES = 500;
const MAX_NODES = 200_000;

/** Return the differences, at most 500 of them; `isComplete` says whether these are all. */
export function differences(before: unknown, after: unknown): { found: Difference[]; isComplete: boolean } {
  const found: Difference[] = [];
  const stack: { path: string; before: unknown; after: unknown }[] = [{ path: "", before, after }];
  let nodes = 0;
  while (stack.length > 0) {
    nodes += 1;
    if (found.length >= MAX_DIFFERENCES || nodes > MAX_NODES) return { found, isComplete: false };
    const each = stack.pop()!;
    const a = each.before;
    const b = each.after;
    if (Object.is(a, b)) continue;
    const bothLists = Array.isArray(a) && Array.isArray(b);
    if (!bothLists && !(isObject(a) && isObject(b))) {
      if (compact(a) !== compact(b)) found.push({ path: each.path || "value", kind: "changed", before: a, after: b });
      continue;
    }
    const keys = [...new Set([...Object.keys(a as object), ...Object.keys(b as object)])];
    for (const key of keys.reverse()) {
      const path = bothLists ? `${each.path}[${key}]` : each.path === "" ? key : `${each.path}.${key}`;
      const inBefore = Object.hasOwn(a as object, key);
      const inAfter = Object.hasOwn(b as object, key);
      if (inBefore && inAfter) stack.push({ path, before: (a as any)[key], after: (b as any)[key] });
      else if (inAfter) found.push({ path, kind: "added", after: (b as any)[key] });
      else found.push({ path, kind: "removed", before: (a as any)[key] });
    }
  }
  return { found, isComplete: true };
}
