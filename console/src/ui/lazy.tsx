/** The form generator and the editor are two thirds of the code: they are loaded when one is shown first. */

import { type ComponentType, type ReactNode, useEffect, useState } from "react";

import type { SchemaFormProps } from "../form/form";
import type { EditorProps } from "./editor";

function lazy<P extends object>(load: () => Promise<{ default: ComponentType<P> }>): (props: P) => ReactNode {
  let loaded: ComponentType<P> | null = null;
  return function Lazy(props: P): ReactNode {
    const [Part, setPart] = useState<ComponentType<P> | null>(() => loaded);
    const [isLost, setLost] = useState(false);
    useEffect(() => {
      if (loaded) return;
      load().then(
        (found) => {
          loaded = found.default;
          setPart(() => found.default);
        },
        () => setLost(true),
      );
    }, []);
    if (Part) return <Part {...props} />;
    return <p className="muted pad">{isLost ? "A part of this page could not be loaded. Reload it once the server can be reached." : "Loading…"}</p>;
  };
}

export const SchemaForm = lazy<SchemaFormProps>(() => import("../form/form"));
export const Editor = lazy<EditorProps>(() => import("./editor"));
