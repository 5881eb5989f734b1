"""Documents as plain data: JSON or YAML text to dictionaries, and which version of OpenAPI they speak. No I/O."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

import msgspec

from opwire.adapters.openapi.report import Report
from opwire.adapters.openapi.yaml_text import read_yaml
from opwire.errors import CallError, ErrorCode, NotPlainError
from opwire.typed.plain import json_form, to_plain
from opwire.typed.text import read_json, write_json

Version = Literal["2.0", "3.0", "3.1", "3.2"]

_JSON = msgspec.json.Decoder()
_ENCODER = msgspec.json.Encoder(enc_hook=json_form)
_DATA = frozenset({"const", "default", "enum", "example", "examples"})  # what looks like a schema in there is none
_BOMS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_REFERENCE = re.compile(rb"""\$ref["']?\s*:\s*(?:"([^"\n]+)"|'([^'\n]+)'|([^\s"'{},\[\]][^\s,}]*))""")


class Document:
    """A document, and the address against which its references are read: "" where it has none."""

    def __init__(self, root: Any, uri: str = "") -> None:
        self.root = root
        self.uri = uri


def read_text(text: bytes | str, name: str, report: Report) -> Any:
    """The plain data of a JSON or YAML text; `name` is for the error.

    Raises:
        CallError: VALIDATION_ERROR, with the place where it cannot be read.
    """
    data = _utf8(text, name)
    try:
        if data.lstrip()[:1] in (b"{", b"["):
            return read_json(_JSON, data)
    except (ValueError, RecursionError) as error:
        if not name.endswith((".yaml", ".yml")):  # there, a brace may start a mapping of YAML
            raise _invalid(name, "JSON", _reason(error)) from None
    try:
        return read_yaml(data, lambda warning: report.warn(f"{name}: {warning}"))
    except ValueError as error:
        raise _invalid(name, "YAML", str(error)) from None


def text_of(document: Mapping[Any, Any]) -> bytes:
    """A document that is given as a mapping, as JSON: PyYAML may have put dates into it, and keys that are numbers.

    Raises:
        CallError: VALIDATION_ERROR, it holds what has no JSON form.
    """
    try:
        try:
            return write_json(_ENCODER, document)
        except TypeError:  # a key that is a date or null, for example
            return write_json(_ENCODER, _plain(document))
    except RecursionError:
        raise _invalid("the document", "plain data", "it is nested too deeply, or holds itself") from None
    except NotPlainError as error:
        raise _invalid("the document", "plain data", str(error)) from error


def version_of(root: Any, name: str) -> Version:
    """Which OpenAPI a document speaks.

    Raises:
        CallError: VALIDATION_ERROR, it is none that opwire reads.
    """
    if not isinstance(root, dict):
        raise _unusable(name, f"it is {_kind(root)}, not an object")
    document = cast("dict[str, Any]", root)
    said = document.get("openapi", document.get("swagger"))
    match str(said).split(".") if isinstance(said, str | int | float) else []:
        case ["2", *_] if "swagger" in document:
            version: Version = "2.0"
        case ["3", "0" | "1" | "2" as minor, *_]:
            version = cast("Version", f"3.{minor}")
        case ["3"]:
            version = "3.0"
        case _:
            given = f"{str(said)[:40]!r}" if said is not None else "no `openapi` or `swagger` field"
            raise _unusable(name, f"opwire reads Swagger 2.0 and OpenAPI 3.0, 3.1 and 3.2; this one has {given}")
    paths = document.get("paths")
    if paths is not None and not isinstance(paths, dict):
        raise _unusable(name, f"`paths` is {_kind(paths)}, not an object")
    if "paths" not in document and version in ("2.0", "3.0"):
        raise _unusable(name, "it has no `paths`")
    return version


def references_in(text: bytes | str, root: Any) -> set[str]:
    """Every reference of a document; some that only look like one too.

    In JSON they are found in the text, which is far quicker than a walk. In YAML, only what was read tells where one
    ends.
    """
    if text.lstrip()[:1] not in ("{", b"{"):
        return {ref for each in objects_in(root, data=True) if isinstance(ref := each.get("$ref"), str)}
    found = _REFERENCE.findall(text.encode("utf-8", "replace") if isinstance(text, str) else text)
    return {
        _unescaped(double) if double else (single or bare).decode("utf-8", "replace") for double, single, bare in found
    }


def objects_in(root: Any, *, data: bool = False) -> Iterator[dict[str, Any]]:
    """Every object of a document that may be a schema, in no order.

    What stands in examples is none, but `default` may also be a response: with `data`, all of this counts too.
    """
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            mapping = cast("dict[str, Any]", node)
            yield mapping
            waiting.extend(value for key, value in mapping.items() if data or key not in _DATA)
        elif isinstance(node, list):
            waiting.extend(cast("list[Any]", node))


def _unescaped(text: bytes) -> str:
    """What stands between double quotes; its escapes are those of JSON."""
    try:
        return msgspec.json.decode(b'"%b"' % text, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return text.decode("utf-8", "replace")


def _utf8(text: bytes | str, name: str) -> bytes:
    if isinstance(text, str):
        return text.encode("utf-8", "replace")
    encoding = next((each for bom, each in _BOMS.items() if text.startswith(bom)), None)
    try:
        return text.decode(encoding).encode() if encoding else text
    except UnicodeDecodeError as error:
        raise _invalid(name, str(encoding), f"byte {error.start} cannot be read") from None


def _plain(value: Any) -> Any:
    match value:
        case Mapping():
            return {_key(key): _plain(each) for key, each in cast("Mapping[Any, Any]", value).items()}
        case list() | tuple():
            return [_plain(each) for each in cast("list[Any]", value)]
        case _:
            return to_plain(value)


def _key(key: Any) -> str:
    return (
        key
        if isinstance(key, str)
        else "null"
        if key is None
        else str(key).lower()
        if isinstance(key, bool)
        else str(key)
    )


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return "empty" if value is None else kinds.get(cast("Any", type(value)), "a number")


def _invalid(name: str, expected: str, reason: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, f"{name} is not readable as {expected}: {reason}")


def _unusable(name: str, reason: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, f"{name} is not a usable OpenAPI document: {reason}")
