"""What notebooks display: escaped HTML tables of registries, specs and envelopes."""

from html.parser import HTMLParser
from typing import Any

import pytest

from opwire import OperationRegistry, OperationSpec, http_envelope, local_envelope, mcp_envelope

HOSTILE = "<script>alert(1)</script>\n\"'><img src=x onerror=alert(2)>&amp;\x1b[2J"


class Page(HTMLParser):
    """The tags of a page, and the text of its cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.caption = ""
        self._inside = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert {name for name, _ in attrs} <= {"style"}
        self._inside = tag
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "td":
            self.cells[-1] += data
        elif self._inside == "caption":
            self.caption += data


def spec(name: str = "order", **fields: Any) -> OperationSpec:
    return OperationSpec(namespace="shop", name=name, **fields)


def registry_of(*specs: OperationSpec) -> OperationRegistry:
    registry = OperationRegistry()
    for each in specs:
        registry.register(each)
    return registry


@pytest.mark.parametrize(
    "shown",
    [
        registry_of(spec(title=HOSTILE), spec("more", description=HOSTILE)),
        spec(title=HOSTILE, description=HOSTILE, tags=(HOSTILE,), input_schema={"description": HOSTILE}),
        local_envelope({HOSTILE: [HOSTILE]}, HOSTILE),
        local_envelope({HOSTILE}, "shop.order"),
        http_envelope(HOSTILE, status_code=200, headers={"x-y": HOSTILE}, content_type=HOSTILE),
        mcp_envelope(None, is_error=True, content=[{"type": "text", "text": HOSTILE}]),
    ],
)
def test_text_of_others_never_becomes_markup(shown: Any) -> None:
    page = Page(shown._repr_html_())
    assert page.tags <= {"table", "caption", "tbody", "tr", "td"}
    assert "alert(1)" in "".join(page.cells)
    assert "\x1b" not in shown._repr_html_()


def test_a_registry_is_a_table_of_its_operations() -> None:
    page = Page(registry_of(spec(title="Order"), spec("list", description="List.\nAll of them."))._repr_html_())
    assert page.cells == ["shop.order", "query", "Order", "shop.list", "query", "List."]
    assert page.caption == "OperationRegistry: 2 operations"
    many = Page(registry_of(*(spec(f"n{number}") for number in range(1_000)))._repr_html_())
    assert many.caption == "OperationRegistry: 1,000 operations, of which 200 are shown"
    assert len(many.cells) == 600


def test_a_spec_shows_what_it_has() -> None:
    page = Page(spec(title="Order", input_schema={"type": "object"}, tags=("a", "b"))._repr_html_())
    assert page.caption == "shop.order"
    assert page.cells == ["type", "query", "title", "Order", "input", '{\n  "type": "object"\n}', "tags", "a, b"]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ({"a": [1, None]}, '{\n  "a": [\n    1,\n    null\n  ]\n}'),
        (b"\x00\xff", "2 bytes"),
        ("x" * 1_000_000, '"' + "x" * 4_999 + "…"),
        (float, "<class 'float'>"),
    ],
)
def test_an_envelope_shows_its_data_and_where_it_came_from(data: Any, shown: str) -> None:
    cells = Page(local_envelope(data, "shop.order")._repr_html_()).cells
    assert cells[:6] == ["data", shown, "source", "local", "operation_id", "shop.order"]
