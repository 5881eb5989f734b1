"""`load_config`: parse a TOML file to settings, or report all of its problems.

`msgspec.convert` would stop at the first problem, and cannot select the type of a table by its keys. So `TableReader`
walks the tables, and msgspec converts the single values. `check_settings` then checks values against each other.
"""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin
from urllib.parse import urlsplit

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, replace

from opwire.config.settings import (
    SECRET_IN_FILE,
    USE_ENVIRONMENT,
    AnySource,
    CallerCredential,
    ClientSettings,
    Config,
    ConfigProblem,
    EnvText,
    Key,
    OpenAPISettings,
    ProgramSource,
    ServerSource,
    SignedSettings,
    WebhookSettings,
    similar_keys,
)
from opwire.config.views import check_views
from opwire.errors import ConfigError
from opwire.model.origin import path_of

NAME = "opwire.toml"
"""The default name of the file."""

TEMPLATE = Path(__file__).with_name("template.toml").read_text(encoding="utf-8")
"""A commented `opwire.toml` with an example of every setting, which `opwire init` writes."""

_INVALID: Any = object()  # replaces a value that was rejected
_TYPE = re.compile(r"\b(?:object|str|int|float|bool)\b")
_TOML_TYPES = {"object": "table", "str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_MAX_WORD_CHARACTERS = 30
_MAX_LISTED_KEYS = 5  # listed if none is close
_POSITION = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_KEY_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED_KEY = rf"{_KEY_PART}(?:\s*\.\s*{_KEY_PART})*"
_TABLE = re.compile(rf"\s*\[\[?\s*({_DOTTED_KEY})\s*\]")
_VALUE = re.compile(rf"\s*({_DOTTED_KEY})\s*=")
_MULTILINE = re.compile(r'"""|' + "'''")
_MAX_REPORTED_PROBLEMS = 20
_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key"})


def find_config(start: Path | str = ".") -> Path | None:
    """Return the nearest `opwire.toml`, in this folder or one above it, or None."""
    folder = Path(start).absolute()
    return next((path for parent in (folder, *folder.parents) if (path := parent / NAME).is_file()), None)


def load_config(path: Path | str = NAME) -> Config:
    """Parse a file. Sources are not loaded, and environment variables are not read yet.

    Raises:
        ConfigError: the file is unreadable or invalid; the message lists all problems with lines, keys and suggestions.
    """
    config, problems = read_config(path)
    if config is None:
        raise ConfigError(problems_message(str(path), problems))
    return config


def read_config(path: Path | str) -> tuple[Config | None, tuple[ConfigProblem, ...]]:
    """Parse a file; return its settings, or its problems as data.

    Raises:
        ConfigError: the file is unreadable.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `opwire init` writes one") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: invalid UTF-8 at byte {error.start}") from error
    config, problems = parse_config(text)
    return None if config is None else replace(config, file=Path(path).absolute()), problems


def parse_config(text: str) -> tuple[Config | None, tuple[ConfigProblem, ...]]:
    """Parse TOML; return its settings, or its problems in the order of their lines."""
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        position = _POSITION.search(message)
        line = None if position is None or position[1] is None else int(position[1])
        problem = message if position is None else message[: position.start()]
        return None, (ConfigProblem((), f"invalid TOML: {problem[:1].lower()}{problem[1:]}", line=line),)
    except RecursionError:
        return None, (ConfigProblem((), "invalid TOML: nested too deeply"),)
    except ValueError:  # the only other one that Python's parser raises
        return None, (ConfigProblem((), "invalid TOML: a number has too many digits"),)
    reader = TableReader()
    config: Config | None = reader.read(tables, Config, exclude=("file",))
    problems = reader.problems
    if config is not None:
        # An inner problem of a table may be the cause of an outer one.
        inner = [problem.path for problem in problems]
        problems += [
            problem
            for problem in check_settings(config)
            if not any(path[: len(problem.path)] == problem.path for path in inner)
        ]
    if not problems:
        return config, ()
    lines = TOMLLines(text)
    located = [replace(problem, line=lines.line_of(problem.path)) for problem in problems]
    return None, tuple(sorted(located, key=lambda problem: (problem.line or 0, problem.key)))


class TOMLLines:
    """The line numbers of the keys of a TOML document, which `tomllib` does not report.

    This is a small scanner for lines that start a table or assign a key. It does not have to handle every document: for
    a key that it misses, the line of the enclosing table is reported.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[Key, int] = {}
        table: Key = ()
        delimiter = ""  # of the multi-line string that this line is a part of
        for number, line in enumerate(text.split("\n"), 1):
            if not delimiter:
                if table_header := _TABLE.match(line):
                    table = _parse_key(table_header[1])
                    self._lines.setdefault(table, number)
                elif table_header := _VALUE.match(line):
                    self._lines.setdefault(table + _parse_key(table_header[1]), number)
            for quotes in _MULTILINE.findall(line):
                delimiter = quotes if not delimiter else "" if quotes == delimiter else delimiter

    def line_of(self, key: Key) -> int | None:
        """Return the line of a key, or of the nearest enclosing one; None if it is unknown.

        A table without a header of its own is at its first inner one: `source` at [source.shop].
        """
        if key and key not in self._lines:
            inner = (line for path, line in self._lines.items() if path[: len(key)] == key)
            if line := next(inner, None):
                return line
        while key:
            if line := self._lines.get(key):
                return line
            key = key[:-1]
        return None


def _parse_key(dotted: str) -> Key:
    """Parse `a."b.c"` as ("a", "b.c"), with TOML's own parser."""
    parts: list[str] = []
    try:
        inner: Any = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    while isinstance(inner, dict):
        name, inner = next(iter(cast("dict[str, Any]", inner).items()))
        parts.append(name)
    return tuple(parts)


def problems_message(file: str, problems: Sequence[ConfigProblem]) -> str:
    """Return the message of a ConfigError."""
    if len(problems) == 1:
        return f"{file}: {problems[0]}"
    shown_problems = "".join(f"\n  {problem}" for problem in problems[:_MAX_REPORTED_PROBLEMS])
    more = f"\n  and {len(problems) - _MAX_REPORTED_PROBLEMS} more" if len(problems) > _MAX_REPORTED_PROBLEMS else ""
    return f"{file} has {len(problems)} problems:{shown_problems}{more}"


class TableReader:
    """Convert tables to settings, and collect all problems."""

    def __init__(self) -> None:
        self.problems: list[ConfigProblem] = []

    def read(self, table: Mapping[str, Any], kind: type[Struct], *, exclude: Collection[str] = ()) -> Any:
        """Return the settings, without invalid values, or None if one of them is required.

        `exclude` are fields that files cannot set.
        """
        settings = self._struct((), table, kind, exclude)
        return None if settings is _INVALID else settings

    def _reject(self, path: Key, message: str, suggestion: str = "") -> Any:
        self.problems.append(ConfigProblem(path, message, suggestion))
        return _INVALID

    def _struct(self, path: Key, table: Mapping[str, Any], kind: type[Struct], exclude: Collection[str] = ()) -> Any:
        fields = {field.name: field for field in msgspec.structs.fields(kind) if field.name not in exclude}
        unused = fields.keys() - table.keys()
        listed = f"the keys are {', '.join(fields)}" if len(fields) <= _MAX_LISTED_KEYS else ""
        for name in table.keys() - fields.keys():
            hint = similar_keys(name, unused)
            self._reject((*path, name), "unknown key", hint or listed)
        values: dict[str, Any] = {}
        for name, field in fields.items():
            if name in table:
                values[name] = self._value((*path, name), table[name], field.type)
            elif _is_required(field):
                values[name] = self._reject(path, f"missing key `{name}`")
        if any(_is_required(fields[name]) for name, value in values.items() if value is _INVALID):
            return _INVALID
        return kind(**{name: value for name, value in values.items() if value is not _INVALID})

    def _value(self, path: Key, value: Any, kind: Any) -> Any:
        if kind is Any:
            return value
        kinds = (
            [alternative for alternative in get_args(kind) if alternative is not NoneType]
            if get_origin(kind) in (Union, UnionType)
            else [kind]
        )
        texts = [
            alternative for alternative in kinds if isinstance(alternative, type) and issubclass(alternative, EnvText)
        ]
        tables = [
            alternative
            for alternative in kinds
            if isinstance(alternative, type) and issubclass(alternative, Struct) and alternative not in texts
        ]
        if texts and isinstance(value, dict) and value.keys() == {"env"} and isinstance(value["env"], str):
            value = f"${{{value['env']}}}"
        if isinstance(value, str) and get_origin(kinds[0]) is Literal and value not in (words := get_args(kinds[0])):
            expected = ", ".join(f'"{word}"' for word in words)
            problem = f'expected one of {expected}, got "{value[:_MAX_WORD_CHARACTERS]}"'
            return self._reject(path, problem, similar_keys(value, words))
        try:
            # Values are not part of these messages: a string may be a secret at the wrong key.
            converted = msgspec.convert(value, Union[tuple(map(_plain_type, kinds))])  # noqa: UP007 - of a runtime tuple
        except msgspec.ValidationError as error:
            message = _TYPE.sub(lambda type_name: _TOML_TYPES[type_name[0]], str(error))
            got = f", got {value}" if isinstance(value, int | float) and "got" not in message else ""
            return self._reject(path, f"{message[:1].lower()}{message[1:]}{got}")
        if isinstance(value, str) and texts:
            text = texts[0](value)
            return self._reject(path, *text.problem) if text.problem is not None else text
        if isinstance(value, dict) and tables:
            return self._table(path, cast("dict[str, Any]", value), tables)
        inner = next((alternative for alternative in kinds if get_origin(alternative) in (dict, tuple)), None)
        if isinstance(value, dict):
            values = {
                name: self._value((*path, name), element, get_args(inner)[1]) for name, element in converted.items()
            }
            return {name: element for name, element in values.items() if element is not _INVALID}
        if isinstance(value, list):
            items = [self._value((*path, n), element, get_args(inner)[0]) for n, element in enumerate(converted)]
            return tuple(element for element in items if element is not _INVALID)
        return converted

    def _table(self, path: Key, table: dict[str, Any], kinds: list[type[Struct]]) -> Any:
        """Convert a table of one of several types: each has a key of its own, its first required one.

        A type without a required key applies to tables that have no key of the other types.
        """
        if len(kinds) == 1:
            return self._struct(path, table, kinds[0])
        by_key = {
            next((field.name for field in msgspec.structs.fields(kind) if _is_required(field)), ""): kind
            for kind in kinds
        }
        default = by_key.pop("", None)
        kind_keys = [key for key in by_key if key in table]
        if len(kind_keys) == 1:
            return self._struct(path, table, by_key[kind_keys[0]])
        if kind_keys:
            return self._reject(path, f"the keys {' and '.join(kind_keys)} exclude each other", "keep one of them")
        if default is not None:
            return self._struct(path, table, default)
        for name in table:
            if hint := similar_keys(name, by_key):
                return self._reject((*path, name), "unknown key", hint)
        return self._reject(path, f"one of the keys {', '.join(by_key)} is missing")


def _is_required(field: FieldInfo) -> bool:
    return field.default is NODEFAULT and field.default_factory is NODEFAULT


def _plain_type(kind: Any) -> Any:
    """Return the type that msgspec checks first: tables and arrays are walked afterwards."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return str if issubclass(kind, EnvText) else dict[str, Any]
    containers: dict[Any, Any] = {dict: dict[str, Any], tuple: list[Any]}
    return containers.get(get_origin(kind), kind)


# --- settings that depend on each other -------------------------------------------------------------------------------


def check_settings(config: Config) -> Iterator[ConfigProblem]:
    """Yield the problems between several settings."""
    for name, source in config.sources.items():
        yield from _check_source(("sources", name), name, source)
    used = {
        ("serve", "mcp", "anonymous"): config.serve.mcp and config.serve.mcp.anonymous,
        ("serve", "mcp", "stdio_identity"): config.serve.mcp and config.serve.mcp.stdio_identity,
        ("serve", "http", "anonymous"): config.serve.http and config.serve.http.anonymous,
        ("hub", "anonymous"): config.hub and config.hub.anonymous,
        ("spoke", "anonymous"): config.spoke and config.spoke.anonymous,
        ("durable", "anonymous"): config.durable and config.durable.anonymous,
    }
    for path, name in used.items():
        if name is not None and name not in config.identities:
            hint = similar_keys(name, config.identities) or f"add [identities.{name}]"
            yield ConfigProblem(path, f"unknown identity {name!r}", hint)
    yield from check_views(config)
    if (jwt := config.auth.jwt) is not None:
        given_keys = [name for name in ("key", "key_file", "jwks_url") if getattr(jwt, name) is not None]
        if len(given_keys) != 1:
            problem = f"the keys {' and '.join(given_keys)} exclude each other" if given_keys else "the key is missing"
            yield ConfigProblem(("auth", "jwt"), problem, "set one of key, key_file and jwks_url")
        url = urlsplit(jwt.jwks_url or "https://")
        is_loopback = url.scheme == "http" and url.hostname in ("localhost", "127.0.0.1", "::1")
        if url.scheme != "https" and not is_loopback:
            hint = "otherwise the keys, and so all identities, could be replaced on the way"
            yield ConfigProblem(("auth", "jwt", "jwks_url"), "must be https://", hint)
    if (oauth := config.auth.oauth) is not None and (oauth.client_id is None) != (oauth.client_secret is None):
        yield ConfigProblem(("auth", "oauth"), "client_id and client_secret belong together", "set both")
    yield from _check_network(config)


def _check_network(config: Config) -> Iterator[ConfigProblem]:
    for name, table in (("hub", config.hub), ("spoke", config.spoke)):
        if table is not None and table.signed is not None:
            yield from _check_signed((name, "signed"), table.signed)
    if config.durable is not None:
        yield from _check_password(("durable", "url"), config.durable.url)
    if (hub := config.hub) is not None:
        yield from _check_password(("hub", "url"), hub.url)
        yield from _check_password(("hub", "cluster"), hub.cluster)
        if (hub.certificate is None) != (hub.private_key is None):
            missing = "private_key" if hub.private_key is None else "certificate"
            yield ConfigProblem(("hub",), f"missing key `{missing}`", "certificate and private_key belong together")
        if hub.url.template.startswith("wss://") and hub.certificate is None:
            yield ConfigProblem(("hub", "url"), "wss:// needs a certificate", "set certificate and private_key")
    if (spoke := config.spoke) is not None:
        urls = spoke.url if isinstance(spoke.url, tuple) else (spoke.url,)
        for url in urls:
            yield from _check_password(("spoke", "url"), url)
        if not urls:
            yield ConfigProblem(("spoke", "url"), "empty array", "set the URL of a hub or broker")


def _check_signed(path: Key, signed: SignedSettings) -> Iterator[ConfigProblem]:
    for name in ("key", "certificate"):
        if getattr(signed, name) is not None and getattr(signed, f"{name}_file") is not None:
            yield ConfigProblem(path, f"the keys {name} and {name}_file exclude each other", "keep one of them")
    has_key = signed.key is not None or signed.key_file is not None
    has_certificate = signed.certificate is not None or signed.certificate_file is not None
    if has_key != has_certificate:
        missing = "certificate_file" if has_key else "key_file"
        yield ConfigProblem(path, f"missing key `{missing}`", "a key and its certificate belong together")
    elif not has_key and not signed.authorities:
        hint = "set key_file and certificate_file to sign, authorities to verify, or all of them"
        yield ConfigProblem(path, "empty table", hint)


def _check_source(path: Key, name: str, source: AnySource) -> Iterator[ConfigProblem]:
    if isinstance(source, ProgramSource | ServerSource | OpenAPISettings):
        namespace = name if source.namespace is None else source.namespace
        is_derived = namespace == "" and isinstance(source, OpenAPISettings)
        if not (namespace or is_derived) or "." in namespace or not namespace.isprintable():
            at = path if source.namespace is None else (*path, "namespace")
            yield ConfigProblem(at, "invalid namespace: it is printable and has no dot", 'write namespace = "…"')
    if isinstance(source, ProgramSource):
        command = source.command.template
        program, *arguments = command.split() or [""]
        if not program:
            yield ConfigProblem((*path, "command"), "empty command", "name a program")
        elif arguments and not {"/", "\\"}.intersection(command):  # a path may contain spaces
            # The arguments are not shown: one of them may be a secret.
            hint = f'write command = "{program}", and the rest as args = ["…", "…"]'
            yield ConfigProblem((*path, "command"), "expected a program without arguments", hint)
    yield from _check_clients(path, source)
    yield from _check_webhooks((*path, "webhooks"), name, getattr(source, "webhooks", None))
    headers: dict[str, EnvText] = getattr(source, "headers", {})
    for header, value in headers.items():
        if header.lower() in _SECRET_HEADERS and not value.variables:
            yield ConfigProblem((*path, "headers", header), SECRET_IN_FILE, USE_ENVIRONMENT)
    for field in ("url", "openapi", "base_url", "proxy"):
        if isinstance(text := getattr(source, field, None), EnvText):
            yield from _check_password((*path, field), text)


def _check_clients(path: Key, source: AnySource) -> Iterator[ConfigProblem]:
    clients: dict[Key, Any] = {("auth",): getattr(source, "auth", None)}
    clients |= {("credentials", name): credential for name, credential in getattr(source, "credentials", {}).items()}
    for at, client in clients.items():
        if isinstance(client, ClientSettings) and client.login and client.exchange:
            yield ConfigProblem((*path, *at), "the keys login and exchange exclude each other", "keep one of them")
        elif isinstance(client, ClientSettings) and not (client.login or client.exchange or client.client_secret):
            yield ConfigProblem((*path, *at), "missing key `client_secret`", "or write login = true to sign in")
        elif isinstance(client, ClientSettings) and client.subject is not None and not client.exchange:
            yield ConfigProblem((*path, *at, "subject"), "it needs exchange = true", "write exchange = true beside it")
        elif isinstance(client, ClientSettings) and client.subject is not None and ":" not in client.subject:
            yield ConfigProblem((*path, *at, "subject"), "expected a function", 'write "module:function"')
        elif isinstance(client, CallerCredential) and client.caller != "token" and ":" not in client.caller:
            yield ConfigProblem((*path, *at, "caller"), "expected a function", 'write "token" or "module:function"')


def _check_webhooks(path: Key, name: str, webhooks: WebhookSettings | None) -> Iterator[ConfigProblem]:
    if webhooks is None:
        return
    given_keys = [key for key in ("signature", "verify", "unsigned") if getattr(webhooks, key)]
    if len(given_keys) != 1:
        problem = (
            f"the keys {' and '.join(given_keys)} exclude each other" if given_keys else "the signature is missing"
        )
        hint = "set signature and secret, or verify, or unsigned = true, which accepts everything"
        yield ConfigProblem(path, problem, hint)
    elif (webhooks.signature is None) != (webhooks.secret is None):
        missing = "secret" if webhooks.secret is None else "signature"
        yield ConfigProblem(path, f"missing key `{missing}`", "signature and secret belong together")
    if webhooks.verify is not None and ":" not in webhooks.verify:
        yield ConfigProblem((*path, "verify"), "expected a function", 'write "module:function"')
    if path_of(f"webhooks.{name}") != f"/webhooks/{name}":
        hint = "write a name of letters, digits, - and _"
        yield ConfigProblem(path, "the name of the source is part of the path of its webhooks", hint)


def _check_password(path: Key, url: EnvText | None) -> Iterator[ConfigProblem]:
    try:
        password = url and urlsplit(url.template).password
    except ValueError:
        return  # an invalid URL is reported by its user
    if password and "${" not in password:
        yield ConfigProblem(path, f"contains a password: {SECRET_IN_FILE}", USE_ENVIRONMENT)
