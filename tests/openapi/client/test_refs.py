"""Where references lead."""

import pytest

from opwire.errors import SchemaError
from opwire.openapi.client.document import DocumentSet, SourceDocument
from opwire.schema.dialect import objects_in

ROOT = {
    "openapi": "3.1.0",
    "a/b": {"c~d": {"e f": 1}},
    "list": [{"x": 1}],
    "%25": "percent",
    "one": {"$ref": "#/two"},
    "two": {"$ref": "#/three"},
    "three": {"here": {"deep": True}},
    "circle": {"$ref": "#/round"},
    "round": {"$ref": "#/circle"},
    "inward": {"$ref": "#/inward/deeper"},
    "schemas": {"P": {"$id": "https://api.test/p", "$defs": {"q": {"type": "null"}}, "$anchor": "named"}},
    "tree": {"$dynamicAnchor": "node"},
    "example": {"$anchor": "not-a-schema"},
}


def documents(uri: str = "", version: str = "3.1") -> DocumentSet:
    return DocumentSet(ROOT, uri, version)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("ref", "value"),
    [
        ("#/a~1b/c~0d/e f", 1),
        ("#/a~1b/c~0d/e%20f", 1),
        ("#/a%7E1b/c~0d", {"e f": 1}),
        ("#/list/0/x", 1),
        ("#/%25", "percent"),
        ("#", ROOT),
        ("#/one/here/deep", True),
        ("#named", ROOT["schemas"]["P"]),
        ("#node", ROOT["tree"]),
        ("https://api.test/p", ROOT["schemas"]["P"]),
        ("https://api.test/p#/$defs/q", {"type": "null"}),
    ],
)
def test_a_reference_inside_the_document_is_found(ref: str, value: object) -> None:
    known = documents()
    assert known.resolve(ref, known.main).value == value


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        ("#/nowhere", "there is no 'nowhere'"),
        ("#/list/7", "there is no '7'"),
        ("#/list/x", "there is no 'x'"),
        ("#/openapi/x", "there is no 'x'"),
        ("#anchor", "no such anchor"),
        ("#not-a-schema", "no such anchor"),
        ("other.yaml#/a", "a document that is not loaded"),
        ("#/circle/x", "is part of a cycle"),
        ("#/inward/deeper", "is part of a cycle"),
    ],
)
def test_a_reference_to_nothing_says_so(ref: str, says: str) -> None:
    known = documents()
    with pytest.raises(SchemaError, match=says):
        known.resolve(ref, known.main)


def test_references_are_followed_to_the_end_or_to_the_circle() -> None:
    known = documents()
    assert known.follow(ROOT["one"], known.main).value is ROOT["three"]
    with pytest.raises(SchemaError, match="part of a cycle"):
        known.follow(ROOT["circle"], known.main)
    with pytest.raises(SchemaError, match="the thing is not an object"):
        known.follow_object({"$ref": "#/list"}, known.main, "the thing")


def test_another_document_is_read_against_its_own_address() -> None:
    known = documents("file:///api/main.yaml")
    other = SourceDocument({"x": {"$ref": "#/y"}, "y": 7}, "file:///api/sub/other.yaml")
    known.loaded[other.uri] = other
    assert known.follow({"$ref": "sub/other.yaml#/x"}, known.main).value == 7
    assert known.resolve("../main.yaml#/list", other).document is known.main


def test_a_part_in_a_file_of_its_own_may_refer_to_the_whole() -> None:
    known = documents("file:///api/main.yaml")
    part = SourceDocument({"a": 1}, "file:///api/part.yaml")
    assert known.resolve("#/a", part).value == 1
    assert known.resolve("#/three/here", part).value == {"deep": True}
    with pytest.raises(SchemaError, match="there is no 'nowhere'"):
        known.resolve("#/nowhere", part)


def test_why_a_document_is_missing_is_reported() -> None:
    known = documents("https://api.test/main.json")
    known.missing["https://api.test/gone.json"] = "gone.json, which is gone"
    with pytest.raises(SchemaError, match=r"leads to gone\.json, which is gone"):
        known.resolve("gone.json#/a", known.main)


def test_a_document_may_say_its_own_address() -> None:
    known = DocumentSet(
        {"openapi": "3.2.0", "$self": "https://api.test/v2/openapi.json", "a": 1}, "file:///x.json", "3.2"
    )
    assert known.resolve("https://api.test/v2/openapi.json#/a", known.main).value == 1
    assert known.resolve("openapi.json#/a", known.main).value == 1
    assert known.is_known("file:///x.json")


def test_a_dynamic_anchor_counts_where_it_is_the_only_one() -> None:
    known = documents()
    assert known.single_dynamic_anchor("node", known.main) is ROOT["tree"]
    assert known.single_dynamic_anchor("other", known.main) is None


def chained(count: int) -> DocumentSet:
    """References each of which leads through the next."""
    steps = {f"a{number}": {"$ref": f"#/a{number + 1}/x"} for number in range(count)}
    root = {"openapi": "3.1.0", **steps, f"a{count}": {"x": {"x": {"x": {}}}}}
    return DocumentSet(root, "", "3.1")


def test_references_that_lead_through_very_many_others_are_reported() -> None:
    found = chained(5_000)
    with pytest.raises(SchemaError, match="leads through more than 16 others"):
        found.resolve("#/a0/x", found.main)


def test_a_place_in_an_array_that_no_integer_could_hold_is_nothing() -> None:
    with pytest.raises(SchemaError, match="has no target") as caught:
        documents().resolve("#/list/" + "9" * 6_000, documents().main)
    assert len(str(caught.value)) < 500


def test_dynamic_anchors_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, walks = documents(), 0

    def counted(root: object) -> object:
        nonlocal walks
        walks += 1
        return objects_in(root)

    monkeypatch.setattr("opwire.openapi.client.document.objects_in", counted)
    for _ in range(5):
        assert found.single_dynamic_anchor("node", found.main) == {"$dynamicAnchor": "node"}
    assert walks == 1
