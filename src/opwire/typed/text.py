"""JSON text in and out, where msgspec alone is stricter than the peers are.

JavaScript strings may hold half of a surrogate pair. `JSON.stringify` writes it as an escape, which msgspec refuses to
read, and UTF-8 cannot carry it, so that msgspec refuses to write it. Both ways it becomes U+FFFD here.
"""

import json
from math import isfinite
from typing import Any, TypeVar

import msgspec

from opwire.typed.plain import json_form, replace_surrogates

T = TypeVar("T")


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
