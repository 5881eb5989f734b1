"""Parts of a document as what they ought to be."""

from opwire.adapters.openapi.shapes import mapping, sequence, text, texts


def test_a_wrong_kind_of_value_counts_as_none() -> None:
    assert mapping({"a": 1}) == {"a": 1}
    assert mapping([1]) == mapping(None) == {}
    assert sequence([1]) == [1]
    assert sequence("ab") == sequence(None) == []
    assert text("a") == "a"
    assert text([1]) == text(None) == ""
    assert texts(["a", None, "b"]) == ["a", "b"]
    assert texts("ab") == []


def test_what_yaml_took_for_a_number_or_a_boolean_is_text_again() -> None:
    assert (
        [text(each) for each in (1, 1.5, True, False)] == texts([1, 1.5, True, False]) == ["1", "1.5", "true", "false"]
    )
