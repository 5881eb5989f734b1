"""The pages of a query: what items a page holds, and what to ask for to get the next one. No I/O.

Addresses of next pages are never called: what their query says is put into the operation's input. So pages are found
alike whichever source answers, and no answer leads a caller to another host.

The names that APIs give to pages. No I/O.

Names are compared without case and underscores: `nextPageToken`, `next_page_token` and `NextPageToken` are one.

When a call is made again, and how much later. No I/O, no clock.

Two limits hold at once. A call has so many attempts, with a random wait before each that doubles in its upper bound.
And a client has one budget for all its calls: each call pays in a share of a retry, each retry takes out a whole one.
When everything fails, retries are then that share of the load, and not a multiple of it.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from opwire.envelope import HTTPResponseMeta, ResponseEnvelope
from opwire.errors import CallError, ErrorCode, SchemaError
from opwire.operation import OperationSpec
from opwire.schema.dialect import lower

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


class Retries(Struct, frozen=True, kw_only=True):
    """How a client repeats queries that failed with a retryable error.

        Client(url, retries=Retries(attempts=5, longest=30))
        Client(url, retries=None)  # never

    Raises:
        CallError: VALIDATION_ERROR, `attempts` is not a number above zero, or another one is below zero or not finite.
    """

    attempts: int = 3  # altogether, the first one among them
    shortest: float = 0.1  # seconds: the first wait is at random between 0 and this
    longest: float = 5.0  # seconds, of any wait that the server does not ask for itself
    share: float = 0.2  # retries that each call pays in
    reserve: float = 10.0  # retries that can be saved up; they are there from the start

    def __post_init__(self) -> None:
        check_number("attempts of retries", self.attempts, least=1, whole=True)
        for option in ("shortest", "longest", "share", "reserve"):
            check_number(f"{option} of retries", getattr(self, option))


def check_number(option: str, value: Any, *, least: float = 0, whole: bool = False, above: bool = False) -> None:
    """Check an option: a finite number that is not below `least`, and not `least` itself with `above`.

    Raises:
        CallError: VALIDATION_ERROR, which names the option.
    """
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not is_number or not least <= value < inf or (above and value == least):
        kind = "a whole number" if whole else "a finite number"
        bound = f"above {least:g}" if above else f"of at least {least:g}"
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{option} is {kind} {bound}, not {value!r:.100}")


class RetryBudget:
    """What is left of the retries of one client."""

    def __init__(self, retries: Retries, chance: Callable[[], float] = random.random) -> None:
        self.retries = retries
        self._left = retries.reserve
        self._chance = chance

    def called(self) -> None:
        """A call begins, and pays in."""
        self._left = min(self._left + self.retries.share, self.retries.reserve)

    def wait(self, error: CallError, attempts: int, remaining: float) -> float | None:
        """Seconds to wait after a number of attempts of which the last gave this error; None if that was the last.

        `remaining` are the seconds until the deadline: a retry that could not begin before it is none.
        """
        policy = self.retries
        if not error.retryable or attempts >= policy.attempts:
            return None
        # Full jitter. What the server asks for comes on top, or all who were refused would be back at the same time.
        most = min(policy.shortest * 2 ** min(attempts - 1, 60), policy.longest)
        delay = (error.retry_after or 0.0) + self._chance() * most
        return delay if delay < remaining else None

    def spend(self) -> bool:
        """Take a retry out; False if there is none left."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


Cursor = tuple[str, str]
"""The field of an answer that leads to the next page, and the field of the input that takes it."""

_LINK = re.compile(r"<([^<>]*)>\s*((?:;\s*[\w*-]+\s*=\s*(?:\"[^\"]*\"|[^\s\",;]+)\s*)*)")
_RELATION = re.compile(r";\s*rel\s*=\s*(?:\"([^\"]*)\"|([^\s\",;]+))", re.IGNORECASE)
_OTHER_PAGES = frozenset({"first", "prev", "previous", "last"})
_NUMBERS = frozenset({"integer", "number"})
_MAX_DIGITS = 1_000
_MAX_ADDRESS = 64 * 1024  # characters; more is no address that a server takes
_PAGE = ("page", "page_number", "pagenumber")
_OFFSET = ("offset", "skip", "startat")


