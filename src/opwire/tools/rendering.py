"""What a model reads: the data of a call as content blocks, and its error as text. No I/O.

Data becomes a content block: text and JSON as text, images as images, other bytes as a resource. The text of an error
says what was wrong and what to do, with the details that a server sent: a model corrects its arguments by them.
"""

import logging
from base64 import b64encode
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Struct

from opwire.envelope import MCPContentBlock
from opwire.errors import CallError, ErrorCode
from opwire.typed.plain import MAX_DEPTH, as_dict, as_list, find_nonfinite, replace_surrogates, survey

logger = logging.getLogger("opwire.tools")

MAX_SHOWN = 4_000
"""Characters of an error's details that a model reads."""

SHOWN_PROBLEMS = 20
"""Problems of a value that a model reads."""

_KNOWN_DETAILS = frozenset({"problems", "status", "headers", "body", "hint", "errorId"})  # which messages have
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


class EncodedData(Struct, frozen=True):
    """Data with a JSON form, and its JSON. `encoding`: it was bytes."""

    data: Any
    json: bytes
    encoding: Literal["base64"] | None = None


def encode_data(data: Any, label: str) -> EncodedData:
    """Encode data: NaN and infinities as null, lone surrogates replaced, bytes as base64.

    Raises:
        CallError: EXECUTION_ERROR, if it is nested too deeply.
    """
    if isinstance(data, bytes):
        text = b64encode(data).decode("ascii")
        return EncodedData(text, _encoder.encode(text), "base64")
    if survey(data).deep:  # the SDK fails only when it writes, and takes the whole connection down
        raise CallError(ErrorCode.EXECUTION_ERROR, f"{label}: the data is nested deeper than {MAX_DEPTH}")
    try:
        encoded = _encoder.encode(data)
    except UnicodeEncodeError:
        data = replace_surrogates(data)
        encoded = _encoder.encode(data)
    if b"null" in encoded and find_nonfinite(data):
        logger.warning("%s: the data contains NaN or an infinity, which is sent as null", label)
        data = _decoder.decode(encoded)
    return EncodedData(data, encoded)


def media_type(data: bytes, content_type: str | None = None) -> str:
    """Return the media type of bytes: the given one, or that of an image by its first bytes."""
    mime = (content_type or "").partition(";")[0].strip().lower()
    if mime:
        return mime
    is_webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    known = (mime for magic, mime in _IMAGES if data.startswith(magic))
    return "image/webp" if is_webp else next(known, "application/octet-stream")


def data_block(data: Any, json: bytes, operation_id: str, content_type: str | None = None) -> MCPContentBlock:
    """Return the content block of data and its JSON. `content_type` is that of bytes, if known."""
    if not isinstance(data, bytes):
        return {"type": "text", "text": data if isinstance(data, str) else json.decode()}
    mime = media_type(data, content_type)
    encoded = b64encode(data).decode("ascii")
    if mime.startswith("image/"):
        return {"type": "image", "data": encoded, "mimeType": mime}
    if mime.startswith("audio/"):
        return {"type": "audio", "data": encoded, "mimeType": mime}
    namespace, _, name = operation_id.partition(".")
    uri = f"opwire://{quote(namespace, safe='')}/{quote(name, safe='')}"
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "blob": encoded}}


def error_text(error: CallError, operation_id: str = "", tool: str = "", *, advises: bool = True) -> str:
    """Return an error as text: its message, its details, and what to do, if it `advises`.

    A message that starts with the id of the operation starts with the name of the tool, which is what a model can call.
    """
    details = as_dict(error.details)
    named = operation_id and error.message.startswith((f"{operation_id}:", f"{operation_id} "))
    message = f"{tool}{error.message.removeprefix(operation_id)}" if named else error.message
    lines = [f"{error.code.value}: {message}" if message else str(error)]
    if error.code is ErrorCode.VALIDATION_ERROR:
        lines += _problem_lines(details.get("problems"), error.message)
    body = details.get("body")
    if body is not None and body != "":
        lines.append(f"Response body: {_shown(body)}")
    rest = {name: value for name, value in details.items() if name not in _KNOWN_DETAILS}
    if rest or not (error.details is None or isinstance(error.details, dict)):
        lines.append(f"Details: {_shown(rest or error.details)}")
    hint = details.get("hint")
    if isinstance(hint, str) and hint not in error.message:
        lines.append(hint[:MAX_SHOWN])
    if not advises:
        pass
    elif error.code is ErrorCode.VALIDATION_ERROR:
        lines.append("Correct the arguments and call the tool again.")
    elif error.retry_after is not None:
        lines.append(f"Call the tool again in {error.retry_after:g} seconds.")
    elif error.retryable:
        lines.append("The same call may succeed later.")
    return replace_surrogates("\n".join(lines))


def _problem_lines(problems: Any, message: str) -> list[str]:
    lines: list[str] = []
    for problem in map(as_dict, as_list(problems)):
        text = str(problem.get("message", ""))
        if text and text not in message:  # not shown already
            lines.append(f"- {problem.get('path') or 'the input'}: {text}")
    more = len(lines) - SHOWN_PROBLEMS
    return [*lines[:SHOWN_PROBLEMS], f"- and {more} more"] if more > 0 else lines


def _shown(value: Any) -> str:
    """Return text as it is and other data as JSON, both truncated."""
    try:
        text = value if isinstance(value, str) else encode_data(value, "the details of an error").json.decode()
    except (CallError, TypeError, ValueError, RecursionError):  # no JSON form
        return "(not shown: it has no JSON form)"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text) - MAX_SHOWN:,} more characters)"
