/**
 * Markdown of descriptions, as elements. HTML that only formats text becomes Markdown, other HTML is text, images are
 * links, and only web and mail addresses become links: nothing is loaded and nothing runs. Every rule reads its text
 * once, so that long input stays cheap.
 */

import { Fragment, type ReactNode } from "react";

import { textOf, visible } from "./text";

const MAX_LENGTH = 50_000;
const MAX_DEPTH = 6;

export function Markdown({ text: given, inline = false }: { text: unknown; inline?: boolean }): ReactNode {
  const text = textOf(given);
  const cut = text.length > MAX_LENGTH;
  const shown = visible(fromHtml(cut ? text.slice(0, MAX_LENGTH) : text));
  if (inline) return <>{spans(shown.replace(/\s+/g, " "), 0)}</>;
  return (
    <div className="markdown">
      {blocks(shown.split("\n"), 0)}
      {cut && <p className="muted">… {text.length - MAX_LENGTH} more characters</p>}
    </div>
  );
}

const TAG = /(`[^`\n]+`)|<(\/?)([a-z][a-z0-9]{0,9})((?:\s[^<>]*)?)\/?>|&(amp|lt|gt|quot|#39|nbsp);/gi;
const CHARACTERS: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'", nbsp: " " };
const BREAKS = new Set("blockquote dd div dl dt h1 h2 h3 h4 h5 h6 ol p section table tr ul".split(" "));
const DROPPED = new Set("b big em font i s small span strong sub sup tbody td th thead u".split(" "));

/** Replace tags that format text, as in Stripe's descriptions, by Markdown. Code, and tags such as `<owner>`, are kept. */
export function fromHtml(text: string): string {
  if (!/<[a-z/]|&/i.test(text)) return text;
  const links: string[] = [];
  const convert = (part: string): string =>
    part.replace(TAG, (found, code, close, tag, attributes, character) => {
      if (code) return found;
      if (character) return CHARACTERS[character.toLowerCase()] ?? found;
      const name = tag.toLowerCase();
      if (name === "a" && !close) return links.push(/\bhref\s*=\s*["'](https?:\/\/[^\s()"']+)/i.exec(attributes)?.[1] ?? "") && links.at(-1) ? "[" : "";
      if (name === "a") return ((link) => (link ? `](${link})` : ""))(links.pop());
      if (name === "br") return "\n";
      if (name === "li") return close ? "\n" : "\n- ";
      if (name === "code") return "`";
      return BREAKS.has(name) ? "\n\n" : DROPPED.has(name) ? "" : found;
    });
  return text.split(/(^```[^]*?^```)/m).map((part, index) => (index % 2 ? part : convert(part))).join("").trim();
}

const FENCE = /^\s{0,3}(```+|~~~+)\s*([\w-]*)/;
const HEADING = /^\s{0,3}(#{1,6})\s+(.*?)#*\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function blocks(lines: string[], depth: number): ReactNode[] {
  if (depth > MAX_DEPTH) return [<p key="0">{lines.join("\n")}</p>];
  const found: ReactNode[] = [];
  let at = 0;
  const key = (): string => `${found.length}`;
  while (at < lines.length) {
    const line = lines[at] ?? "";
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (line.trim() === "") {
      at += 1;
    } else if (fence) {
      const end = lines.findIndex((each, index) => index > at && each.trim().startsWith(fence[1] ?? ""));
      const stop = end < 0 ? lines.length : end;
      found.push(
        <pre key={key()} tabIndex={0}>
          <code>{lines.slice(at + 1, stop).join("\n")}</code>
        </pre>,
      );
      at = stop + 1;
    } else if (heading) {
      const level = Math.min(6, (heading[1] ?? "").length + 2);
      const Tag = `h${level}` as "h3";
      found.push(<Tag key={key()}>{spans(heading[2] ?? "", 0)}</Tag>);
      at += 1;
    } else if (RULE.test(line)) {
      found.push(<hr key={key()} />);
      at += 1;
    } else if (line.trimStart().startsWith(">")) {
      const [inner, next] = taken(lines, at, (each) => each.trimStart().startsWith(">"));
      found.push(
        <blockquote key={key()}>{blocks(inner.map((each) => each.replace(/^\s*>\s?/, "")), depth + 1)}</blockquote>,
      );
      at = next;
    } else if (ITEM.test(line)) {
      const [list, next] = readList(lines, at, depth, key());
      found.push(list);
      at = next;
    } else if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "") && (lines[at + 1] ?? "").includes("-")) {
      const [rows, next] = taken(lines, at + 2, (each) => each.includes("|"));
      found.push(table(line, rows.slice(0, 200), key()));
      at = next;
    } else {
      const [inner, next] = taken(lines, at, (each, index) => index === at || isParagraph(each));
      found.push(<p key={key()}>{spans(inner.join("\n"), 0)}</p>);
      at = next;
    }
  }
  return found;
}

function isParagraph(line: string): boolean {
  return line.trim() !== "" && !FENCE.test(line) && !HEADING.test(line) && !ITEM.test(line) && !RULE.test(line) && !line.trimStart().startsWith(">");
}

function taken(lines: string[], from: number, wanted: (line: string, index: number) => boolean): [string[], number] {
  let end = from;
  while (end < lines.length && wanted(lines[end] ?? "", end)) end += 1;
  return [lines.slice(from, end), end];
}

function readList(lines: string[], from: number, depth: number, key: string): [ReactNode, number] {
  const first = ITEM.exec(lines[from] ?? "");
  const indent = (first?.[1] ?? "").length;
  const ordered = /\d/.test(first?.[2] ?? "");
  const items: string[][] = [];
  let at = from;
  while (at < lines.length) {
    const line = lines[at] ?? "";
    const item = ITEM.exec(line);
    const deep = line.length - line.trimStart().length;
    if (item && (item[1] ?? "").length <= indent + 1) {
      if ((item[1] ?? "").length < indent) break;
      items.push([item[3] ?? ""]);
    } else if (line.trim() === "") {
      const next = lines[at + 1] ?? "";
      const nextDeep = next.length - next.trimStart().length;
      if (next.trim() === "" || (nextDeep <= indent && !ITEM.test(next))) break;
      items.at(-1)?.push("");
    } else if (deep > indent || isParagraph(line)) {
      items.at(-1)?.push(line.slice(Math.min(deep, indent + 2)));
    } else break;
    at += 1;
  }
  const children = items.map((each, index) => {
    const content = blocks(each, depth + 1);
    const only = content.length === 1 && each.length === 1;
    return <li key={index}>{only ? spans(each[0] ?? "", 0) : content}</li>;
  });
  return [ordered ? <ol key={key}>{children}</ol> : <ul key={key}>{children}</ul>, at];
}

function cells(line: string): string[] {
  return line.trim().replace(/^\||\|$/g, "").split("|").slice(0, 30).map((each) => each.trim());
}

function table(head: string, rows: string[], key: string): ReactNode {
  return (
    <table key={key}>
      <thead>
        <tr>{cells(head).map((each, index) => <th key={index}>{spans(each, 0)}</th>)}</tr>
      </thead>
      <tbody>
        {rows.map((row, index) => (
          <tr key={index}>{cells(row).map((each, place) => <td key={place}>{spans(each, 0)}</td>)}</tr>
        ))}
      </tbody>
    </table>
  );
}

const LINK = /^(!?)\[([^\[\]\n]{0,500})\]\(\s*<?([^\s()<>]{0,2000})>?(?:\s+"[^"\n]{0,200}")?\s*\)/;
const AUTOLINK = /^<?(https?:\/\/[^\s<>"'`]{1,2000})>?/;
const MARKS: [string, "strong" | "em" | "del"][] = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];

