/** The look of generated forms: label, control, message; nested objects are indented, and buttons are icons. */

import { getDefaultRegistry, type ThemeProps } from "@rjsf/core";
import { ADDITIONAL_PROPERTY_FLAG, type RegistryFieldsType, type TemplatesType } from "@rjsf/utils";
import { type ReactNode, useId, useState } from "react";

import { compact, parseInput, pretty } from "../json";
import { Markdown } from "../markdown";
import { bytes, line } from "../text";
import { Icon, type IconName } from "../ui/icons";
import { isFile, isUntyped, SHOWN_DEFAULT } from "./prepare";

type Props = any; // the generator's own types are generic in the data, which is unknown here

function Label({ id, text, required }: { id: string; text: string; required?: boolean }): ReactNode {
  return (
    <label htmlFor={id}>
      {line(text, 100)}
      {required && <span className="required" aria-hidden="true"> *</span>}
    </label>
  );
}

function FieldTemplate(props: Props): ReactNode {
  const { id, label, children, rawErrors, required, displayLabel, hidden, schema, rawDescription, onKeyRenameBlur, onRemoveProperty, uiSchema } = props;
  if (hidden) return <div hidden>{children}</div>;
  const isExtra = ADDITIONAL_PROPERTY_FLAG in schema;
  const isCheckbox = schema.type === "boolean" && !schema.enum && !uiSchema?.["ui:widget"];
  const messages: string[] = rawErrors ?? [];
  return (
    <div className={`field${messages.length > 0 ? " wrong" : ""}`}>
      {isExtra && (
        <div className="field-extra">
          <input key={label} type="text" aria-label="Name of the field" defaultValue={label} onBlur={onKeyRenameBlur} />
          <IconButton name="trash" title={`Remove ${label}`} onClick={onRemoveProperty} />
        </div>
      )}
      {displayLabel && !isExtra && !isCheckbox && (
        <div className="field-head">
          <Label id={id} text={label} required={required} />
          <span className="field-type">{typeName(schema)}</span>
        </div>
      )}
      {children}
      {displayLabel && rawDescription && (
        <div className="field-help" id={`${id}__description`}>
          <Markdown text={rawDescription} inline />
        </div>
      )}
      {messages.length > 0 && (
        <ul className="field-errors" id={`${id}__error`}>
          {messages.map((each, index) => <li key={index}>{line(each)}</li>)}
        </ul>
      )}
    </div>
  );
}

function typeName(schema: any): string {
  const type = Array.isArray(schema.type) ? schema.type.filter((each: string) => each !== "null").join(" or ") : schema.type;
  return [type, schema.format].filter(Boolean).map(String).join(", ").slice(0, 40);
}

function ObjectFieldTemplate(props: Props): ReactNode {
  const { title, description, properties, schema, fieldPathId, onAddProperty, registry, required } = props;
  if ((schema.oneOf || schema.anyOf) && properties.length === 0) return null;
  const isRoot = fieldPathId.path.length === 0;
  const canAdd = schema.additionalProperties !== undefined && schema.additionalProperties !== false;
  const { AddButton } = registry.templates.ButtonTemplates;
  return (
    <fieldset className={isRoot ? "object root" : "object"} id={fieldPathId.$id}>
      {isRoot ? <legend className="sr">Input</legend> : title && <legend>{line(title, 100)}{required && <span className="required" aria-hidden="true"> *</span>}</legend>}
      {!isRoot && description && <div className="field-help"><Markdown text={description} inline /></div>}
      {properties.map((each: any) => each.content)}
      {canAdd && <AddButton registry={registry} onClick={onAddProperty} title="Add a field" />}
    </fieldset>
  );
}

function ArrayFieldTemplate(props: Props): ReactNode {
  const { title, items, canAdd, onAddClick, registry, fieldPathId, schema, required } = props;
  const { AddButton } = registry.templates.ButtonTemplates;
  return (
    <fieldset className="array" id={fieldPathId.$id}>
      {title && <legend>{line(title, 100)}{required && <span className="required" aria-hidden="true"> *</span>}</legend>}
      {schema.description && <div className="field-help"><Markdown text={schema.description} inline /></div>}
      {items}
      {canAdd && <AddButton registry={registry} onClick={onAddClick} title={`Add to ${line(title ?? "the list", 60)}`} />}
    </fieldset>
  );
}

