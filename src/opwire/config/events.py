"""What happens while sources are loaded, told to whoever shows it. No I/O."""

from msgspec import Struct

from opwire.errors import ConfigError, OpwireError


class Started(Struct, frozen=True):
    """A source is being loaded."""

    source: str


class Loaded(Struct, frozen=True):
    """A source is there; `notes` say what of it was left out or not understood."""

    source: str
    operations: int
    seconds: float
    notes: tuple[str, ...] = ()


class Failed(Struct, frozen=True):
    """A source cannot be loaded, or a part of it: then `source` is "file.server"."""

    source: str
    error: OpwireError
    seconds: float


class Removed(Struct, frozen=True):
    """A source is in the configuration no more."""

    source: str


LoadEvent = Started | Loaded | Failed | Removed


class Reloaded(Struct, frozen=True):
    """What became of a change.

    `error` is why the new file cannot be used: then nothing was changed. A source that is in `failures` runs on as it
    was, if it ran. Changes of what is in `restart` wait for the next start.
    """

    loaded: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    failures: dict[str, OpwireError] = {}
    restart: tuple[str, ...] = ()
    error: ConfigError | None = None
