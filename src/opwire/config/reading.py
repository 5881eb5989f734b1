"""`load_config`: from a file to settings, or to a list of everything that is wrong with it.

Tables of a TOML file as settings. No I/O.

msgspec would stop at the first mistake. Here all of them are found: what cannot be read is told and left out, and
reading goes on.

What is wrong with settings although each of them alone is fine. No I/O.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin
from urllib.parse import urlsplit

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, replace

from opwire.config.problems import Finding, Key, Mistake, Places, did_you_mean, dotted, told
from opwire.config.settings import (
    IN_FILE,
    SET_IT,
    AnySource,
    Config,
    EnvText,
    HubSettings,
    JWTSettings,
    OpenAPISource,
    ProgramSource,
    ServerSource,
    problem_of,
)
from opwire.errors import ConfigError

Complain = Callable[[Finding], object]
"""Is told of every mistake."""

S = TypeVar("S", bound=Struct)

_WRONG: Any = object()  # instead of a value that could not be read
_WORDS = {"bool": "true or false", "float": "a number", "int": "a whole number", "str": "a text"}
_SHOWN = 30  # characters of a word that is none of those that were expected
_MANY = 5  # names that are listed where none comes close


def read_table(
    table: Mapping[str, Any], kind: type[S], complain: Complain, *, unread: tuple[str, ...] = ()
) -> S | None:
    """A table as settings of this kind, of which the fields that are `unread` do not stand in files.

    What is wrong is left out; where that cannot be, because it is needed, the answer is None.
    """
    read = _Reader(complain, unread).struct((), table, kind)
    return None if read is _WRONG else read


class _Reader:
    """Reads values as their types."""

    def __init__(self, complain: Complain, unread: tuple[str, ...]) -> None:
        self._complain = complain
        self._unread = unread

    def struct(self, key: Key, table: Mapping[str, Any], kind: type[Struct]) -> Any:
        fields = {each.name: each for each in msgspec.structs.fields(kind) if key or each.name not in self._unread}
        for name in table.keys() - fields.keys():
            known = [each for each in fields if each not in table]
            hint = did_you_mean(name, known) or (f"the keys are {', '.join(fields)}" if len(fields) <= _MANY else "")
            self._complain(Finding((*key, name), "is no key that is known here", hint))
        values: dict[str, Any] = {}
        for name, field in fields.items():
            if name in table:
                values[name] = self._value((*key, name), table[name], field.type)
            elif _is_required(field):
                values[name] = self._wrong(key, f"has no {name}", f"{name} is {_expected(field.type)}")
        if any(_is_required(fields[name]) for name, value in values.items() if value is _WRONG):
            return _WRONG
        return kind(**{name: value for name, value in values.items() if value is not _WRONG})

    def _value(self, key: Key, value: Any, kind: Any) -> Any:
        if get_origin(kind) in (Union, UnionType):
            kind = self._chosen(key, value, [each for each in get_args(kind) if each is not NoneType])
        if kind is _WRONG:
            return _WRONG
        if _is_text(kind):
            return self._text(key, value, kind)
        if _is_struct(kind):
            return self._table(key, value, kind)
        if get_origin(kind) is dict:
            return self._by_name(key, value, kind)
        if get_origin(kind) is tuple:
            return self._list(key, value, kind)
        return self._plain(key, value, kind)

    def _table(self, key: Key, value: Any, kind: type[Struct]) -> Any:
        if not isinstance(value, dict):
            return self._unexpected(key, value, kind)
        return self.struct(key, cast("dict[str, Any]", value), kind)

    def _chosen(self, key: Key, value: Any, kinds: list[Any]) -> Any:
        """Which of several types a value is meant to be: of tables, the one whose mark it has."""
        if len(kinds) == 1:
            return kinds[0]
        tables: dict[str, Any] = {_mark(each): each for each in kinds if _is_struct(each)}
        lists = [each for each in kinds if get_origin(each) is tuple]
        texts = [each for each in kinds if each not in lists and not _is_struct(each)]
        if isinstance(value, list) and lists:
            return lists[0]
        if not isinstance(value, dict) or (texts and value.keys() == {"env"}):
            return texts[0] if texts else self._unexpected(key, value, dict[str, Any])
        found = [mark for mark in tables if mark in value]
        if len(found) == 1:
            return tables[found[0]]
        if found:
            return self._wrong(key, f"is one thing, and has {' and '.join(found)}", "leave one of them")
        close = next((hint for each in cast("dict[str, Any]", value) if (hint := did_you_mean(each, tables))), "")
        return self._wrong(key, f"has none of {', '.join(tables)}, which say what it is", close)

    def _text(self, key: Key, value: Any, kind: type[EnvText]) -> Any:
        if isinstance(value, dict) and value.keys() == {"env"} and isinstance(value["env"], str):
            value = f"${{{value['env']}}}"
        if not isinstance(value, str):
            return self._unexpected(key, value, kind)
        text = kind(value)
        problem = problem_of(text)
        return text if problem is None else self._wrong(key, *problem)

    def _by_name(self, key: Key, value: Any, kind: Any) -> Any:
        if not isinstance(value, dict):
            return self._unexpected(key, value, kind)
        table, of = cast("dict[str, Any]", value), get_args(kind)[1]
        read = {name: self._value((*key, name), each, of) for name, each in table.items()}
        return {name: each for name, each in read.items() if each is not _WRONG}

    def _list(self, key: Key, value: Any, kind: Any) -> Any:
        if not isinstance(value, list):
            return self._unexpected(key, value, kind)
        read = [self._value((*key, at), each, get_args(kind)[0]) for at, each in enumerate(cast("list[Any]", value))]
        return tuple(each for each in read if each is not _WRONG)

    def _plain(self, key: Key, value: Any, kind: Any) -> Any:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            pass
        if isinstance(value, str) and get_origin(kind) is Literal:
            problem = f'is {_expected(kind)}, not "{value[:_SHOWN]}"'
            return self._wrong(key, problem, did_you_mean(value, get_args(kind)))
        return self._unexpected(key, value, kind)

    def _unexpected(self, key: Key, value: Any, kind: Any) -> Any:
        # Of numbers alone the value is shown: a text may be a secret that was put into the wrong place.
        shown = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else _kind_of(value)
        return self._wrong(key, f"is {_expected(kind)}, not {shown}")

    def _wrong(self, key: Key, problem: str, hint: str = "") -> Any:
        self._complain(Finding(key, problem, hint))
        return _WRONG


def _is_text(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, EnvText)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct) and not issubclass(kind, EnvText)


def _is_required(field: FieldInfo) -> bool:
    return field.default is NODEFAULT and field.default_factory is NODEFAULT


def _mark(kind: type[Struct]) -> str:
    """The key that tells a table of this kind from others: its first that is needed."""
    return next(each.name for each in msgspec.structs.fields(kind) if _is_required(each))


def _expected(kind: Any) -> str:
    """A type in words."""
    origin = get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(f'"{each}"' for each in get_args(kind))
    if origin is Annotated:
        return f"{_expected(get_args(kind)[0])} {_bounds(get_args(kind)[1])}"
    if origin is dict:
        return "a table"
    if origin is tuple:
        return "a list"
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_expected(each) for each in get_args(kind) if each is not NoneType))
    if _is_text(kind):
        return "a text"
    return "a table" if _is_struct(kind) else _WORDS[kind.__name__]


def _bounds(meta: msgspec.Meta) -> str:
    low = f"above {meta.gt}" if meta.gt is not None else f"of {meta.ge} or more"
    high = f"below {meta.lt:g}" if meta.lt is not None else f"up to {meta.le}" if meta.le is not None else ""
    return f"{low} and {high}" if high else low


def _kind_of(value: Any) -> str:
    """A TOML value in words, without showing it."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return _WORDS.get(type(value).__name__, "a date or time")


