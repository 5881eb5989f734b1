"""Loads one document, calls a sample of its operations, and compares each request with what was meant."""

import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from opwire import CallError, OperationRegistry, Schema, SchemaError
from opwire.model.operation import OperationType
from opwire.openapi.client import from_openapi
from tests.judges.directory.decoding import (
    Request,
    Wrong,
    check_body,
    check_cookies,
    check_headers,
    check_path,
    check_query,
    query_pairs,
    split_path,
    without_template,
)
from tests.judges.directory.reading import Body, Document, Endpoint, Parameter, Unreadable, secret_place
from tests.judges.directory.values import NoValue, Values
from tests.openapi.client.echo import Arrived, EchoServer, answer

BASE = "/base"
FILE = "AAEC/2hlbGxv"  # base64
_PLAIN_STYLES = frozenset({"spaceDelimited", "pipeDelimited", "tabDelimited", "label", "matrix"})
_COMPILED = 17  # output schemas per document: some take seconds


class Verdict(Struct):
    """What was found in one document."""

    document: str
    operations: int = 0
    called: int = 0
    error: str = ""  # why it was not loaded
    skipped: list[str] = []
    uncompiled: list[str] = []  # schemas that could not be used
    rejected: list[str] = []  # inputs
    wrong: list[str] = []  # requests
    unknown: list[str] = []  # operations for which no input was made
    seconds: float = 0.0


class Meant(NamedTuple):
    """What a call is meant to send."""

    parameters: list[tuple[Parameter, Any]]
    body: Body | None
    value: Any
    files: set[str]

    def at(self, location: str) -> list[tuple[Parameter, Any]]:
        """Return the parameters of a location."""
        return [(parameter, value) for parameter, value in self.parameters if parameter.location == location]

    def inputs(self) -> list[dict[str, Any]]:
        """Return the forms that opwire's input may have: flat, with a `body`, or grouped by location."""
        flat = {parameter.name: value for parameter, value in self.parameters}
        groups: dict[str, Any] = {}
        for parameter, value in self.parameters:
            groups.setdefault(parameter.location, {})[parameter.name] = value
        if self.body is None or self.value is None:
            return [flat, groups]
        whole = [{**flat, "body": self.value}, {**groups, "body": self.value}]
        is_split = isinstance(self.value, dict) and flat.keys().isdisjoint(self.value)
        return [{**flat, **self.value}, *whole] if is_split else whole


