"""Memory of compiled schemas: the oldest are released, large ones closed only when needed, patterns do not count."""

import gc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opwire import OperationRegistry, OperationSpec, OperationType, Schema
from opwire.errors import SchemaError
from opwire.schema import schema as schemas
from opwire.schema import validator
from opwire.schema.validator import compile_validator, without_counts
from tests.properties import examples


def large(name: str, kind: str = "integer") -> Schema:
    """A schema of more than a thousand parts, with variants that overlap."""
    names = [f"{name}{number}" for number in range(1_100)]
    properties: dict[str, Any] = {each: {"type": kind} for each in names}
    variants = [{"properties": {names[0]: {"type": kind}}}, {"properties": {names[1]: {"type": kind}}}]
    return Schema({"type": "object", "properties": properties, "anyOf": variants})


def is_compiled(schema: Schema) -> bool:
    return "_validator" in schema.__dict__


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for one large schema, and no trace of those of other tests."""
    monkeypatch.setattr(schemas, "_compiled", schemas._CompiledSchemas())
    monkeypatch.setattr(Schema, "max_compiled", 4_000_000)


def test_the_oldest_compiled_schema_is_released_and_compiled_again_when_used(limit: None) -> None:
    first, second = large("a"), large("b")
    assert first.is_valid({"a0": 1})
    assert is_compiled(first)
    assert not second.is_valid({"b0": "x"})
    assert is_compiled(second)
    assert not is_compiled(first)
    assert not first.is_valid({"a0": "x"})
    assert [each.path for each in first.problems({"a7": "x"})] == ["/a7"]
    assert first.fit({"a0": 5.0}).value == {"a0": 5}
    assert not is_compiled(second)


def test_small_schemas_and_those_of_the_past_count_for_nothing(limit: None) -> None:
    first = large("a").compile()
    for number in range(2_000):
        Schema({"type": "object", "properties": {f"p{number}": {"type": "string"}}}).compile()
    assert is_compiled(first)
    for name in "bcd":
        large(name).compile()
        gc.collect()
    assert not is_compiled(first)  # it was the oldest
    assert first.is_valid({"a0": 1})


async def test_calls_of_operations_with_released_schemas_are_checked_as_before(limit: None) -> None:
    registry = OperationRegistry()
    for name in "ab":
        spec = OperationSpec(
            namespace="x",
            name=name,
            type=OperationType.QUERY,
            input_schema=large(name),
            output_schema=large(name),
            strip=False,
        )
        registry.register(spec, lambda input, context: {key: float(value) for key, value in input.items()})
    for _ in range(3):
        for name in "ab":
            envelope = await registry.execute(f"x.{name}", {f"{name}5": 7})
            assert envelope.data == {f"{name}5": 7}
            assert type(envelope.data[f"{name}5"]) is int
            with pytest.raises(Exception, match=f"/{name}5"):
                await registry.execute(f"x.{name}", {f"{name}5": "7"})


VALUES = st.dictionaries(
    st.sampled_from(["a0", "a1", "a2", "z"]),
    st.one_of(st.integers(-3, 3), st.sampled_from([1.0, 1.5, "x"])),
    max_size=3,
)


@given(VALUES)
@settings(max_examples=examples(50), deadline=None)
def test_a_large_schema_conforms_exactly_where_its_closed_form_does(value: dict[str, Any]) -> None:
    assert CONFORMS(value) is EXACT(value)
    assert CONFORMS(value) is (LARGE.is_valid(value) and LARGE.fit(value, strip=False).value is value)


LARGE = large("a")
CONFORMS, EXACT = LARGE.conformity(strip=False), LARGE._fitter.conformity(strip=False)


@pytest.mark.parametrize(
    ("given", "compiled"),
    [
        ({"pattern": "^[a-z]{1,255}$"}, {"pattern": "^[a-z]*$", "minLength": 1, "maxLength": 255}),
        (
            {"pattern": r"^[^\]\\x]{0,9}$", "minLength": 2, "maxLength": 5},
            {"pattern": r"^[^\]\\x]*$", "minLength": 2, "maxLength": 5},
        ),
        ({"items": {"pattern": r"^\w{2,3}$"}}, {"items": {"pattern": r"^\w*$", "minLength": 2, "maxLength": 3}}),
        ({"pattern": "^[a-z]{1,255}x$"}, {"pattern": "^[a-z]{1,255}x$"}),
        ({"pattern": "^[a-z]{3}$"}, {"pattern": "^[a-z]{3}$"}),
        ({"pattern": "^[[a-z]&&[^b]]{1,3}$"}, {"pattern": "^[[a-z]&&[^b]]{1,3}$"}),
        ({"const": {"pattern": "^[a-z]{1,255}$"}}, {"const": {"pattern": "^[a-z]{1,255}$"}}),
        ({"pattern": "^[a-z]{1,2}$", "minLength": "x"}, {"pattern": "^[a-z]{1,2}$", "minLength": "x"}),
    ],
)
def test_a_counted_class_becomes_limits_of_the_length(given: Any, compiled: Any) -> None:
    assert without_counts(given) == compiled


@given(st.text("ab\n\u00e9\U0001f600", max_size=5))
@settings(max_examples=examples(100))
def test_limits_of_the_length_accept_what_the_counted_class_accepts(text: str) -> None:
    for pattern in ("^[^a]{1,3}$", r"^[ab\n]{0,2}$", r"^\W{2,4}$"):
        # A group keeps the pattern unchanged.
        assert compile_validator({"pattern": pattern}).is_valid(text) is compile_validator(
            {"pattern": f"(?:{pattern})"}
        ).is_valid(text)


# --- families ---------------------------------------------------------------------------------------------------------

_NODES: dict[str, Any] = {
    f"n{number}": {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "next": {"$ref": f"#/$defs/n{(number + 1) % 120}"}},
        "required": ["id"],
    }
    for number in range(120)
}


def root(number: int) -> dict[str, Any]:
    """The root of a schema that leads to 120 definitions."""
    return {"type": "object", "properties": {f"p{number}": {"$ref": f"#/$defs/n{number}"}, "a/b": {"type": "string"}}}


def family_of(*roots: dict[str, Any], definitions: dict[str, Any] = _NODES) -> list[Schema]:
    family = schemas.SchemaFamily()
    return [Schema.deferred(lambda each=each: {**each, "$defs": definitions}, family=family) for each in roots]


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every schema that is compiled as a whole."""
    compiled: list[Any] = []

    def compile_bounded(schema: Any, *arguments: Any, **options: Any) -> Any:
        compiled.append(schema)
        return validator.compile_bounded(schema, *arguments, **options)

    monkeypatch.setattr(schemas, "compile_bounded", compile_bounded)
    return compiled


