/** Text from outside, made safe to look at, and numbers made short. */

import { compact } from "./json";

// Controls, and characters that reorder or hide text: a name with one of them could look like another name. The tags
// of the last range are invisible, and a model reads them as letters.
// eslint-disable-next-line no-control-regex
export const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/** Text of a peer: a value of another type, where text is expected, is shown as JSON. */
export function textOf(value: unknown): string {
  return typeof value === "string" ? value : value === null || value === undefined ? "" : compact(value);
}

/** Show hidden characters as their code points. */
export function visible(text: unknown): string {
  return textOf(text).replace(HIDDEN, (found) => `⟨${found.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** One line of visible text. */
export function line(text: unknown, most = 300): string {
  const shown = visible(textOf(text).slice(0, most * 2).replace(/\s+/g, " "));
  return shown.length > most ? `${shown.slice(0, most)}…` : shown;
}

/** A message of the server as a sentence: "No new calls: …". */
export function sentence(text: string): string {
  const shown = line(text, 500);
  return shown.charAt(0).toUpperCase() + shown.slice(1);
}

export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined) return "";
  if (count < 1000) return `${count} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let value = count;
  let unit = -1;
  do {
    value /= 1000;
    unit += 1;
  } while (value >= 999.5 && unit < units.length - 1);
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function duration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return "";
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? "" : value.toLocaleString("en");
}

export function clock(epochMs: number): string {
  const at = new Date(epochMs);
  const two = (part: number): string => String(part).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

export function ago(epochMs: number | null | undefined, now = Date.now()): string {
  if (epochMs === null || epochMs === undefined) return "";
  const seconds = Math.max(0, Math.round((now - epochMs) / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

export function plural(amount: number, one: string, many = `${one}s`): string {
  return `${count(amount)} ${amount === 1 ? one : many}`;
}
