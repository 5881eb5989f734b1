"""Convert Python values to plain JSON data, and encode, decode and display text from peers.

Plain means None, bool, int, float, str, list and dict with str keys: exactly these types, no subclasses, nested at most
`MAX_DEPTH` deep. A plain value is never copied; anything else is converted once, here.

JavaScript strings may hold half of a surrogate pair. `JSON.stringify` writes it as an escape, which msgspec rejects,
and UTF-8 cannot encode it, so that msgspec raises on it too. `write_json` and `read_json` replace it by U+FFFD.
"""

import gc
import re
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from gc import get_referents
from itertools import chain
from math import isfinite, isinf
from os import PathLike, fspath
from types import NoneType
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from opwire.errors import NotPlainError
from opwire.runtime.text import harmless, shorten

MAX_DEPTH = 200
"""The deepest nesting of a value: jsonschema-rs crashes the process on a value nested 30,000 deep."""

LARGE_JSON = 16 * 1024
"""Bytes of JSON from which `collection_paused` is worth its cost, and `check_density` may fail."""

SCALARS = frozenset({NoneType, bool, int, float, str})
_CONTAINER_TYPES = frozenset({dict, list})
_PLAIN_TYPES = SCALARS | _CONTAINER_TYPES
_KEY_TYPES = frozenset({str})
# There the `__dict__` of an instance does not return its values, so that a total may be right by accident.
_HIDES_VALUES = sys.version_info >= (3, 13)
_FEW_VALUES = 64  # not worth the search for rows
_MIN_ROWS = 32  # so many containers of one length are checked as the rows of a table
_BLOCK_SIZE = 2_048  # containers: they are still in the processor's cache in the next one, which halves the time
_WIDE_LEVEL = 200_000  # a level this wide may hold the same containers many times over: each is visited once
_FREE_CONTAINERS = 65_536
_BYTES_PER_CONTAINER = 16
_MAX_DIGITS = 1_000
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_CONTAINER_OVERHEAD_BYTES = 128  # of an object or list in memory, beside its members
_BRACKET = re.compile(rb"[\[{]")
_MAX_CONTAINERS = 10_000_000  # jsonschema-rs unfolds a value, and aborts the process when memory is exhausted


