"""What a check may cost: schemas that multiply are remembered or refused, values are metered, others pay nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from opwire import CallError, ErrorCode, OperationRegistry, OperationSpec, Schema, SchemaError
from opwire.schema.cost import FREE_UNITS, SchemaCosts
from opwire.schema.meter import ComplexityError, Meter
from opwire.schema.validator import Checks, MeteredValidator


def doubling(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    """Definitions that each name the one below twice."""
    definitions: dict[str, Any] = {
        f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {"type": "object"}}}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_definitions_that_multiply_are_refused_before_they_are_compiled(keyword: str) -> None:
    with pytest.raises(SchemaError, match="multiply"):
        Schema(doubling(40, keyword)).compile()
    with pytest.raises(SchemaError, match="multiply"):
        Schema({"items": doubling(40, keyword)["$defs"]["d0"], **doubling(40, keyword)}).is_valid([{}])


async def test_a_result_is_kept_and_a_warning_says_why_it_was_not_checked(caplog: pytest.LogCaptureFixture) -> None:
    registry = OperationRegistry()
    spec = OperationSpec(namespace="a", name="b", output_schema=Schema.deferred(lambda: doubling(40)))
    registry.register(spec, lambda input, context: {"kept": True}, inline=True)
    assert (await registry.execute("a.b")).data == {"kept": True}
    assert "multiply" in caplog.text


CHAIN = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(1_000)}
HARMLESS: dict[str, Any] = {
    "anything": True,
    "a little doubling": doubling(8),
    "itself": {"allOf": [{"$ref": "#"}]},
    "a tree": {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "anyOf": [{}, {"$ref": "#"}]},
    "many branches": {"anyOf": [{"const": number} for number in range(5_000)]},
    "a long chain": {"$ref": "#/$defs/d0", "$defs": CHAIN},
    "elsewhere": {"$ref": "https://elsewhere.example/schema"},
    "no schema": {"allOf": "no list", "not": 5, "$ref": 5, "dependentSchemas": []},
}


@pytest.mark.parametrize("schema", HARMLESS.values(), ids=HARMLESS)
def test_branches_recursion_and_long_chains_do_not_multiply(schema: Any) -> None:
    SchemaCosts(schema)


@pytest.mark.parametrize("document", ["github_api.json", "stripe_spec3.json", "kubernetes_swagger.json"])
def test_no_schema_of_a_large_api_is_refused(document: str, shared: Path) -> None:
    SchemaCosts(json.loads((shared / "openapi" / document).read_bytes()))


def test_references_that_lead_on_and_on_are_refused_before_the_compiler_follows_them() -> None:
    chain = {f"d{n}": {"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(5_000)}
    with pytest.raises(SchemaError, match="nested too deeply"):
        Schema({"$ref": "#/$defs/d0", "$defs": {**chain, "d5000": {"type": "object"}}}).compile()


# --- ordinary schemas -------------------------------------------------------------------------------------------------

ITSELF = {"$ref": "#/$defs/node"}
ORDINARY: dict[str, Any] = {
    "a record": {"properties": {"id": {"type": "integer"}, "tags": {"items": {"type": "string"}, "uniqueItems": True}}},
    "a tree": {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "n": {"enum": [1, 2]}}},
    "any JSON": {
        "anyOf": [{"type": ["string", "number"]}, {"items": {"$ref": "#"}, "additionalProperties": {"$ref": "#"}}]
    },
    "extensions": {
        "properties": {"next": {"$ref": "#"}},
        "patternProperties": {"^x-": {}},
        "additionalProperties": False,
    },
    "an expandable reference": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {
                "properties": {"b": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/b"}, {"$ref": "#/$defs/gone"}]}}
            },
            "b": {"properties": {"a": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a"}]}}},
            "gone": {"properties": {"id": {"type": "string"}, "gone": {"const": True}}},
        },
    },
    "a password": {"pattern": r"^(?=.*[A-Z])(?=.*\d).{8,64}$"},
    "a long enum": {"enum": [f"word{n}" for n in range(5_000)]},
}


@pytest.mark.parametrize("schema", ORDINARY.values(), ids=ORDINARY)
def test_values_of_ordinary_schemas_are_not_metered(schema: Any) -> None:
    assert SchemaCosts(schema).is_free


def test_nearly_no_schema_of_a_large_api_needs_a_meter(shared: Path) -> None:
    document = json.loads((shared / "openapi" / "github_api.json").read_bytes())
    names = list(document["components"]["schemas"])
    metered = [
        name
        for name in names
        if not SchemaCosts({"$ref": f"#/components/schemas/{name}", "components": document["components"]}).is_free
    ]
    assert len(metered) <= len(names) // 100


# --- schemas that multiply --------------------------------------------------------------------------------------------


def below(levels: int, last: Any = False) -> dict[str, Any]:
    """Definitions that each name the next one twice, below a property."""
    definitions: dict[str, Any] = {
        f"d{n}": {"properties": {"a": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}}}
        for n in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": last}}


def nested(levels: int, leaf: Any, wrap: Callable[[Any], Any] = lambda inner: {"a": inner}) -> Any:
    for _ in range(levels):
        leaf = wrap(leaf)
    return leaf


def editor(kinds: int) -> dict[str, Any]:
    """The documents of an editor: nodes of many kinds that hold nodes."""
    variants = [
        {
            "type": "object",
            "properties": {"children": {"type": "array", "items": ITSELF}, "type": {"const": f"k{n}"}},
            "required": ["type"],
        }
        for n in range(kinds)
    ]
    return {**ITSELF, "$defs": {"node": {"oneOf": variants}}}


def page(depth: int, width: int = 1, kind: str = "k4") -> Any:
    return {"children": [page(depth - 1, width, kind) for _ in range(width)] if depth else [], "type": kind}


TWICE = [ITSELF, ITSELF]
RECURSIVE: dict[str, Any] = {
    "anyOf below a property": {"properties": {"a": {"anyOf": TWICE}}, "type": "object"},
    "allOf below a property": {"properties": {"a": {"allOf": TWICE}}, "type": "object"},
    "two properties keywords": {
        "allOf": [{"properties": {"a": ITSELF}}, {"properties": {"a": ITSELF}}],
        "type": "object",
    },
    "patterns": {"patternProperties": {"a": ITSELF, "^a": ITSELF, "^a$": ITSELF}, "type": "object"},
    "a condition": {"if": {"properties": {"a": ITSELF}}, "then": {"properties": {"a": ITSELF}}, "type": "object"},
    "not": {"not": {"not": {"properties": {"a": ITSELF}}}, "properties": {"a": ITSELF}, "type": "object"},
    "dependent schemas": {
        "dependentSchemas": {"a": {"properties": {"a": ITSELF}}},
        "properties": {"a": ITSELF},
        "type": "object",
    },
    "unevaluated": {"allOf": [{"properties": {"a": ITSELF}}], "unevaluatedProperties": False, "type": "object"},
    "unevaluated as child": {"unevaluatedProperties": ITSELF, "type": "object"},
    "a detour": {"properties": {"a": {"oneOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}]}}, "type": "object"},
}
DETOURS = {"one": {"properties": {"a": ITSELF}}, "two": {"properties": {"a": ITSELF}, "required": ["b"]}}
ARRAYS: dict[str, Any] = {
    "items and contains": {"items": ITSELF, "contains": ITSELF, "type": "array"},
    "prefix": {"anyOf": [{"prefixItems": [ITSELF]}, {"items": ITSELF}], "type": "array"},
    "unevaluated items": {"allOf": [{"prefixItems": [ITSELF]}], "unevaluatedItems": False, "type": "array"},
}


def cpu(run: Callable[[], Any]) -> float:
    began = process_time()
    run()
    return process_time() - began


@pytest.mark.parametrize("name", [*RECURSIVE, *ARRAYS])
def test_a_recursive_schema_with_overlapping_branches_takes_time_in_proportion_to_the_depth(name: str) -> None:
    schema = Schema({**ITSELF, "$defs": {"node": {**RECURSIVE, **ARRAYS}[name], **DETOURS}}).compile()
    wrap = (lambda inner: [inner]) if name in ARRAYS else (lambda inner: {"a": inner})
    for leaf in ({}, [], 1):
        value = nested(150, leaf, wrap)
        assert cpu(lambda value=value: (schema.is_valid(value), schema.problems(value), schema.fit(value))) < 5


@pytest.mark.parametrize("levels", [20, 60, 150])
def test_definitions_that_multiply_below_a_property_are_remembered_and_not_repeated(levels: int) -> None:
    fits, misfits = Schema(below(levels, {"const": 1})), Schema(below(levels))
    value = nested(levels, 1)
    assert fits.is_valid(value)
    assert not misfits.is_valid(value)
    assert misfits.is_valid(nested(levels - 1, 1))
    assert misfits.problems(value)[0].path.startswith("/a")
    assert misfits.fit(value).value == value


def test_a_closed_document_that_would_multiply_is_rejected_before_it_is_written() -> None:
    """The compiler rejects it too, after the work of ten such documents."""
    schema = below(60)
    for metered in (False, True):
        checks = Checks(schema)
        checks.shapes.metered = SchemaCosts(schema) if metered else None
        with pytest.raises(SchemaError, match="cannot be bounded beside `unevaluated"):
            checks.conformity(schema, strip=True)


@pytest.mark.parametrize("kinds", [2, 5, 40])
def test_documents_of_an_editor_are_checked_at_any_depth_and_size(kinds: int) -> None:
    schema = Schema(editor(kinds)).compile()
    assert isinstance(schema.checker().__self__, MeteredValidator)  # type: ignore[attr-defined]
    for value in (page(0, kind="k1"), page(90, kind="k1"), page(6, 5, "k1"), page(1, 5_000, "k1")):
        assert schema.is_valid(value)
        assert schema.conformity(strip=True)(value)
        assert schema.problems(value) == []
    assert not schema.is_valid(page(90, kind="none"))


def strict(count: int, following: Callable[[int], int | None]) -> dict[str, Any]:
    """Definitions that allow no member but one, which the next of them describes."""
    definitions: dict[str, Any] = {}
    for n in range(count):
        inner = following(n)
        member = {"type": "string"} if inner is None else {"$ref": f"#/$defs/{inner}"}
        definitions[str(n)] = {"allOf": [{"properties": {"a": member}}], "unevaluatedProperties": False}
    return {"$ref": "#/$defs/0", "$defs": definitions}


def test_a_strict_tree_does_not_multiply() -> None:
    for count in (1, 3):
        schema = Schema(strict(count, lambda n, count=count: (n + 1) % count)).compile()
        assert schema.is_valid(nested(150, {}))
        assert not schema.is_valid(nested(150, {"b": 1}))


@pytest.mark.parametrize(
    "following", [lambda n: None if n == 39 else n + 1, lambda n: (n + 1) % 40], ids=["row", "ring"]
)
def test_many_strict_definitions_inside_each_other_are_refused(following: Any) -> None:
    with pytest.raises(SchemaError, match="unevaluated"):
        Schema(strict(40, following)).compile()


# --- the meter --------------------------------------------------------------------------------------------------------


def trees(count: int) -> list[Any]:
    """Different arrays that hold nothing but arrays: the digits of a number, as [inner] and [inner, []]."""
    return [nested_digits(number, count.bit_length()) for number in range(count)]


def nested_digits(number: int, digits: int) -> Any:
    value: Any = []
    for digit in range(digits):
        value = [value, []] if number >> digit & 1 else [value]
    return value


EXPENSIVE: dict[str, tuple[Any, Any]] = {
    "many alternatives": ({"items": {"anyOf": [{"const": n} for n in range(5_000)]}}, [4_999] * 5_000),
    "an enum of objects": ({"items": {"enum": [{"n": n} for n in range(450)]}}, [{"n": 449}] * 2_000),
    "an enum of numbers": ({"items": {"enum": list(range(9_000))}}, [8_999] * 5_000),
    "dependent names": ({"items": {"dependentRequired": {f"k{n}": ["a"] for n in range(4_000)}}}, [{}] * 5_000),
    "patterns of names": (
        {"patternProperties": {f"^k{n}$": {} for n in range(5_000)}},
        {f"x{n}": 1 for n in range(5_000)},
    ),
    "multiples of a fraction, as large as a float can be": ({"items": {"multipleOf": 0.01}}, [1e308] * 10_000),
    "multiples of an integer, with 4,000 digits": ({"items": {"multipleOf": 2}}, [10**4000] * 200),
    "ordinary numbers as multiples of a tiny one": ({"items": {"multipleOf": 1e-300}}, [12.5] * 10_000),
    "patterns that backtrack": ({"items": {"not": {"pattern": "^(?:(?:a|aa)(?=.))*x"}}}, ["a" * 16 + "!"] * 10_000),
    "unique arrays": ({"uniqueItems": True}, trees(10_000)),
    "unique integers": ({"type": "array", "uniqueItems": True}, [10**30 + n for n in range(10_000)]),
    "unique objects": ({"items": {}, "uniqueItems": True}, [{"a": [[]] * n} for n in range(3_000)]),
}


@pytest.mark.parametrize("name", EXPENSIVE)
def test_a_value_that_would_take_too_long_is_rejected_and_a_small_one_is_not(name: str) -> None:
    given, value = EXPENSIVE[name]
    schema = Schema(given).compile()
    with pytest.raises(ComplexityError, match="too large"):
        schema.checker()(value)
    assert not schema.is_valid(value)
    (problem,) = schema.problems(value)
    assert problem.path == ""
    assert "too large" in problem.message
    assert schema.fit(value).value is value
    small = dict(list(value.items())[:50]) if isinstance(value, dict) else value[:20]
    assert isinstance(schema.checker()(small), bool)


def test_prices_that_are_multiples_of_a_cent_are_checked() -> None:
    schema = Schema({"items": {"properties": {"price": {"type": "number", "multipleOf": 0.01}}}})
    assert schema.is_valid([{"price": 1999.99}] * 10_000)
    assert not schema.is_valid([{"price": 1999.999}])


def test_the_meter_looks_only_where_a_value_can_be_expensive() -> None:
    expensive = {"anyOf": [{"const": n} for n in range(1_000)]}
    costs = SchemaCosts({"properties": {"cheap": {"items": {"type": "integer"}}, "dear": expensive}})
    assert not costs.is_free
    Meter(costs).check({"cheap": [1] * 1_000_000, "dear": 1, "other": [1] * 1_000_000})


async def test_input_that_is_too_complex_is_refused_and_says_so() -> None:
    registry = OperationRegistry()
    given, value = EXPENSIVE["many alternatives"]
    spec = OperationSpec(namespace="a", name="b", input_schema=given)
    registry.register(spec, lambda input, context: "handled", inline=True)
    with pytest.raises(CallError, match="too large or too deeply nested") as raised:
        await registry.execute("a.b", value)
    assert raised.value.code == ErrorCode.VALIDATION_ERROR
    assert (await registry.execute("a.b", [1])).data == "handled"


@pytest.mark.parametrize("mode", ["fit", "check", "cast"])
async def test_output_that_is_too_complex_is_kept_with_a_warning(mode: Any, caplog: pytest.LogCaptureFixture) -> None:
    registry = OperationRegistry(normalize=mode)
    given, value = EXPENSIVE["unique arrays"]
    spec = OperationSpec(namespace="a", name="b", output_schema=given)
    registry.register(spec, lambda input, context: value, inline=True)
    assert (await registry.execute("a.b")).data == value
    assert "too large or too deeply nested" in caplog.text


def test_free_is_below_what_is_refused() -> None:
    wide = {"anyOf": [{"const": n} for n in range(FREE_UNITS + 1)]}
    assert not SchemaCosts(wide).is_free
    assert not SchemaCosts(wide).multiplies
