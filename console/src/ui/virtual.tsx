/** A list that draws only the rows in sight: 10,000 rows cost what 40 cost. All rows have the same height. */

import { type ReactNode, useEffect, useLayoutEffect, useRef, useState } from "react";

interface Props {
  count: number;
  rowHeight: number;
  row: (index: number) => ReactNode;
  /** A row that is to be in sight. */
  reveal?: number | null;
  /** Stay at the end while rows are added there, unless the reader has scrolled up. */
  follow?: boolean;
  className?: string;
  role?: string;
  label?: string;
  header?: ReactNode;
  activeId?: string | null;
  onKeyDown?: (event: React.KeyboardEvent) => void;
}

const SPARE = 8;

export function VirtualList(props: Props): ReactNode {
  const { count, rowHeight, row, reveal, follow, role = "list" } = props;
  const box = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    setHeight(element.clientHeight);
    return () => observer.disconnect();
  }, []);

  useLayoutEffect(() => {
    const element = box.current;
    if (element && follow && atEnd.current) {
      element.scrollTop = count * rowHeight;
      setTop(element.scrollTop);
    }
  }, [count, follow, rowHeight, height]);

  useEffect(() => {
    const element = box.current;
    if (!element || reveal === null || reveal === undefined || reveal < 0) return;
    const y = reveal * rowHeight;
    if (y < element.scrollTop) element.scrollTop = Math.max(0, y - rowHeight);
    else if (y + rowHeight * 2 > element.scrollTop + element.clientHeight) element.scrollTop = y + rowHeight * 2 - element.clientHeight;
  }, [reveal, rowHeight, count === 0]);

  const first = Math.max(0, Math.min(Math.floor(top / rowHeight), count) - SPARE);
  const last = Math.min(count, Math.ceil((top + height) / rowHeight) + SPARE);
  const rows: ReactNode[] = [];
  for (let index = first; index < last; index += 1) rows.push(row(index));
  return (
    <div
      ref={box}
      className={`virtual ${props.className ?? ""}`}
      role={role}
      aria-label={props.label}
      aria-activedescendant={props.activeId ?? undefined}
      tabIndex={0}
      onKeyDown={props.onKeyDown}
      onScroll={(event) => {
        const element = event.currentTarget;
        atEnd.current = element.scrollTop + element.clientHeight >= element.scrollHeight - rowHeight * 2;
        setTop(element.scrollTop);
      }}
    >
      {props.header}
      <div role="presentation" className="virtual-space" style={{ height: `${count * rowHeight}px` }}>
        <div role="presentation" className="virtual-rows" style={{ transform: `translateY(${first * rowHeight}px)` }}>
          {rows}
        </div>
      </div>
    </div>
  );
}
