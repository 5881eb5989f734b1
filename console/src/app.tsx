/** The frame of the page: navigation, connection, login, help. */

import { Component, type ReactNode, useEffect, useRef, useState } from "react";

import { loadSession, login, loginReason, logout, Problem, session } from "./api";
import { runs } from "./calls";
import { SHORTCUTS, useKeys } from "./keys";
import { approvals, connection, lostSince, reconnect, watchProblem } from "./live";
import { OperationsPage } from "./pages/operations";
import { StreamsPage } from "./pages/streams";
import { SystemPage } from "./pages/system";
import { TapePage } from "./pages/tape";
import { useSeconds } from "./pages/stream";
import { go, href, route } from "./router";
import { useStore } from "./store";
import { line, sentence } from "./text";
import { nextTheme, theme } from "./theme";
import { Icon, type IconName } from "./ui/icons";
import { Button, Dialog, Popover } from "./ui/parts";

const PAGES: { id: string; name: string; icon: IconName; key: string; view: () => ReactNode }[] = [
  { id: "operations", name: "Operations", icon: "operations", key: "o", view: OperationsPage },
  { id: "streams", name: "Streams", icon: "streams", key: "s", view: StreamsPage },
  { id: "tape", name: "Tape", icon: "tape", key: "t", view: TapePage },
  { id: "system", name: "System", icon: "system", key: "y", view: SystemPage },
];

export function App({ startProblem }: { startProblem: string | null }): ReactNode {
  const { page } = useStore(route);
  const me = useStore(session);
  const reason = useStore(loginReason);
  const [isHelp, setHelp] = useState(false);
  const isGoing = useRef(0);
  const waiting = useWaiting();
  const View = PAGES.find((each) => each.id === page)?.view ?? OperationsPage;
  useEffect(() => {
    const name = PAGES.find((each) => each.id === page)?.name ?? "Operations";
    document.title = `${waiting > 0 ? `(${waiting}) ` : ""}${name} · ${line(me?.title ?? "opwire", 60)}`;
  }, [page, me, waiting]);
  const jump = (key: string) => (event: KeyboardEvent): void => {
    if (Date.now() - isGoing.current > 1500) return;
    isGoing.current = 0;
    const target = PAGES.find((each) => each.key === key);
    if (target) go(target.id);
    event.preventDefault();
  };
  useKeys({
    "/": () => document.querySelector<HTMLInputElement>("[data-search]")?.focus(),
    "?": () => setHelp(true),
    d: nextTheme,
    g: () => (isGoing.current = Date.now()),
    o: jump("o"), s: jump("s"), t: jump("t"), y: jump("y"),
  });
  return (
    <div className="app" onKeyDown={leaveField}>
      <a className="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the content</a>
      <TopBar onHelp={() => setHelp(true)} />
      <ConnectionBanner />
      <main id="main" tabIndex={-1}>{startProblem !== null && me === null ? <StartProblem text={startProblem} /> : <PageFence key={page}><View /></PageFence>}</main>
      {reason !== null && <LoginBox reason={reason} />}
      {isHelp && <Help onClose={() => setHelp(false)} />}
    </div>
  );
}

/** What cannot be drawn costs one page, not the frame with the navigation and the login. */
class PageFence extends Component<{ children: ReactNode }, { problem: string | null }> {
  override state = { problem: null as string | null };

  static getDerivedStateFromError(error: Error): { problem: string } {
    return { problem: error.message };
  }

  override componentDidMount(): void {
    window.addEventListener("hashchange", this.reset);
  }

  override componentWillUnmount(): void {
    window.removeEventListener("hashchange", this.reset);
  }

  private readonly reset = (): void => {
    if (this.state.problem !== null) this.setState({ problem: null });
  };

  override render(): ReactNode {
    if (this.state.problem === null) return this.props.children;
    return <p role="alert">This page cannot be drawn ({line(this.state.problem, 200)}). Choose another one, or load it again.</p>;
  }
}

/** Escape leaves a field, so that the keys work again. */
function leaveField(event: React.KeyboardEvent): void {
  const target = event.target as HTMLElement;
  if (event.key === "Escape" && !event.defaultPrevented && /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) target.blur();
}

/** How many approvals and questions wait for the person at this page. */
function useWaiting(): number {
  const isAsked = useStore(session)?.mayApprove === true;
  const listed = useStore(approvals).length;
  return (isAsked ? listed : 0) + useStore(runs).reduce((sum, each) => sum + each.questions.length, 0);
}