class DocumentCalls:
    """The calls of one document."""

    def __init__(self, path: Path, parsed: Path, server: EchoServer, count: int) -> None:
        self.verdict = Verdict(str(path))
        self._path = path
        self._document = Document(msgspec.json.decode(parsed.read_bytes()) if parsed.exists() else {})
        self._random = random.Random(path.parts[-3:].__repr__())
        self._values = Values(self._document, self._random)
        self._server = server
        self._count = count
        self._secrets = {
            name: f"secret-{index}"
            for index, (name, scheme) in enumerate(self._document.schemes().items())
            if secret_place(scheme) is not None
        }

    async def run(self) -> Verdict:
        """Load the document and call its operations."""
        async with AsyncExitStack() as stack:
            credentials: dict[str, Any] = {
                name: (secret, secret) if self._is_basic(name) else secret for name, secret in self._secrets.items()
            }
            api = from_openapi(
                self._path, namespace="api", base_url=f"{self._server.url}{BASE}", credentials=credentials, timeout=20
            )
            registry = OperationRegistry(normalize="off")
            try:
                await stack.enter_async_context(api)
                registry.register_all(api)
            except CallError as error:
                self.verdict.error = str(error)[:300]
                return self.verdict
            self.verdict.skipped = [str(each)[:300] for each in api.report.skipped]
            operations = {(plan.method, plan.path): each for each in api if (plan := _plan(each))}
            self.verdict.operations = len(operations)
            found = list(self._document.endpoints())
            missing = [each for each in found if (each.method, _slash(each.path)) not in operations]
            if not self.verdict.skipped:
                self.verdict.skipped = [f"missing {each.method} {each.path}" for each in missing]
            sample = [each for each in found if (each.method, _slash(each.path)) in operations]
            for index, endpoint in enumerate(self._random.sample(sample, min(self._count, len(sample)))):
                if index < _COMPILED:
                    self._compile(endpoint, operations[endpoint.method, _slash(endpoint.path)].spec)
                await self._judge(registry, endpoint, operations[endpoint.method, _slash(endpoint.path)].spec)
        return self.verdict

    def _is_basic(self, name: str) -> bool:
        scheme = self._document.schemes()[name]
        return scheme.get("type") == "basic" or str(scheme.get("scheme", "")).lower() == "basic"

    def _compile(self, endpoint: Endpoint, spec: Any) -> None:
        try:
            spec.output_schema.compile()
        except SchemaError as error:
            self.verdict.uncompiled.append(f"{endpoint.method} {endpoint.path}: the output: {error}"[:300])

    async def _judge(self, registry: OperationRegistry, endpoint: Endpoint, spec: Any) -> None:
        where = f"{endpoint.method} {endpoint.path}"
        try:
            meant = self._meant(endpoint)
        except (NoValue, Unreadable) as error:
            self.verdict.unknown.append(f"{where}: {error}"[:300])
            return
        try:
            input = _accepted(spec.input_schema, meant.inputs())
            self._server.arrived.clear()
            if spec.type is OperationType.SUBSCRIPTION:
                async for _ in registry.subscribe(spec.id, input):
                    break
            else:
                await registry.execute(spec.id, input)
        except SchemaError as error:
            self.verdict.uncompiled.append(f"{where}: the input: {error}"[:300])
            return
        except CallError as error:
            if not self._server.arrived:
                self.verdict.rejected.append(f"{where}: {error}"[:300])
                return
        except Exception as error:  # anything else is a fault
            self.verdict.wrong.append(f"{where}: {type(error).__name__}: {error}"[:300])
            return
        self.verdict.called += 1
        try:
            (arrived,) = self._server.arrived
            self._check(endpoint, meant, arrived)
        except (Wrong, ValueError) as error:
            self.verdict.wrong.append(f"{where}: {error}"[:300])

    # --- what is meant ----------------------------------------------------------------------------------------------

    def _meant(self, endpoint: Endpoint) -> Meant:
        given: list[tuple[Parameter, Any]] = []
        for parameter in self._parameters(endpoint):
            if not parameter.required and self._random.random() < 0.4:
                continue
            try:
                given.append((parameter, self._parameter_value(parameter, endpoint.path)))
            except NoValue:
                if parameter.required:
                    raise
        keys = [key for parameter, value in given for key in _query_keys(parameter, value)]
        if len(keys) != len(set(keys)):
            raise Unreadable("an exploded object has the name of another parameter")
        body = self._document.body(endpoint)
        if body is None or not (body.required or self._random.random() < 0.8):
            return Meant(given, None, None, set())
        files = self._files(body)
        value = self._body_value(body, files)
        if value == {} and not body.required:  # among the parameters, it cannot be told from an absent one
            return Meant(given, None, None, set())
        return Meant(given, body, value, files)

    def _parameters(self, endpoint: Endpoint) -> list[Parameter]:
        """Return the parameters that a caller gives: those of the path, also undeclared ones, and no secrets."""
        places = self._secret_places(endpoint)
        template, query = split_path(endpoint.path)
        variables = dict.fromkeys(_variables(template + "?" + query))
        found: list[Parameter] = []
        for each in self._document.parameters(endpoint):
            name, location, mark = each.name, each.location, f"{{{each.name}}}"
            key = name.lower() if location == "header" else name
            if location != "path" and (location, key) in places:
                continue
            if mark in query and mark not in template and location in ("path", "query"):
                location = "query" if f"{name}={mark}" in query.split("&") else "path"
                style = "form" if location == "query" else "simple"
                found.append(each._replace(location=location, style=style))
                variables.pop(name, None)
            elif location != "path" or name in variables:
                found.append(each)
                if location == "path":
                    variables.pop(name)
        return found + [Parameter(name, "path", {}, "simple", False, True) for name in variables]

    def _parameter_value(self, parameter: Parameter, path: str) -> Any:
        crowded = any(segment.count("{") > 1 and f"{{{parameter.name}}}" in segment for segment in path.split("/"))
        plain = parameter.location in ("header", "cookie") or parameter.style in _PLAIN_STYLES or crowded
        plain = plain or parameter.reserved
        value = self._values.make(parameter.schema, plain=plain)
        if value in ([], {}, "", ".", "..") or (plain and isinstance(value, str) and not value.isascii()):
            raise NoValue("nothing is sent")
        return value

    def _files(self, body: Body) -> set[str]:
        if body.kind != "multipart":
            return {""} if body.kind == "range" and self._is_file(body.schema) else set()
        return {name for name, each in self._values.properties(body.schema).items() if self._is_file(each)}

    def _is_file(self, schema: Any) -> bool:
        node = self._document.resolve(schema)
        if isinstance(node, dict) and node.get("type") == "array":
            return self._is_file(node.get("items", {}))
        return isinstance(node, dict) and (node.get("format") == "binary" or node.get("type") == "file")

    def _body_value(self, body: Body, files: set[str]) -> Any:
        kind = self._values.kind(body.schema)
        if body.kind == "binary" or "" in files:
            return FILE
        if body.kind == "text" and kind in ("object", "array"):
            return "some text"
        value = self._values.make(body.schema)
        if body.kind in ("form", "multipart"):
            if not isinstance(value, dict):
                raise NoValue("a form is an object")
            for name in files & value.keys():
                value[name] = [FILE] if isinstance(value[name], list) else FILE
            # An empty container, or null, sends no field at all.
            value = {name: each for name, each in value.items() if each not in ([], {})}
        return value

    def _secret_places(self, endpoint: Endpoint) -> set[tuple[str, str]]:
        schemes = self._document.schemes()
        names = {name for each in self._document.alternatives(endpoint) for name in each}
        places = {secret_place(schemes[name]) for name in names if name in schemes}
        return {each for each in places if each is not None}

    # --- what arrived -----------------------------------------------------------------------------------------------

    def _check(self, endpoint: Endpoint, meant: Meant, arrived: Arrived) -> None:
        request = Request(arrived.method, arrived.path, arrived.query, arrived.headers, arrived.body)
        if request.method != endpoint.method:
            raise Wrong(f"sent as {request.method}")
        secrets = self._check_secrets(endpoint, request)
        check_path(endpoint.path, request, BASE, meant.parameters)
        fields = without_template(endpoint.path, request.query.split("&"), meant.parameters)
        check_query([each for each in query_pairs(fields) if ("query", each[0]) not in secrets], meant.at("query"))
        check_headers(request, meant.at("header"))
        if meant.body is not None:
            check_body(meant.body, meant.value, request, self._document, meant.files)
        elif request.body and meant.body is None:
            raise Wrong(f"a body that was not given: {request.body[:80]!r}")
        if any(parameter.name.lower() == "cookie" for parameter, _ in meant.at("header")):
            return  # which may have any value
        check_cookies(request, meant.at("cookie"), {name for location, name in secrets if location == "cookie"})

    def _check_secrets(self, endpoint: Endpoint, request: Request) -> set[tuple[str, str]]:
        """Check that one alternative is met, with one secret per place; return the places."""
        schemes, alternatives = self._document.schemes(), self._document.alternatives(endpoint)
        used: set[tuple[str, str]] = set()
        met = not alternatives
        for names in alternatives:
            places = [secret_place(schemes[name]) if name in schemes else None for name in names]
            if None in places:
                met = True  # a certificate, or an undeclared scheme: nothing that a request could show
                continue
            wanted = {each for each in places if each is not None}
            values = {place: _at(request, place) for place in wanted}
            if any(len(each) > 1 for each in values.values()):
                raise Wrong(f"security: several secrets in one place: {values}")
            if all(values.values()):
                met, used = True, used | wanted
        if not met:
            raise Wrong(f"security: no alternative of {alternatives} is met")
        return used


