"""`opwire ls` lists the operations; `opwire describe` shows the schemas and an example of one of them."""

from typing import Any

import click
import msgspec

from opwire.cli.inputs import SchemaField, example_command, schema_summary, type_name
from opwire.cli.options import json_option, operation_argument, shared_options, source_options
from opwire.cli.screen import Screen, counted, one_line
from opwire.cli.sources import Sources
from opwire.operation import AccessControl, OperationSpec, OperationType
from opwire.registry import matching
from opwire.schema import Schema

_MAX_FIELDS = 60  # of a schema: some have thousands


@click.command(name="ls")
@click.argument("search", nargs=-1)
@click.option("-n", "--namespace", help="Only operations of this namespace.")
@click.option("-t", "--type", type=click.Choice([each.value for each in OperationType]), help="Only this type.")
@click.option("--tag", help="Only operations with this tag.")
@click.option("--source", help="Only operations of this source of the configuration.")
@source_options
@json_option
@shared_options
@click.pass_obj
def ls_command(
    screen: Screen,
    *,
    search: tuple[str, ...],
    sources: Sources,
    namespace: str | None,
    type: str | None,
    tag: str | None,
    source: str | None,
) -> None:
    """List the operations; with SEARCH, those that match every word."""
    found = [
        spec
        for spec in sources.load(screen, source=source).specs.values()
        if (namespace is None or spec.namespace == namespace)
        and (type is None or spec.type.value == type)
        and (tag is None or tag in spec.tags)
    ]
    chosen = matching(found, " ".join(search))
    if screen.as_json:
        screen.json([summary(spec) for spec in chosen])
        return
    rows = [(spec.id, spec.type.value, spec.title or spec.description) for spec in chosen]
    screen.table(("operation", "type", ""), rows)
    if screen.is_terminal:
        screen.note(counted(len(chosen), "operation"))


def summary(spec: OperationSpec) -> dict[str, Any]:
    """Return an operation as an entry of `ls --json`."""
    return {
        "id": spec.id,
        "type": spec.type.value,
        "title": spec.title,
        "description": spec.description,
        "tags": spec.tags,
        "version": spec.version,
    }


@click.command(name="describe")
@operation_argument()
@source_options
@json_option
@shared_options
@click.pass_obj
def describe_command(screen: Screen, operation_id: str, sources: Sources) -> None:
    """Show the input and output of an operation, and a command that calls it."""
    spec = sources.load(screen, operation_id).spec(operation_id)
    if screen.as_json:
        screen.json(description(spec))
        return
    screen.heading(spec.id)
    screen.line(f"{spec.type.value}{''.join(f', {tag}' for tag in spec.tags)}")
    for text in (spec.title, spec.description):
        if text:
            screen.line(f"\n{text.strip()}")
    _show_schema("Input", spec.input_schema, screen)
    _show_schema("Output", spec.output_schema, screen)
    if spec.access is not None:
        screen.heading("\nAccess")
        screen.line(f"  {access_text(spec.access)}")
    screen.heading("\nExample")
    verb = "watch" if spec.type is OperationType.SUBSCRIPTION else "call"
    screen.line(f"  {example_command(spec, verb, sources.words)}")


def description(spec: OperationSpec) -> dict[str, Any]:
    """Return an operation with its schemas, as printed by `describe --json`."""
    return {
        **summary(spec),
        "inputSchema": spec.input_schema.json,
        "outputSchema": spec.output_schema.json,
        "access": None if spec.access is None else msgspec.to_builtins(spec.access),
        "timeout": spec.timeout,
        "examples": spec.examples,
    }


def access_text(access: AccessControl) -> str:
    """Return what a remote caller needs."""
    needed = [f"the scope {scope}" for scope in access.required_scopes]
    needed += [f"one of the scopes {', '.join(access.required_scopes_any)}"] if access.required_scopes_any else []
    needed += [f"{rule.action} on {rule.type}" for rule in access.resources]
    return "public" if access.public else f"requires {' and '.join(needed) or 'a token'}"


def _show_schema(title: str, schema: Schema, screen: Screen) -> None:
    field = SchemaField(schema.json)
    lines = list(schema_summary(field))
    screen.heading(f"\n{title}")
    if not lines or "array" in field.kinds:
        screen.line(f"  {'not described' if schema.is_unknown else type_name(field)}")
    names = max((2 * line.depth + len(line.name) for line in lines), default=0)
    types = min(max((len(line.type) for line in lines), default=0), 30)
    for depth, name, type, note, required in lines[:_MAX_FIELDS]:
        indented = f"{'  ' * depth}{name}".ljust(names)
        needed = "required" if required else "        "
        screen.line(f"  {indented}  {type.ljust(types)}  {needed}  {one_line(note)}".rstrip())
    if len(lines) > _MAX_FIELDS:
        screen.line(f"  … and {len(lines) - _MAX_FIELDS:,} more: --json shows the whole schema")
