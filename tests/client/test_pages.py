"""Pages of every kind, walked through a client."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import CallError, ErrorCode, OperationRegistry, OperationSpec, Schema, http_envelope, mcp_envelope
from opwire.client import Client
from opwire.client.pages import Pages
from opwire.envelope import local_envelope
from tests.requirements import requirement

LETTERS = [*"abcdefg"]
SIZE = 3

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


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


def cursors(name: str, taken: str, *path: str, end: Any = None, last: Any = None) -> Callable[[dict[str, Any]], Any]:
    """An API with a cursor: the field of the answer, that of the input, and where in the answer the first one is."""

    def answer(input: dict[str, Any]) -> Any:
        items, following = page(int(str(input.get(taken, "@0")).removeprefix("@")))
        told: Any = {name: end if following is None else f"@{following}", **({} if last is None else last(following))}
        for step in reversed(path):
            told = {step: told}
        return {"items": items, "errors": [], **told}

    return answer


def addressed(input: dict[str, Any]) -> Any:
    items, following = page(input.get("offset", 0))
    return {"count": 7, "next": following and f"https://far.example/x?offset={following}&limit=3", "results": items}


def with_hal(input: dict[str, Any]) -> Any:
    items, following = page(input.get("start", 0))
    return {"_links": {"next": {"href": f"/x?start={following}"}} if following else {}, "_embedded": items}


def by_last_id(input: dict[str, Any]) -> Any:
    ids = [{"id": letter} for letter in LETTERS]
    start = LETTERS.index(input["starting_after"]) + 1 if "starting_after" in input else 0
    return {"data": ids[start : start + SIZE], "has_more": start + SIZE < len(ids)}


def numbered(input: dict[str, Any]) -> Any:
    return page((input.get("page", 1) - 1) * SIZE)[0]


def numbered_from_zero(input: dict[str, Any]) -> Any:
    return {"rows": page(input.get("page", 0) * SIZE)[0], "total_pages": 3}


def offset(input: dict[str, Any]) -> Any:
    return {"values": page(input.get("skip", 0))[0], "total": len(LETTERS)}


KINDS: dict[str, tuple[Callable[[dict[str, Any]], Any], dict[str, Any]]] = {
    "a Link header": (linked, {"page": NUMBER, "per_page": NUMBER}),
    "next_cursor": (cursors("next_cursor", "cursor"), {"cursor": TEXT}),
    "nextPageToken": (cursors("nextPageToken", "pageToken"), {"pageToken": TEXT, "pageSize": NUMBER}),
    "next_page_token, empty at the end": (cursors("next_page_token", "page_token", end=""), {"page_token": TEXT}),
    "NextToken": (cursors("NextToken", "NextToken"), {"NextToken": TEXT}),
    "a cursor within a field": (cursors("next_cursor", "cursor", "response_metadata", end=""), {"cursor": TEXT}),
    "metadata.continue": (cursors("continue", "continue", "metadata", end=""), {"continue": TEXT, "limit": NUMBER}),
    "pageInfo": (
        cursors("endCursor", "after", "pageInfo", end="@9", last=lambda next: {"hasNextPage": next is not None}),
        {"after": TEXT},
    ),
    "a cursor and has_more": (
        cursors("cursor", "cursor", end="@9", last=lambda next: {"has_more": next is not None}),
        {"cursor": TEXT},
    ),
    "last_id": (
        cursors("last_id", "after", end="@9", last=lambda next: {"has_more": next is not None}),
        {"after": TEXT},
    ),
    "an address in the answer": (addressed, {"offset": NUMBER, "limit": NUMBER}),
    "a link object": (with_hal, {"start": NUMBER}),
    "page numbers": (numbered, {"page": NUMBER}),
    "page numbers from zero": (numbered_from_zero, {"page": {"type": "integer", "default": 0}}),
    "offsets": (offset, {"skip": {"anyOf": [NUMBER, {"type": "null"}]}}),
}


@requirement("client.pages")
@pytest.mark.parametrize("kind", KINDS)
async def test_every_page_is_found(kind: str) -> None:
    answer, properties = KINDS[kind]
    assert await walk(client_of(answer, **properties)) == LETTERS


@requirement("client.pages")
async def test_the_id_of_the_last_item_leads_on() -> None:
    found = await walk(client_of(by_last_id, starting_after=TEXT))
    assert [item["id"] for item in found] == LETTERS


@requirement("client.pages")
async def test_pages_are_found_without_a_schema() -> None:
    assert await walk(client_of(cursors("next_cursor", "cursor")), {"cursor": "@0"}) == LETTERS
    assert await walk(client_of(linked), {"page": 0}) == LETTERS
    assert await walk(client_of(numbered), {"page": 1}) == LETTERS


@requirement("client.pages")
async def test_a_tool_has_pages_too() -> None:
    def tool(input: dict[str, Any]) -> Any:
        data = cursors("nextCursor", "cursor")(input)
        return mcp_envelope(data, is_error=False, content=[], structured_content=data)

    assert await walk(client_of(tool, cursor=TEXT)) == LETTERS


@requirement("client.pages")
async def test_fields_can_be_named() -> None:
    def answer(input: dict[str, Any]) -> Any:
        items, following = page(input.get("from", 0))
        return {"page": {"rows": items, "further": following}, "items": []}

    found = await walk(client_of(answer), cursor=("page.further", "from"), items="page.rows", max_items=5)
    assert found == LETTERS[:5]


@requirement("client.pages")
async def test_no_more_is_asked_for_than_is_wanted() -> None:
    asked: list[Any] = []

    def answer(input: dict[str, Any]) -> Any:
        asked.append(input)
        return linked(input)

    assert await walk(client_of(answer, page=NUMBER), max_items=6) == LETTERS[:6]
    assert asked == [{}, {"page": 3}]


@requirement("client.pages")
async def test_the_rest_of_the_input_stays() -> None:
    asked: list[Any] = []

    def answer(input: dict[str, Any]) -> Any:
        asked.append(input)
        return linked(input)

    given = {"tags": ["a", "b"], "per_page": 3}
    await walk(client_of(answer, page=NUMBER, per_page=NUMBER, tags={"type": "array"}), given)
    assert asked == [given, {**given, "page": 3}, {**given, "page": 6}]


@requirement("client.pages")
async def test_an_operation_that_does_not_count_its_pages_is_read_once() -> None:
    assert await walk(client_of(lambda input: LETTERS, page=NUMBER)) == LETTERS
    assert await walk(client_of(lambda input: LETTERS, name=TEXT)) == LETTERS
    assert await walk(client_of(lambda input: {"items": LETTERS, "next": "tuesday"}, name=TEXT)) == LETTERS


@requirement("client.pages")
@pytest.mark.parametrize("way", ["link", "field"])
async def test_the_absence_of_what_led_on_is_the_end(way: str) -> None:
    asked: list[int] = []

    def answer(input: dict[str, Any]) -> Any:
        place = input.get("page", 1)
        asked.append(place)
        if place > 3:
            raise CallError("EXECUTION_ERROR", "HTTP 404: Not Found")
        more, address = place < 3, f"https://api.example/?page={place + 1}"
        if way == "field":
            return {"items": [place], **({"next": address} if more else {})}
        headers = {"link": f'<{address}>; rel="next"'} if more else {}
        return http_envelope([place], status_code=200, headers=headers, content_type="application/json")

    assert await walk(client_of(answer, page=NUMBER)) == [1, 2, 3]
    assert asked == [1, 2, 3]


@requirement("client.pages")
@pytest.mark.parametrize("options", [{"max_pages": 0}, {"max_pages": 1.5}, {"max_items": -1}, {"max_items": "3"}])
async def test_numbers_of_pages_and_items_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(CallError, match=next(iter(options))) as caught:
        await walk(client_of(lambda _: ["a"]), **options)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


@requirement("client.pages")
async def test_an_address_of_very_many_fields_is_read_in_linear_time() -> None:
    address = "https://api.example/?" + "&".join(f"f{number}=" for number in range(20_000)) + "&page=2"
    pages = Pages("a.b", {}, cursor=None, items=None, max_pages=9)
    answer = local_envelope({"items": [1], "next": address[:60_000]}, "a.b")
    spent = time.process_time()
    pages.advance(answer, [1], None)
    assert time.process_time() - spent < 5  # of CPU; counting every name anew took 20 s
    assert pages.input is not None


@requirement("client.pages")
async def test_a_cursor_that_comes_again_is_an_error() -> None:
    with pytest.raises(CallError, match="there before") as caught:
        await walk(client_of(lambda input: {"items": [1], "next_cursor": "x"}, cursor=TEXT))
    assert caught.value.code is ErrorCode.EXECUTION_ERROR


@requirement("client.pages")
async def test_pages_without_end_are_an_error() -> None:
    def endless(input: dict[str, Any]) -> Any:
        return {"items": [], "next_cursor": str(int(input.get("cursor", 0)) + 1)}

    with pytest.raises(CallError, match="more than 20 pages") as caught:
        await walk(client_of(endless, cursor=TEXT), max_pages=20)
    assert caught.value.code is ErrorCode.EXECUTION_ERROR


@requirement("client.pages")
@pytest.mark.parametrize(
    ("answer", "properties", "complaint"),
    [
        (lambda input: {"items": [1], "next_cursor": "x"}, {"name": TEXT}, "'nextcursor' of the answer"),
        (lambda input: over_http([1], "<https://a.example/?p=2>; rel=next"), {"name": TEXT}, "the address"),
        (lambda input: over_http([1], "<?name=x>; rel=next"), {"name": TEXT}, "the address"),
        (lambda input: over_http([1], "<http://[>; rel=next"), {"name": TEXT}, "the address"),
    ],
)
async def test_a_next_page_that_cannot_be_reached_is_told(answer: Any, properties: Any, complaint: str) -> None:
    with pytest.raises(CallError, match=complaint) as caught:
        await walk(client_of(answer, **properties), {"name": "x"})
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert "cursor=(" in caught.value.message


@requirement("client.pages")
@pytest.mark.parametrize("data", [None, 1, "abc", {"a": 1}, {"a": [], "b": []}])
async def test_an_answer_without_items_is_told(data: Any) -> None:
    with pytest.raises(CallError, match="no list of items") as caught:
        await walk(client_of(lambda input: data))
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    with pytest.raises(CallError, match="in rows"):
        await walk(client_of(lambda input: data), items="rows")
    with pytest.raises(CallError, match="an object"):
        await walk(client_of(lambda input: data), [1])


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


@requirement("client.pages")
@given(
    json,
    st.text(max_size=40)
    | st.sampled_from(['<a>; rel="next"', "<?page=2>;rel=next", "<", "<>;rel=", "<http://[>;rel=next"]),
)
def test_no_answer_gives_anything_else_than_pages_or_a_call_error(data: Any, link: str) -> None:
    spec = OperationSpec(namespace="a", name="b", input_schema=Schema({"properties": {"page": NUMBER, "next": TEXT}}))
    for envelope in (local_envelope(data, "a.b"), over_http(data, link)):
        pages = Pages("a.b", {}, cursor=None, items=None, max_pages=3)
        try:
            while pages.input is not None:
                pages.advance(envelope, pages.items(envelope), spec)
        except CallError:
            pass