function ArrayFieldItemTemplate(props: Props): ReactNode {
  const { children, buttonsProps, hasToolbar } = props;
  const { hasMoveUp, hasMoveDown, hasRemove, onMoveUpItem, onMoveDownItem, onRemoveItem } = buttonsProps;
  return (
    <div className="array-item">
      <div className="array-value">{children}</div>
      {hasToolbar && (
        <div className="array-tools">
          {hasMoveUp && <IconButton name="up" title="Move up" onClick={onMoveUpItem} />}
          {hasMoveDown && <IconButton name="down" title="Move down" onClick={onMoveDownItem} />}
          {hasRemove && <IconButton name="close" title="Remove" onClick={onRemoveItem} />}
        </div>
      )}
    </div>
  );
}

function MultiSchemaFieldTemplate({ selector, optionSchemaField, schema }: Props): ReactNode {
  return (
    <div className="union">
      <label className="union-choice"><span className="sr">Which of the alternatives {schema?.title ? `of ${line(schema.title, 60)}` : ""}</span>{selector}</label>
      {optionSchemaField}
    </div>
  );
}

function IconButton({ name, title, onClick }: { name: IconName; title: string; onClick?: (event: any) => void }): ReactNode {
  return (
    <button type="button" className="button quiet square" aria-label={title} title={title} onClick={onClick}>
      <Icon name={name} size={13} />
    </button>
  );
}

function AddButton({ onClick, title }: Props): ReactNode {
  return (
    <button type="button" className="button quiet add" aria-label={title} onClick={onClick}>
      <Icon name="plus" size={13} />
      <span>{title ?? "Add"}</span>
    </button>
  );
}

function Description({ description, id }: Props): ReactNode {
  return description ? <div className="field-help" id={id}><Markdown text={description} inline /></div> : null;
}

function CheckboxWidget({ id, value, label, onChange, disabled, required, schema }: Props): ReactNode {
  return (
    <label className="checkbox" htmlFor={id}>
      <input id={id} type="checkbox" checked={(value ?? schema[SHOWN_DEFAULT]) === true} disabled={disabled} onChange={(event) => onChange(event.target.checked)} />
      <span>{line(label, 100)}{required && <span className="required" aria-hidden="true"> *</span>}</span>
    </label>
  );
}

const MAX_FILE = 32 * 1024 * 1024;

function FileWidget({ id, value, onChange, schema }: Props): ReactNode {
  const [name, setName] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const read = (file: File | undefined): void => {
    setProblem(null);
    if (!file) return;
    if (file.size > MAX_FILE) {
      setProblem(`${line(file.name, 60)} has ${bytes(file.size)}; at most ${bytes(MAX_FILE)} can be sent.`);
      return;
    }
    const reader = new FileReader();
    reader.onload = () => {
      const url = String(reader.result);
      setName(`${line(file.name, 80)}, ${bytes(file.size)}`);
      onChange(schema.format === "data-url" ? url : url.slice(url.indexOf(",") + 1));
    };
    reader.onerror = () => setProblem(`${line(file.name, 60)} cannot be read.`);
    reader.readAsDataURL(file);
  };
  return (
    <div className="file" onDragOver={(event) => event.preventDefault()} onDrop={(event) => { event.preventDefault(); read(event.dataTransfer.files[0]); }}>
      <input id={id} type="file" onChange={(event) => read(event.target.files?.[0])} />
      {value ? (
        <span className="file-name">
          {name ?? `${bytes(Math.floor((String(value).length * 3) / 4))} of base64`}
          <IconButton name="close" title="Remove the file" onClick={() => { setName(null); onChange(undefined); }} />
        </span>
      ) : null}
      {problem && <span className="field-errors" role="alert">{problem}</span>}
    </div>
  );
}