class Pages:
    """One walk through the pages of an operation. `input` is that of the page to be asked for; None at the end."""

    def __init__(
        self, operation_id: str, input: Any, *, cursor: Cursor | None, items: str | None, max_pages: int
    ) -> None:
        check_number("max_pages", max_pages, least=1, whole=True)
        if input is not None and not isinstance(input, Mapping):
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{operation_id}: only an input that is an object has pages")
        self.input: dict[str, Any] | None = dict(cast("Mapping[str, Any]", input or {}))
        self._id = operation_id
        self._cursor = cursor
        self._items = items
        self._max_pages = max_pages
        self._asked = {_fingerprint(self.input)}
        self._count = 0  # of items
        self._last: list[Any] | None = None  # the last page, where pages are only counted
        self._way: Literal["link", "field"] | None = None  # how an answer led to the next page: its absence is the end

    def items(self, envelope: ResponseEnvelope[Any]) -> list[Any]:
        """The items of a page.

        Raises:
            CallError: VALIDATION_ERROR, if nobody can tell where they are.
        """
        found = _dig(envelope.data, self._items) if self._items else items_field(envelope.data)
        if not isinstance(found, list):
            where = f"in {self._items}" if self._items else "in the answer: items= names the field that holds them"
            raise self._invalid(f"there is no list of items {where}")
        items = cast("list[Any]", found)
        if self._last is not None and items == self._last:  # it does not count pages after all
            items = []
        self._count += len(items)
        return items

    def advance(self, envelope: ResponseEnvelope[Any], found: list[Any], spec: OperationSpec | None) -> None:
        """Go on to the next page, if there is one.

        Raises:
            CallError: VALIDATION_ERROR, if there is no way to it; EXECUTION_ERROR, if it is one too many.
        """
        input, known = self.input or {}, _properties(spec)
        following = self._following(envelope, found, input, known)
        self.input = None
        if not following:
            return
        following = {**input, **following}
        mark = _fingerprint(following)
        if mark in self._asked:
            raise CallError(ErrorCode.EXECUTION_ERROR, f"{self._id}: the answer leads to a page that was there before")
        if len(self._asked) >= self._max_pages:
            more = f"{self._id} has more than {self._max_pages:,} pages: max_pages= allows for more"
            raise CallError(ErrorCode.EXECUTION_ERROR, more)
        self._asked.add(mark)
        self.input = following

    def _following(
        self, envelope: ResponseEnvelope[Any], found: list[Any], input: dict[str, Any], known: dict[str, Any]
    ) -> dict[str, Any] | None:
        """What changes in the input for the next page; None if there is none."""
        data = envelope.data
        if self._cursor is not None:
            value = _dig(data, self._cursor[0])
            return None if value is None or value is False or value == "" else {self._cursor[1]: value}
        links = _links(envelope)
        if "next" in links:
            self._way = "link"
            return self._by_address(links["next"], input, known)
        if self._way == "link" or not _OTHER_PAGES.isdisjoint(links):
            return None
        fields = next_fields(data, found)
        if fields is None:
            return None
        for field in fields:
            if following := self._by_field(field, input, known):
                self._way = "field"
                return following
        return None if self._way == "field" else self._by_count(data, found, input, known)

    def _by_field(self, field: Field, input: dict[str, Any], known: dict[str, Any]) -> dict[str, Any] | None:
        if field.is_address:
            return self._by_address(str(field.value), input, known)
        name = input_field(field, known or input)
        if name is not None:
            return {name: field.value}
        if field.is_certain:
            raise self._lost(f"{field.name!r} of the answer")
        return None

    def _by_address(self, address: str, input: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
        """The input that an address stands for, as far as the operation takes what its query says."""
        pairs = _query(address)
        count = Counter(name for name, _ in pairs)
        following = {
            name: _typed(text, known.get(name), input.get(name))
            for name, text in pairs
            if (name in known or not known) and count[name] == 1 and not isinstance(input.get(name), list)
        }
        if all(input.get(name) == value for name, value in following.items()):
            raise self._lost("the address of the next page")
        return following

    def _by_count(
        self, data: Any, found: list[Any], input: dict[str, Any], known: dict[str, Any]
    ) -> dict[str, Any] | None:
        self._last = found
        for names, start, step in ((_PAGE, 1, 1), (_OFFSET, 0, len(found))):
            name = next((each for each in known or input if each.lower() in names), None)
            if name is not None and found and _counts(known.get(name), input.get(name)):
                first = _default(known.get(name), start)
                place = input.get(name, first)
                page = place - first + 1 if names is _PAGE else None
                return None if total_reached(data, self._count, page) else {name: place + step}
        return None

    def _lost(self, what: str) -> CallError:
        hint = 'cursor=("field of the answer", "field of the input") says how to get there'
        return self._invalid(f"there is a next page, but no field of the input takes {what}: {hint}")

    def _invalid(self, message: str) -> CallError:
        return CallError(ErrorCode.VALIDATION_ERROR, f"{self._id}: {message}")


def _links(envelope: ResponseEnvelope[Any]) -> dict[str, str]:
    """The addresses of a Link header (RFC 8288), by their relation."""
    if not isinstance(envelope.meta, HTTPResponseMeta):
        return {}
    return {relation: address for address, relation in _relations(envelope.meta.headers.get("link", ""))}


def _relations(header: str) -> Iterator[tuple[str, str]]:
    for link in _LINK.finditer(header):
        relation = _RELATION.search(link[2])
        for each in (relation[1] or relation[2] or "").lower().split() if relation else ():
            yield link[1], each


def _query(address: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(urlsplit(address[:_MAX_ADDRESS]).query, keep_blank_values=True)
    except ValueError:  # no address at all
        return []


def _properties(spec: OperationSpec | None) -> dict[str, Any]:
    """What the input of an operation is known to take."""
    if spec is None:
        return {}
    try:
        schema = lower(spec.input_schema.json, spec.input_schema.dialect)
    except SchemaError:
        return {}
    declared = schema.get("properties") if isinstance(schema, dict) else None
    return cast("dict[str, Any]", declared) if isinstance(declared, dict) else {}


def _kinds(schema: Any) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    json = cast("dict[str, Any]", schema)
    named = json.get("type", [])
    branches = [*json.get("anyOf", ()), *json.get("oneOf", ())]
    return {*([named] if isinstance(named, str) else named), *(kind for each in branches for kind in _kinds(each))}


def _counts(schema: Any, given: Any) -> bool:
    """Whether a field is a number."""
    if given is not None:
        return isinstance(given, int) and not isinstance(given, bool)
    return not _kinds(schema).isdisjoint(_NUMBERS)


def _default(schema: Any, otherwise: int) -> int:
    default = cast("dict[str, Any]", schema).get("default") if isinstance(schema, dict) else None
    return default if isinstance(default, int) else otherwise


def _typed(text: str, schema: Any, given: Any) -> Any:
    """A text of a query as the number that the input takes it as."""
    kinds = _kinds(schema)
    is_number = isinstance(given, int) if not kinds else "string" not in kinds and not kinds.isdisjoint(_NUMBERS)
    return int(text) if is_number and text.isdecimal() and len(text) < _MAX_DIGITS else text


def _dig(data: Any, path: str) -> Any:
    """The value at a path of names with dots between them; None if there is none."""
    for step in path.split("."):
        data = cast("dict[str, Any]", data).get(step) if isinstance(data, dict) else None
    return data


def _fingerprint(input: Mapping[str, Any]) -> int:
    return hash(json.dumps(input, sort_keys=True, default=repr))
