"""`opwire ls` lists the operations; `opwire describe` shows the schemas and an example of one of them."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import click
import msgspec

from opwire.cli.inputs import SchemaField, example_command, schema_summary, type_name
from opwire.cli.options import json_option, namespace_option, operation_argument, shared_options, source_options
from opwire.cli.screen import Line, Screen
from opwire.cli.sources import Sources, cache_fields, run, unknown_namespace
from opwire.cli.text import cells, cut, padded, rendered, summary, wrapped
from opwire.config.views import served_view
from opwire.model.access import AccessControl
from opwire.model.operation import OperationSpec, OperationType
from opwire.names import counted
from opwire.registry import OperationRegistry
from opwire.registry.search import SearchIndex
from opwire.schema import Schema

_MAX_LISTED_FIELDS = 60  # some schemas have thousands
_MAX_COUNTED_FIELDS = 1_000  # a charge of Stripe's has millions within four levels
_MAX_CLOSEST_OPERATIONS = 20  # listed if none contains every word
_MIN_DESCRIPTION_WIDTH = 24  # unless ids are longer
_OMITTED_BELOW_WIDTH = 8  # descriptions are omitted below it


_pager_option = click.option("--pager/--no-pager", default=True, help="Show long output on a terminal with $PAGER.")


@click.command(name="ls")
@click.argument("search", nargs=-1)
@namespace_option(help="Only operations of this namespace.")
@click.option(
    "-t",
    "--type",
    type=click.Choice([operation_type.value for operation_type in OperationType]),
    help="Only this type.",
)
@click.option("--tag", help="Only operations with this tag.")
@click.option("--source", help="Only operations of this source of the configuration.")
@click.option("--view", help="The operations of this view of the configuration.")
@click.option("--tokens", is_flag=True, help="Show what the definitions cost a model, also those of each view.")
@_pager_option
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
    view: str | None,
    tokens: bool,
    pager: bool,
) -> None:
    """List the operations; with SEARCH, those that contain every word, or else the closest; best first.

    \b
      opwire ls --openapi petstore.yaml
      opwire ls --type query close an issue
    """
    specs, views = run(_load(sources, screen, source, view, all_views=tokens))
    from opwire.agents.search_mode import token_cost

    matching_specs = [
        spec
        for spec in specs
        if (namespace is None or spec.namespace == namespace)
        and (type is None or spec.type.value == type)
        and (tag is None or tag in spec.tags)
    ]
    listed_specs = _searched(matching_specs, search) if search else matching_specs
    costs = {spec.id: token_cost(spec) for spec in listed_specs} if tokens else None
    if screen.as_json:
        screen.json([entry(spec) | ({} if costs is None else {"tokens": costs[spec.id]}) for spec in listed_specs])
        return
    if screen.is_terminal:
        lines = listing_lines(listed_specs, screen.width, costs)
        screen.pages(lines) if pager else screen.lines(lines)
    else:
        rows = [(spec.id, spec.type.value, summary(spec.title or spec.description)) for spec in listed_specs]
        screen.rows(rows if costs is None else [(*row[:2], str(costs[row[0]]), row[2]) for row in rows])
    if not listed_specs and namespace is not None:
        screen.note(unknown_namespace(namespace, specs))
    elif not listed_specs and specs:
        hint = "; a URL is the value of --url" if any("://" in word for word in search) else ""
        screen.note(f"none of the {counted(len(specs), 'operation')} matches{hint}")
    elif screen.is_terminal or costs is not None:
        screen.note(_total(listed_specs, costs))
    if costs is not None:
        for name, view_specs in views.items():
            screen.note(f"view {name}: {_total(view_specs, {spec.id: token_cost(spec) for spec in view_specs})}")


async def _load(
    sources: Sources, screen: Screen, source: str | None, view: str | None, *, all_views: bool
) -> tuple[Sequence[OperationSpec], dict[str, Sequence[OperationSpec]]]:
    """Return the operations, or those of a view, and the operations of all views."""
    async with sources.open(screen, source=source) as loaded:
        configured_views = {} if loaded.config is None else loaded.config.views
        if view is not None and view not in configured_views:
            raise click.UsageError(
                f"unknown view {view!r}: the configuration has {', '.join(configured_views) or 'none'}"
            )
        views: dict[str, Sequence[OperationSpec]] = {}
        if loaded.config is not None and isinstance(loaded.target, OperationRegistry):
            for name in configured_views if all_views and view is None else filter(None, [view]):
                views[name] = served_view(loaded.config, name, loaded.target).list()
        return (tuple(loaded.specs.values()), views) if view is None else (views[view], {})


def _total(specs: Sequence[OperationSpec], costs: dict[str, int] | None) -> str:
    cost = "" if costs is None else f", {sum(costs[spec.id] for spec in specs):,} tokens"
    return f"{counted(len(specs), 'operation')}{cost}"


def _searched(specs: list[OperationSpec], search: tuple[str, ...]) -> list[OperationSpec]:
    """Return the specs that contain every word, or else the closest, both ranked."""
    ranked = SearchIndex(specs).find(" ".join(search), len(specs))
    places = {spec.id: place for place, spec in enumerate(ranked)}
    words = " ".join(search).lower().split()
    texts = [" ".join((spec.id, spec.title, spec.description, *spec.tags)).lower() for spec in specs]
    containing = [spec for spec, text in zip(specs, texts, strict=True) if all(word in text for word in words)]
    return sorted(containing, key=lambda spec: places.get(spec.id, len(specs))) or list(
        ranked[:_MAX_CLOSEST_OPERATIONS]
    )


def listing_lines(specs: Sequence[OperationSpec], width: int, costs: dict[str, int] | None = None) -> list[Line]:
    """Return the lines of `ls` on a terminal: a group for each namespace, one line per operation, with its tokens.

    Ids are printed whole, to be copied; descriptions get the rest of the line. A type in front of the ids keeps its
    column even if an id exceeds its own.
    """
    groups: dict[str, list[OperationSpec]] = {}
    for spec in specs:
        groups.setdefault(spec.namespace, []).append(spec)
    types = max((len(spec.type.value) for spec in specs), default=0)
    lines: list[Line] = []
    for namespace, group in groups.items():
        lines += [Line()] if lines else []
        lines.append(Line(((namespace, "bold"), (f"  {_total(group, costs)}", "dim"))))
        room = min(width - types - 6 - (9 if costs else 0) - _MIN_DESCRIPTION_WIDTH, width // 2)
        column = min(max(cells(spec.id) for spec in group), max(room, 0))
        for spec in group:
            cost = "" if costs is None else f"{costs[spec.id]:>7,}  "
            start = f"  {spec.type.value.ljust(types)}  {cost}"
            id = padded(spec.id, column)
            free_cells = width - cells(start) - cells(id) - 2
            about = (
                cut(summary(spec.title or spec.description), free_cells) if free_cells >= _OMITTED_BELOW_WIDTH else ""
            )
            lines.append(
                Line(((start, "dim"), (id if about else spec.id, "bold"), (f"  {about}" if about else "", "")))
            )
    return lines


def entry(spec: OperationSpec) -> dict[str, Any]:
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
@_pager_option
@source_options
@json_option
@shared_options
@click.pass_obj
async def describe_command(screen: Screen, operation_id: str, sources: Sources, *, pager: bool) -> None:
    """Show the input and output of an operation, and a command that calls it."""
    async with sources.open(screen, operation_id) as loaded:
        spec, endpoint = loaded.spec(operation_id), loaded.endpoint(operation_id)
        cache_fields(sources.key, spec)
    if screen.as_json:
        screen.json({**description(spec), "endpoint": endpoint})
        return
    width = screen.width if screen.is_terminal else None
    verb = "watch" if spec.type is OperationType.SUBSCRIPTION else "call"
    texts = [text for text in dict.fromkeys((spec.title, spec.description)) if text.strip()]
    lines = [
        _heading(spec.id),
        _line(", ".join([spec.type.value, *spec.tags])),
        *([] if endpoint is None else [_line(endpoint)]),
        *(line for text in texts for line in (Line(), *map(_line, rendered(text, width)))),
        *(Line(), _heading("Input"), *map(_line, _schema_lines(spec.input_schema, width))),
        *(Line(), _heading("Output"), *map(_line, _schema_lines(spec.output_schema, width))),
        *([] if spec.access is None else [Line(), _heading("Access"), _line(f"  {access_text(spec.access)}")]),
        *(Line(), _heading("Example"), _line(f"  {example_command(spec, verb, sources.words)}")),
    ]
    screen.pages(lines) if pager and screen.is_terminal else screen.lines(lines)


def _heading(text: str) -> Line:
    return Line(((text, "bold"),))


def _line(text: str) -> Line:
    return Line(((text, ""),))


def description(spec: OperationSpec) -> dict[str, Any]:
    """Return an operation with its schemas, as printed by `describe --json`."""
    return {
        **entry(spec),
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


def _schema_lines(schema: Schema, width: int | None) -> Iterator[str]:
    field = SchemaField(schema.json)
    lines = list(islice(schema_summary(field), _MAX_COUNTED_FIELDS))
    if not lines or "array" in field.kinds:
        yield f"  {'not described' if schema.is_unknown else type_name(field)}"
    shown_lines = lines[:_MAX_LISTED_FIELDS]
    names = max((2 * line.depth + cells(line.name) for line in shown_lines), default=0)
    types = min(max((cells(line.type) for line in shown_lines), default=0), 24)
    column = names + types + 16
    for depth, name, type, note, required in shown_lines:
        start = f"  {padded('  ' * depth + name, names)}  {padded(type, types)}  {'required' if required else ' ' * 8}"
        if width is None or cells(start) + 2 + cells(note) <= width:
            yield f"{start}  {note}".rstrip()
        elif cells(start) + 2 == column and width - column >= width * 2 // 5:  # narrower notes would be towers
            first, *further_lines = wrapped(note, width, " " * column)
            yield from (start + first[column - 2 :], *further_lines)
        else:
            nested = "  " * depth
            yield from (
                [start.rstrip()] if cells(start) <= width else wrapped(start, width, f"  {nested}", f"      {nested}")
            )
            yield from wrapped(note, width, f"      {nested}") if note else ()
    if len(lines) > _MAX_LISTED_FIELDS:
        least = "at least " if len(lines) == _MAX_COUNTED_FIELDS else ""
        yield f"  … and {least}{len(lines) - _MAX_LISTED_FIELDS:,} more: --json shows the whole schema"
