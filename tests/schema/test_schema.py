"""`Schema`: what fits, what is said of what does not, and when all of that is compiled."""

import io
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType, NoneType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.errors import CastError, HintError, SchemaError
from opwire.schema import UNKNOWN, Dialect, JSONSchema, Problem, Repair, Schema
from opwire.schema import schema as module

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 2}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}
TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
LISTS = {"type": "array", "items": {"$ref": "#"}}
BROKEN = {"type": "nonsense"}


def nested(value: Any, times: int = 100_000, wrap: Callable[[Any], Any] = lambda inner: [inner]) -> Any:
    for _ in range(times):
        value = wrap(value)
    return value


# --- what fits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "fits", "fails"),
    [
        (PERSON, [{"name": "Ann"}, {"name": "Ann", "age": 5}], [{}, {"name": "A"}, {"name": "Ann", "x": 1}, None, []]),
        ({"type": "integer"}, [5, 5.0, 10**40, -1], [5.5, True, "5", None]),
        ({"type": "number"}, [5, 5.5], [True, "5", float("nan"), float("inf")]),
        ({"const": 1}, [1, 1.0], [True, "1"]),
        ({"enum": [0, None]}, [0, None], [False, ""]),
        ({"type": ["string", "null"]}, ["", None], [0]),
        ({"maximum": 10**30}, [10**30], [10**30 + 1]),
        ({"multipleOf": 0.01}, [19.99], [19.995]),
        ({"uniqueItems": True}, [[1, True, "1"], [[1], [2]]], [[1, 1.0], [{"a": 1}, {"a": 1}]]),
        (TREE, [{"children": [{"children": []}]}], [{"children": [{"children": [1]}]}]),
        (True, [None, {}, 5], []),
        (False, [], [None, {}, 5]),
    ],
)
def test_a_value_fits_or_does_not_by_the_specification(schema: Any, fits: list[Any], fails: list[Any]) -> None:
    """A schema says whether a value fits, by the JSON Schema specification."""
    compiled = Schema(schema)
    assert [value for value in fits if not compiled.is_valid(value)] == []
    assert [value for value in fails if compiled.is_valid(value)] == []
    assert [value for value in fits if compiled.problems(value)] == []
    assert [value for value in fails if not compiled.problems(value)] == []


def test_known_formats_are_asserted_and_unknown_ones_ignored() -> None:
    assert Schema({"format": "date-time"}).is_valid("2026-05-16T06:03:21Z")
    assert not Schema({"format": "date-time"}).is_valid("yesterday")
    assert Schema({"format": "email"}).problems("nobody") == [Problem("", 'the value is not a "email"')]
    assert Schema({"format": "int64"}).is_valid("anything")


def test_a_schema_is_given_as_any_mapping_or_boolean_and_keeps_what_it_was_given() -> None:
    assert Schema(MappingProxyType({"type": "string"})).json == {"type": "string"}
    assert Schema(OrderedDict(type="string")).is_valid("x")
    assert Schema(False).json is False
    given = {"type": "string"}
    schema = Schema(given)
    given["type"] = "integer"
    assert schema.is_valid("x")


def test_a_schema_is_derived_from_a_python_type() -> None:
    @dataclass
    class Person:
        name: str
        age: int = 0

    schema = Schema.from_type(Person)
    assert schema.is_valid({"name": "Ann"})
    assert not schema.is_valid({"age": 5})
    assert schema.dialect == "2020-12"


def test_a_type_without_json_form_is_refused_with_the_name_of_its_place() -> None:
    with pytest.raises(HintError, match="parameter 'file' of save"):
        Schema.from_type(io.TextIOWrapper, where="parameter 'file' of save")


def test_unknown_is_the_schema_that_every_value_fits() -> None:
    assert UNKNOWN.is_unknown
    assert Schema({}).is_unknown
    assert not Schema(False).is_unknown
    assert not Schema({"title": "x"}).is_unknown
    for value in (None, 5, "x", [{}], {"a": []}):
        assert UNKNOWN.problems(value) == []