/** A value without a type, as JSON. */
function JsonField({ fieldPathId, formData, onChange, name, schema, required, hideLabel, errorSchema }: Props): ReactNode {
  const [text, setText] = useState(formData === undefined ? "" : pretty(formData));
  const [isWrong, setWrong] = useState(false);
  const hint = useId();
  let current = text;
  try {
    // The value was changed elsewhere, in the JSON editor for example.
    const typed = text.trim() === "" ? undefined : parseInput(text);
    if (!isWrong && compact(typed) !== compact(formData)) current = formData === undefined ? "" : pretty(formData);
  } catch {
    // text that is being typed
  }
  const change = (next: string): void => {
    setText(next);
    try {
      const value = next.trim() === "" ? undefined : parseInput(next);
      setWrong(false);
      onChange(value, fieldPathId.path);
    } catch {
      setWrong(true);
    }
  };
  const id = fieldPathId.$id;
  const isRoot = fieldPathId.path.length === 0;
  const messages: string[] = errorSchema?.__errors ?? [];
  return (
    <div className={`field${isWrong || messages.length > 0 ? " wrong" : ""}`}>
      {!hideLabel && <div className="field-head"><Label id={id} text={schema?.title ?? (isRoot ? "Input" : (name ?? "value"))} required={required} /><span className="field-type">JSON</span></div>}
      <textarea id={id} rows={isRoot ? 8 : 2} spellCheck={false} className="mono" value={current} aria-invalid={isWrong} aria-describedby={hint} onInput={(event) => change((event.target as HTMLTextAreaElement).value)} />
      <div id={hint} className={isWrong ? "field-errors" : "sr"}>{isWrong ? "This is not valid JSON." : "Any JSON value."}</div>
      {schema?.description && <div className="field-help"><Markdown text={schema.description} inline /></div>}
    </div>
  );
}

const defaults = getDefaultRegistry();
const { SchemaField: DefaultSchemaField, NumberField: DefaultNumberField, StringField: DefaultStringField } = defaults.fields as any;

/** Integers that a number cannot hold stay exact: the generator's own field rounds them. */
function NumberField(props: Props): ReactNode {
  return <DefaultNumberField {...props} exactChange={props.onChange} />;
}

function StringField({ exactChange, ...props }: Props): ReactNode {
  const change = (value: unknown, ...rest: unknown[]): void => {
    const isLong = exactChange && typeof value === "string" && /^-?\d{16,}$/.test(value) && !Number.isSafeInteger(Number(value));
    if (isLong) exactChange(BigInt(value), ...rest);
    else props.onChange(value, ...rest);
  };
  return <DefaultStringField {...props} onChange={change} />;
}

/** Choose our own controls for files and for values without a type. */
function SchemaField(props: Props): ReactNode {
  const { schema, uiSchema, registry, formData } = props;
  const found = schema && "$ref" in schema ? registry.schemaUtils.retrieveSchema(schema, formData) : schema;
  if (isUntyped(found)) return <DefaultSchemaField {...props} uiSchema={{ ...uiSchema, "ui:field": "JsonField", "ui:label": false }} />;
  if (found && "const" in found && formData === found.const) return <DefaultSchemaField {...props} uiSchema={{ ...uiSchema, "ui:widget": "hidden" }} />;
  if (isFile(found)) return <DefaultSchemaField {...props} uiSchema={{ ...uiSchema, "ui:widget": "FileWidget" }} />;
  const shown = found[SHOWN_DEFAULT];
  if (shown !== undefined && shown !== null && typeof shown !== "object" && typeof shown !== "boolean") {
    return <DefaultSchemaField {...props} uiSchema={{ ...uiSchema, "ui:placeholder": line(shown, 100) }} />;
  }
  return <DefaultSchemaField {...props} />;
}

export const theme: ThemeProps = {
  fields: { SchemaField, JsonField, NumberField, StringField } as unknown as RegistryFieldsType,
  widgets: { CheckboxWidget, FileWidget } as any,
  templates: {
    FieldTemplate,
    ObjectFieldTemplate,
    ArrayFieldTemplate,
    ArrayFieldItemTemplate,
    MultiSchemaFieldTemplate,
    DescriptionFieldTemplate: Description,
    ButtonTemplates: { ...defaults.templates.ButtonTemplates, AddButton, SubmitButton: () => null },
  } as unknown as Partial<TemplatesType>,
};
