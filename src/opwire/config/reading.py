"""`load_config`: from a file to settings, or to a list of everything that is wrong with it."""

import re
import tomllib
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from opwire.config.checks import check_settings
from opwire.config.mistakes import Finding, Mistake, dotted, told
from opwire.config.places import Key, Places
from opwire.config.settings import Config
from opwire.config.tables import read_table
from opwire.errors import ConfigError

NAME = "opwire.toml"
"""What the file is usually called."""

_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


def find_config(start: Path | str = ".") -> Path | None:
    """The nearest `opwire.toml`: in this folder or the nearest one above it; None if there is none."""
    folder = Path(start).absolute()
    return next((path for each in (folder, *folder.parents) if (path := each / NAME).is_file()), None)


def load_config(path: Path | str = NAME) -> Config:
    """The settings of a file. Nothing is loaded yet, and no environment variable is read.

    Raises:
        ConfigError: the file cannot be read; or all its mistakes, each with its line, its key, and what to do.
    """
    config, mistakes = read_config(path)
    if config is None:
        raise ConfigError(told(str(path), mistakes))
    return config


def read_config(path: Path | str) -> tuple[Config | None, tuple[Mistake, ...]]:
    """The settings of a file, or its mistakes as data.

    Raises:
        ConfigError: the file cannot be read.
    """
    config, mistakes = parse_config(_text(Path(path)))
    return None if config is None else replace(config, file=Path(path).absolute()), mistakes


def parse_config(text: str) -> tuple[Config | None, tuple[Mistake, ...]]:
    """The settings that a text holds, or its mistakes in the order of their lines."""
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return None, (_syntax(str(error)),)
    except RecursionError:
        return None, (Mistake("", "is not TOML that anybody would write: it is nested too deep"),)
    places = Places(text)
    found: list[Finding] = []
    config = read_table(tables, Config, found.append, unread=("file",))
    if config is not None:
        # What is wrong inside a table may be all that is wrong between its parts.
        found += [each for each in check_settings(config) if not any(_is_inside(one.key, each.key) for one in found)]
    mistakes = [Mistake(dotted(key), problem, hint, places.line_of(key)) for key, problem, hint in found]
    return None if mistakes else config, tuple(sorted(mistakes, key=lambda each: (each.line or 0, each.key)))


def _is_inside(key: Key, table: Key) -> bool:
    return key[: len(table)] == table


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; `opwire init` writes one") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 at byte {error.start}") from error


def _syntax(message: str) -> Mistake:
    found = _PLACE.search(message)
    line = None if found is None or found[1] is None else int(found[1])
    problem = message if found is None else message[: found.start()]
    return Mistake("", f"is not TOML: {problem[:1].lower()}{problem[1:]}", line=line)
