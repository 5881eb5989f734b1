"""Who may call what. Asked by the call handler and by every surface that faces outward, never by `execute`."""

from opwire.errors import CallError, ErrorCode
from opwire.operation import AccessControl, Identity, OperationSpec

EVERYTHING = "*"

_NO_RULES = AccessControl()


def check_access(spec: OperationSpec, identity: Identity | None) -> None:
    """Let the call pass, or raise.

    An operation without access rules needs an identity, but no particular one.

    Raises:
        CallError: UNAUTHENTICATED without an identity, ACCESS_DENIED with one that does not hold what is needed.
    """
    rules = spec.access or _NO_RULES
    if rules.public:
        return
    if identity is None:
        raise CallError(ErrorCode.UNAUTHENTICATED, f"{spec.id} needs an authenticated caller")
    if rules is _NO_RULES:
        return
    missing = [scope for scope in rules.required_scopes if not _holds(identity, scope)]
    if missing:
        raise _denied(spec, f"missing scope {', '.join(missing)}")
    any_of = rules.required_scopes_any
    if any_of and not any(_holds(identity, scope) for scope in any_of):
        raise _denied(spec, f"one of these scopes is needed: {', '.join(any_of)}")
    for rule in rules.resources:
        if not _may(identity, rule.type, rule.action):
            raise _denied(spec, f"{rule.action!r} on {rule.type!r} is needed")


def may_access(spec: OperationSpec, identity: Identity | None) -> bool:
    """`check_access` as a question, for listings."""
    try:
        check_access(spec, identity)
    except CallError:
        return False
    return True


def _holds(identity: Identity, scope: str) -> bool:
    return scope in identity.scopes or EVERYTHING in identity.scopes


def _may(identity: Identity, type: str, action: str) -> bool:
    held = (*identity.resources.get(type, ()), *identity.resources.get(EVERYTHING, ()))
    return EVERYTHING in identity.scopes or action in held or EVERYTHING in held


def _denied(spec: OperationSpec, reason: str) -> CallError:
    return CallError(ErrorCode.ACCESS_DENIED, f"{spec.id}: {reason}")
