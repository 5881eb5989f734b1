"""Who may call an operation: its rules, and whether an identity meets them.

Access is checked by the dispatcher of every surface, never by `OperationRegistry.execute`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from opwire.errors import CallError, ErrorCode
from opwire.model.identity import EVERYTHING, Identity, check_scopes, holds

if TYPE_CHECKING:
    from opwire.model.operation import OperationSpec


class ResourceRule(Struct, frozen=True):
    """Requires the permission `action` on resources of a type."""

    type: str
    action: str


class AccessControl(Struct, frozen=True, kw_only=True):
    """The permissions required to call an operation: all rules must hold. `public` allows anonymous callers.

    Raises:
        UsageError: scopes are a single string.
    """

    required_scopes: tuple[str, ...] = ()
    required_scopes_any: tuple[str, ...] = ()
    resources: tuple[ResourceRule, ...] = ()
    public: bool = False

    def __post_init__(self) -> None:
        check_scopes("required_scopes", self.required_scopes)
        check_scopes("required_scopes_any", self.required_scopes_any)


_NO_RULES = AccessControl()


def check_access(spec: "OperationSpec", identity: Identity | None) -> None:
    """Raise unless an identity may call an operation. Without access rules any identity may.

    Raises:
        CallError: UNAUTHENTICATED without an identity, ACCESS_DENIED if it lacks a permission.
    """
    rules = spec.access or _NO_RULES
    if rules.public:
        return
    if identity is None:
        raise CallError(ErrorCode.UNAUTHENTICATED, f"{spec.id} requires an authenticated caller")
    if rules is _NO_RULES:
        return
    missing = [scope for scope in rules.required_scopes if not holds(identity, scope)]
    if missing:
        raise _denied(spec, f"missing scope {', '.join(missing)}", rules.required_scopes)
    any_of = rules.required_scopes_any
    if any_of and not any(holds(identity, scope) for scope in any_of):
        raise _denied(spec, f"one of these scopes is needed: {', '.join(any_of)}", any_of[:1])
    for rule in rules.resources:
        actions = (*identity.resources.get(rule.type, ()), *identity.resources.get(EVERYTHING, ()))
        if EVERYTHING not in (*identity.scopes, *actions) and rule.action not in actions:
            raise _denied(spec, f"{rule.action!r} on {rule.type!r} is needed")


def may_access(spec: "OperationSpec", identity: Identity | None) -> bool:
    """Return whether `check_access` allows the call."""
    try:
        check_access(spec, identity)
    except CallError:
        return False
    return True


def _denied(spec: "OperationSpec", reason: str, scopes: Sequence[str] = ()) -> CallError:
    details = {"requiredScopes": [*scopes]} if scopes else None
    return CallError(ErrorCode.ACCESS_DENIED, f"{spec.id}: {reason}", details)
