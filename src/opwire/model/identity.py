"""Who calls: an authenticated identity and its scopes."""

from msgspec import Struct

from opwire.errors import UsageError

EVERYTHING = "*"


class Identity(Struct, frozen=True, kw_only=True):
    """An authenticated caller. The scope "*" includes every scope; `resources` maps resource types to actions."""

    id: str
    scopes: tuple[str, ...] = ()
    resources: dict[str, tuple[str, ...]] = {}

    def __post_init__(self) -> None:
        if type(self.scopes) is not tuple:  # each request through a hub carries an identity
            check_scopes("scopes", self.scopes)


def check_scopes(field: str, scopes: object) -> None:
    """Raise if scopes are a single string.

    Raises:
        UsageError: they are.
    """
    if isinstance(scopes, str):  # `("shop:*")` is a string, and "*" would be in it
        raise UsageError(f"{field} is a tuple of scopes: write ({scopes!r},)")


LOCAL_IDENTITY = Identity(id="local", scopes=("*",))
"""The identity of this process, which may call all of its own operations."""


def holds(identity: Identity | None, scope: str) -> bool:
    """Return whether an identity has a scope."""
    return identity is not None and (scope in identity.scopes or EVERYTHING in identity.scopes)
