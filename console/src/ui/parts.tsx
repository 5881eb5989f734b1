/** Small parts that several pages use. */

import { type ReactNode, useEffect, useId, useRef, useState } from "react";

import { line } from "../text";
import type { OperationType } from "../types";
import { Icon, type IconName } from "./icons";

const TYPE_NAMES: Record<OperationType, string> = { query: "Query", mutation: "Mutation", subscription: "Subscription" };

export function TypeMark({ type }: { type: OperationType }): ReactNode {
  return (
    <span className={`type ${type}`} title={TYPE_NAMES[type]} role="img" aria-label={TYPE_NAMES[type] ?? type}>
      {(type[0] ?? "?").toUpperCase()}
    </span>
  );
}

/** An operation's id: the namespace steps back behind the name. */
export function OperationId({ id }: { id: string }): ReactNode {
  const dot = id.indexOf(".");
  if (dot < 0) return <bdi className="opid">{line(id)}</bdi>;
  return (
    <bdi className="opid">
      <span className="muted">{line(id.slice(0, dot + 1))}</span>
      {line(id.slice(dot + 1))}
    </bdi>
  );
}

export function Outcome({ code }: { code: string }): ReactNode {
  const tone = code === "OK" ? "good" : code === "CANCELLED" ? "dim" : "bad";
  return <span className={`outcome ${tone}`}>{line(code, 40)}</span>;
}

export function Badge({ tone = "plain", title, children }: { tone?: string; title?: string; children: ReactNode }): ReactNode {
  return (
    <span className={`badge ${tone}`} title={title}>
      {children}
    </span>
  );
}

interface ButtonProps {
  icon?: IconName;
  label?: string;
  children?: ReactNode;
  kind?: "primary" | "plain" | "quiet" | "danger";
  onClick?: () => void;
  disabled?: boolean;
  pressed?: boolean;
  title?: string;
  type?: "button" | "submit";
}

export function Button({ icon, label, children, kind = "plain", onClick, disabled, pressed, title, type = "button" }: ButtonProps): ReactNode {
  return (
    <button
      type={type}
      className={`button ${kind}${children === undefined ? " square" : ""}`}
      onClick={onClick}
      disabled={disabled}
      aria-label={label}
      aria-pressed={pressed}
      title={title ?? label}
    >
      {icon && <Icon name={icon} size={14} />}
      {children !== undefined && <span>{children}</span>}
    </button>
  );
}

export function CopyButton({ text, label, children }: { text: () => string | Promise<string>; label: string; children?: ReactNode }): ReactNode {
  const [state, setState] = useState<"" | "done" | "failed">("");
  useEffect(() => {
    if (state === "") return;
    const timer = window.setTimeout(() => setState(""), 1500);
    return () => window.clearTimeout(timer);
  }, [state]);
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(await text());
      setState("done");
    } catch {
      setState("failed");
    }
  };
  return (
    <>
      <Button icon={state === "done" ? "check" : state === "failed" ? "warn" : children === undefined ? "copy" : undefined} kind="quiet" label={label} onClick={() => void copy()}>
        {children}
      </Button>
      <span className="sr" role="status">
        {state === "done" ? "Copied" : state === "failed" ? "Copying failed" : ""}
      </span>
    </>
  );
}

export function Tabs({ tabs, active, onChange, label }: { tabs: { id: string; name: ReactNode }[]; active: string; onChange: (id: string) => void; label: string }): ReactNode {
  const move = (event: React.KeyboardEvent): void => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (step === 0) return;
    const at = tabs.findIndex((each) => each.id === active);
    const next = tabs[(at + step + tabs.length) % tabs.length];
    if (next) {
      onChange(next.id);
      (event.currentTarget.querySelector(`[data-tab="${next.id}"]`) as HTMLElement | null)?.focus();
    }
  };
  return (
    <div className="tabs" role="tablist" aria-label={label} onKeyDown={move}>
      {tabs.map((tab) => (
        <button
          key={tab.id}
          type="button"
          role="tab"
          data-tab={tab.id}
          aria-selected={tab.id === active}
          tabIndex={tab.id === active ? 0 : -1}
          onClick={() => onChange(tab.id)}
        >
          {tab.name}
        </button>
      ))}
    </div>
  );
}

/** A small choice of which one is always taken. */
export function Segments({ options, active, onChange, label }: { options: { id: string; name: string }[]; active: string; onChange: (id: string) => void; label: string }): ReactNode {
  return (
    <div className="segments" role="group" aria-label={label}>
      {options.map((each) => (
        <button key={each.id} type="button" aria-pressed={each.id === active} onClick={() => onChange(each.id)}>
          {each.name}
        </button>
      ))}
    </div>
  );
}

export function Empty({ icon, title, children }: { icon: IconName; title: string; children?: ReactNode }): ReactNode {
  return (
    <div className="empty">
      <Icon name={icon} size={28} />
      <h2>{title}</h2>
      <div>{children}</div>
    </div>
  );
}

export function Notice({ tone, children, action }: { tone: "bad" | "warn" | "info"; children: ReactNode; action?: ReactNode }): ReactNode {
  return (
    <div className={`notice ${tone}`} role={tone === "bad" ? "alert" : "status"}>
      <Icon name={tone === "info" ? "question" : "warn"} />
      <div>{children}</div>
      {action}
    </div>
  );
}

export function Dialog({ title, onClose, children }: { title: string; onClose: (() => void) | null; children: ReactNode }): ReactNode {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = ref.current;
    if (dialog && !dialog.open) dialog.showModal();
  }, []);
  return (
    <dialog
      ref={ref}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        onClose?.();
      }}
      onClick={(event) => event.target === ref.current && onClose?.()}
    >
      <div className="dialog">
        <header>
          <h2 id={id}>{title}</h2>
          {onClose && <Button icon="close" kind="quiet" label="Close" onClick={onClose} />}
        </header>
        {children}
      </div>
    </dialog>
  );
}

/** A small box beside its button. A click elsewhere and Escape close it. */
export function Popover({ summary, isBelow = false, children }: { summary: ReactNode; isBelow?: boolean; children: ReactNode }): ReactNode {
  const ref = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const close = (event: Event): void => {
      const isElsewhere = event instanceof KeyboardEvent ? event.key === "Escape" : !ref.current?.contains(event.target as Node);
      if (isElsewhere && ref.current) ref.current.open = false;
    };
    document.addEventListener("pointerdown", close);
    document.addEventListener("keydown", close);
    return () => {
      document.removeEventListener("pointerdown", close);
      document.removeEventListener("keydown", close);
    };
  }, []);
  return (
    <details className="disclosure" ref={ref}>
      <summary>{summary}</summary>
      <div className={isBelow ? "popover right" : "popover"}>{children}</div>
    </details>
  );
}

export function SearchBox({ value, onChange, label, shortcut, onKeyDown }: { value: string; onChange: (value: string) => void; label: string; shortcut?: boolean; onKeyDown?: (event: React.KeyboardEvent) => void }): ReactNode {
  return (
    <div className="searchbox">
      <Icon name="search" size={14} />
      <input
        type="search"
        value={value}
        placeholder={label}
        aria-label={label}
        data-search=""
        autoComplete="off"
        spellCheck={false}
        onInput={(event) => onChange((event.target as HTMLInputElement).value)}
        onKeyDown={onKeyDown}
      />
      {shortcut && value === "" && <kbd aria-hidden="true">/</kbd>}
    </div>
  );
}
