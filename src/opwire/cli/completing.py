"""The ids of operations, remembered from the last time that they were loaded: a shell completes from these.

Nothing is started and nothing is asked when somebody presses TAB. A cache that cannot be written or read is none.
"""

import contextlib
import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import msgspec

from opwire.operation import OperationSpec


def remember(key: str, specs: Iterable[OperationSpec]) -> None:
    """Keep the ids and types of what some sources hold."""
    content = msgspec.json.encode({spec.id: spec.type.value for spec in specs})
    place = _place(key)
    with contextlib.suppress(OSError):
        if place.is_file() and place.read_bytes() == content:
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_suffix(f".{os.getpid()}")
        new.write_bytes(content)
        new.replace(place)  # at once: another shell may be reading


def recall(key: str) -> dict[str, str] | None:
    """The types of the operations by id, as they were; None if these sources were never loaded."""
    try:
        return msgspec.json.decode(_place(key).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return None


def _place(key: str) -> Path:
    folder = os.environ.get("XDG_CACHE_HOME")
    caches = Path(folder) if folder else Path.home() / ".cache"
    return caches / "opwire" / f"ids-{sha256(key.encode()).hexdigest()[:24]}.json"
