import copy
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opwire.errors import SchemaError
from opwire.schema import Schema
from opwire.schema.dialect import lower
from opwire.schema.fit import Fitted, Fitter, Repair
from opwire.schema.shape import Shapes, plain_document
from opwire.schema.validator import Checks, compile_validator
from tests.properties import examples, is_thorough
from tests.schema.strategies import schemas, values

CASES = json.loads((Path(__file__).parent.parent / "data" / "fit-cases.json").read_text(encoding="utf-8"))
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "default": []}, "age": {"type": "integer"}},
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {"type": "object", "properties": {"child": {"$ref": "#/$defs/node"}, "n": {"type": "integer"}}}},
}

strips = st.booleans()
many_examples = settings(max_examples=examples(150))


def deep(levels: int, innermost: Any) -> Any:
    value = innermost
    for _ in range(levels):
        value = {"child": value}
    return value


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, f"{path}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}/{index}")
    else:
        yield path, value


def at(value: Any, pointer: str) -> tuple[Any, Any]:
    """What holds the place that a JSON Pointer names, and the name of the place in it."""
    *way, last = [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")]
    for token in way:
        value = value[int(token) if isinstance(value, list) else token]
    return value, int(last) if isinstance(value, list) else last


# The hand-checked cases


def test_every_hand_checked_case_is_repaired_as_expected() -> None:
    for case in CASES:
        before, label = json.dumps(case["value"]), case["name"]
        schema = Schema(case["schema"], dialect=case.get("dialect"))

        fitted = schema.fit(case["value"], strip=case.get("strip", True))

        # As text: 5 is not 5.0, and the order counts.
        assert json.dumps(fitted.value) == json.dumps(case["expected"]), label
        assert [list(change) for change in fitted.repairs] == case["changes"], label
        assert (fitted.value is case["value"]) == (not case["changes"]), label
        assert json.dumps(case["value"]) == before, label
        assert schema.fit(fitted.value, strip=case.get("strip", True)).repairs == (), label


def test_the_cases_cover_every_keyword_that_matters() -> None:
    """Declared defaults are filled, undeclared properties stripped and whole numbers converted as at least 200
    hand-checked cases say, for every keyword that matters."""
    tags = {tag for case in CASES for tag in case["tags"]}
    assert len(CASES) >= 200
    assert tags >= set(
        "default nested strip strip-off allOf anyOf oneOf if $ref patternProperties propertyNames free-form const enum "
        "discriminator recursion tuple nullable type-array openapi-3.0 draft-07 draft-04 additionalProperties validity "
        "unevaluatedProperties dependentSchemas number score".split()
    )


# What holds for every schema and every value


@many_examples
@given(schemas, values, strips)
def test_fitting_never_raises_and_never_changes_the_value_or_the_schema(schema: Any, value: Any, strip: bool) -> None:
    given_schema, given_value = json.dumps(schema), json.dumps(value)
    fitted = Fitter(Checks(schema)).fit(value, strip=strip)
    assert isinstance(fitted, Fitted)
    assert json.dumps(schema) == given_schema
    assert json.dumps(value) == given_value


@many_examples
@given(schemas, values, strips)
def test_the_same_object_comes_back_exactly_when_nothing_was_done(schema: Any, value: Any, strip: bool) -> None:
    """A value that is valid, with nothing to strip or fill, comes back as the very same object."""
    fitter = Fitter(Checks(schema))
    fitted = fitter.fit(value, strip=strip)
    assert (fitted.value is value) == (fitted.repairs == ())
    assert fitted.value is value or json.dumps(fitted.value) != json.dumps(value)
    if fitter.conformity(strip=strip)(value):
        assert fitted.value is value


@many_examples
@given(schemas, values, strips)
def test_a_fitted_value_needs_nothing_more(schema: Any, value: Any, strip: bool) -> None:
    fitter = Fitter(Checks(schema))
    fitted = fitter.fit(value, strip=strip).value
    assert fitter.fit(fitted, strip=strip) == Fitted(fitted, ())
    assert fitter.fit(fitted, strip=strip).value is fitted


@many_examples
@given(schemas, values, strips)
def test_scalars_stay_the_same_objects_except_for_lossless_numbers(schema: Any, value: Any, strip: bool) -> None:
    """No leaf is ever changed, except for lossless numeric conversions."""
    fitted = Fitter(Checks(schema)).fit(value, strip=strip)
    original = dict(leaves(value))
    filled = [change.path for change in fitted.repairs if change.kind == "filled"]
    converted = {change.path for change in fitted.repairs if change.kind == "converted"}
    for path, leaf in leaves(fitted.value):
        if any(path == each or path.startswith(f"{each}/") for each in filled):
            assert path not in original
        elif path in converted:
            assert type(original[path]) is float
            assert type(leaf) is int
            assert leaf == original[path]
        else:
            assert leaf is original[path]


@many_examples
@given(schemas, values, strips)
def test_what_was_valid_stays_valid(schema: Any, value: Any, strip: bool) -> None:
    """Fitting never turns a valid value into an invalid one."""
    try:
        validator = compile_validator(schema)
    except SchemaError:
        return
    if validator.is_valid(value):
        assert validator.is_valid(Fitter(Checks(schema)).fit(value, strip=strip).value)


@many_examples
@given(schemas, values, strips)
def test_the_changes_name_exactly_what_differs(schema: Any, value: Any, strip: bool) -> None:
    """What was filled, stripped and converted is reported, each by its path."""
    fitted = Fitter(Checks(schema)).fit(value, strip=strip)
    before, after = {"": copy.deepcopy(value)}, {"": fitted.value}  # so that the root, too, has a parent
    for kind, path in fitted.repairs:
        parent, name = at(before, path)
        if kind == "stripped":
            del parent[name]
        else:
            result, _ = at(after, path)
            parent[name] = result[name]
    assert json.dumps(before, sort_keys=True) == json.dumps(after, sort_keys=True)


# Sharing


def test_untouched_parts_are_shared_with_the_original() -> None:
    schema = {"type": "object", "properties": {"kept": {"type": "array"}, "other": {"type": "object"}}}
    value = {"kept": [1, {"a": 2}], "other": {"b": 3}, "extra": 1}
    fitted = Fitter(Checks(schema)).fit(value, strip=True).value
    assert fitted["kept"] is value["kept"]
    assert fitted["other"] is value["other"]


def test_of_a_thousand_items_only_the_three_bad_ones_are_rebuilt() -> None:
    people = [{"name": f"n{n}", "tags": [], "age": n} for n in range(1000)]
    for bad in (0, 500, 999):
        people[bad]["extra"] = 1
    fitted = Fitter(Checks({"type": "array", "items": PERSON})).fit(people, strip=True)
    assert [index for index, (old, new) in enumerate(zip(people, fitted.value, strict=True)) if old is not new] == [
        0,
        500,
        999,
    ]
    assert [change.path for change in fitted.repairs] == ["/0/extra", "/500/extra", "/999/extra"]


def test_any_number_of_items_is_filled() -> None:
    fitted = Fitter(Checks({"type": "array", "items": PERSON})).fit([{} for _ in range(20_000)], strip=True)
    assert len(fitted.repairs) == 20_000


def test_a_filled_default_is_never_the_schemas_own_object() -> None:
    schema = copy.deepcopy(PERSON)
    fitter = Fitter(Checks(schema))
    one, other = fitter.fit({}, strip=True).value, fitter.fit({}, strip=True).value
    one["tags"].append("mine")
    assert other == {"tags": []}
    assert schema == PERSON


# Safety


def test_a_value_two_hundred_deep_is_fitted() -> None:
    """Values nested 200 deep are fitted, and deeper ones never crash."""
    value = deep(199, {"n": 1.0, "extra": 1})
    fitted = Fitter(Checks(TREE)).fit(value, strip=True)
    assert [change.kind for change in fitted.repairs] == ["converted", "stripped"]
    assert fitted.repairs[0].path == "/child" * 199 + "/n"


def test_a_value_too_deep_for_the_stack_is_left_alone() -> None:
    value = deep(900, {"extra": 1})
    assert Fitter(Checks(TREE)).fit(value, strip=True).value is value


def test_a_schema_too_deep_for_the_stack_leaves_values_alone() -> None:
    schema: dict[str, Any] = {"properties": {"n": {"default": 1}}}
    for _ in range(2000):
        schema = {"properties": {"child": schema}}
    fitter = Fitter(Checks(schema))
    assert fitter.fit(value := {"extra": 1}, strip=True).value is value
    assert not fitter.conformity(strip=True)(value)


def test_defaults_that_double_at_each_level_are_given_up() -> None:
    defs: dict[str, Any] = {
        f"n{n}": {"properties": {side: {"$ref": f"#/$defs/n{n + 1}", "default": {}} for side in "ab"}}
        for n in range(40)
    }
    schema = {"$ref": "#/$defs/n0", "$defs": {**defs, "n40": {}}}
    assert Fitter(Checks(schema)).fit(value := {}, strip=True).value is value


def test_a_schema_with_several_targets_for_a_dynamic_reference_leaves_values_alone() -> None:
    """Schemas without end, and those that cannot be analysed, leave the value alone."""
    schema = {
        "properties": {"list": {"$dynamicRef": "#item"}, "n": {"default": 1}},
        "$defs": {
            "one": {"$id": "https://example.com/one", "$dynamicAnchor": "item", "properties": {"a": {}}},
            "two": {"$id": "https://example.com/two", "$dynamicAnchor": "item", "properties": {"b": {}}},
        },
    }
    assert Fitter(Checks(schema)).fit(value := {"z": 1}, strip=True).value is value


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "#/$defs/gone"}, {"pattern": "("}])
def test_a_schema_that_is_not_valid_leaves_values_alone(schema: Any) -> None:
    fitter = Fitter(Checks(schema))
    assert fitter.fit(value := {"z": 1}, strip=True) == Fitted(value, ())
    assert not fitter.conformity(strip=True)(value)


