"""Unions with a `discriminator`, as JSON Schema says it.

JSON Schema does not know the keyword. Variants that do not pin the tag themselves would all take the same value, and
`oneOf` then takes none. So each of them refuses the tags of the others; a tag that nobody knows decides nothing, since
documents often leave out which ones there are.
"""

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote

from opwire.adapters.openapi.shapes import mapping
from opwire.schema import JSONSchema

MAX_BRANCHES = 50
"""Variants that are told apart: each names the tags of all others."""

_MAX_TAGS = 1_000


def tags_of(branches: list[Any], meant: Mapping[str, str], refs: list[str | None]) -> list[set[str]]:
    """The tags of each branch: what the mapping says, and the name of its schema.

    `branches` are as the document gives them, `refs` are the references that they have become, and `meant` is the
    mapping with the same references.
    """
    names = [unquote(str(mapping(each).get("$ref", ""))).rpartition("/")[2] for each in branches]
    by_ref: dict[str | None, set[str]] = {}
    for tag, ref in meant.items():
        by_ref.setdefault(ref, set()).add(tag)
    own_names = [{name} if name and name not in meant else set[str]() for name in names]
    return [by_ref.get(ref, set[str]()) | own for ref, own in zip(refs, own_names, strict=True)]


def told_apart(branches: list[JSONSchema], tag: str, tags: list[set[str]]) -> list[JSONSchema]:
    """The branches, each of which refuses the tags of the others; as they are where that would be too long."""
    known = set[str]().union(*tags)
    if len(branches) > MAX_BRANCHES or len(known) > _MAX_TAGS:
        return branches
    return [_without(branch, tag, known - own) if own else branch for branch, own in zip(branches, tags, strict=True)]


def _without(branch: JSONSchema, tag: str, others: set[str]) -> JSONSchema:
    return {"allOf": [branch], "properties": {tag: {"not": {"enum": sorted(others)}}}} if others else branch


def reference_in(branch: JSONSchema) -> str | None:
    """The reference that a branch is."""
    return cast("str | None", branch.get("$ref")) if isinstance(branch, dict) else None