_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key"})


def check_settings(config: Config) -> Iterator[Finding]:
    """Everything that is wrong between several settings."""
    for name, source in config.sources.items():
        yield from _source(("sources", name), name, source)
    yield from _identities(config)
    if config.auth.jwt is not None:
        yield from _jwt(config.auth.jwt)
    if config.hub is not None:
        yield from _hub(config.hub)
    if config.spoke is not None:
        urls = config.spoke.url if isinstance(config.spoke.url, tuple) else (config.spoke.url,)
        for url in urls:
            yield from _url(("spoke", "url"), url)
        if not urls:
            yield Finding(("spoke", "url"), "is an empty list", "give the URL of a hub or broker")


def _source(key: Key, name: str, source: AnySource) -> Iterator[Finding]:
    if isinstance(source, ProgramSource | ServerSource | OpenAPISource):
        yield from _namespace(key, name, source.namespace)
    if isinstance(source, ProgramSource):
        yield from _command((*key, "command"), source.command.template)
    if isinstance(source, ServerSource | OpenAPISource):
        for header, value in source.headers.items():
            if header.lower() in _SECRET_HEADERS and not value.variables:
                yield Finding((*key, "headers", header), IN_FILE, SET_IT)
    if isinstance(source, ServerSource):
        yield from _url((*key, "url"), source.url)
    if isinstance(source, OpenAPISource):
        for field in ("openapi", "base_url", "proxy"):
            value: EnvText | None = getattr(source, field)
            if value is not None:
                yield from _url((*key, field), value)