@pytest.mark.parametrize("leaf", ["\ud800", float("nan"), float("inf"), 10**400, b"bytes", object()])
def test_what_is_hardly_json_passes_through(leaf: Any) -> None:
    fitted = Fitter(Checks(PERSON)).fit({"name": leaf, "extra": leaf}, strip=True)
    assert fitted.value["name"] is leaf
    assert fitted.repairs == (Repair("stripped", "/extra"), Repair("filled", "/tags"))


# Repairs that change what applies


def shrinking(names: str) -> dict[str, Any]:
    """A schema that allows one property less than there are, down to the first one."""
    declared = {"properties": {name: {} for name in names[:-1]}}
    if len(names) == 2:
        return declared
    return {"if": {"minProperties": len(names)}, "then": declared, "else": shrinking(names[:-1])}


def test_a_repair_that_calls_for_another_one_is_followed_up() -> None:
    assert Fitter(Checks(shrinking("abcd"))).fit(dict.fromkeys("abcd"), strip=True).value == {"a": None}


def test_a_repair_that_does_not_come_to_rest_is_given_up() -> None:
    assert Fitter(Checks(shrinking("abcdefgh"))).fit(value := dict.fromkeys("abcdefgh"), strip=True).value is value


def test_a_property_is_never_stripped_first_and_filled_afterwards() -> None:
    few = {"properties": {"a": {}, "x": {"default": 9}}}
    schema = {"if": {"minProperties": 3}, "then": {"properties": {"a": {}}}, "else": few}
    assert Fitter(Checks(schema)).fit(value := {"a": 1, "x": 1, "y": 2}, strip=True).value is value


