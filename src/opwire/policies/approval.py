"""`Approval`: a person decides about calls, asked by any function, by the caller itself or in the console."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from math import ceil
from typing import Any, Literal, NamedTuple, Unpack
from uuid import uuid4

from msgspec import Struct

from opwire.errors import (
    CallError,
    ErrorCode,
    check_above_zero,
    check_counts,
)
from opwire.model.context import Context
from opwire.model.identity import Identity
from opwire.model.operation import OperationSpec
from opwire.names import limit_text
from opwire.observe.logs import masked
from opwire.policies.policy import Policy, PolicyCall, PolicyOptions, lenient_encoder, plain_json
from opwire.runtime.bounded import SharedLimit
from opwire.runtime.text import get_logger, harmless
from opwire.typed.plain import replace_surrogates, to_plain

logger = get_logger("opwire.policies")

_MAX_SHOWN_INPUT_LENGTH = 2_000
_CLOCK_TOLERANCE_SECONDS = 0.05  # the clock of timeouts is not that of the day


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """A call that waits for the decision of a person. `since` and `expires` are seconds since 1970."""

    spec: OperationSpec
    input: Any
    context: Context
    id: str
    since: float
    expires: float

    @property
    def identity(self) -> Identity | None:
        """The caller."""
        return self.context.identity

    @property
    def shown_input(self) -> Any:
        """The input, with the values of secret names replaced; as text that is cut off if it is too long to show."""
        masked_input = replace_surrogates(masked(to_plain(self.input)))
        text = lenient_encoder.encode(masked_input).decode()
        excess = len(text) - _MAX_SHOWN_INPUT_LENGTH
        return masked_input if excess <= 0 else f"{text[:_MAX_SHOWN_INPUT_LENGTH]}… ({excess:,} more characters)"

    def __str__(self) -> str:
        caller = "an anonymous caller" if self.identity is None else self.identity.id
        shown_input = self.shown_input
        text = shown_input if isinstance(shown_input, str) else lenient_encoder.encode(shown_input).decode()
        return harmless(f"{caller} calls {self.spec.id} with {text}")  # a person decides by what is displayed


Decision = bool | str
"""True approves a call; False, or a reason, denies it."""


async def ask_caller(request: ApprovalRequest) -> Decision:
    """Ask the person behind a call, through the client that made it. Pass it as the `ask` of an `Approval`:

        registry.use(Approval(ask_caller))

    It works where the caller can be asked (`Context.elicit`): clients of MCP, `Client(on_question=…)`, the console.
    """
    try:
        return bool(await request.context.elicit(bool, f"{request}. Approve?")) or "declined"
    except CallError as error:
        if error.code is not ErrorCode.ABORTED:
            raise
        return error.message


class ApprovalChange(NamedTuple):
    """A call has begun to wait for approval, or has stopped waiting. `by` names the person that decided, if known."""

    kind: Literal["waiting", "approved", "denied", "expired", "cancelled"]
    request: ApprovalRequest
    reason: str = ""
    by: str = ""


class ApprovalQueue:
    """Calls that wait until a person decides about them, such as in the console: the `ask` of an `Approval`.

        queue = ApprovalQueue()
        registry.use(Approval(queue))
        for request in queue.waiting:
            queue.approve(request.id, by="ann")

    The policy bounds how many calls wait, and for how long; a call that is cancelled leaves the queue. Use it on the
    event loop of the calls.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[ApprovalRequest, asyncio.Future[ApprovalChange]]] = {}
        self._listeners: list[Callable[[ApprovalChange], object]] = []

    def __repr__(self) -> str:
        return f"<ApprovalQueue, {len(self._waiting)} waiting>"

    async def __call__(self, request: ApprovalRequest) -> Decision:
        """Wait for the decision about a call."""
        decided: asyncio.Future[ApprovalChange] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = request, decided
        self._tell(ApprovalChange("waiting", request))
        try:
            change = await decided
        except asyncio.CancelledError:
            self._waiting.pop(request.id, None)
            if decided.cancelled():  # otherwise the listeners have been called with a decision
                is_late = time.time() >= request.expires - _CLOCK_TOLERANCE_SECONDS
                self._tell(ApprovalChange("expired" if is_late else "cancelled", request))
            raise
        return change.kind == "approved" or change.reason

    @property
    def waiting(self) -> tuple[ApprovalRequest, ...]:
        """The calls that wait, the oldest first."""
        return tuple(request for request, _ in self._waiting.values())

    def approve(self, id: str, *, by: str = "") -> bool:
        """Let a call continue; return False if it does not wait any more."""
        return self._decide(id, "approved", "", by)

    def deny(self, id: str, reason: str = "", *, by: str = "") -> bool:
        """Reject a call with a reason, which its caller reads; return False if it does not wait any more."""
        return self._decide(id, "denied", reason, by)

    def on_change(self, listener: Callable[[ApprovalChange], object]) -> Callable[[], None]:
        """Call the listener on every change; the returned function removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def _decide(self, id: str, kind: Literal["approved", "denied"], reason: str, by: str) -> bool:
        request, decided = self._waiting.pop(id, (None, None))
        if request is None or decided is None or decided.done():
            return False
        change = ApprovalChange(kind, request, reason, by)
        decided.set_result(change)
        logger.info("%s was %s%s", request.spec.id, kind, f" by {by}" if by else "")
        self._tell(change)
        return True

    def _tell(self, change: ApprovalChange) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(change)
            except Exception:
                logger.exception("a listener failed on an approval of %s", change.request.spec.id)


class Approval(Policy):
    """Ask a person before each call; by default before mutations.

        async def ask(request: ApprovalRequest) -> bool | str:
            return await send_to_chat(f"{request}. Approve?")

        registry.use(Approval(ask))

    `ask` returns True to approve, and False or a reason to deny; a plain function runs on the event loop. The caller of
    a denied call gets ACCESS_DENIED with the reason. A decision takes at most `timeout` seconds, and no longer than the
    deadline of the call; at most `max_waiting` calls wait at the same time, half of them of one caller.
    `include`, by default mutations, and `exclude` select operations.
    """

    def __init__(
        self,
        ask: Callable[[ApprovalRequest], Decision | Awaitable[Decision]],
        *,
        timeout: float = 300.0,
        max_waiting: int = 100,
        **options: Unpack[PolicyOptions],
    ) -> None:
        super().__init__(**{"include": ("type:mutation",), **options})
        check_above_zero(timeout=timeout)
        check_counts(max_waiting=max_waiting)
        self._ask = ask
        self._timeout = timeout
        self._places: SharedLimit[str | None] = SharedLimit(max_waiting, ceil(max_waiting / 2))  # by identity

    @asynccontextmanager
    async def _around(self, spec: OperationSpec, input: Any, context: Context) -> AsyncGenerator[PolicyCall]:
        caller = None if context.identity is None else context.identity.id
        input_json = plain_json(input)
        if input_json is None:  # what a person does not see is not approved
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{spec.id}: the input has no JSON form to ask a person about")
        if not self._places.take(caller, 1):
            waiting = self._places.held
            message = f"{sum(waiting.values())} calls wait for approval already, {waiting[caller]} of this caller"
            raise CallError(ErrorCode.RATE_LIMITED, message)
        try:
            decision = await self._decide(spec, input, context)
        finally:
            self._places.give_back(caller, 1)
        if decision is True and plain_json(input) != input_json:
            decision = "its input has changed since the person was asked"
        if decision is not True:
            reason = f": {decision[:500]}" if isinstance(decision, str) and decision else ""
            raise CallError(ErrorCode.ACCESS_DENIED, f"{spec.id} was not approved{reason}")
        yield PolicyCall(context)

    async def _decide(self, spec: OperationSpec, input: Any, context: Context) -> Decision:
        remaining, now = context.remaining, time.time()
        seconds = max(self._timeout if remaining is None else min(remaining, self._timeout), 0)
        request = ApprovalRequest(
            spec=spec, input=input, context=context, id=uuid4().hex, since=now, expires=now + seconds
        )
        try:
            async with asyncio.timeout(seconds):
                decision = self._ask(request)
                return await decision if isawaitable(decision) else decision
        except TimeoutError:
            return f"no decision within {limit_text(seconds)} s"
