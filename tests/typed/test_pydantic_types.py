import io
import subprocess
import sys
from dataclasses import dataclass
from datetime import time, timedelta
from typing import Annotated, Any

import jsonschema_rs
import pydantic
import pydantic_core
import pytest

from opwire.errors import ConversionError, HintError
from opwire.typed import convert, json_schema_of
from opwire.typed.plain import to_plain
from tests.typed.catalogue import Account, Address, Comment, Envelope, Holder, Mixture, Numbers, Order, Person, Tree


class Strict(pydantic.BaseModel):
    number: int
    ratio: float = 0.5
    flag: bool = False
    lasts: timedelta | None = None
    at: time | None = None
    anything: Any = None


def test_the_schema_of_a_model_is_that_of_pydantic() -> None:
    assert json_schema_of(Address) == Address.model_json_schema()
    assert json_schema_of(Comment)["$defs"]["Comment"] == Comment.model_json_schema()["$defs"]["Comment"]
    assert json_schema_of(Envelope[int])["properties"]["content"]["type"] == "integer"
    assert json_schema_of(Order)["required"] == ["count"]
    assert json_schema_of(Numbers)["type"] == "array"


def test_computed_properties_are_in_the_schema_though_they_are_only_written() -> None:
    schema = json_schema_of(list[Person])["$defs"]["Person"]
    assert schema["properties"]["initial"]["readOnly"] is True
    assert "initial" not in schema["required"]


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"number": "5"}, "$.number"),
        ({"number": 5.5}, "$.number"),
        ({"number": True}, "$.number"),
        ({"number": 5, "ratio": "0.5"}, "$.ratio"),
        ({"number": 5, "flag": 1}, "$.flag"),
        ({"number": 5, "lasts": 5}, "$.lasts"),
        ({}, "$.number"),
        ([], "$"),
    ],
)
def test_models_are_read_as_strictly_as_everything_else(data: Any, path: str) -> None:
    with pytest.raises(ConversionError) as caught:
        convert(data, Strict)
    assert str(caught.value).startswith(f"{path}: ")


def test_whole_numbers_are_integers_for_models_too() -> None:
    assert repr(convert({"number": 5.0, "ratio": 1}, Strict).number) == "5"
    assert convert([{"content": [1.0]}], list[Envelope[list[int]]])[0].content == [1]
    assert repr(convert({"number": 5, "anything": 5.0}, Strict).anything) == "5.0"


def test_times_and_durations_are_valid_as_pydantic_writes_them() -> None:
    value = Strict(number=1, lasts=timedelta(seconds=-0.5), at=time(12))
    plain = to_plain(value)
    assert jsonschema_rs.Draft202012Validator(json_schema_of(Strict), validate_formats=True).is_valid(plain)
    assert convert(plain, Strict) == value


def test_models_inside_other_classes_and_the_reverse() -> None:
    schema = json_schema_of(Mixture)
    assert set(schema["$defs"]) == {"Person", "Address", "Account", "Engine"}
    with pytest.raises(ConversionError, match=r"^\$\.person\.address\.zip: String should have at most 5 characters$"):
        convert({"person": {"name": "A", "address": {"street": "", "zip": "123456"}}, "account": {}}, Mixture)


def test_a_model_that_holds_what_pydantic_cannot_describe_is_described_by_its_fields() -> None:
    schema = json_schema_of(Holder)
    assert schema["required"] == ["account"]
    assert schema["properties"]["count"] == {"type": "integer", "minimum": 1, "default": 1}
    held = convert({"account": {"userName": "u"}, "tree": {"value": 1}}, Holder)
    assert held == Holder(account=Account("u"), tree=Tree(1))
    with pytest.raises(ConversionError, match=r"^\$\.account: the property 'userName' is missing$"):
        convert({"account": {}}, Holder)


def test_such_a_model_keeps_its_aliases_factories_and_own_validators() -> None:
    class Checked(pydantic.BaseModel, arbitrary_types_allowed=True, extra="forbid"):
        account: Account = pydantic.Field(alias="acc")
        tags: list[str] = pydantic.Field(default_factory=list)

        @pydantic.field_validator("tags")
        @classmethod
        def no_spaces(cls, tags: list[str]) -> list[str]:
            if any(" " in tag for tag in tags):
                raise ValueError("a space in a tag")
            return tags

    assert json_schema_of(Checked)["properties"]["tags"]["default"] == []
    assert json_schema_of(Checked)["additionalProperties"] is False
    assert convert({"acc": {"userName": "u"}}, Checked).account == Account("u")
    with pytest.raises(ConversionError, match="a space in a tag"):
        convert({"acc": {"userName": "u"}, "tags": ["a b"]}, Checked)
    with pytest.raises(ConversionError, match=r"^\$\.more: "):
        convert({"acc": {"userName": "u"}, "more": 1}, Checked)


def test_a_pydantic_dataclass_with_a_struct_is_read_like_a_dataclass() -> None:
    @pydantic.dataclasses.dataclass(config={"arbitrary_types_allowed": True})
    class Carrier:
        account: Account

    assert convert({"account": {"userName": "u"}}, Carrier) == Carrier(Account("u"))


def test_a_model_without_a_schema_is_a_hint_error() -> None:
    class Opaque(pydantic.BaseModel, arbitrary_types_allowed=True):
        stream: Any = None
        handle: io.StringIO

    with pytest.raises(HintError, match=r"^here, field 'handle' of .*Opaque: StringIO cannot be expressed"):
        json_schema_of(Opaque, where="here")
    with pytest.raises(HintError, match="pydantic cannot describe"):
        json_schema_of(Annotated[Account, pydantic.AfterValidator(lambda it: it)])


def test_a_custom_type_that_tells_pydantic_too_little_is_a_hint_error() -> None:
    class Opaque:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            return pydantic_core.core_schema.is_instance_schema(cls)

    with pytest.raises(HintError, match=r"^here: pydantic cannot describe Opaque: "):
        json_schema_of(Opaque, where="here")


def test_data_that_is_not_plain_does_not_fit_a_model() -> None:
    with pytest.raises(ConversionError, match="is not plain JSON data"):
        convert({"number": object()}, Strict)


def test_custom_types_of_pydantic_are_read_by_it() -> None:
    assert str(convert("https://a.example/", pydantic.AnyUrl)) == "https://a.example/"
    assert json_schema_of(pydantic.AnyUrl)["format"] == "uri"

    @dataclass
    class Link:
        url: pydantic.AnyUrl

    with pytest.raises(ConversionError, match=r"^\$\.url: Input should be a valid URL"):
        convert({"url": "x"}, Link)


def test_pydantic_is_not_imported_for_types_that_are_not_its_own() -> None:
    script = """
import dataclasses, sys
from opwire.typed import convert, json_schema_of
point = dataclasses.make_dataclass("Point", [("x", int), ("y", "int | None")])
json_schema_of(point), convert({"x": 1, "y": 2}, point)
print([each for each in ("pydantic", "attr", "annotated_types") if each in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
