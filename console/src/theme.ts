/** Dark, light, or as the system says. */

import { stored } from "./store";

type Theme = "auto" | "light" | "dark";
export const theme = stored<Theme>("theme", "auto");

function apply(): void {
  if (theme.value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
}

export function nextTheme(): void {
  const order: Theme[] = ["auto", "light", "dark"];
  theme.set(order[(order.indexOf(theme.value) + 1) % order.length] ?? "auto");
}

export function startTheme(): void {
  apply();
  theme.subscribe(apply);
}
