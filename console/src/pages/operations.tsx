/** All operations: a tree by namespace and tag beside the chosen one. */

import { type ReactNode, useEffect, useMemo, useState } from "react";

import { session } from "../api";
import { catalogue, loadCatalogue, useSearch } from "../catalogue";
import { useKeys } from "../keys";
import { fromHtml } from "../markdown";
import { go, route } from "../router";
import { Store, stored, useStore } from "../store";
import { count, line, plural } from "../text";
import type { OperationSummary } from "../types";
import { Icon } from "../ui/icons";
import { Button, Empty, Notice, SearchBox, Segments, TypeMark } from "../ui/parts";
import { VirtualList } from "../ui/virtual";
import { OperationPane } from "./operation";

type Row =
  | { kind: "group"; key: string; name: string; level: number; size: number; isOpen: boolean }
  | { kind: "operation"; key: string; operation: OperationSummary; level: number; label: string };

type Grouping = "namespace" | "tag" | "source";
const ROW = 28;
const FEW = 60;

const closed = new Store<Set<string>>(new Set());
const opened = new Store<Set<string>>(new Set());
const grouping = stored<Grouping>("grouping", "namespace");
export const query = new Store("");

function namespaceOf(operation: OperationSummary): string {
  const dot = operation.id.indexOf(".");
  return dot < 0 ? "" : operation.id.slice(0, dot);
}

function shortName(operation: OperationSummary): string {
  const dot = operation.id.indexOf(".");
  return dot < 0 ? operation.id : operation.id.slice(dot + 1);
}

function grouped<T>(list: T[], names: (each: T) => string[]): Map<string, T[]> {
  const found = new Map<string, T[]>();
  for (const each of list) {
    for (const name of names(each)) {
      const group = found.get(name);
      if (group) group.push(each);
      else found.set(name, [each]);
    }
  }
  return new Map([...found].sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)));
}

function namesOf(operation: OperationSummary, by: Grouping): string[] {
  if (by === "namespace") return [namespaceOf(operation)];
  if (by === "source") return [operation.source ?? "this program"];
  return operation.tags.length > 0 ? operation.tags : ["untagged"];
}

/** Open the groups of an operation, so that it is in sight. */
function reveal(operation: OperationSummary, by: Grouping): void {
  const key = `${by}:${namesOf(operation, by)[0]}`;
  const inner = `${key}/${by === "namespace" ? (operation.tags[0] ?? "") : ""}`;
  opened.update((value) => (value.has(key) ? value : new Set([...value, key])));
  closed.update((value) => (value.has(key) || value.has(inner) ? new Set([...value].filter((each) => each !== key && each !== inner)) : value));
}

/** The rows of the tree. Namespaces with many operations are grouped by their first tag as well. */
function treeRows(operations: OperationSummary[], by: Grouping, shut: Set<string>, wide: Set<string>): Row[] {
  const rows: Row[] = [];
  const groups = grouped(operations, (each) => namesOf(each, by));
  for (const [name, members] of groups) {
    const key = `${by}:${name}`;
    const isSmall = members.length <= FEW || groups.size === 1;
    const isOpen = isSmall ? !shut.has(key) : wide.has(key);
    rows.push({ kind: "group", key, name: name || "without namespace", level: 1, size: members.length, isOpen });
    if (!isOpen) continue;
    const tags = by === "namespace" ? grouped(members, (each) => [each.tags[0] ?? ""]) : new Map([["", members]]);
    const isSplit = tags.size > 1 && members.length > 12;
    for (const [tag, inner] of isSplit ? tags : new Map([["", members]])) {
      const inside = `${key}/${tag}`;
      const isTagOpen = !shut.has(inside);
      if (isSplit) rows.push({ kind: "group", key: inside, name: tag || "untagged", level: 2, size: inner.length, isOpen: isTagOpen });
      if (isSplit && !isTagOpen) continue;
      for (const operation of inner) {
        rows.push({ kind: "operation", key: `${inside}/${operation.id}`, operation, level: isSplit ? 3 : 2, label: by === "namespace" ? shortName(operation) : operation.id });
      }
    }
  }
  return rows;
}

function toggle(row: Row & { kind: "group" }): void {
  const flip = (store: Store<Set<string>>, isIn: boolean): void =>
    store.update((value) => {
      const next = new Set(value);
      if (isIn) next.add(row.key);
      else next.delete(row.key);
      return next;
    });
  flip(closed, row.isOpen);
  flip(opened, !row.isOpen);
}

export function OperationsPage(): ReactNode {
  const { operations, problem, loading } = useStore(catalogue);
  const { id, tab } = useStore(route);
  const me = useStore(session);
  const isAnonymous = me !== null && me.login && !me.identity;
  return (
    <div className={`split${id === null ? "" : " chosen"}`}>
      <aside className="pane list" aria-label="Operations">
        <OperationList selected={id} />
      </aside>
      <section className="pane detail" aria-label="Operation">
        {problem && <Notice tone="bad" action={<Button icon="retry" onClick={() => void loadCatalogue()}>Try again</Button>}>The operations could not be loaded: {problem}</Notice>}
        {id !== null ? (
          <OperationPane id={id} tab={tab ?? "try"} key={id} />
        ) : (
          !loading && (
            <Empty icon="operations" title={operations.length === 0 ? "No operations" : plural(operations.length, "operation")}>
              {operations.length === 0 ? (isAnonymous ? "Operations that need a login are not shown: log in to see them." : "Register functions, or add sources to opwire.toml; they appear here at once.") : <>Choose one on the left, or press <kbd>/</kbd> to search. <kbd>?</kbd> shows all keys.</>}
            </Empty>
          )
        )}
      </section>
    </div>
  );
}

