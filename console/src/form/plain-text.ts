/** Stands in for the form generator's own Markdown renderer, which knows raw HTML: ours draws all descriptions. */

import type { ReactNode } from "react";

export function Markdown({ children }: { children?: ReactNode }): ReactNode {
  return children ?? null;
}
