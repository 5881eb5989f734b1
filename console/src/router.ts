/** The address of a page is the fragment: `#/operations/math.add/try`. */

import { Store } from "./store";

export interface Route {
  page: string;
  /** The operation, or the selected call. */
  id: string | null;
  tab: string | null;
}

function parse(hash: string): Route {
  const [page, id, tab] = hash.replace(/^#\/?/, "").split("/").map(decoded);
  return { page: page || "operations", id: id || null, tab: tab || null };
}

/** Decode a part of an address; an invalid one stays as it is. */
export function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = new Store<Route>(parse(location.hash));
window.addEventListener("hashchange", () => route.set(parse(location.hash)));

export function href(page: string, id?: string | null, tab?: string | null): string {
  const parts = [page, id, tab].filter((part) => part !== null && part !== undefined) as string[];
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function go(page: string, id?: string | null, tab?: string | null, replace = false): void {
  const target = href(page, id, tab);
  if (replace) {
    history.replaceState(null, "", target);
    route.set(parse(target));
  } else {
    location.hash = target;
  }
}

/** Take the one-time code out of the address, so that it stays neither in the address bar nor in the history. */
export function takeLink(): string | null {
  const found = /^#link=(.+)$/.exec(location.hash);
  if (!found) return null;
  history.replaceState(null, "", "#/operations");
  route.set(parse("#/operations"));
  return decoded(found[1] ?? "");
}
