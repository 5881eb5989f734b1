"""Questions of handlers to their callers: a form for a person, a completion by a model, the roots of a client. No I/O.

Params and answers have the shape of MCP, so that a proxy passes them on unchanged: `elicitation/create`,
`sampling/createMessage` and `roots/list`. `Context.elicit`, `sample` and `roots` are the typed form.

A form is flat: the properties of its object are strings, numbers, booleans, or choices of strings. That is what the
protocol allows, and what every client can show.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, cast
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.errors import CallError, ConversionError, ErrorCode, UsageError
from opwire.names import limit_text
from opwire.runtime.text import shorten
from opwire.schema import Schema
from opwire.typed import converter, json_schema_of
from opwire.typed.plain import as_dict, as_list

T = TypeVar("T")

QuestionKind = Literal["elicit", "sample", "roots"]

METHODS: dict[QuestionKind, str] = {
    "elicit": "elicitation/create",
    "sample": "sampling/createMessage",
    "roots": "roots/list",
}
"""The request of MCP for each kind of question."""

KINDS: dict[str, QuestionKind] = {method: kind for kind, method in METHODS.items()}

QUESTION_TIMEOUT = 300.0
"""Seconds until an unanswered question fails, by default. The deadline of the call ends it too."""

MAX_TOKENS = 1_000
"""Tokens that `sample` asks for, by default."""

MAX_ROOTS = 1_000
"""Roots of an answer; one with more is rejected."""

_MAX_SHOWN_LENGTH = 200
_FORM_FORMATS = frozenset({"email", "uri", "date", "date-time"})  # clients reject a form with others
_SCALAR_TYPES = frozenset({"string", "number", "integer", "boolean"})
_HINT = (
    "Call it with a client that answers questions: `Client(…, on_question=…)`, an MCP client with elicitation, or "
    "`opwire call` in a terminal."
)


class Question(Struct, frozen=True):
    """A question of a handler. `params` are those of the request of MCP that `method` names.

    `key` names it among the questions of its call, for clients that get several at once.
    """

    kind: QuestionKind
    params: dict[str, Any] = {}
    key: str = ""

    @property
    def method(self) -> str:
        """The request of MCP."""
        return METHODS[self.kind]

    @property
    def text(self) -> str:
        """What is asked, in a few words, for errors and logs."""
        if self.kind == "elicit":
            message = self.params.get("message")
            return f'"{shorten(message if isinstance(message, str) else "", _MAX_SHOWN_LENGTH)}"'
        return "for a completion by a model" if self.kind == "sample" else "for the roots of its caller"


QuestionCallback = Callable[[Question], Awaitable[dict[str, Any]]]
"""Answers questions, in the shape of MCP.