function OperationList({ selected }: { selected: string | null }): ReactNode {
  const { operations, loading } = useStore(catalogue);
  const by = useStore(grouping);
  const shut = useStore(closed);
  const wide = useStore(opened);
  const words = useStore(query);
  const found = useSearch(words);
  const [cursor, setCursor] = useState<string | null>(null);
  const tree = useMemo(() => treeRows(operations, by, shut, wide), [operations, by, shut, wide]);
  const rows: Row[] = useMemo(
    () => (found === null ? tree : found.map((operation) => ({ kind: "operation" as const, key: `found/${operation.id}`, operation, level: 1, label: operation.id }))),
    [found, tree],
  );
  const at = rows.findIndex((row) => (cursor === null ? row.kind === "operation" && row.operation.id === selected : row.key === cursor));

  useEffect(() => {
    setCursor(null);
    const operation = operations.find((each) => each.id === selected);
    if (operation) reveal(operation, by);
  }, [selected, by, operations]);

  const move = (step: number): void => {
    const next = rows[Math.max(0, Math.min(rows.length - 1, at + step))];
    if (next) setCursor(next.key);
  };
  const activate = (): void => {
    const row = rows[at < 0 ? 0 : at];
    if (row?.kind === "group") toggle(row);
    else if (row) go("operations", row.operation.id);
  };
  const onKeys = (event: React.KeyboardEvent): void => {
    const row = rows[at];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowDown") move(1);
    else if (event.key === "ArrowUp") move(-1);
    else if (event.key === "PageDown") move(15);
    else if (event.key === "PageUp") move(-15);
    else if (event.key === "Enter") activate();
    else if (event.key === "ArrowRight" && row?.kind === "group" && !row.isOpen) toggle(row);
    else if (event.key === "ArrowLeft" && row?.kind === "group" && row.isOpen) toggle(row);
    else if (event.key === "Escape" && words !== "") query.set("");
    else return;
    event.preventDefault();
  };
  useKeys({ j: () => move(1), k: () => move(-1), Enter: activate });

  return (
    <>
      <div className="list-head">
        <SearchBox value={words} onChange={query.set.bind(query)} label="Search operations" shortcut onKeyDown={onKeys} />
        <div className="list-tools">
          <span className="muted">{loading ? "Loading…" : found === null ? plural(operations.length, "operation") : `${count(found.length)} found`}</span>
          {found === null && (
            <Segments label="Group by" active={by} onChange={(value) => grouping.set(value as Grouping)} options={[{ id: "namespace", name: "Name" }, { id: "tag", name: "Tag" }, { id: "source", name: "Source" }]} />
          )}
        </div>
      </div>
      <VirtualList
        className="operations"
        role="tree"
        label="Operations"
        count={rows.length}
        rowHeight={ROW}
        reveal={at}
        activeId={at >= 0 ? `row-${at}` : null}
        onKeyDown={onKeys}
        row={(index) => <ListRow key={rows[index]!.key} row={rows[index]!} index={index} isActive={index === at} isSelected={selected} />}
      />
      {found?.length === 0 && <p className="list-none muted">Nothing matches “{line(words, 40)}”.</p>}
    </>
  );
}

function ListRow({ row, index, isActive, isSelected }: { row: Row; index: number; isActive: boolean; isSelected: string | null }): ReactNode {
  if (row.kind === "group") {
    return (
      <div id={`row-${index}`} role="treeitem" aria-level={row.level} aria-expanded={row.isOpen} className={`row group level${row.level}${isActive ? " active" : ""}`} onClick={() => toggle(row)}>
        <Icon name={row.isOpen ? "down" : "right"} size={12} />
        <bdi>{line(row.name, 80)}</bdi>
        <span className="row-count">{count(row.size)}</span>
      </div>
    );
  }
  const { operation } = row;
  const isChosen = operation.id === isSelected;
  return (
    <div
      id={`row-${index}`}
      role="treeitem"
      aria-level={row.level}
      aria-selected={isChosen}
      className={`row level${row.level}${isActive ? " active" : ""}${isChosen ? " chosen" : ""}`}
      onClick={() => go("operations", operation.id)}
      title={`${line(operation.id)}\n${line(fromHtml(operation.summary ?? operation.title ?? ""), 200)}`}
    >
      <TypeMark type={operation.type} />
      <bdi className="row-name">{line(row.label, 100)}</bdi>
      {operation.destructive === true && <span className="row-count danger-mark" role="img" aria-label="destructive" title="May delete or overwrite"><Icon name="warn" size={12} /></span>}
    </div>
  );
}
