"""Header fields that cannot break out of their line."""

import pytest

from opwire.openapi.client.plan import content_type_value, header_name, header_value


@pytest.mark.parametrize("name", ["", "X Key", "X:Y", "X-Key\r\nEvil", "Schlüssel", "(x)", "a=b", "a;b"])
def test_what_is_not_a_token_is_not_a_header_name(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid name of a header"):
        header_name(name)


def test_a_token_is_a_header_name() -> None:
    assert header_name("X-Rate.Limit_2!") == "X-Rate.Limit_2!"


@pytest.mark.parametrize("character", [*map(chr, range(9)), *map(chr, range(10, 32)), "\x7f", "\ud800"])
def test_a_value_with_a_control_character_is_refused_and_not_shown(character: str) -> None:
    with pytest.raises(ValueError, match="cannot contain") as caught:
        header_value(f"secret{character}value")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", ["", "a b", "a\tb", "Zürich", '"quoted"; q=0.5'])
def test_other_values_stay_as_they_are(value: str) -> None:
    assert header_value(value) == value


@pytest.mark.parametrize("value", ["text/plain", "application/vnd.api+json", "text/plain; charset=utf-8"])
def test_media_types_stay_as_they_are(value: str) -> None:
    assert content_type_value(value) == value


@pytest.mark.parametrize("value", ["", "text", "text/", "text/plain\r\nEvil: 1", "text/plain; a\nb", "a b/c"])
def test_what_is_not_a_media_type_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="expected one like text/plain"):
        content_type_value(value)