`elicit`: `{"action": "accept", "content": {...}}`, or "decline", "cancel". `sample`: `{"role": "assistant", "content":
{"type": "text", "text": ...}, "model": ...}`. `roots`: `{"roots": [{"uri": ..., "name": ...}]}`.
"""


def question_callback(answer: Callable[[Question], Any]) -> QuestionCallback:
    """Return a function that answers questions as a callback. A plain function runs in a thread, so it may block."""
    if inspect.iscoroutinefunction(answer):
        return answer

    async def ask(question: Question) -> dict[str, Any]:
        reply = await asyncio.to_thread(answer, question)
        return await reply if inspect.isawaitable(reply) else reply

    return ask


async def ask(question: Question, callback: QuestionCallback | None, seconds: float) -> dict[str, Any]:
    """Return the answer of a callback.

    Raises:
        CallError: ABORTED, the callback is missing; TIMEOUT, it took too long; PROTOCOL_ERROR, it is not an object.
    """
    if callback is None:
        raise unanswerable(question)
    timer = asyncio.timeout(seconds)
    try:
        async with timer:
            answer = await callback(question)
    except TimeoutError:
        if not timer.expired():
            raise
        message = f"the operation asked {question.text}, and was not answered within {limit_text(seconds)} seconds"
        raise CallError(ErrorCode.TIMEOUT, message, retryable=False) from None
    if not isinstance(answer, dict):  # pyright: ignore[reportUnnecessaryIsInstance] - of a user's function
        raise invalid_answer(question, f"an answer is a dict, not {type(answer).__name__}")
    return answer


def unanswerable(question: Question, reason: str = "which its caller cannot answer") -> CallError:
    """Return the error for a question without an answer; its details have the question."""
    details = {"question": {"method": question.method, "params": question.params}, "hint": _HINT}
    return CallError(ErrorCode.ABORTED, f"the operation asks {question.text}, {reason}", details)


def invalid_answer(question: Question, reason: str) -> CallError:
    """Return the error for an answer that cannot be used."""
    return CallError(ErrorCode.PROTOCOL_ERROR, f"the operation asked {question.text}; the answer is invalid: {reason}")


# --- elicitation ------------------------------------------------------------------------------------------------------


class Elicitation(Struct, Generic[T], frozen=True):
    """The outcome of a form: accepted with data, declined, or cancelled (dismissed without a decision).

        if await context.elicit(bool, "Delete 3 orders?"):              # accepted, and not with False
            ...
        size = (await context.elicit(Size, "Which size?")).unwrap()     # or the call ends

    It is true if it was accepted, unless its data is False.
    """

    action: Literal["accept", "decline", "cancel"]
    data: T | None = None
    message: str = ""

    @property
    def accepted(self) -> bool:
        """Whether there is data."""
        return self.action == "accept"

    def __bool__(self) -> bool:
        return self.accepted and self.data is not False

    def unwrap(self) -> T:
        """Return the data.

        Raises:
            CallError: ABORTED, it was declined or cancelled.
        """
        if not self.accepted:
            outcome = "declined" if self.action == "decline" else "cancelled"
            raise CallError(ErrorCode.ABORTED, f"{Question('elicit', {'message': self.message}).text} was {outcome}")
        return cast("T", self.data)


def read_action(answer: Mapping[str, Any], question: Question) -> Elicitation[None]:
    """Return the outcome of a question to a person, without its data.

    Raises:
        CallError: PROTOCOL_ERROR, the answer is invalid.
    """
    action = answer.get("action")
    if action not in ("accept", "decline", "cancel"):
        raise invalid_answer(question, "the action is not accept, decline or cancel")
    return Elicitation(action, None, question.params["message"])


def address_question(url: str, message: str, key: str) -> Question:
    """Return the question that shows an address; revisions before 2026-07-28 need an id of it."""
    return Question("elicit", {"mode": "url", "message": message, "url": url, "elicitationId": uuid4().hex}, key)


class Form(Generic[T]):
    """The form of a type or a JSON Schema. A type that is not an object is the field `value` of one.

    Raises:
        UsageError: the form would not be flat.
    """

    def __init__(self, answer_type: Any) -> None:
        is_schema = isinstance(answer_type, Mapping)
        schema = dict(cast("Mapping[str, Any]", answer_type)) if is_schema else json_schema_of(answer_type)
        self._wraps = schema.get("type") != "object"
        object_schema = (
            {"type": "object", "properties": {"value": schema}, "required": ["value"]} if self._wraps else schema
        )
        if isinstance(object_schema.get("additionalProperties"), dict):
            raise UsageError("a form has named fields: use a class, not a mapping")
        definitions = as_dict(schema.get("$defs"))
        field_schemas = as_dict(object_schema.get("properties"))
        properties = {name: _field(name, field_schema, definitions) for name, field_schema in field_schemas.items()}
        self.schema: dict[str, Any] = {"type": "object", "properties": properties}
        self.schema |= {
            keyword: object_schema[keyword] for keyword in ("title", "description") if object_schema.get(keyword)
        }
        if required := [name for name in as_list(object_schema.get("required")) if name in properties]:
            self.schema["required"] = required
        self._convert = None if is_schema else converter(answer_type)
        self._checked = Schema(self.schema) if is_schema else None

    def question(self, message: str, key: str) -> Question:
        """Return the question that shows the form."""
        return Question("elicit", {"message": message, "requestedSchema": self.schema}, key)

    def read(self, answer: Mapping[str, Any], question: Question) -> Elicitation[T]:
        """Return the outcome.

        Raises:
            CallError: PROTOCOL_ERROR, the answer is invalid.
        """
        outcome: Elicitation[Any] = read_action(answer, question)
        if not outcome.accepted:
            return outcome
        content: Any = answer.get("content") or {}
        try:
            if self._checked is not None and (problems := self._checked.problems(content, limit=1)):
                raise ConversionError(f"{problems[0].path or '$'}: {problems[0].message}")
            if self._wraps:
                if "value" not in as_dict(content):
                    raise ConversionError("$.value: it is missing")
                content = content["value"]
            return replace(outcome, data=content if self._convert is None else self._convert(content))
        except ConversionError as error:
            raise invalid_answer(question, str(error)) from error


def _field(name: str, schema: Any, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of one field, in the form that clients parse."""
    field = _resolved(schema, definitions)
    if isinstance(field.get("const"), str):
        field["enum"] = [field.pop("const")]
    options = [option for option in as_list(field.get("enum")) if option is not None]
    if options and all(isinstance(option, str) for option in options):
        field |= {"type": "string", "enum": options}
    if field.get("format") not in _FORM_FORMATS:
        field.pop("format", None)
    if field.get("default", ...) is None:
        del field["default"]
    if field.get("type") == "array":
        items = field["items"] = _resolved(field.get("items"), definitions)
        if "enum" in items:
            field["items"] = {"type": "string", "enum": items["enum"]}
        if not items.keys().isdisjoint(("enum", "anyOf", "oneOf")):
            return field
    if field.get("type") not in _SCALAR_TYPES:
        kinds = "text, numbers, booleans, and one or several of some choices"
        raise UsageError(f"the field {name!r} of a form is not flat: clients can ask for {kinds}")
    return field