def as_dict(value: Any) -> dict[str, Any]:
    """Return the value if it is a dict, else an empty one: foreign documents may hold anything."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


class Survey(NamedTuple):
    """What `survey` found in a value."""

    plain: bool  # only plain types, as deep as it was visited
    deep: bool  # nested deeper than MAX_DEPTH, cyclic, or a few containers shared until they count as millions


_SHALLOW, _DEEP, _FOREIGN = Survey(True, False), Survey(True, True), Survey(False, False)


def survey(value: Any) -> Survey:
    """Inspect a value level by level; without recursion, so that no nesting can break it.

    This runs on every result of a local handler. 1,000 objects of 15 values take 0.34 ms, because each step is one call
    of a C function for a whole group of containers; visiting each value in a loop takes 1.3 ms.
    """
    if type(value) not in _CONTAINER_TYPES:
        return _SHALLOW if type(value) in SCALARS else _FOREIGN
    if value.__class__ is dict and len(value) < _FEW_VALUES and _is_flat(value):
        return _SHALLOW
    level: list[Any] = [value]
    for depth in range(MAX_DEPTH):
        total = sum(map(len, level))
        if total >= _FEW_VALUES:
            return _survey_groups(level, MAX_DEPTH - depth)
        children = _members(level, total)
        if children is None or not (kinds := set(map(type, children))) <= _PLAIN_TYPES:
            return _FOREIGN
        if kinds <= SCALARS:
            return _SHALLOW
        level = [child for child in children if type(child) in _CONTAINER_TYPES]
    return _DEEP


def _is_flat(value: dict[Any, Any]) -> bool:
    """Return whether a dict is a plain object without containers, as most results are: in half the time."""
    return SCALARS.issuperset(map(type, value.values())) and _KEY_TYPES.issuperset(map(type, value))


def _members(containers: list[Any], total: int) -> list[Any] | None:
    """Return the items and values of containers with that total length, or None if a key is not a str."""
    # A tenth of the time of chaining `values()`. A dict with keys other than str returns its keys, too.
    members: list[Any] = get_referents(*containers)
    if len(members) == total and not (
        _HIDES_VALUES and list(map(len, map(get_referents, containers))) != list(map(len, containers))
    ):
        return members
    dicts: list[dict[Any, Any]] = [container for container in containers if type(container) is dict]
    if not _KEY_TYPES.issuperset(map(type, chain.from_iterable(dicts))):
        return None
    lists: list[list[Any]] = [container for container in containers if type(container) is list]
    return list(chain(chain.from_iterable(map(_values, dicts)), chain.from_iterable(lists)))


_values: Callable[[dict[Any, Any]], Iterable[Any]] = dict[Any, Any].values


def _survey_groups(containers: list[Any], levels: int) -> Survey:
    """Inspect containers with many members, and as many levels of them."""
    level: dict[tuple[bool, int], list[Any]] = {(True, 0): containers}
    unfolded, copies = 0.0, 1.0  # containers seen so far, and how often each of this level occurs
    for _ in range(levels):
        inside: dict[tuple[bool, int], list[Any]] = {}
        for (has_dicts, _), group in level.items():
            for start in range(0, len(group), _BLOCK_SIZE):
                if not _descend(group[start : start + _BLOCK_SIZE], has_dicts, inside):
                    return _FOREIGN
        if not inside:
            return _SHALLOW
        level = inside
        width = sum(map(len, level.values()))
        if width > _WIDE_LEVEL:
            containers = list(chain.from_iterable(level.values()))
            distinct = list(dict(zip(map(id, containers), containers, strict=True)).values())
            level = {(True, 0): distinct}
            copies *= width / len(distinct)
            width = len(distinct)
        unfolded += copies * width
        if unfolded > _MAX_CONTAINERS:
            break
    return _DEEP


def _descend(group: list[Any], has_dicts: bool, inside: dict[tuple[bool, int], list[Any]]) -> bool:
    """Add the containers inside a group of containers, and return whether everything in it is plain.

    Containers are grouped by whether dicts are among them and the length of the first: rows of a table have the same
    types in the same order, so that one comparison of two lists checks them all, and a column is a slice.
    """
    children = _members(group, sum(map(len, group))) if has_dicts else get_referents(*group)
    if children is None:
        return False
    total = len(children)
    if total < _FEW_VALUES:
        columns = [(set(map(type, children)), children)]
    else:
        types = list(map(type, children))
        width = len(group[0])
        row = types[:width] if len(group) >= _MIN_ROWS and len(group) * width == total else types[:1]
        pattern = row[:1] if len(set(row)) == 1 else row  # one item is repeated in a third of the time
        if types != pattern * (total // len(pattern)):
            width = len(row)
            columns = [(set(types[index::width]), children[index::width]) for index in range(width)]
        elif pattern is not row:
            columns = [({row[0]}, children)]
        else:
            columns = [({kind}, children[index::width]) for index, kind in enumerate(row) if kind not in SCALARS]
    for kinds, column in columns:
        if kinds <= SCALARS:
            continue
        if not kinds <= _PLAIN_TYPES:
            return False
        containers = (
            column if kinds <= _CONTAINER_TYPES else [child for child in column if type(child) in _CONTAINER_TYPES]
        )
        key = dict in kinds, len(containers[0])
        if key in inside:
            inside[key] += containers
        else:
            inside[key] = containers
    return True


def to_plain(value: Any) -> Any:
    """Return the value as plain JSON data: the same object if it is plain already, else a converted copy.

    Dataclasses, Structs, attrs classes and pydantic models become objects; NamedTuples, tuples and sets become
    arrays; dates, UUIDs, Decimals and Paths become strings, Enums their value, nested bytes base64 strings.
    A plain value nested deeper than MAX_DEPTH is returned unchanged: the caller decides what to do with it.

    Raises:
        NotPlainError: it has no JSON form, or contains itself.
    """
    value_survey = survey(value)
    if value_survey.deep and _has_cycle(value):
        raise NotPlainError("the value refers to itself, so it has no JSON form")
    if value_survey.plain:
        return value
    try:
        converted = msgspec.to_builtins(value, str_keys=True, enc_hook=json_form)
        return converted if survey(converted).plain else _exact(converted)
    except NotPlainError:
        raise
    except RecursionError:
        raise NotPlainError("the value refers to itself or is nested too deeply, so it has no JSON form") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise NotPlainError(f"the value has no JSON form: {error}") from error


def find_nonfinite(value: Any) -> bool:
    """Return whether plain data contains a NaN or an infinity."""
    stack = [value]
    while stack:
        part = stack.pop()
        if type(part) is float:
            if not isfinite(part):
                return True
        elif type(part) is dict:
            stack.extend(cast("dict[str, Any]", part).values())
        elif type(part) is list:
            stack.extend(cast("list[Any]", part))
    return False


def replace_surrogates(value: Any) -> Any:
    """Return a copy of plain data with lone surrogates, which UTF-8 cannot encode, replaced by U+FFFD."""
    if type(value) is str:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if type(value) is list:
        return [replace_surrogates(item) for item in cast("list[Any]", value)]
    if type(value) is dict:
        items = cast("dict[str, Any]", value).items()
        return {replace_surrogates(key): replace_surrogates(item) for key, item in items}
    return value


def json_form(value: Any) -> Any:
    """Convert a type that msgspec does not know: pydantic models, paths, collections, subclasses. An `enc_hook`."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json", by_alias=True, fallback=to_plain)
    match value:
        case str() | int() | float():  # numpy's float64 is a float
            return _exact(value)
        case PathLike():
            return fspath(cast("PathLike[str]", value))
        case Mapping():
            return dict(cast("Mapping[Any, Any]", value))
        case deque() | AbstractSet() | Sequence():
            return list(cast("Iterable[Any]", value))
        case _:
            raise TypeError(f"objects of type {type(value).__qualname__!r} cannot be sent as JSON")


