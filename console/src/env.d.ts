/** The part of `react-dom/client` that Preact stands in for. */
declare module "react-dom/client" {
  import type { ReactNode } from "react";
  export function createRoot(container: Element): { render(node: ReactNode): void };
}