function TopBar({ onHelp }: { onHelp: () => void }): ReactNode {
  const { page } = useStore(route);
  const me = useStore(session);
  const state = useStore(connection);
  const missing = useStore(watchProblem);
  const mode = useStore(theme);
  const waiting = useWaiting();
  const icon = mode === "dark" ? "moon" : mode === "light" ? "sun" : "auto";
  return (
    <header className="topbar">
      <a className="brand" href={href("operations")}>
        <svg width="20" height="20" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" /><path d="M7 16h5M20 16h5" /><circle cx="16" cy="16" r="4.2" /></svg>
        <span>{line(me?.title ?? "opwire", 40)}</span>
      </a>
      <nav aria-label="Pages">
        {PAGES.map((each) => (
          <a key={each.id} href={href(each.id)} aria-current={page === each.id ? "page" : undefined}>
            <Icon name={each.icon} />
            <span>{each.name}</span>
            {each.id === "streams" && waiting > 0 && <span className="count" title={`${waiting} waiting for you`}>{waiting}<span className="sr"> waiting for you</span></span>}
          </a>
        ))}
      </nav>
      <span className="grow" />
      <span className={`connection ${state}`} role="status" title={(state === "open" && missing && sentence(missing)) || undefined}><span className={`dot${missing ? " warn" : ""}`} aria-hidden="true" /><span>{state === "open" ? (missing ? "Not current" : "Live") : state === "lost" ? "Offline" : "Connecting"}</span></span>
      {me?.version && <span className="version muted" title={`Version of ${line(me.title, 60) || "the server"}`}>{line(me.version, 20)}</span>}
      <Button kind="quiet" icon={icon} label={`Theme: ${mode === "auto" ? "as the system" : mode}`} onClick={nextTheme} />
      <Button kind="quiet" icon="help" label="Keyboard shortcuts" onClick={onHelp} />
      <Account />
    </header>
  );
}

function Account(): ReactNode {
  const me = useStore(session);
  if (!me) return null;
  if (!me.identity) return me.login ? <Button icon="user" onClick={() => loginReason.set("")}>Log in</Button> : <span className="muted account">anonymous</span>;
  return (
    <Popover isBelow summary={<><Icon name="user" size={14} /> <bdi>{line(me.identity.id, 24)}</bdi></>}>
        <p className="muted">Scopes</p>
        <p>{me.identity.scopes.length === 0 ? "none" : me.identity.scopes.slice(0, 40).map((each) => <code key={each}>{line(each, 60)} </code>)}</p>
        <Button onClick={() => void logout()}>Log out</Button>
    </Popover>
  );
}

function ConnectionBanner(): ReactNode {
  const since = useStore(lostSince);
  useSeconds(since !== null);
  if (since === null || Date.now() - since < 900) return null;
  return (
    <div className="banner" role="alert">
      <Icon name="warn" />
      <span>The connection to the server is lost, and is being restored. What is shown may be old.</span>
      <Button onClick={reconnect}>Try now</Button>
    </div>
  );
}

function StartProblem({ text }: { text: string }): ReactNode {
  return (
    <div className="empty">
      <Icon name="warn" size={28} />
      <h1>The console could not start</h1>
      <p>{line(text)}</p>
      <Button kind="primary" icon="retry" onClick={() => location.reload()}>Try again</Button>
    </div>
  );
}

function LoginBox({ reason }: { reason: string }): ReactNode {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const submit = async (): Promise<void> => {
    setBusy(true);
    try {
      await login({ token: token.trim() });
    } catch (error) {
      setProblem(error instanceof Problem && error.status === 401 ? "The server does not accept this token." : (error as Error).message);
      setBusy(false);
    }
  };
  const canClose = session.value !== null;
  return (
    <Dialog title="Log in" onClose={canClose ? () => loginReason.set(null) : null}>
      <form onSubmit={(event) => { event.preventDefault(); void submit(); }}>
        <p>{reason || "Enter a token that this server accepts. The command that started it may also have printed a link that logs you in."}</p>
        <label className="field">Token
          <input type="password" autoComplete="off" autoFocus value={token} aria-describedby="login-problem" onInput={(event) => setToken((event.target as HTMLInputElement).value)} />
        </label>
        <p id="login-problem" className="field-errors" role="alert">{problem && line(problem)}</p>
        <div className="buttons">
          <Button kind="primary" type="submit" disabled={isBusy || token.trim() === ""}>Log in</Button>
          {canClose && <Button kind="quiet" onClick={() => { loginReason.set(null); void loadSession().catch(() => undefined); }}>Go on without</Button>}
        </div>
      </form>
    </Dialog>
  );
}

function Help({ onClose }: { onClose: () => void }): ReactNode {
  return (
    <Dialog title="Keyboard" onClose={onClose}>
      <dl className="shortcuts">
        {SHORTCUTS.map(([keys, what]) => (
          <div key={keys}>
            <dt>{keys.split(/(, | then )/).map((each, index) => (index % 2 ? <span key={index} className="muted">{each}</span> : <kbd key={index}>{each}</kbd>))}</dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