def test_schemas_are_equal_when_they_say_the_same_in_the_same_dialect() -> None:
    assert Schema({"type": "string"}) == Schema({"type": "string"})
    assert hash(Schema({"type": "string"})) == hash(Schema({"type": "string"}))
    assert Schema({"type": "string"}) != Schema({"type": "integer"})
    assert Schema({"type": "string"}) != Schema({"type": "string"}, dialect="openapi-3.0")
    assert Schema({"type": "string"}) != {"type": "string"}
    assert repr(Schema({"type": "string"})) == "Schema({'type': 'string'})"


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({"type": "integer"}, {int}),
        ({"type": "number"}, {int}),
        ({"type": ["string", "null"], "title": "x", "description": "y", "default": None}, {str, NoneType}),
        ({"type": "boolean"}, {bool}),
        ({"type": "object"}, set()),
        ({"type": "integer", "minimum": 0}, set()),
        ({}, set()),
        (True, set()),
    ],
)
def test_scalar_types_that_always_fit_are_recognized_by_the_type_alone(schema: Any, kinds: set[type]) -> None:
    assert Schema(schema).fitting_kinds() == kinds


# --- any value --------------------------------------------------------------------------------------------------------

NOT_PLAIN = {
    "object": object(),
    "set": {1},
    "tuple": (1,),
    "bytes": b"x",
    "file": io.StringIO(),
    "function": lambda: 0,
    "complex": 1j,
    "decimal": Decimal(1),
    "key is a number": {1: 2},
    "key is a tuple": {(1,): 2},
    "nested": {"a": [{"b": object()}]},
    "subclass": OrderedDict(a=1),
    "generator": (each for each in ()),
}


@pytest.mark.parametrize("value", NOT_PLAIN.values(), ids=NOT_PLAIN)
@pytest.mark.parametrize("schema", [PERSON, TREE, LISTS, {"type": "string"}, False], ids=str)
def test_what_is_not_plain_json_data_does_not_fit_and_does_not_raise(value: Any, schema: Any) -> None:
    assert Schema(schema).is_valid(value) is False
    assert Schema(schema).problems(value) == [Problem("", "the value is not plain JSON data")]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"minLength": 1}, "\ud800"),
        ({"items": {"pattern": "a"}}, ["\ud800"]),
        ({"properties": {"name": {"format": "email"}}}, {"name": "Ann\udfff"}),
        ({"enum": ["a"]}, "\ud800"),
        ({"anyOf": [PERSON, {"type": "string", "minLength": 9}]}, "\ud800"),
    ],
)
def test_a_lone_surrogate_that_is_looked_at_does_not_fit_and_does_not_raise(schema: Any, value: Any) -> None:
    assert Schema(schema).is_valid(value) is False
    (problem,) = Schema(schema).problems(value)
    assert problem.path == ""
    assert problem.message.startswith("the value is not plain JSON data")


