/** The icons, drawn by strokes of the text's colour. */

import type { ReactNode } from "react";

const PATHS = {
  operations: "M3 4h10M3 8h10M3 12h6",
  streams: "M2 8c2-5 4-5 6 0s4 5 6 0",
  tape: "M2.5 4.5h7M6 8h7.5M4 11.5h5",
  system: "M3 13V8M8 13V3M13 13V6",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10ZM14 14l-3.5-3.5",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1",
  moon: "M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7Z",
  auto: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2ZM8 2v12",
  play: "M5 3.2v9.6L12.8 8Z",
  stop: "M4.5 4.5h7v7h-7Z",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  copy: "M5.5 5.5h8v8h-8ZM10.5 5.5v-3h-8v8h3",
  check: "M3 8.5 6.5 12 13 4.5",
  close: "M4 4l8 8M12 4l-8 8",
  right: "M6 4l4 4-4 4",
  down: "M4 6l4 4 4-4",
  up: "M4 10l4-4 4 4",
  left: "M10 4 6 8l4 4",
  plus: "M8 3v10M3 8h10",
  trash: "M3 4.5h10M6.5 4.5v-2h3v2M4.5 4.5l.6 9h5.8l.6-9",
  download: "M8 2.5v7.5M4.5 7 8 10.5 11.5 7M3 13.5h10",
  help: "M6 6a2 2 0 1 1 2.8 1.8c-.6.3-.8.7-.8 1.4M8 11.8v.2M8 14.5a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13Z",
  user: "M8 8a2.7 2.7 0 1 0 0-5.4A2.7 2.7 0 0 0 8 8ZM2.8 13.6c.6-2.6 2.7-3.8 5.2-3.8s4.6 1.2 5.2 3.8",
  eye: "M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8ZM8 9.8a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6Z",
  lock: "M4 7.5h8v6H4ZM5.7 7.5V5a2.3 2.3 0 0 1 4.6 0v2.5",
  warn: "M8 2 15 14H1ZM8 6.5v3.5M8 12v.2",
  retry: "M13 8a5 5 0 1 1-1.6-3.7M13.2 2v3h-3",
  clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 4.8V8l2.2 1.6",
  question: "M8 14.5a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13ZM8 4.5v4.2M8 11.2v.2",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }): ReactNode {
  return (
    <svg className="icon" width={size} height={size} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
