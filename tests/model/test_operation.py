"""What an operation is: names, ids, schemas, contexts."""

import json
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from opwire import (
    UNKNOWN,
    AccessControl,
    Context,
    Identity,
    OperationRegistry,
    OperationSpec,
    OperationType,
    Progress,
    RegistrationError,
    Schema,
    SchemaError,
    UsageError,
)
from opwire.model.operation import split_id


def test_a_spec_holds_everything_that_is_known_without_the_handler() -> None:
    """An OperationSpec holds namespace, name, type, title, description, tags, version, both schemas, access
    control, normalisation, timeouts and examples."""
    access = AccessControl(required_scopes=("math",))
    spec = OperationSpec(
        namespace="math",
        name="add",
        type=OperationType.MUTATION,
        title="Add",
        description="Adds two numbers.",
        tags=("arithmetic",),
        version="1.2",
        input_schema=Schema({"type": "object"}),
        output_schema=Schema({"type": "integer"}),
        access=access,
        normalize="check",
        strip=False,
        timeout=3,
        idle_timeout=1.5,
        examples=({"a": 1, "b": 2},),
    )
    assert (spec.namespace, spec.name, spec.id, spec.type) == ("math", "add", "math.add", OperationType.MUTATION)
    assert (spec.title, spec.description, spec.tags, spec.version) == (
        "Add",
        "Adds two numbers.",
        ("arithmetic",),
        "1.2",
    )
    assert (spec.input_schema.json, spec.output_schema.json) == ({"type": "object"}, {"type": "integer"})
    assert (spec.access, spec.normalize, spec.strip) == (access, "check", False)
    assert (spec.timeout, spec.idle_timeout, spec.examples) == (3, 1.5, ({"a": 1, "b": 2},))


def test_a_spec_cannot_be_changed_but_replaced() -> None:
    spec = OperationSpec(namespace="math", name="add")
    with pytest.raises(AttributeError):
        spec.name = "sub"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    assert replace(spec, name="sub").id == "math.sub"


def test_a_type_may_be_given_by_its_word_and_is_one_of_three() -> None:
    """An operation is a query, a mutation or a subscription."""
    assert [each.value for each in OperationType] == ["query", "mutation", "subscription"]
    spec = OperationSpec(namespace="a", name="b", type="subscription")
    assert spec.type is OperationType.SUBSCRIPTION
    assert OperationSpec(namespace="a", name="b", type="MUTATION").type is OperationType.MUTATION
    with pytest.raises(RegistrationError, match=r"a\.b: type must be one of query, mutation, subscription"):
        OperationSpec(namespace="a", name="b", type="command")


def test_lists_given_for_tags_and_examples_become_tuples() -> None:
    spec = OperationSpec(namespace="a", name="b", tags=["x"], examples=[1])
    assert (spec.tags, spec.examples) == (("x",), (1,))


def test_an_id_is_always_namespace_dot_name() -> None:
    assert OperationSpec(namespace="math", name="add", id="other.id").id == "math.add"  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("operation_id", "parts"),
    [
        ("math.add", ("math", "add")),
        ("github.repos/get", ("github", "repos/get")),
        ("shop.v1.cart.add", ("shop", "v1.cart.add")),
        ("a..b", ("a", ".b")),
    ],
)
def test_an_id_is_split_at_its_first_dot(operation_id: str, parts: tuple[str, str]) -> None:
    assert split_id(operation_id) == parts
    assert OperationSpec(namespace=parts[0], name=parts[1]).id == operation_id


def test_an_id_without_a_dot_is_invalid() -> None:
    with pytest.raises(RegistrationError, match="'add' has no dot"):
        split_id("add")


@pytest.mark.parametrize("namespace", ["", "a.b", ".", "a\nb", "a\0"])
def test_a_namespace_without_text_or_with_a_dot_or_a_control_character_is_refused(namespace: str) -> None:
    """A namespace is printable, not empty and has no dot."""
    with pytest.raises(RegistrationError, match="a namespace is printable"):
        OperationSpec(namespace=namespace, name="x")


@pytest.mark.parametrize("name", ["repos/get", "v1.get", "get user", "größe", "加", "a:b?c#d%20", "{id}", "__call__"])
async def test_a_name_may_hold_anything_printable(name: str) -> None:
    registry = OperationRegistry()
    registry.register(OperationSpec(namespace="api", name=name), lambda input, context: input)
    assert (await registry.execute(f"api.{name}", 1)).data == 1


@pytest.mark.parametrize("name", ["", "a\nb", "\x7f", "a\u2028b"])
def test_a_name_that_is_empty_or_not_printable_is_refused(name: str) -> None:
    with pytest.raises(RegistrationError, match="a name is printable"):
        OperationSpec(namespace="a", name=name)


