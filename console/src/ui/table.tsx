/** An array of objects as a table: the columns of the first hundred rows, sorted by a click. */

import { type ReactNode, useMemo, useState } from "react";

import { compact, isObject } from "../json";
import { line } from "../text";
import { Icon } from "./icons";

const MAX_COLUMNS = 40;
const PORTION = 200;

/** The rows, if a value is an array of objects or has exactly one such array. */
export function tableRows(value: unknown): Record<string, unknown>[] | null {
  if (Array.isArray(value)) return value.length > 0 && value.slice(0, 100).every(isObject) ? value.filter(isObject) : null;
  if (!isObject(value)) return null;
  const found = Object.values(value).filter((each) => Array.isArray(each) && tableRows(each) !== null);
  return found.length === 1 ? tableRows(found[0]) : null;
}

function shown(value: unknown): string {
  return value === undefined ? "" : typeof value === "string" ? line(value, 120) : line(compact(value), 120);
}

function ordered(a: unknown, b: unknown): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return shown(a).localeCompare(shown(b));
}

export function DataTable({ rows }: { rows: Record<string, unknown>[] }): ReactNode {
  const [sort, setSort] = useState<{ column: string; down: boolean } | null>(null);
  const [limit, setLimit] = useState(PORTION);
  const columns = useMemo(() => [...new Set(rows.slice(0, 100).flatMap((each) => Object.keys(each)))].slice(0, MAX_COLUMNS), [rows]);
  const sorted = useMemo(() => {
    if (!sort) return rows;
    const factor = sort.down ? -1 : 1;
    return [...rows].sort((a, b) => factor * ordered(a[sort.column], b[sort.column]));
  }, [rows, sort]);
  return (
    <div className="table-scroll" tabIndex={0} role="region" aria-label="Table of the result">
      <table className="data">
        <thead>
          <tr>
            <th scope="col" className="number">#</th>
            {columns.map((column) => (
              <th key={column} scope="col" aria-sort={sort?.column === column ? (sort.down ? "descending" : "ascending") : "none"}>
                <button type="button" onClick={() => setSort({ column, down: sort?.column === column && !sort.down })}>
                  {line(column, 60)}
                  {sort?.column === column && <Icon name={sort.down ? "down" : "up"} size={11} />}
                </button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {sorted.slice(0, limit).map((row, index) => (
            <tr key={index}>
              <td className="number muted">{index + 1}</td>
              {columns.map((column) => (
                <td key={column} className={typeof row[column] === "number" ? "number" : ""} title={shown(row[column])}>
                  {shown(row[column])}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {sorted.length > limit && (
        <button type="button" className="link more" onClick={() => setLimit(limit + PORTION * 5)}>
          {sorted.length - limit} more rows
        </button>
      )}
    </div>
  );
}
