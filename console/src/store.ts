/** Observable values, and a counter of changes for buffers that change faster than a page can be drawn. */

import { useEffect, useReducer, useSyncExternalStore } from "react";

import { parseJson } from "./json";

export class Store<T> {
  #value: T;
  #listeners = new Set<() => void>();

  constructor(value: T) {
    this.#value = value;
  }

  get value(): T {
    return this.#value;
  }

  set(value: T): void {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const listener of [...this.#listeners]) listener();
  }

  update(change: (value: T) => T): void {
    this.set(change(this.#value));
  }

  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };
}

export function useStore<T>(store: Store<T>): T {
  return useSyncExternalStore(store.subscribe, () => store.value);
}

/** Announces changes at most every `interval` ms, however often `touch` is called. */
export class Pulse {
  #listeners = new Set<() => void>();
  #timer: number | undefined;

  constructor(readonly interval = 100) {}

  touch(): void {
    if (this.#timer !== undefined) return;
    this.#timer = window.setTimeout(() => {
      this.#timer = undefined;
      for (const listener of [...this.#listeners]) listener();
    }, this.interval);
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

/** Draw the component again on each pulse. */
export function usePulse(pulse: Pulse): void {
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  useEffect(() => pulse.subscribe(() => redraw()), [pulse]);
}

/** A value that survives a reload, in this browser only. Storage that is full or forbidden costs the memory, not the page. */
export function stored<T>(key: string, initial: T): Store<T> {
  const name = `opwire.console.${key}`;
  let value = initial;
  try {
    const text = localStorage.getItem(name);
    if (text !== null) value = parseJson(text) as T;
  } catch {
    value = initial;
  }
  const store = new Store(value);
  store.subscribe(() => {
    try {
      localStorage.setItem(name, JSON.stringify(store.value));
    } catch {
      // full or forbidden
    }
  });
  return store;
}
