"""Names of operations, readable and stable: they depend on what an operation is, not on where it stands."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from opwire.names import UniqueNames

_OTHER = re.compile(r"[^0-9A-Za-z]+")
_MAX_NAME = 200
_STREAM = "_stream"


def namespace_from(title: object) -> str:
    """A namespace from the title of an API: "Swagger Petstore - OpenAPI 3.0" is `swagger_petstore_openapi_3_0`."""
    words = _OTHER.sub("_", str(title)).strip("_").lower() if isinstance(title, str) else ""
    return words[:_MAX_NAME] or "api"


def name_from_path(method: str, path: str) -> str:
    """The name of an operation that has none: `get_pets_petId` for GET /pets/{petId}."""
    words = _OTHER.sub("_", path).strip("_")
    return f"{method.lower()}_{words}"[:_MAX_NAME] if words else method.lower()


def usable_name(operation_id: str) -> str:
    """The operation's own id, without what no name may hold; "" where nothing is left."""
    name = operation_id.strip()[:_MAX_NAME]
    return name if name.isprintable() else "".join(each if each.isprintable() else "_" for each in name)


class Wish(NamedTuple):
    """The name that an operation would like to have. One that the document gives goes before one that opwire made."""

    method: str
    path: str
    name: str
    is_given: bool


def distinct(wishes: Iterable[Wish]) -> dict[tuple[str, str], str]:
    """Names by method and path, no two alike.

    Of those that wish for the same name the one with the smallest path and method gets it. The others get theirs with
    method and path behind it, so that the order of the document does not matter.
    """
    names: dict[tuple[str, str], str] = {}
    first: set[str] = set()
    refused: list[Wish] = []
    for wish in sorted(wishes, key=lambda each: (not each.is_given, each.path, each.method)):
        if wish.name in first:
            refused.append(wish)
        else:
            first.add(wish.name)
            names[wish.method, wish.path] = wish.name
    free = UniqueNames(first, longest=_MAX_NAME)
    for method, path, name, is_given in refused:
        longer = f"{name}_{name_from_path(method, path)}" if is_given else name
        names[method, path] = free.take(longer)
    return names


def stream_name(name: str) -> str:
    """Return the name of the streaming form of an operation."""
    return name[: _MAX_NAME - len(_STREAM)] + _STREAM
