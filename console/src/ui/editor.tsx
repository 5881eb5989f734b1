/**
 * CodeMirror for JSON. It lives in a shadow root, where its styles are adopted style sheets: in the document it would add
 * `<style>` elements, which the page's policy forbids.
 */

import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { json } from "@codemirror/lang-json";
import { bracketMatching, foldGutter, foldKeymap, HighlightStyle, indentOnInput, syntaxHighlighting, syntaxTree } from "@codemirror/language";
import { type Diagnostic, setDiagnostics } from "@codemirror/lint";
import { Compartment, EditorState, type Extension, Prec } from "@codemirror/state";
import { drawSelection, EditorView, highlightSpecialChars, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { type ReactNode, useEffect, useRef } from "react";

import { HIDDEN } from "../text";

export interface EditorProps {
  value: string;
  onChange?: (text: string) => void;
  onRun?: () => void;
  label: string;
  problems?: { path: string; message: string }[];
}

const colours = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--json-key)" },
  { tag: tags.string, color: "var(--json-string)" },
  { tag: tags.number, color: "var(--json-number)" },
  { tag: [tags.bool, tags.null], color: "var(--json-word)" },
  { tag: [tags.separator, tags.bracket, tags.brace, tags.squareBracket], color: "var(--muted)" },
]);

/**
 * Insert typed text ourselves if it replaces a selection. The browser would keep the colour of the replaced text by a
 * style attribute, which the page's policy reports.
 */
const replaceSelection = EditorView.domEventHandlers({
  beforeinput(event, view) {
    const isTyped = event.inputType === "insertText" && event.data !== null && !view.composing;
    if (!isTyped || view.state.readOnly || view.state.selection.main.empty) return false;
    view.dispatch(view.state.replaceSelection(event.data), { userEvent: "input.type", scrollIntoView: true });
    event.preventDefault();
    return true;
  },
});

const look = EditorView.theme({
  "&": { height: "100%", fontSize: "12px", color: "var(--text)", backgroundColor: "transparent" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55", overflow: "auto" },
  ".cm-content": { caretColor: "var(--accent)", padding: "8px 0" },
  ".cm-gutters": { backgroundColor: "transparent", color: "var(--faint)", border: "none" },
  ".cm-lineNumbers .cm-gutterElement": { minWidth: "26px" },
  ".cm-cursor": { borderLeftColor: "var(--accent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "var(--selection)",
  },
  ".cm-specialChar": { color: "var(--bad)" },
  ".cm-tooltip": { backgroundColor: "var(--raised)", border: "1px solid var(--border)", borderRadius: "6px" },
  ".cm-diagnostic": { padding: "4px 8px", borderLeft: "none" },
  ".cm-lintRange-error": { backgroundImage: "none", textDecoration: "underline wavy var(--bad) 1px", textUnderlineOffset: "3px" },
  ".cm-foldPlaceholder": { backgroundColor: "var(--hover)", border: "none", color: "var(--muted)", padding: "0 4px" },
});

export default function Editor(props: EditorProps): ReactNode {
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
  const current = useRef(props);
  current.current = props;
  const readOnly = props.onChange === undefined;

  useEffect(() => {
    const element = host.current;
    if (!element) return;
    const root = element.shadowRoot ?? element.attachShadow({ mode: "open" });
    const editable = new Compartment();
    const extensions: Extension[] = [
      lineNumbers(), foldGutter(), highlightSpecialChars({ addSpecialChars: HIDDEN }), drawSelection(), bracketMatching(), json(), replaceSelection, syntaxHighlighting(colours), look,
      EditorView.contentAttributes.of({ "aria-label": props.label }),
      editable.of([EditorState.readOnly.of(readOnly)]),
      Prec.highest(keymap.of([{ key: "Mod-Enter", run: () => (current.current.onRun?.(), true) }])),
      // Tab moves the focus on, unless the text can be edited: then Escape, Tab does.
      keymap.of([...defaultKeymap, ...foldKeymap, ...(readOnly ? [] : [...historyKeymap, indentWithTab])]),
      ...(readOnly ? [] : [history(), indentOnInput()]),
      EditorView.updateListener.of((update) => {
        if (update.docChanged && !update.transactions.some((each) => each.isUserEvent("set"))) {
          current.current.onChange?.(update.state.doc.toString());
        }
      }),
    ];
    const made = new EditorView({ state: EditorState.create({ doc: props.value, extensions }), parent: root, root });
    view.current = made;
    return () => {
      view.current = null;
      made.destroy();
    };
  }, [readOnly]);

  useEffect(() => {
    const editor = view.current;
    if (!editor || editor.state.doc.toString() === props.value) return;
    editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: props.value }, userEvent: "set" });
  }, [props.value]);

  useEffect(() => {
    const editor = view.current;
    if (!editor || readOnly) return;
    const found: Diagnostic[] = (props.problems ?? []).slice(0, 100).map((each) => {
      const range = locate(editor.state, each.path);
      return { ...range, severity: "error", message: each.message };
    });
    editor.dispatch(setDiagnostics(editor.state, found));
  }, [props.problems, props.value]);

  return <div className="editor" ref={host} />;
}

/** The range of the value that a JSON Pointer names; the nearest one around it if it is missing. */
function locate(state: EditorState, pointer: string): { from: number; to: number } {
  let node = syntaxTree(state).topNode.firstChild;
  for (const part of pointer.split("/").slice(1)) {
    const name = part.replaceAll("~1", "/").replaceAll("~0", "~");
    if (node?.name === "Object") {
      let property = node.getChildren("Property").find((each) => {
        const key = each.getChild("PropertyName");
        return key !== null && state.sliceDoc(key.from, key.to) === JSON.stringify(name);
      });
      if (property === undefined) break;
      node = property.lastChild;
    } else if (node?.name === "Array") {
      let child = node.firstChild?.nextSibling ?? null;
      for (let index = 0; child !== null && index < Number(name); child = child.nextSibling) {
        if (!/^[[\],]$/.test(child.name)) index += 1;
      }
      if (child === null) break;
      node = child;
    }
  }
  if (!node) return { from: 0, to: 0 };
  const line = state.doc.lineAt(node.from);
  return { from: node.from, to: Math.min(node.to, Math.max(line.to, node.from + 1)) };
}