def _resolved(schema: Any, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with references inlined, and an optional type without its null."""
    resolved: dict[str, Any] = dict(as_dict(schema))
    for _ in range(5):
        inner = [option for option in as_list(resolved.get("anyOf")) if as_dict(option).get("type") != "null"]
        if isinstance(ref := resolved.pop("$ref", None), str):
            resolved = {**as_dict(definitions.get(ref.rpartition("/")[2])), **resolved}
        elif len(inner) == 1:
            del resolved["anyOf"]
            resolved = {**as_dict(inner[0]), **resolved}
    kinds = [kind for kind in as_list(resolved.get("type")) if kind != "null"]
    return {**resolved, "type": kinds[0]} if len(kinds) == 1 else resolved


# --- sampling and roots -----------------------------------------------------------------------------------------------


class SampledMessage(Struct, frozen=True, rename="camel"):
    """A message of the caller's model. `content` is one block, or a list of blocks."""

    role: Literal["user", "assistant"]
    content: dict[str, Any] | list[dict[str, Any]]
    model: str
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        """The text of its blocks."""
        blocks = self.content if isinstance(self.content, list) else [self.content]
        return "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")

    @classmethod
    def read(cls, answer: Mapping[str, Any], question: Question) -> "SampledMessage":
        """Parse an answer.

        Raises:
            CallError: PROTOCOL_ERROR, the answer is invalid.
        """
        try:
            return msgspec.convert(answer, cls)
        except msgspec.ValidationError as error:
            raise invalid_answer(question, str(error)) from error


def sampling(messages: str | Sequence[Mapping[str, Any]], max_tokens: int, options: Mapping[str, Any]) -> Question:
    """Return the question for a completion. A text is one message of the user; `options` have names of the protocol."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": {"type": "text", "text": messages}}]
    params = {name: value for name, value in options.items() if value is not None}
    return Question("sample", {"messages": list(messages), "maxTokens": max_tokens, **params})


class Root(Struct, frozen=True):
    """A directory or file that the caller lets the operation work on."""

    uri: str
    name: str | None = None


class _Roots(Struct):
    roots: list[Root]


def read_roots(answer: Mapping[str, Any], question: Question) -> list[Root]:
    """Parse the answer to a question for roots.

    Raises:
        CallError: PROTOCOL_ERROR, the answer is invalid.
    """
    try:
        roots = msgspec.convert(answer, _Roots).roots
    except msgspec.ValidationError as error:
        raise invalid_answer(question, str(error)) from error
    if len(roots) > MAX_ROOTS:
        raise invalid_answer(question, f"{len(roots):,} roots, and the limit is {MAX_ROOTS:,}")
    return roots
