"""Pages by Link header and by cursor, walked through a client."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import CallError, ErrorCode, OperationRegistry, OperationSpec, Schema, http_envelope, mcp_envelope
from opwire.client import Client
from opwire.client.pages import Pagination
from opwire.errors import UsageError
from opwire.model.envelope import local_envelope

LETTERS = [*"abcdefg"]
SIZE = 3

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
CURSOR = ("next_cursor", "cursor")


def client_of(answer: Callable[[dict[str, Any]], Any], **properties: Any) -> Client:
    """A client of one operation; without properties nothing is known of its input."""
    registry = OperationRegistry()
    schema = Schema({"type": "object", "properties": properties} if properties else True)
    registry.register(
        OperationSpec(namespace="a", name="list", input_schema=schema),
        lambda input, _: answer(input or {}),
        inline=True,
    )
    return Client(registry)


async def walk(client: Client, input: Any = None, **options: Any) -> list[Any]:
    async with client:
        return [item async for item in client.paginate("a.list", input, **options)]


def page(start: int) -> tuple[list[str], int | None]:
    """The items from a place on, and where the next ones begin."""
    return LETTERS[start : start + SIZE], start + SIZE if start + SIZE < len(LETTERS) else None


def over_http(data: Any, link: str) -> Any:
    return http_envelope(data, status_code=200, headers={"Link": link}, content_type="application/json")


def linked(input: dict[str, Any]) -> Any:
    items, following = page(int(input.get("page", 0)))
    next = f'<https://far.example/items?per_page=3&page={following}>; title="a, b"; rel="next", ' if following else ""
    return over_http(items, f'{next}<https://far.example/items?page=0>; rel="first"')


def cursors(input: dict[str, Any]) -> Any:
    """An API with a cursor, which is empty at the end."""
    items, following = page(int(input.get("cursor") or 0))
    return {"items": items, "next_cursor": "" if following is None else str(following)}


async def test_every_page_of_a_link_header_is_found() -> None:
    assert await walk(client_of(linked, page=NUMBER, per_page=NUMBER)) == LETTERS
    assert await walk(client_of(linked, page={"anyOf": [NUMBER, {"type": "null"}]})) == LETTERS


async def test_every_page_of_a_cursor_is_found() -> None:
    assert await walk(client_of(cursors, cursor=TEXT), cursor=CURSOR) == LETTERS


@pytest.mark.parametrize("end", [None, False, ""])
async def test_a_cursor_that_is_empty_is_the_end(end: Any) -> None:
    assert await walk(client_of(lambda _: {"items": ["a"], "next_cursor": end}), cursor=CURSOR) == ["a"]
    assert await walk(client_of(lambda _: {"items": ["a"]}), cursor=CURSOR) == ["a"]


async def test_pages_are_found_without_a_schema() -> None:
    assert await walk(client_of(cursors), cursor=CURSOR) == LETTERS
    assert await walk(client_of(linked), {"page": 0}) == LETTERS


async def test_a_tool_has_pages_too() -> None:
    def tool(input: dict[str, Any]) -> Any:
        data = cursors(input)
        return mcp_envelope(data, is_error=False, content=[], structured_content=data)

    assert await walk(client_of(tool, cursor=TEXT), cursor=CURSOR) == LETTERS


async def test_an_object_that_cannot_have_a_link_header_needs_a_cursor() -> None:
    with pytest.raises(CallError, match=r"no Link header: pass cursor=\(") as caught:
        await walk(client_of(cursors, cursor=TEXT))
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert await walk(client_of(lambda _: over_http({"items": LETTERS}, ""))) == LETTERS  # a single page


async def test_fields_can_be_named() -> None:
    def answer(input: dict[str, Any]) -> Any:
        items, following = page(input.get("from", 0))
        return {"page": {"rows": items, "further": following}, "items": []}

    found = await walk(client_of(answer), cursor=("page.further", "from"), items="page.rows", max_items=5)
    assert found == LETTERS[:5]


async def test_no_more_is_asked_for_than_is_wanted() -> None:
    asked: list[Any] = []

    def answer(input: dict[str, Any]) -> Any:
        asked.append(input)
        return linked(input)

    assert await walk(client_of(answer, page=NUMBER), max_items=6) == LETTERS[:6]
    assert asked == [{}, {"page": 3}]


async def test_the_rest_of_the_input_stays() -> None:
    asked: list[Any] = []

    def answer(input: dict[str, Any]) -> Any:
        asked.append(input)
        return linked(input)

    given = {"tags": ["a", "b"], "per_page": 3}
    await walk(client_of(answer, page=NUMBER, per_page=NUMBER, tags={"type": "array"}), given)
    assert asked == [given, {**given, "page": 3}, {**given, "page": 6}]


async def test_a_list_without_a_link_header_is_the_only_page() -> None:
    assert await walk(client_of(lambda input: LETTERS, page=NUMBER)) == LETTERS
    assert await walk(client_of(lambda input: LETTERS, name=TEXT)) == LETTERS


async def test_the_absence_of_a_link_header_is_the_end() -> None:
    asked: list[int] = []

    def answer(input: dict[str, Any]) -> Any:
        place = input.get("page", 1)
        asked.append(place)
        return over_http([place], f'<https://api.example/?page={place + 1}>; rel="next"' if place < 3 else "")

    assert await walk(client_of(answer, page=NUMBER)) == [1, 2, 3]
    assert asked == [1, 2, 3]


@pytest.mark.parametrize("options", [{"max_pages": 0}, {"max_pages": 1.5}, {"max_items": -1}, {"max_items": "3"}])
async def test_numbers_of_pages_and_items_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        await walk(client_of(lambda _: ["a"]), **options)


async def test_an_address_of_very_many_fields_is_read_in_linear_time() -> None:
    address = "https://api.example/?" + "&".join(f"f{number}=" for number in range(20_000)) + "&page=2"
    pages = Pagination("a.b", {}, cursor=None, items=None, max_pages=9)
    answer = over_http([1], f"<{address[:60_000]}>; rel=next")
    spent = time.process_time()
    pages.advance(answer, None)
    assert time.process_time() - spent < 5  # of CPU; counting every name again took 20 s
    assert pages.input is not None


async def test_a_cursor_that_comes_again_is_an_error() -> None:
    with pytest.raises(CallError, match="returned before") as caught:
        await walk(client_of(lambda input: {"items": [1], "next_cursor": "x"}, cursor=TEXT), cursor=CURSOR)
    assert caught.value.code is ErrorCode.EXECUTION_ERROR


async def test_pages_without_end_are_an_error() -> None:
    def endless(input: dict[str, Any]) -> Any:
        return {"items": [], "next_cursor": str(int(input.get("cursor", 0)) + 1)}

    with pytest.raises(CallError, match="more than 20 pages") as caught:
        await walk(client_of(endless, cursor=TEXT), cursor=CURSOR, max_pages=20)
    assert caught.value.code is ErrorCode.EXECUTION_ERROR


@pytest.mark.parametrize(
    ("answer", "properties", "complaint"),
    [
        (lambda input: over_http([1], "<https://a.example/?p=2>; rel=next"), {"name": TEXT}, "the address"),
        (lambda input: over_http([1], "<?name=x>; rel=next"), {"name": TEXT}, "the address"),
        (lambda input: over_http([1], "<http://[>; rel=next"), {"name": TEXT}, "the address"),
    ],
)
async def test_a_next_page_that_cannot_be_reached_is_reported(answer: Any, properties: Any, complaint: str) -> None:
    with pytest.raises(CallError, match=complaint) as caught:
        await walk(client_of(answer, **properties), {"name": "x"})
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert "cursor=(" in caught.value.message


@pytest.mark.parametrize("data", [None, 1, "abc", {"a": 1}, {"a": [], "b": []}])
async def test_an_answer_without_items_is_reported(data: Any) -> None:
    with pytest.raises(CallError, match=r"no list of items in the response: pass items=") as caught:
        await walk(client_of(lambda input: data), cursor=CURSOR)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    with pytest.raises(CallError, match="no list of items in the field rows"):
        await walk(client_of(lambda input: data), items="rows", cursor=CURSOR)
    with pytest.raises(UsageError, match="an object"):
        await walk(client_of(lambda input: data), [1])


def test_items_are_the_answer_itself_or_its_only_list() -> None:
    pages = Pagination("a.b", {}, cursor=CURSOR, items=None, max_pages=1)
    for data in ([1], {"repositories": [1], "total_count": 1}):
        assert pages.items(local_envelope(data, "a.b")) == [1]


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["items", "next", "next_cursor", "has_more", "meta", "page", "total", "pageInfo", "x"]),
            inner,
        )
    ),
    max_leaves=8,
)


@given(
    json,
    st.text(max_size=40)
    | st.sampled_from(['<a>; rel="next"', "<?page=2>;rel=next", "<", "<>;rel=", "<http://[>;rel=next"]),
)
def test_no_answer_gives_anything_else_than_pages_or_a_call_error(data: Any, link: str) -> None:
    spec = OperationSpec(namespace="a", name="b", input_schema=Schema({"properties": {"page": NUMBER, "next": TEXT}}))
    for envelope in (local_envelope(data, "a.b"), over_http(data, link)):
        for cursor in (None, ("next", "next"), ("meta.next", "page")):
            pages = Pagination("a.b", {}, cursor=cursor, items=None, max_pages=3)
            try:
                while pages.input is not None:
                    pages.items(envelope)
                    pages.advance(envelope, spec)
            except CallError:
                pass