def test_an_integer_of_more_digits_than_python_prints_does_not_raise() -> None:
    huge = 10**5000
    assert Schema({"type": "integer"}).is_valid(huge)
    assert not Schema({"type": "string"}).is_valid(huge)
    assert len(Schema({"type": "string"}).problems(huge)) == 1


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4) | st.binary()
    | st.sampled_from([object(), 1j, Decimal("NaN"), 10**400, frozenset()]),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text(max_size=4) | st.integers() | st.sampled_from(["name", "children"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(anything, st.sampled_from([PERSON, TREE, LISTS, {"uniqueItems": True}, {"anyOf": [PERSON, TREE]}, True, False]))
def test_no_value_makes_a_check_raise_and_both_results_agree(value: Any, schema: Any) -> None:
    compiled = Schema(schema)
    assert compiled.is_valid(value) is (compiled.problems(value) == [])


# --- problems ---------------------------------------------------------------------------------------------------------


def test_every_problem_has_its_path_and_a_readable_message() -> None:
    schema = Schema({"type": "object", "properties": {"people": {"type": "array", "items": PERSON}}})
    value = {"people": [{"name": "Ann"}, {"name": "B", "age": -1, "pet": "cat"}, {}]}
    assert sorted(schema.problems(value)) == [
        Problem("/people/1", "Additional properties are not allowed ('pet' was unexpected)"),
        Problem("/people/1/age", "the value is less than the minimum of 0"),
        Problem("/people/1/name", "the value is shorter than 2 characters"),
        Problem("/people/2", '"name" is a required property'),
    ]


def test_a_misspelt_property_is_suggested_where_it_is_declared_and_missing() -> None:
    line = {"type": "object", "properties": {"article": {}, "price": {}}, "additionalProperties": False}
    either = {"anyOf": [{"type": "null"}, {**line, "required": ["price"]}]}
    schema = Schema(
        {"$defs": {"line": line}, "properties": {"lines": {"items": {"$ref": "#/$defs/line"}}, "one": either}}
    )
    value = {"lines": [{"artikle": 1}, {"artikle": 1, "article": 2}], "one": {"prise": 1, "price": 2, "artcle": 3}}
    expected = [
        "'artikle' was unexpected); did you mean article?",
        "'artikle' was unexpected)",
        "'prise', 'artcle' were",
    ]
    problems = schema.problems(value)
    assert [said in problem.message for said, problem in zip(expected, problems, strict=True)] == [True] * 3
    assert ["did you mean" in problem.message for problem in problems] == [True, False, False]


def test_a_path_is_a_json_pointer() -> None:
    schema = Schema({"additionalProperties": {"items": {"type": "string"}}})
    assert [path for path, _ in schema.problems({"a/b~c": ["x", 1], "d": [2]})] == ["/a~1b~0c/1", "/d/0"]


def test_problems_are_capped_in_number() -> None:
    schema = Schema({"items": {"type": "string"}})
    value = list(range(100_000))
    assert len(schema.problems(value)) == 100
    assert schema.problems(value, limit=3) == [
        Problem(f"/{index}", 'the value is not of type "string"') for index in range(3)
    ]
    assert schema.problems(value[:2], limit=3) == schema.problems(value[:2])


def test_problems_are_capped_in_size() -> None:
    words = {"const": "word" * 1_000}
    (problem,) = Schema(words).problems("x")
    assert len(problem.message) == 301
    assert problem.message.endswith("…")
    (problem,) = Schema({"enum": [f"word{number}" for number in range(10_000)]}).problems("x")
    assert len(problem.message) <= 301
    (problem,) = Schema(PERSON).problems({"name": "Ann"} | {f"name{number}": 1 for number in range(10_000)})
    assert len(problem.message) == 301
    (problem,) = Schema({"additionalProperties": {"type": "string"}}).problems({"name" * 1_000: 1})
    assert len(problem.path) == 301


SECRET = "hunter2"
ECHOES = {
    "type": {"type": "integer"},
    "const": {"const": "a"},
    "enum": {"enum": ["a", "b"]},
    "pattern": {"pattern": "^a"},
    "length": {"minLength": 20},
    "format": {"format": "email"},
    "not": {"not": {"type": "string"}},
    "false": False,
    "union": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
    "one": {"oneOf": [{"type": "string"}, {"minLength": 1}]},
    "condition": {"if": {"type": "string"}, "then": {"minLength": 20}},
    "backtracking": {"pattern": r"(.+)\1+\1+$"},
}


@pytest.mark.parametrize("schema", ECHOES.values(), ids=ECHOES)
@pytest.mark.parametrize("around", ["bare", "array", "object", "contains", "unique"])
def test_no_problem_echoes_the_value(schema: Any, around: str) -> None:
    schemas: dict[str, tuple[Any, Any]] = {
        "bare": (schema, SECRET),
        "array": ({"items": schema}, [SECRET]),
        "object": ({"properties": {"password": schema}, "required": ["missing"]}, {"password": SECRET}),
        "contains": ({"contains": schema, "maxItems": 0}, [SECRET]),
        "unique": ({"uniqueItems": True, "prefixItems": [schema]}, [SECRET, SECRET]),
    }
    outer, value = schemas[around]
    problems = Schema(outer).problems(value)
    assert problems
    assert SECRET not in repr(problems)


# --- unions -----------------------------------------------------------------------------------------------------------

CAT = {
    "type": "object",
    "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}, "toys": {"items": {"type": "string"}}},
    "required": ["kind", "lives"],
}
DOG = {
    "type": "object",
    "properties": {"kind": {"enum": ["dog", "hound"]}, "bark": {"type": "string"}},
    "required": ["kind", "bark"],
}


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
@pytest.mark.parametrize(
    ("value", "problems"),
    [
        ({"kind": "cat", "lives": "nine"}, [("/lives", 'the value is not of type "integer"')]),
        ({"kind": "cat"}, [("", '"lives" is a required property')]),
        ({"kind": "hound"}, [("", '"bark" is a required property')]),
        (
            {"kind": "cat", "lives": "nine", "toys": ["ball", 5]},
            [("/lives", 'the value is not of type "integer"'), ("/toys/1", 'the value is not of type "string"')],
        ),
        ({"kind": "dog", "bark": 5, "lives": 9}, [("/bark", 'the value is not of type "string"')]),
    ],
)
def test_the_problems_of_a_union_are_those_of_the_variant_that_was_meant(
    keyword: str, value: Any, problems: list[tuple[str, str]]
) -> None:
    assert Schema({keyword: [CAT, DOG]}).problems(value) == problems
    assert Schema({keyword: [DOG, {"type": "null"}, CAT]}).problems(value) == problems
    inside = Schema({"items": {keyword: [{"type": "null"}, {"anyOf": [{"type": "string"}, CAT]}, DOG]}}).problems(
        [value]
    )
    assert inside == [(f"/0{path}", message) for path, message in problems]


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
@pytest.mark.parametrize("value", [5, [], {}, {"kind": "fish"}, {"lives": 9, "bark": "wau"}])
def test_a_value_that_is_close_to_no_variant_is_a_problem_of_the_union_itself(keyword: str, value: Any) -> None:
    """The problem of a union is that of the branch that came closest, where one did."""
    expected = f"the value is not valid under any of the schemas listed in the '{keyword}' keyword"
    assert Schema({keyword: [CAT, DOG]}).problems(value) == [("", expected)]


def test_a_value_that_fits_several_variants_of_one_of_is_reported() -> None:
    schema = Schema({"oneOf": [{"type": "object"}, {"minProperties": 0}, CAT]})
    message = "the value is valid under more than one of the schemas listed in the 'oneOf' keyword"
    assert schema.problems({"kind": "cat"}) == [("", message)]


def test_a_nullable_value_has_the_problems_of_what_it_is() -> None:
    schema = Schema({"anyOf": [{"type": "string", "minLength": 3}, {"type": "null"}]})
    assert schema.problems("ab") == [("", "the value is shorter than 3 characters")]


# --- depth ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [LISTS, {"type": "string"}, {"enum": [1]}, {"$ref": "#"}], ids=str)
@pytest.mark.parametrize(
    "build",
    [
        lambda: nested(0),
        lambda: [nested(0), nested(1)],
        lambda: {"a": nested(0, wrap=lambda it: {"a": it})},
        lambda: nested(0, 201),
    ],
    ids=["lists", "two lists", "objects", "just too deep"],
)
def test_a_value_nested_too_deeply_does_not_fit_and_does_not_crash(schema: Any, build: Callable[[], Any]) -> None:
    value = build()
    assert Schema(schema).is_valid(value) is False
    assert Schema(schema).problems(value) == [Problem("", "the value is nested deeper than 200")]


@pytest.mark.parametrize("schema", [{"type": "array"}, {"uniqueItems": True}, {"items": {"const": 1}}, True], ids=str)
def test_a_schema_that_does_not_follow_a_value_into_its_depth_cannot_be_harmed_by_it(schema: Any) -> None:
    for value in (nested(0), [nested(0), nested(1)]):
        compiled = Schema(schema)
        assert compiled.is_valid(value) is (compiled.problems(value) == [])
        assert compiled.fit(value).value is value


@pytest.mark.parametrize(
    "build",
    [lambda: nested((), wrap=lambda it: (it,)), lambda: [(), nested(0)], lambda: {"a": nested(0), "b": {1}}],
    ids=["tuples", "beside", "set"],
)
def test_a_deep_value_that_is_not_plain_does_not_crash_either(build: Callable[[], Any]) -> None:
    value = build()
    assert Schema(LISTS).is_valid(value) is False
    assert len(Schema(LISTS).problems(value)) == 1


def test_a_value_nested_exactly_as_deep_as_allowed_is_checked_to_its_ground() -> None:
    schema = Schema({"type": ["array", "integer"], "items": {"$ref": "#"}})
    assert schema.is_valid(nested(0, 200))
    assert not schema.is_valid(nested("x", 200))
    (problem,) = schema.problems(nested("x", 100))
    assert problem.path == "/0" * 100


def test_a_value_that_holds_itself_does_not_fit() -> None:
    cycle: list[Any] = []
    cycle += [cycle, cycle]
    assert Schema(LISTS).is_valid(cycle) is False
    assert Schema(LISTS).problems(cycle) == [Problem("", "the value is nested deeper than 200")]
    with pytest.raises(CastError, match="deeper than 200"):
        Schema(LISTS).cast(cycle)
    assert Schema(LISTS).fit(cycle) == (cycle, ())


# --- broken schemas, and when they are found --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        (BROKEN, "at type"),
        ({"properties": {"a": {"minimum": "x"}}}, "at properties/a/minimum"),
        ({"pattern": "("}, "at pattern"),
        ({"required": "name"}, "at required"),
        ({"items": {"type": 5}}, "at items/type"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"const": object()}, "object"),
    ],
)
@pytest.mark.parametrize("dialect", [None, "openapi-3.0"])
def test_a_schema_that_is_not_valid_is_an_error_that_says_where(
    schema: Any, where: str, dialect: Dialect | None
) -> None:
    compiled = Schema(schema, dialect=dialect)
    for use in (compiled.compile, compiled.checker, lambda: compiled.conformity(strip=True)):
        with pytest.raises(SchemaError, match=f"not a valid JSON Schema.*{where.replace('$', '.')}"):
            use()
    for check in (compiled.is_valid, compiled.problems):
        with pytest.raises(SchemaError, match="not a valid JSON Schema"):
            check(5)