/** An address that may be followed: the web and mail, nothing that runs. */
export function safeAddress(text: string): string | null {
  return /^(https?:\/\/|mailto:)/i.test(text) ? text : null;
}

function spans(text: string, depth: number): ReactNode {
  const found: ReactNode[] = [];
  let plain = "";
  let at = 0;
  const flush = (): void => {
    if (plain !== "") found.push(<Fragment key={found.length}>{plain}</Fragment>);
    plain = "";
  };
  const put = (node: (key: number) => ReactNode, length: number): void => {
    flush();
    found.push(node(found.length));
    at += length;
  };
  while (at < text.length) {
    const special = nextSpecial(text, at);
    plain += text.slice(at, special);
    at = special;
    if (at >= text.length) break;
    const taken = depth > MAX_DEPTH ? null : span(text, at, depth);
    if (taken) put(taken[0], taken[1]);
    else {
      plain += text[at] ?? "";
      at += 1;
    }
  }
  flush();
  return found;
}

const SPECIAL = /[\\`*_~[!<]|https?:\/\//g;

function nextSpecial(text: string, from: number): number {
  SPECIAL.lastIndex = from;
  return SPECIAL.exec(text)?.index ?? text.length;
}

type Span = [(key: number) => ReactNode, number];

function span(text: string, at: number, depth: number): Span | null {
  const rest = text.slice(at, at + 4000);
  if (rest[0] === "\\" && /[^\w\s]/.test(rest[1] ?? "")) return [(key) => <Fragment key={key}>{rest[1]}</Fragment>, 2];
  if (rest[0] === "`") {
    const ticks = /^`+/.exec(rest)?.[0] ?? "`";
    const end = rest.indexOf(ticks, ticks.length);
    return end < 0 ? null : [(key) => <code key={key}>{rest.slice(ticks.length, end).trim()}</code>, end + ticks.length];
  }
  const link = LINK.exec(rest);
  if (link) return [(key) => anchor(key, safeAddress(link[3] ?? ""), spans(link[2] || (link[3] ?? ""), depth + 1)), link[0].length];
  const auto = AUTOLINK.exec(rest);
  if (auto) {
    const target = (auto[1] ?? "").replace(/[.,;:!?)]+$/, "");
    return [(key) => anchor(key, target, target), auto[0].startsWith("<") ? auto[0].length : target.length];
  }
  for (const [mark, Tag] of MARKS) {
    if (!rest.startsWith(mark) || /\s/.test(rest[mark.length] ?? " ")) continue;
    if (mark[0] === "_" && /\w/.test(text[at - 1] ?? "")) continue; // snake_case
    const end = rest.indexOf(mark, mark.length + 1);
    if (end < 0 || (mark[0] === "_" && /\w/.test(rest[end + mark.length] ?? ""))) continue;
    return [(key) => <Tag key={key}>{spans(rest.slice(mark.length, end), depth + 1)}</Tag>, end + mark.length];
  }
  return null;
}

function anchor(key: number, target: string | null, children: ReactNode): ReactNode {
  if (target === null) return <Fragment key={key}>{children}</Fragment>;
  return (
    <a key={key} href={target} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}
