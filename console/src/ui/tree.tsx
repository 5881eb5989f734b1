/** A JSON value as a tree that is drawn as far as it is opened; long arrays and objects in portions. */

import { type ReactNode, useState } from "react";

import { compact, isObject, pretty } from "../json";
import { count, visible } from "../text";
import { CopyButton } from "./parts";
import { Icon } from "./icons";

const PORTION = 100;
const MAX_TEXT = 2_000;
/** Texts that are quoted, since only their colour would tell them from a number, a word of JSON, or nothing. */
const LIKE_ANOTHER = /^(true|false|null|-?\d{1,40}(\.\d{1,40})?(e[+-]?\d{1,3})?|\s{0,40})$/i;

export function JsonTree({ value, open = 2 }: { value: unknown; open?: number }): ReactNode {
  return (
    <div className="tree" role="tree" aria-label="Value">
      <Node name={null} value={value} level={1} open={open} />
    </div>
  );
}

function Node({ name, value, level, open }: { name: string | number | null; value: unknown; level: number; open: number }): ReactNode {
  const isBranch = (Array.isArray(value) && value.length > 0) || (isObject(value) && Object.keys(value).length > 0);
  const size = Array.isArray(value) ? value.length : isObject(value) ? Object.keys(value).length : 0;
  const [isOpen, setOpen] = useState(isBranch && level <= open && size <= PORTION);
  const [shown, setShown] = useState(PORTION);
  const key = name === null ? null : <span className={typeof name === "number" ? "tree-index" : "tree-key"}>{typeof name === "number" ? name : visible(name) || '""'}</span>;
  if (!isBranch) {
    return (
      <div className="tree-row" role="treeitem" aria-level={level}>
        <span className="tree-mark" />
        {key}
        <Leaf value={value} />
      </div>
    );
  }
  const keys = isOpen ? (Array.isArray(value) ? value.slice(0, shown).map((_, index) => index) : Object.keys(value as object).slice(0, shown)) : [];
  const summary = Array.isArray(value) ? `[${count(size)}]` : `{${count(size)}}`;
  return (
    <div role="treeitem" aria-level={level} aria-expanded={isOpen}>
      <div className="tree-row">
        <button type="button" className="tree-mark" aria-label={isOpen ? "Close" : "Open"} onClick={() => setOpen(!isOpen)}>
          <Icon name={isOpen ? "down" : "right"} size={12} />
        </button>
        {key}
        <button type="button" className="tree-summary" tabIndex={-1} onClick={() => setOpen(!isOpen)}>
          {summary}
          {!isOpen && <span className="muted"> {hint(value)}</span>}
        </button>
        <span className="tree-tools">
          <CopyButton text={() => pretty(value)} label="Copy this value" />
        </span>
      </div>
      {isOpen && (
        <div className="tree-children" role="group">
          {keys.map((each) => (
            <Node key={each} name={each} value={(value as any)[each]} level={level + 1} open={open} />
          ))}
          {size > shown && (
            <button type="button" className="link" onClick={() => setShown(shown + PORTION * 10)}>
              {count(size - shown)} more
            </button>
          )}
        </div>
      )}
    </div>
  );
}

function hint(value: unknown): string {
  if (Array.isArray(value)) return "";
  return Object.keys(value as object).slice(0, 5).map(visible).join(", ").slice(0, 80);
}

function Leaf({ value }: { value: unknown }): ReactNode {
  const [isWhole, setWhole] = useState(false);
  if (typeof value === "string") {
    const cut = value.length > MAX_TEXT && !isWhole;
    return (
      <span className="tree-string">
        {LIKE_ANOTHER.test(value) ? compact(value) : visible(cut ? value.slice(0, MAX_TEXT) : value.slice(0, 200_000))}
        {cut && (
          <button type="button" className="link" onClick={() => setWhole(true)}>
            … {count(value.length - MAX_TEXT)} more characters
          </button>
        )}
      </span>
    );
  }
  const kind = typeof value === "number" || typeof value === "bigint" ? "tree-number" : "tree-word";
  return <span className={kind}>{compact(value)}</span>;
}
