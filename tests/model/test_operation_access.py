"""Access control of operations."""

import pytest

from opwire import (
    AccessControl,
    CallError,
    ErrorCode,
    Identity,
    OperationSpec,
    RegistrationError,
    ResourceRule,
    UsageError,
    check_access,
)
from opwire.model.access import may_access


def spec(**rules: object) -> OperationSpec:
    return OperationSpec(namespace="files", name="delete", access=AccessControl(**rules))  # pyright: ignore[reportArgumentType]


def refusal(operation: OperationSpec, identity: Identity | None) -> tuple[ErrorCode, str]:
    with pytest.raises(CallError) as caught:
        check_access(operation, identity)
    assert not may_access(operation, identity)
    return caught.value.code, caught.value.message


def passes(operation: OperationSpec, identity: Identity | None) -> bool:
    check_access(operation, identity)
    return may_access(operation, identity)


def someone(*scopes: str, **resources: tuple[str, ...]) -> Identity:
    return Identity(id="ann", scopes=scopes, resources=resources)


def test_a_public_operation_needs_no_identity_even_if_it_has_other_rules() -> None:
    assert passes(spec(public=True), None)
    assert passes(spec(public=True, required_scopes=("admin",)), None)
    assert passes(spec(public=True), someone())


@pytest.mark.parametrize(
    "operation",
    [spec(), spec(required_scopes=("a",)), OperationSpec(namespace="files", name="delete")],
    ids=["no rules", "scopes", "no access control"],
)
def test_without_an_identity_a_call_is_unauthenticated(operation: OperationSpec) -> None:
    assert refusal(operation, None) == (ErrorCode.UNAUTHENTICATED, "files.delete requires an authenticated caller")


def test_an_operation_without_rules_takes_any_identity() -> None:
    assert passes(OperationSpec(namespace="files", name="delete"), someone())
    assert passes(spec(), someone())


def test_every_required_scope_has_to_be_held_and_the_missing_ones_are_named() -> None:
    operation = spec(required_scopes=("read", "write", "purge"))
    assert passes(operation, someone("purge", "write", "read", "more"))
    assert refusal(operation, someone("read")) == (
        ErrorCode.ACCESS_DENIED,
        "files.delete: missing scope write, purge",
    )


def test_one_of_the_alternative_scopes_is_enough_and_none_is_not() -> None:
    """One of `required_scopes_any` has to be held."""
    operation = spec(required_scopes_any=("owner", "admin"))
    assert passes(operation, someone("admin"))
    assert refusal(operation, someone("guest")) == (
        ErrorCode.ACCESS_DENIED,
        "files.delete: one of these scopes is needed: owner, admin",
    )


def test_every_resource_rule_has_to_be_met_by_an_action_on_that_type() -> None:
    operation = spec(resources=(ResourceRule("file", "delete"), ResourceRule("folder", "read")))
    assert passes(operation, someone(file=("read", "delete"), folder=("read",)))
    code, message = refusal(operation, someone(file=("delete",), folder=("delete",)))
    assert (code, message) == (ErrorCode.ACCESS_DENIED, "files.delete: 'read' on 'folder' is needed")
    assert refusal(operation, someone())[0] is ErrorCode.ACCESS_DENIED


@pytest.mark.parametrize(
    "identity",
    [
        Identity(id="a", resources={"file": ("*",)}),
        Identity(id="a", resources={"*": ("delete",)}),
        Identity(id="a", resources={"*": ("*",)}),
        Identity(id="a", scopes=("*",)),
    ],
    ids=["every action", "every type", "everything on everything", "every scope"],
)
def test_a_star_stands_for_every_action_and_every_type(identity: Identity) -> None:
    assert passes(spec(resources=(ResourceRule("file", "delete"),)), identity)


def test_the_scope_star_holds_every_scope() -> None:
    assert passes(spec(required_scopes=("read", "write"), required_scopes_any=("owner",)), someone("*"))


def test_all_kinds_of_rules_have_to_hold_together() -> None:
    operation = spec(required_scopes=("read",), required_scopes_any=("owner",), resources=(ResourceRule("file", "x"),))
    assert passes(operation, someone("read", "owner", file=("x",)))
    assert "missing scope" in refusal(operation, someone("owner", file=("x",)))[1]
    assert "one of these" in refusal(operation, someone("read", file=("x",)))[1]
    assert "'x' on 'file'" in refusal(operation, someone("read", "owner"))[1]


def test_a_scope_is_not_matched_by_a_part_of_it() -> None:
    assert refusal(spec(required_scopes=("write",)), someone("writer", "writ"))[0] is ErrorCode.ACCESS_DENIED


def test_a_forgotten_comma_grants_and_requires_nothing_else() -> None:
    for make in (
        lambda: Identity(id="ann", scopes="files:*"),  # pyright: ignore[reportArgumentType]
        lambda: AccessControl(required_scopes="admin"),  # pyright: ignore[reportArgumentType]
        lambda: AccessControl(required_scopes_any="admin"),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(UsageError, match=r"is a tuple of scopes: write \('.*',\)"):
            make()


def test_access_that_is_not_an_access_control_is_rejected_at_registration() -> None:
    """Scopes given as a single string, and access that is not an AccessControl, are rejected at once."""
    for access in ({"public": True}, {}, False, "public"):
        with pytest.raises(RegistrationError, match=r"files\.delete: access must be an instance of AccessControl"):
            OperationSpec(namespace="files", name="delete", access=access)  # pyright: ignore[reportArgumentType]
