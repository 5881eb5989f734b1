"""URI templates of resources (RFC 6570), matched with the URIs that clients read. No I/O.

    {name}     one segment, percent-encoded           {?a,b}  query parameters, all optional, in any order
    {+path}    with slashes                           {/name} {.name} {#name}  after that character
    {/path*}   a list of segments

A template has at most one variable that spans segments (`{+path}`, `{/path*}`, `{#name}`), and something between two
variables. So a URI is matched from both ends without backtracking, in linear time: it comes from a client.

Values of a path never contain `..` as a segment, start with a slash or a drive, or contain control characters: handlers
append them to directories.
"""

import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from opwire.errors import RegistrationError

_MAX_QUERY_VALUES = 100
MAX_URI = 8192
"""Characters of a URI."""

_EXPRESSION = r"\{([+#./;?&=,!@|]?)([^{}]*)\}"
_NAME = r"[A-Za-z0-9_]+"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*:"
_UNSAFE_VALUE = r"[\x00-\x1f\x7f]|^[/\\]|^[A-Za-z]:[/\\]|(?:^|[/\\])\.\.(?:$|[/\\])"
_OPERATOR_PREFIXES = {"": "", "+": "", "#": "#", ".": ".", "/": "/"}
_FORBIDDEN_CHARACTERS = {"": "/?#&,", "+": "?#", "#": "", ".": "./?#", "/": "/?#"}


class _Variable(NamedTuple):
    name: str
    operator: str
    is_list: bool

    @property
    def spans(self) -> bool:
        """Whether its value spans segments."""
        return self.is_list or self.operator in ("+", "#")

    def parse(self, text: str) -> Any:
        """Return the value in a URI; None if it is not one."""
        forbidden = "?#" if self.is_list else _FORBIDDEN_CHARACTERS[self.operator]
        if not text or any(character in forbidden for character in text):
            return None
        values = [unquote(segment) for segment in (text.split("/") if self.is_list else [text])]
        if any(re.search(_UNSAFE_VALUE, part) for part in (*values, "/".join(values))):  # handlers join a list, too
            return None
        return values if self.is_list else values[0]


class URITemplate:
    """A parsed template.

        URITemplate("shop://{kind}/{name}").match("shop://articles/tea")  # {"kind": "articles", "name": "tea"}

    Raises:
        RegistrationError: the template is invalid, or has what is not supported.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        self._literals = [""]  # around the variables
        self._variables: list[_Variable] = []
        self._query: list[str] = []
        if not re.match(_SCHEME, template) or len(template) > MAX_URI or not template.isprintable():
            raise self._error(f"a URI begins with its scheme (`shop://…`) and has at most {MAX_URI:,} characters")
        position = 0
        for expression in re.finditer(_EXPRESSION, template):
            self._add_literal(template[position : expression.start()])
            self._add_expression(expression[1], expression[2].split(","))
            position = expression.end()
        self._add_literal(template[position:])
        if len(set(self.names)) < len(self.names):
            raise self._error("a variable occurs twice")
        if sum(variable.spans for variable in self._variables) > 1:
            raise self._error("only one variable can span segments")
        if not all(self._literals[1:-1]):
            raise self._error("there is nothing between two variables")

    @property
    def names(self) -> list[str]:
        """The names of the variables; empty for the URI of a single resource."""
        return [*(variable.name for variable in self._variables), *self._query]

    @property
    def optional(self) -> frozenset[str]:
        """The names of the query parameters."""
        return frozenset(self._query)

    def _error(self, problem: str) -> RegistrationError:
        return RegistrationError(f"invalid URI template {self.template[:100]!r}: {problem}")

    def _add_literal(self, text: str) -> None:
        if "{" in text or "}" in text:
            raise self._error("a brace is not closed")
        if text and self._query:
            raise self._error("query parameters are at its end")
        self._literals[-1] += text

    def _add_expression(self, operator: str, names: list[str]) -> None:
        if operator in ("?", "&"):
            self._query += [self._name(name) for name in names]
            return
        if operator not in _OPERATOR_PREFIXES or self._query:
            raise self._error("query parameters are at its end" if self._query else f"{operator!r} is not supported")
        for number, name in enumerate(names):
            is_list = name.endswith("*") and operator == "/"
            variable = _Variable(self._name(name.removesuffix("*") if is_list else name), operator, is_list)
            lead = _OPERATOR_PREFIXES[operator]
            self._literals[-1] += (lead if lead != "#" else ",") or "," if number else lead
            self._variables.append(variable)
            self._literals.append("")

    def _name(self, text: str) -> str:
        if not re.fullmatch(_NAME, text):
            raise self._error(f"{text[:50]!r} is not a variable; write {{+path}} for a value with slashes")
        return text

    def match(self, uri: str) -> dict[str, Any] | None:
        """Return the values of the variables in a URI; None if it does not match."""
        if len(uri) > MAX_URI:
            return None
        values: dict[str, Any] = {}
        if self._query:
            uri, _, query = uri.partition("?")
            pairs = parse_qsl(query, keep_blank_values=True) if query.count("&") < _MAX_QUERY_VALUES else []
            query_values = dict(pairs)
            values = {name: query_values[name] for name in self._query if name in query_values}
        texts = self._texts(uri)
        if texts is None:
            return None
        for variable, text in zip(self._variables, texts, strict=True):
            value = variable.parse(text)
            if value is None:
                return None
            values[variable.name] = value
        return values

    def _texts(self, uri: str) -> list[str] | None:
        """Return the parts of a URI between the literals: found from the left before the spanning variable."""
        if not self._variables:
            return [] if uri == self._literals[0] else None
        prefix, *inner_literals, suffix = self._literals
        if not uri.startswith(prefix) or not uri.endswith(suffix) or len(uri) < len(prefix) + len(suffix):
            return None
        start, end = len(prefix), len(uri) - len(suffix)
        spanning = next((index for index, variable in enumerate(self._variables) if variable.spans), 0)
        texts_before: list[str] = []
        for literal in inner_literals[:spanning]:
            position = uri.find(literal, start, end)
            if position < 0:
                return None
            texts_before.append(uri[start:position])
            start = position + len(literal)
        texts_after: list[str] = []
        for literal in reversed(inner_literals[spanning:]):
            position = uri.rfind(literal, start, end)
            if position < 0:
                return None
            texts_after.insert(0, uri[position + len(literal) : end])
            end = position
        return [*texts_before, uri[start:end], *texts_after]