# The fast check


def test_conforming_means_valid_with_nothing_to_strip_fill_or_convert() -> None:
    """One fast check tells whether a value is valid and leaves nothing to do; it is never wrong in saying yes."""
    fitter = Fitter(Checks(PERSON))
    good = {"name": "Ada", "tags": [], "age": 36}
    assert fitter.conformity(strip=True)(good)
    assert not fitter.conformity(strip=True)({**good, "name": 1})
    assert not fitter.conformity(strip=True)({**good, "extra": 1})
    assert fitter.conformity(strip=False)({**good, "extra": 1})
    assert not fitter.conformity(strip=False)({"name": "Ada"})
    assert not fitter.conformity(strip=False)({**good, "age": 36.0})


# GitHub's own examples


def github_examples(document: dict[str, Any]) -> Iterator[tuple[str, Any, list[Any]]]:
    """Each JSON response of success: where it stands, its schema, its examples."""

    def resolved(node: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in node:
            target: Any = document
            for token in node["$ref"].split("/")[1:]:
                target = target[token.replace("~1", "/").replace("~0", "~")]
            node = target
        return node

    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status, response in operation["responses"].items() if isinstance(operation, dict) else ():
                for media in resolved(response).get("content", {}).values() if status.startswith("2") else ():
                    examples = [resolved(each) for each in media.get("examples", {}).values()]
                    found = [each["value"] for each in examples if "value" in each]
                    found += [media["example"]] if "example" in media else []
                    if found and "schema" in media:
                        yield f"{method} {path} {status}", media["schema"], found


def test_githubs_own_examples_are_fitted_without_loss(shared: Path) -> None:
    """On GitHub's own response examples fitting raises on none, empties none, and returns those that conform as
    the same object."""
    document = json.loads((shared / "openapi" / "github_api.json").read_bytes())
    lowered_document: Any = lower({"components": {"schemas": document["components"]["schemas"]}}, "openapi-3.0")
    seen = same = 0
    part = 1 if is_thorough() else 15
    for where, schema, given_examples in islice(github_examples(document), None, None, part):
        lowered = lower(schema, "openapi-3.0")
        root = {**lowered, **lowered_document} if isinstance(lowered, dict) else lowered
        fitter = Fitter(Checks(root))
        valid = compile_validator(plain_document(Shapes(root), root)[0]).is_valid
        for example in given_examples:
            for strip in (True, False):
                fitted = fitter.fit(example, strip=strip)
                assert bool(fitted.value) == bool(example), f"{where} was emptied"
                assert valid(fitted.value) or not valid(example), f"{where} was spoilt"
                assert (fitted.value is example) == (not fitted.repairs), where
                assert fitted.value is example or not fitter.conformity(strip=strip)(example), where
                seen += 1
                same += fitted.value is example
    assert seen > 2000 / part
    assert same > 1800 / part