async def test_every_operation_of_github_can_be_registered_and_called(shared: Path) -> None:
    document = json.loads((shared / "openapi" / "github_api.json").read_text(encoding="utf-8"))
    names = [
        operation["operationId"]
        for path in document["paths"].values()
        for operation in path.values()
        if isinstance(operation, dict) and "operationId" in operation
    ]
    assert len(names) > 1000
    registry = OperationRegistry()
    for name in names:
        registry.register(OperationSpec(namespace="github", name=name), lambda input, context: input, inline=True)
    assert [(await registry.execute(f"github.{name}", name)).data for name in names] == names


async def test_an_operation_without_schemas_takes_and_gives_anything() -> None:
    spec = OperationSpec(namespace="a", name="b")
    assert spec.input_schema is UNKNOWN
    assert spec.output_schema is UNKNOWN
    registry = OperationRegistry()
    registry.register(spec, lambda input, context: input)
    for anything in (None, 1, "text", [1, "a"], {"free": {"form": True}}):
        assert (await registry.execute("a.b", anything)).data == anything


@pytest.mark.parametrize("field", ["input_schema", "output_schema"])
@pytest.mark.parametrize(
    "schema",
    [{"type": "intger"}, {"properties": 3}, {"$ref": "#/$defs/absent"}, {"pattern": "("}],
    ids=["type", "properties", "ref", "pattern"],
)
def test_a_dict_that_is_not_a_valid_schema_is_rejected_when_the_spec_is_made(
    field: str, schema: dict[str, object]
) -> None:
    with pytest.raises(SchemaError):
        OperationSpec(namespace="a", name="b", **{field: schema})  # pyright: ignore[reportArgumentType]


def test_a_schema_object_is_not_compiled_before_it_is_used() -> None:
    lazy = Schema({"type": "intger"})
    assert OperationSpec(namespace="a", name="b", output_schema=lazy).output_schema is lazy


@pytest.mark.parametrize("field", ["timeout", "idle_timeout"])
@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_timeout_is_above_zero(field: str, seconds: float) -> None:
    with pytest.raises(RegistrationError, match=rf"a\.b: {field} must be a number above zero, not "):
        OperationSpec(namespace="a", name="b", **{field: seconds})  # pyright: ignore[reportArgumentType]


def test_a_normalisation_mode_is_one_of_four() -> None:
    with pytest.raises(RegistrationError, match=r"a\.b: normalize must be one of fit, cast, check, off, not 'mend'"):
        OperationSpec(namespace="a", name="b", normalize="mend")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="normalize must be one of fit, cast, check, off, not 'mend'"):
        OperationRegistry(normalize="mend")  # pyright: ignore[reportArgumentType]


# --- contexts ---------------------------------------------------------------------------------------------------------


def test_a_child_context_keeps_all_but_the_request_id_which_becomes_its_parent() -> None:
    identity = Identity(id="ann")
    context = Context(request_id="r1", parent_request_id="r0", identity=identity, deadline=12.0, metadata={"trace": 7})
    child = context.child()
    assert child.parent_request_id == "r1"
    assert child.request_id not in (None, "r1", context.child().request_id)
    assert (child.identity, child.deadline, child.metadata) == (identity, 12.0, {"trace": 7})


def test_a_deadline_can_be_brought_nearer_but_not_put_off() -> None:
    """Deadlines only shrink through nested calls."""
    now = time.monotonic()
    soon = Context(deadline=now + 1)
    assert soon.within(60) is soon
    assert soon.within(None) is soon
    nearer = Context(deadline=now + 60).within(1).deadline
    assert nearer is not None
    assert now + 1 <= nearer < now + 30


def test_a_context_knows_the_time_that_remains() -> None:
    assert Context().remaining is None
    remaining = Context(deadline=time.monotonic() + 10).remaining
    assert remaining is not None
    assert 5 < remaining <= 10
    overdue = Context(deadline=time.monotonic() - 1).remaining
    assert overdue is not None
    assert overdue < 0


def test_a_context_outside_of_a_call_has_no_env_and_says_where_to_get_one() -> None:
    with pytest.raises(RuntimeError, match=r"build_env\(registry\)"):
        _ = Context().env


def test_a_handler_reports_its_progress_to_callers_that_want_it() -> None:
    heard: list[Progress] = []
    context = Context(on_progress=heard.append)
    context.report(1, 3, "one of three")
    context.report(0.5)
    Context().report(1)  # without a listener
    assert heard == [Progress(1, 3, "one of three"), Progress(0.5)]


def test_what_a_nested_call_reports_is_not_taken_for_the_progress_of_its_caller() -> None:
    heard: list[Progress] = []
    Context(on_progress=heard.append).child().report(1)
    assert heard == []