def _exact(value: Any) -> Any:
    """Convert what msgspec leaves unchanged: subclasses of plain types, tuples, and the values of Enums."""
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return {str.__str__(key): _exact(item) for key, item in items}
        case list() | tuple():
            return [_exact(item) for item in cast("list[Any]", value)]
        case _:
            return to_plain(value)


def _has_cycle(value: Any) -> bool:
    """Return whether a container is, at any depth, inside itself. Iterative: a value may be nested 100,000 deep."""
    path: set[int] = set()
    done: set[int] = set()
    stack: list[tuple[Any, bool]] = [(value, False)]
    while stack:
        node, leaving = stack.pop()
        key = id(node)
        if leaving:
            path.discard(key)
            done.add(key)
        elif key in path:
            return True
        elif key not in done:
            path.add(key)
            stack.append((node, True))
            children = cast("dict[str, Any]", node).values() if type(node) is dict else cast("list[Any]", node)
            stack.extend((child, False) for child in children if type(child) in _CONTAINER_TYPES)
    return False


T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()
_DISPLAY_ENCODER = msgspec.json.Encoder(enc_hook=json_form)
_MARKUP_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})
_CELL_STYLE = "text-align: left; vertical-align: top; white-space: pre-wrap"
_MAX_CELL_CHARACTERS = 5_000