def _namespace(key: Key, name: str, given: str | None) -> Iterator[Finding]:
    namespace = name if given is None else given
    if not namespace or "." in namespace or not namespace.isprintable():
        where = key if given is None else (*key, "namespace")
        yield Finding(where, "is no namespace: it is printable and has no dot", 'write namespace = "…"')


def _command(key: Key, command: str) -> Iterator[Finding]:
    """A whole command line. A path may hold spaces, the name of a program does not."""
    program, *rest = command.split() or [""]
    if not program:
        yield Finding(key, "is empty", "name a program")
    if rest and "/" not in command and "\\" not in command:
        # The rest is not shown: there may be a secret in it.
        yield Finding(key, "is the program alone", f'write command = "{program}", and the rest as args = ["…", "…"]')


def _url(key: Key, url: EnvText) -> Iterator[Finding]:
    """A password that stands in the file."""
    try:
        password = urlsplit(url.template).password
    except ValueError:
        return  # whoever uses it will say what is wrong with it
    if password and "${" not in password:
        yield Finding(key, f"holds a password, which {IN_FILE}", SET_IT)


def _identities(config: Config) -> Iterator[Finding]:
    """Names of identities that are used: are they there?"""
    used: list[tuple[Key, str | None]] = []
    mcp, http = config.serve.mcp, config.serve.http
    if mcp is not None:
        used += [(("serve", "mcp", "anonymous"), mcp.anonymous), (("serve", "mcp", "identity"), mcp.identity)]
    if http is not None:
        used.append((("serve", "http", "anonymous"), http.anonymous))
    if config.hub is not None:
        used.append((("hub", "anonymous"), config.hub.anonymous))
    if config.spoke is not None:
        used.append((("spoke", "anonymous"), config.spoke.anonymous))
    for key, name in used:
        if name is not None and name not in config.identities:
            hint = did_you_mean(name, config.identities) or f"add [identities.{name}]"
            yield Finding(key, f"names the identity {name!r}, which is not there", hint)


def _hub(hub: HubSettings) -> Iterator[Finding]:
    yield from _url(("hub", "url"), hub.url)
    if (hub.certificate is None) != (hub.private_key is None):
        missing = "private_key" if hub.private_key is None else "certificate"
        yield Finding(("hub",), f"has no {missing}", "certificate and private_key belong together")
    if hub.url.template.startswith("wss://") and hub.certificate is None:
        yield Finding(("hub", "url"), "is wss://, which needs a certificate", "give certificate and private_key")


def _jwt(jwt: JWTSettings) -> Iterator[Finding]:
    given = [name for name in ("key", "key_file", "jwks_url") if getattr(jwt, name) is not None]
    if len(given) != 1:
        has = " and ".join(given) or "no key"
        yield Finding(("auth", "jwt"), f"has {has}", "give one of key, key_file and jwks_url")
    if jwt.jwks_url is not None and not jwt.jwks_url.startswith("https://") and not _is_loopback(jwt.jwks_url):
        yield Finding(("auth", "jwt", "jwks_url"), "is not https://", "who could change the keys could be anybody")


def _is_loopback(url: str) -> bool:
    return url.startswith("http://") and urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


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
