/** Charts without axes: they show a shape, and the figures stand beside them. */

import type { ReactNode } from "react";

export function Sparkline({ values, width = 120, height = 24, label, tone = "accent" }: { values: number[]; width?: number; height?: number; label: string; tone?: string }): ReactNode {
  const most = Math.max(1e-9, ...values);
  const step = values.length > 1 ? width / (values.length - 1) : width;
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(height - 1 - (value / most) * (height - 3)).toFixed(1)}`);
  return (
    <svg className={`spark ${tone}`} width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={label} preserveAspectRatio="none">
      {values.length > 1 && (
        <>
          <path className="area" d={`M0,${height} L${points.join(" L")} L${width},${height} Z`} />
          <polyline points={points.join(" ")} />
        </>
      )}
    </svg>
  );
}

export function Histogram({ counts, width = 96, height = 24, label }: { counts: number[]; width?: number; height?: number; label: string }): ReactNode {
  const most = Math.max(1, ...counts);
  const bar = width / Math.max(1, counts.length);
  return (
    <svg className="histogram" width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={label}>
      {counts.map((value, index) => {
        const tall = value === 0 ? 0 : Math.max(1.5, (value / most) * height);
        return <rect key={index} x={index * bar + 0.5} y={height - tall} width={Math.max(1, bar - 1)} height={tall} rx={1} />;
      })}
    </svg>
  );
}