@pytest.mark.parametrize("schema", [None, 5, "string", ["string"], object()])
def test_what_is_neither_an_object_nor_a_boolean_is_not_a_schema(schema: Any) -> None:
    with pytest.raises(SchemaError, match=f"object or a boolean, not {type(schema).__name__}"):
        Schema(schema)


@pytest.mark.parametrize("dialect", ["2020-12", "draft-07", "openapi-3.0"])
def test_a_schema_nested_100_000_deep_is_an_error_and_no_crash(dialect: Dialect) -> None:
    schema = Schema(nested({}, wrap=lambda it: {"items": it}), dialect=dialect)
    with pytest.raises(SchemaError, match=r"[Rr]ecursion limit|nested too deeply"):
        schema.compile()


def test_thousands_of_schemas_are_made_without_compiling_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema compiles when it is first used, and once."""
    compiled: list[Any] = []

    def count(schema: Any, *others: Any, **options: Any) -> Any:
        compiled.append(schema)
        return original(schema, *others, **options)

    original = module.compile_bounded
    monkeypatch.setattr(module, "compile_bounded", count)
    schemas = [Schema({"type": "string", "title": str(number)}) for number in range(2_000)]
    broken = Schema(BROKEN)
    assert compiled == []
    assert schemas[7].is_valid("x")
    assert schemas[7].problems(5)
    assert schemas[7].compile() is schemas[7]
    assert len(compiled) == 1
    with pytest.raises(SchemaError):
        broken.is_valid("x")


def test_deriving_or_repeating_a_schema_loads_nothing_heavy() -> None:
    assert UNKNOWN.is_valid(1)
    assert "_fitter" not in vars(Schema(PERSON))
    assert "_caster" not in vars(Schema(PERSON).compile())
    assert "requests" not in sys.modules


# --- the doors to fit and cast ----------------------------------------------------------------------------------------


def test_a_schema_checks_fits_and_casts() -> None:
    schema = Schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    assert schema.fit({"n": 1, "x": 2}) == ({"n": 1}, (Repair("stripped", "/x"),))
    assert schema.fit({"n": 1, "x": 2}, strip=False) == ({"n": 1, "x": 2}, ())
    assert schema.cast({"n": "one"}) == {"n": 0}
    assert schema.checker()({"n": 1, "x": 2}) is True
    assert schema.conformity(strip=False)({"n": 1, "x": 2}) is True
    assert schema.conformity(strip=True)({"n": 1, "x": 2}) is False


def test_fit_and_cast_read_older_dialects_too() -> None:
    schema = Schema(
        {"type": "object", "properties": {"n": {"type": "string", "nullable": True}}}, dialect="openapi-3.0"
    )
    value = {"n": None}
    assert schema.fit(value).value is value
    assert schema.cast(value) == value
    assert schema.conformity(strip=True)(value) is True


def test_a_deferred_schema_is_made_once_and_when_it_is_asked_for() -> None:
    made: list[int] = []

    def make() -> JSONSchema:
        made.append(1)
        return {"type": "integer"}

    schema = Schema.deferred(make)
    assert schema.is_deferred
    assert made == []
    assert schema.is_valid(1)
    assert not schema.is_valid("x")
    assert schema == Schema({"type": "integer"})
    assert not schema.is_deferred
    assert made == [1]


def test_any_other_schema_is_not_deferred() -> None:
    assert not Schema(True).is_deferred


@pytest.mark.parametrize("value", [{"children": [{"children": 1, "x": 2}]}, {"children": []}, {"z": 1}, [1], None])
def test_skipping_the_survey_of_a_plain_value_changes_no_result(value: Any) -> None:
    schema = Schema(TREE)
    assert schema.problems(value, is_plain=True) == schema.problems(value)
    assert schema.fit(value, is_plain=True) == schema.fit(value)
