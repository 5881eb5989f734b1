"""The context of a call, which handlers receive: who calls, until when, and how to report, ask and log."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from opwire.model.identity import Identity
from opwire.model.log_message import LogLevel, LogMessage, severity
from opwire.model.questions import (
    MAX_TOKENS,
    QUESTION_TIMEOUT,
    Elicitation,
    Form,
    Question,
    QuestionCallback,
    Root,
    SampledMessage,
    address_question,
    ask,
    read_action,
    read_roots,
    sampling,
)
from opwire.model.trace import trace_of
from opwire.typed.plain import replace_surrogates

T = TypeVar("T")

REQUEST_STATE = "opwire.request_state"
"""The key of a dict in the metadata of a context, which all calls on behalf of one request share, for policies."""

MAX_PROGRESS_MESSAGE = 2000
"""Characters of the message of a progress report; the rest is cut off."""

_MAX_PROGRESS_AMOUNT = 2.0**63


class Progress(Struct, frozen=True):
    """The progress of a call. `total` is None if unknown."""

    progress: float
    total: float | None = None
    message: str | None = None

    def bounded(self) -> "Progress | None":
        """Return the part that any peer can parse: finite numbers, a short message. None without a valid `progress`."""
        progress, total = _finite_amount(self.progress), _finite_amount(self.total)
        if progress is None:
            return None
        message = None if self.message is None else replace_surrogates(str(self.message)[:MAX_PROGRESS_MESSAGE])
        return Progress(progress, total, message)


def _finite_amount(value: Any) -> float | None:
    # Not NaN, an infinity, or an integer of 400 digits: callers calculate with it.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) <= _MAX_PROGRESS_AMOUNT else None


class Inbound(Struct, frozen=True):
    """The external request that a call belongs to: its id, and the connection that received it.

    `connection` is the `PendingRequestMap` that received it; None for other surfaces (HTTP, MCP, a journal).
    """

    request_id: str
    connection: object = None


class Context(Struct, frozen=True, kw_only=True):
    """The call that a handler serves. A parameter annotated `Context` receives it.

    `deadline` is a monotonic time (`time.monotonic()`), or None. `env` calls other operations on behalf of this call:
    they inherit its identity, deadline and metadata, and have its request id as their parent. `metadata` stays in this
    process, except for the `traceparent` and `tracestate` of a distributed trace, which are propagated everywhere.

        @registry.query("shop.total")
        async def total(cart: str, context: Context) -> float:
            items = await context.env.carts.items(cart=cart)

    A remote call (`Spoke.call`, `Client.call`) with this context is a child of this call, with the identity of its
    caller. A connection that cannot transmit that identity rejects the call; `detached()` returns a context with the
    identity of this process instead.
    """

    request_id: str | None = None
    parent_request_id: str | None = None
    identity: Identity | None = None
    deadline: float | None = None
    metadata: Mapping[str, Any] = {}
    on_progress: Callable[[Progress], object] | None = None  # callback of `report`
    on_question: QuestionCallback | None = None  # answers `elicit`, `sample` and `roots`; None: it cannot be asked
    on_log: Callable[[LogMessage], object] | None = None  # callback of `log`
    watched: bool = False  # the deadline is enforced by the creator of this context
    bind_env: Callable[["Context"], Any] | None = None
    inbound: Inbound | None = None  # set by the surface that accepted the request
    resume_from: str | None = None  # the cursor of the last item that the caller of a subscription has

    @property
    def env(self) -> Any:
        """Other operations by namespace and name: `context.env.math.add(a=1, b=2)`."""
        if self.bind_env is None:
            raise RuntimeError("this context does not belong to a running call; use build_env(registry)")
        return self.bind_env(self)

    @property
    def is_served(self) -> bool:
        """Whether this is the context of an external request itself, and not of a call that was made for it."""
        return self.inbound is not None and self.inbound.request_id == self.request_id

    @property
    def remaining(self) -> float | None:
        """The seconds until the deadline, or None."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def child(self) -> "Context":
        """Return the context of a call made on behalf of this one. Its progress is not reported; it may ask."""
        ids: dict[str, Any] = {"request_id": uuid4().hex, "parent_request_id": self.request_id}
        return replace(self, **ids, watched=False, on_progress=None, resume_from=None)

    def detached(self) -> "Context":
        """Return a context with the identity of this process, and the same deadline and trace.

        await spoke.call("audit.write", entry, context=context.detached())
        """
        return Context(deadline=self.deadline, metadata=dict(trace_of(self.metadata)))

    def report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report the progress of the call, if its caller asked for it.

        Over a network, some reports may be left out: a newer one replaces those that could not be sent yet.
        """
        if self.on_progress is not None:
            self.on_progress(Progress(progress, total, message))

    @overload
    async def elicit(
        self, answer_type: type[T], message: str, *, key: str = ..., timeout: float = ...
    ) -> Elicitation[T]: ...
    @overload
    async def elicit(
        self, answer_type: Any, message: str, *, key: str = ..., timeout: float = ...
    ) -> Elicitation[Any]: ...
    async def elicit(
        self, answer_type: Any, message: str, *, key: str = "", timeout: float = QUESTION_TIMEOUT
    ) -> Elicitation[Any]:
        """Ask the person behind the call, and return the typed outcome.

            if not await context.elicit(bool, f"Delete {count} orders?"):
                return "nothing was deleted"

        `answer_type` is a type, or a JSON Schema: a boolean, a number, a text, a choice (`Literal`, an enum), or a
        class with such fields. The outcome is true if the form was accepted, unless with False; `action` tells
        "decline" from "cancel", and `unwrap()` returns the data or ends the call. `key` names the question, for clients
        that get several at once; by default it is made from the question.

        A client without a session (MCP 2026-07-28) calls the operation again with the answer, so that what comes
        before the question is repeated: ask before changing anything.

        Raises:
            CallError: ABORTED, the caller cannot be asked; TIMEOUT, the question was not answered within `timeout`
                seconds, or until the deadline; PROTOCOL_ERROR, the answer is invalid.
            UsageError: the type is not flat.
        """
        form: Form[Any] = Form(answer_type)
        question = form.question(message, key)
        return form.read(await self.ask(question, timeout=timeout), question)

    async def elicit_url(
        self, url: str, message: str, *, key: str = "", timeout: float = QUESTION_TIMEOUT
    ) -> Elicitation[None]:
        """Ask the person to open an address, for what must not pass through the client: a sign-in, a payment.

        Accepted means that the person agreed to open it, not that they have finished there.

        Raises:
            CallError: as `elicit`.
        """
        question = address_question(url, message, key)
        return read_action(await self.ask(question, timeout=timeout), question)

    async def sample(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        max_tokens: int = MAX_TOKENS,
        system_prompt: str | None = None,
        temperature: float | None = None,
        timeout: float = QUESTION_TIMEOUT,
        **options: Any,
    ) -> SampledMessage:
        """Ask the caller's model for a completion: `(await context.sample("Summarise: …")).text`.

        `messages` is a text, or messages of MCP; `options` are further params of `sampling/createMessage`, such as
        `modelPreferences`.

        Raises:
            CallError: as `elicit`.
        """
        sampling_options = {"systemPrompt": system_prompt, "temperature": temperature, **options}
        question = sampling(messages, max_tokens, sampling_options)
        return SampledMessage.read(await self.ask(question, timeout=timeout), question)

    async def roots(self, *, timeout: float = QUESTION_TIMEOUT) -> list[Root]:
        """Return the directories and files that the caller lets the operation work on.

        Raises:
            CallError: as `elicit`.
        """
        question = Question("roots")
        return read_roots(await self.ask(question, timeout=timeout), question)

    async def ask(self, question: Question, *, timeout: float = QUESTION_TIMEOUT) -> dict[str, Any]:
        """Return the caller's answer to a question, in the shape of MCP.

        Raises:
            CallError: as `elicit`.
        """
        remaining = self.remaining
        return await ask(question, self.on_question, timeout if remaining is None else min(timeout, remaining))

    def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> None:
        """Send a log message to the caller, if it receives them: a client of MCP, at the level that it has set.

            context.log("warning", {"article": "tea", "pieces": 0})

        `data` is any JSON value; it must not contain secrets. Messages for the owner of the server belong into the log
        of the process.

        Raises:
            UsageError: the level is unknown.
        """
        severity(level)
        if self.on_log is not None:
            self.on_log(LogMessage(level, data, logger))

    def within(self, seconds: float | None) -> "Context":
        """Return this context with a deadline at most `seconds` from now. A deadline is never extended."""
        if seconds is None:
            return self
        deadline = time.monotonic() + seconds
        if self.deadline is not None and self.deadline <= deadline:
            return self
        return replace(self, deadline=deadline, watched=False)
