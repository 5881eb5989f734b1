"""The names that APIs give to pages. No I/O.

Names are compared without case and underscores: `nextPageToken`, `next_page_token` and `NextPageToken` are one.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

_ITEMS = ("items", "data", "results", "records", "entries", "values", "value", "list", "rows", "nodes", "content")
_INSIDE = frozenset(
    "meta metadata pagination paging pageinfo page responsemetadata links link cursors searchmetadata".split()
)
_NEXT = (
    "nextcursor",
    "nextpagetoken",
    "nexttoken",
    "continuationtoken",
    "nextcontinuationtoken",
    "nextmarker",
    "nextpage",
    "nextoffset",
    "endcursor",
    "nextlink",
    "nexturl",
    "@odata.nextlink",
    "next",
    "continue",
)
_UNCERTAIN = frozenset({"next", "continue", "nextpage", "endcursor"})  # they also mean other things
_TAKES = (
    "cursor",
    "after",
    "pagetoken",
    "nexttoken",
    "continuationtoken",
    "startingafter",
    "marker",
    "token",
    "page",
    "offset",
)
_MORE = frozenset({"hasmore", "hasnext", "hasnextpage", "istruncated"})
_TOTAL_ITEMS = frozenset({"total", "totalcount", "totalitems", "totalresults"})
_TOTAL_PAGES = frozenset({"totalpages", "pagecount", "lastpage"})


class Field(NamedTuple):
    """A field of an answer that may lead to the next page."""

    name: str
    value: str | int
    is_certain: bool = True

    @property
    def is_address(self) -> bool:
        """Whether it is the address of the next page, and not a cursor."""
        return isinstance(self.value, str) and self.value.startswith(("http://", "https://", "/", "?"))


def items_field(data: Any) -> Any:
    """The list of items in an answer: itself, the field that is usually named so, or its only list."""
    if not isinstance(data, dict):
        return data
    fields = cast("dict[str, Any]", data)
    lists: dict[str, Any] = {_plain(name): value for name, value in fields.items() if isinstance(value, list)}
    for name in _ITEMS:
        if name in lists:
            return lists[name]
    return next(iter(lists.values())) if len(lists) == 1 else None


def next_fields(data: Any, items: list[Any]) -> list[Field] | None:
    """The fields that may lead to the next page; None if the answer says that there is none."""
    fields = list(_fields(data))
    more = [value for name, value in fields if name in _MORE and isinstance(value, bool)]
    if more and not any(more):
        return None
    named = dict(reversed(fields))
    found = [
        Field(name, value, is_certain=name not in _UNCERTAIN)
        for name in _NEXT
        if (value := _cursor(named.get(name))) is not None
    ]
    if found or not more:
        return found
    return list(_after(named, items))


def input_field(field: Field, known: Iterable[str]) -> str | None:
    """The field of the input, among those that are known, that takes a field of an answer."""
    plain = {_plain(name): name for name in reversed(list(known))}
    wishes = (field.name.removeprefix("next"), field.name, *(_TAKES if field.is_certain else ("cursor", "after")))
    return next((plain[wish] for wish in wishes if wish in plain), None)


def total_reached(data: Any, items: int, page: int | None) -> bool:
    """Whether an answer says that these are all items, or all pages."""
    for name, value in _fields(data):
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if name in _TOTAL_ITEMS and items >= value:
            return True
        if name in _TOTAL_PAGES and page is not None and page >= value:
            return True
    return False


def _fields(data: Any, depth: int = 2) -> Iterator[tuple[str, Any]]:
    """The fields of an answer, and of those within it that tell of pages."""
    if not isinstance(data, dict):
        return
    for key, value in cast("dict[str, Any]", data).items():
        name = _plain(key)
        yield name, value
        if depth and name in _INSIDE:
            yield from _fields(value, depth - 1)


def _after(named: dict[str, Any], items: list[Any]) -> Iterator[Field]:
    """There is more, and no cursor: some ask for what follows the last item, by its id."""
    last = items[-1] if items else None
    own = cast("dict[str, Any]", last).get("id") if isinstance(last, dict) else None
    for name, value in (("cursor", named.get("cursor")), ("after", named.get("lastid")), ("startingafter", own)):
        if (found := _cursor(value)) is not None:
            yield Field(name, found, is_certain=False)


def _cursor(value: Any) -> str | int | None:
    if isinstance(value, dict):  # {"href": "…"}, as HAL and JSON:API have it
        link = cast("dict[str, Any]", value)
        value = link.get("href") or link.get("url")
    if isinstance(value, str):
        return value or None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
