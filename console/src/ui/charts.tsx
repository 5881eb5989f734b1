/** Charts without axes: they show a shape, and the figures stand beside them. */

import type { ReactNode } from "react";

/** Values over time, the newest at the right edge; `slots` is how many fit. */
export function Sparkline({ values, width = 120, height = 24, label, slots = values.length }: { values: number[]; width?: number; height?: number; label: string; slots?: number }): ReactNode {
  const most = Math.max(1e-9, ...values);
  const step = slots > 1 ? width / (slots - 1) : width;
  const first = width - (values.length - 1) * step;
  const points = values.map((value, index) => `${(first + index * step).toFixed(1)},${(height - 1 - (value / most) * (height - 3)).toFixed(1)}`);
  return (
    <svg className="spark" width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={label} preserveAspectRatio="none">
      {values.length > 1 && (
        <>
          <path className="area" d={`M${first.toFixed(1)},${height} L${points.join(" L")} L${width},${height} Z`} />
          <polyline points={points.join(" ")} />
        </>
      )}
    </svg>
  );
}

const SHORTEST = Math.log10(0.05);
const LONGEST = Math.log10(60_000);

/** Durations on one logarithmic scale from 0.05 ms to a minute, so that rows can be compared. */
export function Histogram({ buckets, width = 120, height = 24, label }: { buckets: [number | null, number][]; width?: number; height?: number; label: string }): ReactNode {
  const most = Math.max(1, ...buckets.map(([, amount]) => amount));
  return (
    <svg className="histogram" width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={label}>
      <line x1={0} x2={width} y1={height - 0.5} y2={height - 0.5} />
      {buckets.map(([upper, amount], index) => {
        if (amount === 0) return null;
        const tall = Math.max(1.5, (amount / most) * (height - 1));
        const share = (Math.log10(upper ?? 60_000) - SHORTEST) / (LONGEST - SHORTEST);
        return <rect key={index} x={Math.min(1, Math.max(0, share)) * (width - 3)} y={height - tall} width={3} height={tall} rx={0.5} />;
      })}
    </svg>
  );
}
