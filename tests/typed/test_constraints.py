from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import annotated_types as at
import pydantic
import pytest
import typing_extensions
from msgspec import Meta

from opwire.errors import ConversionError
from opwire.typed import convert, json_schema_of
from tests.typed.catalogue import Point


@pytest.mark.parametrize(
    ("hint", "keywords", "good", "bad"),
    [
        (Annotated[int, Meta(gt=1, lt=5)], {"exclusiveMinimum": 1, "exclusiveMaximum": 5}, 2, 5),
        (Annotated[int, at.Ge(1), at.Le(5)], {"minimum": 1, "maximum": 5}, 5, 6),
        (Annotated[int, at.Interval(gt=1, le=5)], {"exclusiveMinimum": 1, "maximum": 5}, 5, 1),
        (Annotated[float, pydantic.Field(ge=0, lt=1)], {"minimum": 0, "exclusiveMaximum": 1}, 0, 1),
        (Annotated[float, at.MultipleOf(0.1)], {"multipleOf": 0.1}, 0.3, 0.35),
        (Annotated[int, Meta(multiple_of=5)], {"multipleOf": 5}, 10, 11),
        (Annotated[str, Meta(min_length=2, max_length=3)], {"minLength": 2, "maxLength": 3}, "ab", "abcd"),
        (Annotated[str, pydantic.StringConstraints(pattern="^a")], {"pattern": "^a"}, "ab", "ba"),
        (Annotated[list[int], at.Len(1, 2)], {"minItems": 1, "maxItems": 2}, [1], []),
        (Annotated[dict[str, int], at.MaxLen(1)], {"maxProperties": 1}, {"a": 1}, {"a": 1, "b": 2}),
        (Annotated[bytes, Meta(max_length=2)], {"maxLength": 4}, "aGk=", "aGkh"),
        (Annotated[str | None, at.MinLen(2)], {"minLength": 2}, None, "a"),
        (Annotated[int | str, at.Ge(2)], {"minimum": 2}, "a", 1),
        (Annotated[Decimal, at.Gt(0)], {}, "0.1", "0"),
        (Annotated[Decimal, at.MultipleOf(Decimal("0.5"))], {}, "1.5", "1.6"),
        (Annotated[date, at.Ge(date(2024, 1, 1))], {}, "2024-01-01", "2023-12-31"),
        (Annotated[int, pydantic.Field(ge=1), at.Le(3)], {"minimum": 1, "maximum": 3}, 3, 4),
        (pydantic.PositiveInt, {"exclusiveMinimum": 0}, 1, 0),
        (Annotated[int, at.Predicate(lambda _: False), "a note"], {"description": "a note"}, 1, "x"),
    ],
)
def test_constraints_are_part_of_the_schema_and_checked(hint: Any, keywords: Any, good: Any, bad: Any) -> None:
    """Constraints of msgspec, annotated_types and pydantic are part of the schema and checked."""
    schema = json_schema_of(hint)
    assert {key: schema[key] for key in keywords} == keywords
    plain = json_schema_of(hint.__origin__)
    assert schema.keys() - plain.keys() == keywords.keys()
    convert(good, hint)
    with pytest.raises(ConversionError):
        convert(bad, hint)


@pytest.mark.parametrize(
    ("note", "keywords"),
    [
        (
            Meta(title="T", description="D", examples=[1], extra_json_schema={"x-more": 1}),
            {"title": "T", "description": "D", "examples": [1], "x-more": 1},
        ),
        (
            pydantic.Field(title="T", description="D", examples=[1], json_schema_extra={"x-more": 1}),
            {"title": "T", "description": "D", "examples": [1], "x-more": 1},
        ),
        (typing_extensions.Doc("D"), {"description": "D"}),
    ],
)
def test_documentation_is_part_of_the_schema(note: Any, keywords: dict[str, Any]) -> None:
    """Docstrings, titles, descriptions, examples and defaults are kept in derived schemas."""
    assert json_schema_of(Annotated[int, note]) == {"type": "integer", **keywords}


def test_documentation_beside_a_class_is_that_of_its_use_not_of_the_class() -> None:
    schema = json_schema_of(dict[str, Annotated[Point, Meta(description="the centre")]])
    assert schema["additionalProperties"] == {"$ref": "#/$defs/Point", "description": "the centre"}
    assert schema["$defs"]["Point"]["description"] == "Where it is."


def test_constraints_of_one_member_of_a_union_leave_the_others_alone() -> None:
    assert convert("a", Annotated[int | str, at.MultipleOf(2)]) == "a"
    assert convert("a", Annotated[datetime | str, Meta(tz=True)]) == "a"
    assert convert(1, Annotated[int | str, pydantic.Field(pattern="^a")]) == 1


def test_messages_tell_the_limit_that_was_broken() -> None:
    for hint, data, reason in (
        (Annotated[int, at.Ge(3)], 1, "is not at least 3"),
        (Annotated[str, at.MaxLen(3)], "abcd", "has a length of 4, not at most 3"),
        (Annotated[int, at.MultipleOf(5)], 4, "is not a multiple of 5"),
        (Annotated[str, Meta(pattern="^a")], "b", "does not match the pattern '^a'"),
    ):
        with pytest.raises(ConversionError) as caught:
            convert(data, hint)
        assert str(caught.value) == f"$: {reason}"


def test_an_offset_from_utc_can_be_demanded_or_forbidden() -> None:
    aware, naive = Annotated[datetime, Meta(tz=True)], Annotated[datetime, Meta(tz=False)]
    assert json_schema_of(aware) == {"type": "string", "format": "date-time"}
    assert json_schema_of(naive) == {"type": "string"}
    assert convert("2024-02-29T12:00:00Z", aware) == datetime(2024, 2, 29, 12, tzinfo=UTC)
    assert convert("2024-02-29T12:00:00", naive) == datetime(2024, 2, 29, 12)
    with pytest.raises(ConversionError, match="without an offset"):
        convert("2024-02-29T12:00:00", aware)
    with pytest.raises(ConversionError, match="with an offset"):
        convert("2024-02-29T12:00:00Z", naive)


def test_limits_that_json_cannot_hold_are_checked_all_the_same() -> None:
    hint = Annotated[float, at.Lt(float("inf"))]
    assert json_schema_of(hint) == {"type": "number"}
    with pytest.raises(ConversionError, match="is not less than inf"):
        convert(float("inf"), hint)
    with pytest.raises(ConversionError, match="is not a multiple"):
        convert(float("inf"), Annotated[float, at.MultipleOf(0.5)])


def test_validators_of_pydantic_inside_annotated_are_run() -> None:
    hint = Annotated[str, pydantic.AfterValidator(str.upper)]
    assert convert("a", hint) == "A"
    assert convert("  a ", Annotated[str, pydantic.StringConstraints(strip_whitespace=True)]) == "a"
    assert json_schema_of(Annotated[int, pydantic.WithJsonSchema({"type": "string"})]) == {"type": "string"}
