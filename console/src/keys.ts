/** Keyboard shortcuts, which rest while text is typed. */

import { useEffect, useRef } from "react";

export const SHORTCUTS: [string, string][] = [
  ["/", "Search, or filter the list"],
  ["j, k", "Next, previous"],
  ["Enter", "Open"],
  ["Ctrl+Enter", "Run the operation"],
  ["Escape", "Close, clear, or leave a field"],
  ["p", "Pause or resume the tape or the stream"],
  ["g then o, s, t, y", "Go to operations, streams, tape, system"],
  ["d", "Dark, light, or as the system"],
  ["?", "This help"],
];

function isTyping(event: KeyboardEvent): boolean {
  const target = event.composedPath()[0] as HTMLElement | undefined;
  return target !== undefined && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

/** Call a function on a key, while the component is shown. Enter is left to buttons, links and lists that have the focus. */
export function useKeys(keys: Record<string, (event: KeyboardEvent) => void>): void {
  const current = useRef(keys);
  current.current = keys;
  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isTyping(event)) return;
      if (document.querySelector("dialog[open]") && event.key !== "Escape") return;
      if (event.key === "Enter" && event.target !== document.body) return;
      const handle = current.current[event.key];
      if (handle) {
        handle(event);
        event.preventDefault();
      }
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);
}