def test_large_schemas_of_a_family_are_compiled_at_once(compilations: list[Any]) -> None:
    family = family_of(*map(root, range(10)))
    assert all(each.is_valid({f"p{number}": {"id": 1}}) for number, each in enumerate(family))
    assert not any(each.conformity(strip=False)({f"p{number}": {"id": ""}}) for number, each in enumerate(family))
    assert len(compilations) == 1
    small = family_of(root(0), root(1), definitions={name: {} for name in ("n0", "n1")})
    assert all(each.is_valid({}) for each in small)
    assert len(compilations) == 3


@pytest.mark.parametrize(
    "value", [{}, 1, {"p3": {"id": 1, "next": {"id": "x"}}, "a/b": 1}, {"p4": 1}, {"p3": {"id": 5.0}}]
)
def test_a_member_says_of_a_value_what_it_says_by_itself(value: Any) -> None:
    alone = Schema({**root(3), "$defs": _NODES})
    member = family_of(root(1), root(3), root(4))[1]
    assert member.is_valid(value) is alone.is_valid(value)
    assert member.problems(value) == alone.problems(value)
    for strip in (False, True):
        assert member.fit(value, strip=strip) == alone.fit(value, strip=strip)
        assert member.conformity(strip=strip)(value) is alone.conformity(strip=strip)(value)


def test_a_member_does_not_know_the_properties_of_the_others() -> None:
    first, second = family_of({**root(1), "additionalProperties": False}, root(2))
    assert not first.is_valid({"p2": {"id": 1}})
    assert second.is_valid({"p1": 1, "0": {}, "1": {}})


def test_an_invalid_member_does_not_harm_the_others() -> None:
    first, invalid, third = family_of(root(1), {"type": "nothing"}, root(3))
    with pytest.raises(SchemaError):
        invalid.compile()
    assert not first.is_valid({"p1": {}})
    assert third.is_valid({"p3": {"id": 1}})


def test_the_first_use_of_a_member_compiles_few_definitions_of_others(compilations: list[Any]) -> None:
    family = schemas.SchemaFamily()
    own = [{**_NODES, **{f"own{number}-{n}": {} for n in range(100)}} for number in range(20)]
    members = [Schema.deferred(lambda each=each: {**root(1), "$defs": each}, family=family) for each in own]
    assert members[0].is_valid({})
    assert [len(each["$defs"]) for each in compilations] == [420]  # twice its own would be 440
    assert all(each.is_valid({}) for each in members)
    assert len(compilations) == 7


def test_the_search_for_members_ends_in_time(compilations: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1_000))
    monkeypatch.setattr(schemas, "thread_time", lambda: next(clock) / 20)  # each member takes half of the time
    members = family_of(*map(root, range(10)))
    assert members[0].is_valid({})
    assert [len(each["properties"]) for each in compilations] == [3]


def test_definitions_that_only_have_the_same_name_are_not_shared() -> None:
    family = schemas.SchemaFamily()
    others = {**_NODES, "n0": {"type": "string"}}
    first, second = (Schema.deferred(lambda d=d: {**root(0), "$defs": d}, family=family) for d in (_NODES, others))
    assert first.is_valid({"p0": {"id": 1}})
    assert not second.is_valid({"p0": {"id": 1}})
    assert second.is_valid({"p0": "x"})


def test_a_group_that_is_released_is_compiled_again_for_all_its_members(limit: None, compilations: list[Any]) -> None:
    first, second = family_of(root(1), root(2))
    conforms = first.conformity(strip=False)
    assert conforms({"p1": {"id": 1}})
    others = [large(name).compile() for name in "abc"]  # kept: the next schema may take the identity of a finished one
    released = len(compilations)
    assert not conforms({"p1": {}})
    assert not second.is_valid({"p2": {}})
    assert len(compilations) == released + 1
    assert not is_compiled(others[0])