def _at(request: Request, place: tuple[str, str]) -> list[str]:
    location, name = place
    if location == "header":
        return request.header(name)
    if location == "query":
        return [text for key, text in query_pairs(request.query.split("&")) if key == name]
    cookies = "; ".join(request.header("cookie")).split("; ")
    return [each for each in cookies if each.partition("=")[0] == name]


def _accepted(schema: Schema, inputs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the input that the schema accepts, else the one with the fewest problems."""
    declared: dict[str, Any] = schema.json.get("properties", {}) if isinstance(schema.json, dict) else {}
    forms = [each for each in inputs if "body" not in each or "body" in declared] or inputs
    return min(forms, key=lambda each: 0 if schema.is_valid(each) else len(schema.problems(each)))


def _query_keys(parameter: Parameter, value: Any) -> list[str]:
    if parameter.location != "query":
        return []
    is_spread = parameter.explode and isinstance(value, dict) and parameter.style == "form"
    return list(value) if is_spread else [parameter.name]


def _plan(operation: Any) -> Any:
    return operation.handler.__self__.plan


def _variables(template: str) -> list[str]:
    return [each.partition("}")[0] for each in template.split("{")[1:] if "}" in each]


def _slash(path: str) -> str:
    return path if path.startswith("/") else f"/{path}"


def no_content() -> bytes:
    """Return the answer to every call."""
    return answer(204)