def html_table(caption: str, rows: Iterable[Iterable[str]]) -> str:
    """Return an HTML table for a notebook. Text from peers is truncated and escaped: it never becomes markup."""

    def cell(text: str) -> str:
        return harmless(shorten(text, _MAX_CELL_CHARACTERS)).translate(_MARKUP_ESCAPES)

    lines = ("".join(f'<td style="{_CELL_STYLE}">{cell(text)}</td>' for text in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{cell(caption)}</caption><tbody>{body}</tbody></table>"


def indented_json(value: Any) -> str:
    """Return a value as indented JSON for display, or its `repr` if it has no JSON form."""
    try:
        return msgspec.json.format(write_json(_DISPLAY_ENCODER, value), indent=2).decode()
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def write_json(encoder: msgspec.json.Encoder, value: Any) -> bytes:
    """Encode the value as JSON, with lone surrogates replaced.

    Raises:
        TypeError, ValueError, RecursionError: it has no JSON form, or is nested too deeply.
    """
    try:
        return encoder.encode(value)
    except UnicodeEncodeError:
        return encoder.encode(replace_surrogates(msgspec.to_builtins(value, enc_hook=json_form)))


def memory_of(value: Any) -> int:
    """Estimate the bytes that plain data takes in memory. Takes 0.3 µs, and 1 ms for a megabyte."""
    text = write_json(_ENCODER, value)
    return len(text) + _CONTAINER_OVERHEAD_BYTES * (text.count(b"{") + text.count(b"["))


# It begins with a literal, for which `re` searches: 5 ms instead of 75 for 4 MB.
_LONE_SURROGATE = (
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|[c-fC-F][0-9a-fA-F]{2}(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)


def read_json(decoder: msgspec.json.Decoder[T], message: bytes | str) -> T:
    """Decode JSON, with lone surrogates replaced.

    Raises:
        ValueError, RecursionError: it is invalid JSON, not what the decoder expects, or nested too deeply.
    """
    try:
        return decoder.decode(message)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeEncodeError):
        text = message if isinstance(message, bytes) else replace_surrogates(message).encode()
        if isinstance(message, bytes) and b"\\ud" not in text and b"\\uD" not in text:
            raise
    return decoder.decode(without_lone_surrogates(text))


def without_lone_surrogates(json: bytes) -> bytes:
    """Return JSON with the escapes of lone surrogates replaced.

    Raises:
        ValueError: it contains a NUL, so it is not JSON.
    """
    # On bytes, because Python's `json` blocks every thread for 0.9 s with 4 MB. Escaped backslashes become NUL, so that
    # each remaining backslash begins an escape; JSON text contains no NUL, so that none is ambiguous.
    if b"\0" in json:
        raise ValueError("it contains a NUL")
    repaired = re.sub(_LONE_SURROGATE, rb"\\ufffd", json.replace(rb"\\", b"\0"))
    return repaired.replace(b"\0", rb"\\")


def has_duplicate_keys(json: bytes, value: Any) -> bool:
    """Return whether an object in JSON has duplicate keys; `value` is what the JSON was decoded to.

    A colon either separates a key from its value or is part of a string, and a duplicate key disappears together with
    its colon. So the value, encoded again, has as many colons as the text. This takes 15 ms for 4 MB.
    """
    escaped = 0
    if b"\\u003" in json:
        plain = json.replace(rb"\\", b"__")
        escaped = plain.count(rb"\u003a") + plain.count(rb"\u003A")
    return _ENCODER.encode(value).count(b":") != json.count(b":") + escaped


def outline(message: bytes) -> bytes:
    """Return a JSON object without its nested members, and what is between them: from its first bracket to its last."""
    members = message.strip()[1:-1]
    begin = _BRACKET.search(members)
    if begin is None:
        return message
    before = members[: begin.start()].rpartition(b",")[0]  # without the name of the nested member
    after = members[max(members.rfind(b"]"), members.rfind(b"}")) + 1 :].strip(b" \t\r\n,")
    if _BRACKET.search(after) is not None:  # truncated: what begins there has no end
        after = b""
    return b"{%b}" % b",".join(part for part in (before, after) if part)


def read_outline(decoder: msgspec.json.Decoder[T], message: bytes) -> T:
    """Decode an object of which the decoder needs no nested member, however deeply those are nested.

    Raises:
        ValueError: it is invalid.
    """
    try:
        return read_json(decoder, message)
    except RecursionError:
        return read_json(decoder, outline(message))


def parse_float(text: str) -> float:
    """Parse a number with a fraction or an exponent: the `float_hook` of every decoder of JSON from a peer.

    msgspec's own parser takes 7 µs for a number close to the limits of a float, 1.3 s for 1 MB of `1e308,`; this one
    takes 0.2 µs for any number.

    Raises:
        ValueError: it is beyond the range of a float.
    """
    number = float(text)
    if isinf(number):
        raise ValueError("Number out of range")
    return number


def read_peer_json(decoder: msgspec.json.Decoder[T], message: bytes | str) -> T:
    """Decode JSON as `read_json`, after `check_density`. The decoder has the hook `parse_float`.

    Raises:
        ValueError, RecursionError: as `read_json`, or `check_density`.
    """
    if len(message) <= LARGE_JSON:
        return read_json(decoder, message)
    check_density(message)
    with collection_paused():
        return read_json(decoder, message)


def check_density(json: bytes | str) -> None:
    """Check that JSON of a peer which is larger than 16 KiB does not cost more than its size says.

    It has at most 65,536 objects and lists, and one more per 16 bytes: 1 MB of `[],` took 0.4 s to decode, to survey
    and to validate, and 16 MB, which are 16 kB when compressed, 2 s and 700 MB. A number has at most 1,000 digits:
    1 MB of integers of 4,300 digits, the most that Python takes, needs 15 ms to be decoded and 44 ms to be encoded,
    ten times as long as shorter ones.

    Raises:
        ValueError: it has more.
    """
    if len(json) <= LARGE_JSON:
        return
    text = json.encode(errors="replace") if isinstance(json, str) else json
    max_containers = _FREE_CONTAINERS + len(text) // _BYTES_PER_CONTAINER
    if _containers(text) > max_containers and sum(map(_containers, _outside_strings(text))) > max_containers:
        raise ValueError(f"more than {max_containers:,} objects and lists")
    if _has_long_number([text]) and _has_long_number(_outside_strings(text)):
        raise ValueError(f"a number of more than {_MAX_DIGITS:,} digits")


def _containers(json: bytes) -> int:
    return json.count(b"[") + json.count(b"{")


def _has_long_number(slices: Iterable[bytes]) -> bool:
    """Return whether there are more digits in a row than a number may have: 1 ms for 1 MB."""
    too_many = b"0" * (_MAX_DIGITS + 1)
    end_of_previous = b""
    for part in slices:
        digits = end_of_previous + part.translate(_DIGITS_AS_ZEROS)
        if too_many in digits:
            return True
        end_of_previous = digits[-_MAX_DIGITS:]
    return False


def _outside_strings(json: bytes) -> Iterator[bytes]:
    """Yield what is outside of strings, in slices: each quote is a part, which takes 40 times its size."""
    plain = json.replace(rb"\\", b"").replace(rb"\"", b"")  # every remaining quote starts or ends a string
    inside = 0
    for start in range(0, len(plain), LARGE_JSON):
        parts = plain[start : start + LARGE_JSON].split(b'"')
        yield b"".join(parts[inside::2])
        inside ^= (len(parts) - 1) & 1


@contextmanager
def collection_paused() -> Generator[None]:
    """Pause garbage collection while a large document is parsed.

    It is half a million live objects; scanning them takes Python longer than parsing them: 4 MB of small lists take
    380 ms with the collector, 95 ms without.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
