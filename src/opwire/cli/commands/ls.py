"""`opwire ls`: the operations that there are."""

import asyncio
from typing import Any

import click

from opwire.cli.options import json_option, shared_options, source_options
from opwire.cli.screen import Screen, counted
from opwire.cli.sources import Sources
from opwire.operation import OperationSpec, OperationType
from opwire.registry import matching


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
def command(screen: Screen, search: tuple[str, ...], sources: Sources, **filters: str | None) -> None:
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
