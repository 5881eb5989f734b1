/** Start the page: log in by a one-time link if there is one, then load the operations and listen. */

import { createRoot } from "react-dom/client";

import { enterWithOthers, loadSession, login, loginReason, logins, session } from "./api";
import { App } from "./app";
import { catalogue, loadCatalogue } from "./catalogue";
import { startLive } from "./live";
import { takeLink } from "./router";
import { startTheme } from "./theme";
import "./styles/main.css";

startTheme();
const link = takeLink();
const root = createRoot(document.getElementById("app")!);
root.render(<App startProblem={null} />);

async function start(): Promise<void> {
  try {
    if (link !== null) await login({ link }).catch(() => loginReason.set("This link has been used already, or has expired. Log in with a token, or ask for a new link."));
    if (session.value === null) await loadSession();
  } catch (error) {
    root.render(<App startProblem={(error as Error).message} />);
    return;
  }
  logins.subscribe(() => void loadCatalogue());
  await loadCatalogue();
  // Without a login only public operations are listed. If there are none, the login is all that can be done.
  if (session.value?.login && catalogue.value.operations.length === 0 && loginReason.value === null) loginReason.set("");
  startLive();
}

window.addEventListener("focus", () => void enterWithOthers());
void start();
