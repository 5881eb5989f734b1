"""The claims of a signed token as a grant. No I/O."""

from collections.abc import Mapping
from typing import Any, TypedDict, cast

from opwire.auth.grants import Grant
from opwire.operation import Identity

_MAX_TIME = 2**53  # seconds: NaN, an infinity and an integer of 400 digits are not times


class ClaimNames(TypedDict, total=False):
    """Which claims hold what, where they are not `sub`, `scope` or `scopes`, `resources`, `announce`, `delegates`."""

    id: str
    scopes: str
    resources: str
    announces: str
    delegates: str


def grant_of(claims: Mapping[str, Any], names: ClaimNames) -> Grant:
    """What these claims give. Several words are a list, or one string with spaces between them.

    Raises:
        ValueError: a claim is not what it should be. The message names it, and does not show its value.
    """
    name = names.get("id", "sub")
    id = claims.get(name)
    if not isinstance(id, str) or not id:
        raise ValueError(f"the claim {name} is not a name")
    expires = claims.get("exp")
    if not isinstance(expires, int | float) or isinstance(expires, bool) or not 0 <= expires <= _MAX_TIME:
        raise ValueError("the claim exp is not a number")
    scopes = (names["scopes"],) if "scopes" in names else ("scope", "scopes")
    identity = Identity(
        id=id,
        scopes=tuple(dict.fromkeys(word for each in scopes for word in _words(claims, each))),
        resources=_resources(claims, names.get("resources", "resources")),
    )
    delegates = claims.get(names.get("delegates", "delegates")) is True
    return Grant(identity, _words(claims, names.get("announces", "announce")), float(expires), delegates)


def _words(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = claims.get(name)
    if value is None:
        return ()
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in cast("list[object]", words)):
        raise ValueError(f"the claim {name} is neither a string nor a list of strings")
    return tuple(cast("list[str]", words))


def _resources(claims: Mapping[str, Any], name: str) -> dict[str, tuple[str, ...]]:
    value = claims.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"the claim {name} is not an object")
    resources = cast("dict[str, object]", value)
    return {type: _words(resources, type) for type in resources}
