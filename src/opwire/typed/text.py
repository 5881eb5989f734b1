"""Text of others: JSON in and out, where msgspec alone is stricter than the peers are, and text that is shown.

JavaScript strings may hold half of a surrogate pair. `JSON.stringify` writes it as an escape, which msgspec refuses to
read, and UTF-8 cannot carry it, so that msgspec refuses to write it. Both ways it becomes U+FFFD here.
"""

import json
import re
from math import isfinite
from typing import Any, TypeVar

import msgspec

from opwire.typed.plain import json_form, replace_surrogates

T = TypeVar("T")

# Control characters (C0 without tab and line feed, DEL, C1), line and paragraph separators, characters that turn the
# direction of text around, and halves of surrogate pairs, which cannot be written at all.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff]"
)


def harmless(text: str) -> str:
    r"""Return text with what could steer a terminal written out: `\x1b[2J` is read, not obeyed."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def harmless_json(text: str) -> str:
    """Return JSON that is harmless as well, and equal to any reader, since only escapes were added."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def write_json(encoder: msgspec.json.Encoder, value: Any) -> bytes:
    """The value as JSON, lone surrogates replaced.

    Raises:
        TypeError, ValueError, RecursionError: it has no JSON form, or is nested too deeply.
    """
    try:
        return encoder.encode(value)
    except UnicodeEncodeError:
        return encoder.encode(replace_surrogates(msgspec.to_builtins(value, enc_hook=json_form)))


def read_json(decoder: msgspec.json.Decoder[T], message: bytes | str) -> T:
    """What the decoder makes of a JSON text, lone surrogates replaced.

    Raises:
        ValueError, RecursionError: it is not JSON, not what the decoder expects, or nested too deeply.
    """
    try:
        return decoder.decode(message)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeEncodeError):
        text = message if isinstance(message, str) else message.decode()
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        return msgspec.convert(replace_surrogates(value), decoder.type)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError("a number is out of range")
    return number
