"""`opwire ls`: the operations that there are.

`opwire describe`: what an operation takes and gives.
"""

import asyncio
from typing import Any

import click
import msgspec

from opwire.cli.inputs import Field, Line, example_command, outline, type_in_words
from opwire.cli.options import json_option, operation_argument, shared_options, source_options
from opwire.cli.screen import Screen, counted, one_line
from opwire.cli.sources import Sources
from opwire.operation import AccessControl, OperationSpec, OperationType
from opwire.registry import matching
from opwire.schema import Schema


@click.command(name="ls")
@click.argument("search", nargs=-1)
@click.option("-n", "--namespace", help="Only those of a namespace.")
@click.option("-t", "--type", type=click.Choice([each.value for each in OperationType]), help="Only those of a type.")
@click.option("--tag", help="Only those with a tag.")
@click.option("--source", help="Only those of a source, by its name in the configuration.")
@source_options
@json_option
@shared_options
@click.pass_obj
def ls_command(screen: Screen, search: tuple[str, ...], sources: Sources, **filters: str | None) -> None:
    """List the operations. With words to SEARCH for, those that hold them all."""
    found = asyncio.run(_listed(screen, sources, filters))
    chosen = matching(found, " ".join(search))
    if screen.as_json:
        screen.json([summary(spec) for spec in chosen])
        return
    screen.table(
        ("operation", "type", ""), [(spec.id, spec.type.value, spec.title or spec.description) for spec in chosen]
    )
    if screen.is_terminal:
        screen.note(counted(len(chosen), "operation"))


async def _listed(screen: Screen, sources: Sources, filters: dict[str, str | None]) -> list[OperationSpec]:
    source = filters.pop("source")
    async with sources.open(screen, source=source) as workbench:
        return [spec for spec in workbench.specs.values() if _passes(spec, filters)]


def _passes(spec: OperationSpec, filters: dict[str, str | None]) -> bool:
    namespace, type, tag = filters["namespace"], filters["type"], filters["tag"]
    return (
        (namespace is None or spec.namespace == namespace)
        and (type is None or spec.type.value == type)
        and (tag is None or tag in spec.tags)
    )


def summary(spec: OperationSpec) -> dict[str, Any]:
    """An operation in a list, as JSON."""
    return {
        "id": spec.id,
        "type": spec.type.value,
        "title": spec.title,
        "description": spec.description,
        "tags": spec.tags,
        "version": spec.version,
    }


_MAX_LINES = 60  # of a schema: some have thousands


@click.command(name="describe")
@operation_argument()
@source_options
@json_option
@shared_options
@click.pass_obj
def describe_command(screen: Screen, operation_id: str, sources: Sources) -> None:
    """Show what an operation takes and gives, and how it is called."""
    spec = asyncio.run(_found(screen, operation_id, sources))
    if screen.as_json:
        screen.json(description(spec))
    else:
        _show(spec, screen, sources)


async def _found(screen: Screen, operation_id: str, sources: Sources) -> OperationSpec:
    async with sources.open(screen, operation_id) as workbench:
        return workbench.spec(operation_id)


def description(spec: OperationSpec) -> dict[str, Any]:
    """All that is known of an operation, as JSON."""
    return {
        **summary(spec),
        "inputSchema": spec.input_schema.json,
        "outputSchema": spec.output_schema.json,
        "access": None if spec.access is None else msgspec.to_builtins(spec.access),
        "timeout": spec.timeout,
        "examples": spec.examples,
    }


def _show(spec: OperationSpec, screen: Screen, sources: Sources) -> None:
    screen.heading(spec.id)
    screen.line(f"{spec.type.value}{''.join(f', {tag}' for tag in spec.tags)}")
    for text in (spec.title, spec.description):
        if text:
            screen.line(f"\n{text.strip()}")
    _show_schema("Input", spec.input_schema, screen)
    _show_schema("Output", spec.output_schema, screen)
    if spec.access is not None:
        screen.heading("\nAccess")
        screen.line(f"  {access_in_words(spec.access)}")
    screen.heading("\nExample")
    verb = "watch" if spec.type is OperationType.SUBSCRIPTION else "call"
    screen.line(f"  {example_command(spec, verb, sources.words)}")


def access_in_words(access: AccessControl) -> str:
    """Who may call over a network."""
    needed = [f"the scope {scope}" for scope in access.required_scopes]
    needed += [f"one of the scopes {', '.join(access.required_scopes_any)}"] if access.required_scopes_any else []
    needed += [f"{rule.action} on {rule.type}" for rule in access.resources]
    return "everybody" if access.public else f"who has {' and '.join(needed) or 'a token'}"


def _show_schema(title: str, schema: Schema, screen: Screen) -> None:
    field = Field(schema.json)
    lines = list(outline(field))
    screen.heading(f"\n{title}")
    if not lines or "array" in field.kinds:
        screen.line(f"  {'not described' if schema.is_unknown else type_in_words(field)}")
    names = max((2 * line.depth + len(line.name) for line in lines), default=0)
    types = min(max((len(line.type) for line in lines), default=0), 30)
    for line in lines[:_MAX_LINES]:
        screen.line(_in_words(line, names, types))
    if len(lines) > _MAX_LINES:
        screen.line(f"  … and {len(lines) - _MAX_LINES:,} more: --json shows the whole schema")


def _in_words(line: Line, names: int, types: int) -> str:
    name = ("  " * line.depth + line.name).ljust(names)
    needed = "required" if line.required else "        "
    return f"  {name}  {line.type.ljust(types)}  {needed}  {one_line(line.note)}".rstrip()
