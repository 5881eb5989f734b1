"""What clients are asked and notified of, and what those of the handshake era have agreed on. No I/O.

In the handshake era a question of a handler is a request of the server, which the client answers while the handler
waits. From 2026-07-28 on there are no such requests: the result of the call is "input required", and the client calls
again with the answers. The handler then runs again from its start, and finds the answers where it asked. Answers of
earlier rounds are in the request state, which the client keeps: signed, with an expiry, and bound to the caller, the
method and the params, so that a confirmation is not valid for another call. A question that differs from the one that
was answered is asked again.

Many changes of the registry become one notification, and a client that does not read gets each notification once.
"""

import asyncio
import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any, Self, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.errors import CallError, UsageError
from opwire.mcp.messages import (
    ReceivedMessage,
    RequestId,
    RPCCode,
    RPCError,
    RPCFailure,
    RPCNotification,
    RPCRequest,
    RPCResponse,
    encode_message,
)
from opwire.mcp.peer import Answer, JsonRpcPeer
from opwire.mcp.revisions import DEFAULT_VERSION
from opwire.model.identity import Identity
from opwire.model.log_message import LogLevel
from opwire.model.operation import Change, OperationSpec
from opwire.model.questions import Question, QuestionCallback, QuestionKind, unanswerable
from opwire.registry import OperationRegistry
from opwire.runtime.tasks import spawn
from opwire.typed.plain import as_dict

SendMessage = Callable[[RPCRequest | RPCNotification], Awaitable[None]]

MAX_OPEN = 1000
"""Requests of one client without a response."""

MAX_INPUTS = 256 * 1024 * 1024
"""Bytes of the large inputs of calls that go on without their HTTP request; half of them of one identity."""

LARGE_INPUT = 16 * 1024
"""Bytes of a large input; the number of calls bounds smaller ones."""

MAX_SUBSCRIPTIONS = 1000
"""Resources that one client may be subscribed to."""

MAX_QUESTIONS = 100
"""Questions of one call, and of all calls of one connection that are not answered."""

MAX_STATE = 256 * 1024
"""Bytes of a request state: the answers of all rounds."""

STATE_LIFETIME = 900.0
"""Seconds for a client to call again with its answers."""

INPUT_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Requests that may ask for input in their result."""

CAPABILITIES: dict[QuestionKind, str] = {"elicit": "elicitation", "sample": "sampling", "roots": "roots"}
_ELICITATION_MODES = ("form", "url")
_OWN_PARAMS = frozenset({"_meta", "inputResponses", "requestState"})
_PURPOSE = b"state\x00"
_MIN_KEY_BYTES = 16
_QUESTION_ROUND_SECONDS = 0.005  # after the first question; a handler may ask others
_encoder = msgspec.json.Encoder(order="sorted")
_UPDATED = "notifications/resources/updated"
_LISTS = {"tool": "tools", "prompt": "prompts", "prompts/list": "prompts"}


def required_capability(question: Question) -> dict[str, Any]:
    """Return the capability that a client needs to be asked, as a client declares it."""
    if question.params.get("mode") == "url":
        return {"elicitation": {"url": {}}}
    return {CAPABILITIES[question.kind]: {}}


def answer_capabilities(capabilities: Any) -> dict[str, dict[str, Any]]:
    """Return what `can_answer` needs of the capabilities of a client, which may be megabytes, to be stored."""
    declared = {name: as_dict(capabilities).get(name) for name in CAPABILITIES.values()}
    return {
        name: {mode: {} for mode in _ELICITATION_MODES if mode in capability}
        for name, capability in declared.items()
        if isinstance(capability, dict)
    }


def can_answer(capabilities: Mapping[str, Any], question: Question) -> bool:
    """Return whether a client has declared what it needs to answer; elicitation without a mode is by form."""
    declared = capabilities.get(CAPABILITIES[question.kind])
    if not isinstance(declared, dict):
        return False
    if question.kind != "elicit":
        return True
    return "url" in declared if question.params.get("mode") == "url" else "form" in declared or "url" not in declared


# --- notifications ----------------------------------------------------------------------------------------------------


def list_of(spec: OperationSpec) -> str:
    """Return the list of MCP that an operation is in: tools, prompts or resources."""
    return _LISTS.get(spec.mcp.role, "resources")


class PendingNotifications:
    """Notifications that the client has not read yet; equal ones are one."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str], RPCNotification] = {}
        self._awake = asyncio.Event()
        self._is_ended = False

    def put(self, method: str, **params: str) -> None:
        """Add a notification."""
        self._pending[method, params.get("uri", "")] = RPCNotification(method, params or None)
        self._awake.set()

    def list_changed(self, name: str) -> None:
        """Add the notification for a changed list."""
        self.put(f"notifications/{name}/list_changed")

    def updated(self, uri: str) -> None:
        """Add the notification for an updated resource."""
        self.put(_UPDATED, uri=uri)

    def end(self) -> None:
        """End the iteration."""
        self._is_ended = True
        self._awake.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RPCNotification:
        """Wait for a notification."""
        while not self._pending or self._is_ended:
            if self._is_ended:
                raise StopAsyncIteration
            self._awake.clear()
            await self._awake.wait()
        return self._pending.pop(next(iter(self._pending)))


class ListBus:
    """The changes of a registry as names of changed lists. It follows the registry while it has listeners.

    Changes of a list within `delay` seconds are one event.
    """

    def __init__(self, registry: OperationRegistry, *, delay: float = 0.05) -> None:
        self._registry = registry
        self._delay = delay
        self._listeners: dict[object, Callable[[str], object]] = {}
        self._changed: dict[str, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unfollow: Callable[[], None] | None = None

    def subscribe(self, listener: Callable[[str], object]) -> Callable[[], None]:
        """Call a listener for every event; the returned function removes it."""
        key, loop = object(), asyncio.get_running_loop()

        def changed(change: Change) -> None:  # called on the thread that changes the registry
            loop.call_soon_threadsafe(self._schedule, loop, list_of(change.spec))

        self._listeners[key] = listener
        if self._unfollow is None:
            self._unfollow = self._registry.on_change(changed)

        def unsubscribe() -> None:
            self._listeners.pop(key, None)
            if self._listeners:
                return
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._unfollow is not None:
                self._unfollow()
                self._unfollow = None

        return unsubscribe

    def _schedule(self, loop: asyncio.AbstractEventLoop, changed: str) -> None:
        def notify() -> None:
            self._timer = None
            names, self._changed = self._changed, {}
            for listener in tuple(self._listeners.values()):
                for name in names:
                    listener(name)

        self._changed[changed] = None
        if self._timer is None and self._listeners:
            self._timer = loop.call_later(self._delay, notify)


# --- the handshake era ------------------------------------------------------------------------------------------------


class ClientState:
    """A client of the handshake era: what it has agreed on and set, and the questions that it has not answered."""

    def __init__(self) -> None:
        self.version = DEFAULT_VERSION
        self.is_accepted = False  # the handshake
        self.is_closed = False
        self.is_askable = False  # whether it can answer any questions
        self.log_level: LogLevel = "info"
        self.pending = PendingNotifications()
        self.watches: dict[str, Callable[[], object]] = {}  # what cancels each, by URI
        self.tasks: set[asyncio.Task[None]] = set()
        self.spawn = partial(spawn, tasks=self.tasks)
        self._capabilities: Mapping[str, Any] = {}
        self._peer: JsonRpcPeer[asyncio.Future[dict[str, Any]]] = JsonRpcPeer(max_pending=MAX_QUESTIONS)
        self._unsubscribe: Callable[[], None] | None = None

    def agree(self, params: Mapping[str, Any] | None, result: Mapping[str, Any]) -> None:
        """Note what a handshake has agreed on: its params and its result."""
        self.version, self.is_accepted = result["protocolVersion"], True
        self._capabilities = answer_capabilities((params or {}).get("capabilities"))
        self.is_askable = bool(self._capabilities)

    def follow(self, bus: "ListBus") -> None:
        """Notify the client of changes from now on; it may have skipped `initialize`."""
        self.is_accepted = True
        if self._unsubscribe is None:
            self._unsubscribe = bus.subscribe(self.pending.list_changed)

    async def announce(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Notify the client of changes, each once until it has read the notification."""
        async for notification in self.pending:
            await send(encode_message(notification))

    def rejection(
        self, request: RPCRequest, running: Collection[RequestId], *, is_stateless: bool = False
    ) -> RPCError | None:
        """Return the error for a request that cannot be served now, beside those that are running; else None."""
        if request.id in running:
            return RPCError(RPCCode.INVALID_REQUEST, "rejected: a request with this id is open already")
        if len(running) >= MAX_OPEN:
            return RPCError(RPCCode.INVALID_REQUEST, f"rejected: more than {MAX_OPEN} requests are open")
        if not (self.is_accepted or is_stateless or request.method in ("initialize", "ping")):
            return RPCError(RPCCode.INVALID_PARAMS, "Invalid request: send initialize first")
        return None

    async def ask(self, question: Question, send: SendMessage) -> dict[str, Any]:
        """Ask the client, and wait for its answer; `send` sends what belongs to the call that asks.

        Raises:
            CallError: ABORTED, the client cannot answer, has disconnected, or has answered with an error.
        """
        if not can_answer(self._capabilities, question):
            raise unanswerable(question)
        waiter: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        request = self._peer.request(question.method, question.params, waiter)
        try:
            await send(request)
            return await waiter
        except RPCError as error:
            failed = unanswerable(question, f"and the client answered with an error: {error.message[:500]}")
            failed.details = {**failed.details, "error": {"code": error.code, "message": error.message[:500]}}
            raise failed from error
        finally:
            cancelled = self._peer.abandon(request.id)
            if cancelled is not None:  # the handler does not wait any more
                with suppress(CallError):  # the client has disconnected
                    await send(cancelled)

    def receive(self, message: ReceivedMessage) -> None:
        """Give the answer to a question to the handler that waits for it; ignore other messages."""
        answer = self._peer.receive(message)
        if not isinstance(answer, Answer) or answer.waiter.done():
            return
        match answer.message:
            case RPCResponse(result=result):
                answer.waiter.set_result(result)
            case RPCFailure(error=error):
                answer.waiter.set_exception(error.exception())
            case invalid:
                answer.waiter.set_exception(RPCError(RPCCode.INVALID_PARAMS, invalid.reason))

    def close(self) -> None:
        """Stop following changes, and end subscriptions."""
        self.is_closed = True
        for cancel in tuple(self.watches.values()):
            cancel()
        self.watches.clear()
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None


# --- the stateless era ------------------------------------------------------------------------------------------------


class _State(Struct, array_like=True):
    expires: int  # epoch seconds
    binding: str  # of the caller and the request
    question_digests: dict[str, str] = {}  # the digest of each question of the last round, by key
    answers: dict[str, tuple[str, dict[str, Any]]] = {}  # of earlier rounds: digest of the question, and answer


_NO_STATE = _State(0, "")


class RequestStates:
    """Sign and verify request states, and ids of durable tasks. Several servers behind one address need the same key.

    Raises:
        UsageError: the key is too short.
    """

    def __init__(self, key: str | bytes | None = None, clock: Callable[[], float] = time.time) -> None:
        secret = secrets.token_bytes(32) if key is None else key.encode() if isinstance(key, str) else key
        if len(secret) < _MIN_KEY_BYTES:
            raise UsageError(f"state_key has {len(secret)} bytes; a secret needs at least {_MIN_KEY_BYTES}")
        self._key = sha256(secret).digest()
        self.is_shared = key is not None  # with other servers, and with this one after a restart
        self.clock = clock

    def encode(
        self, binding: str, question_digests: dict[str, str], answers: dict[str, tuple[str, dict[str, Any]]]
    ) -> str:
        """Return a signed state.

        Raises:
            RPCError: INVALID_PARAMS, it is too large.
        """
        body = _encoder.encode(_State(int(self.clock() + STATE_LIFETIME), binding, question_digests, answers))
        if len(body) > MAX_STATE:
            raise RPCError(RPCCode.INVALID_PARAMS, f"the inputResponses have more than {MAX_STATE:,} bytes together")
        return self.seal(body, _PURPOSE)

    def decode(self, text: str, binding: str) -> _State:
        """Return a state that this server, or another one with its key, has signed for this caller and request.

        Raises:
            RPCError: INVALID_PARAMS, whatever is wrong with it.
        """
        body = self.unseal(text, _PURPOSE) if len(text) <= 2 * MAX_STATE else None
        if body is not None:
            state = msgspec.json.decode(body, type=_State)
            if state.expires >= self.clock() and hmac.compare_digest(state.binding, binding):
                return state
        raise RPCError(RPCCode.INVALID_PARAMS, "Invalid or expired requestState; call again without it")

    def seal(self, body: bytes, purpose: bytes) -> str:
        """Return signed data as text; what is signed for one purpose, which ends with NUL, is invalid for another."""
        return urlsafe_b64encode(hmac.digest(self._key, purpose + body, "sha256") + body).decode("ascii")

    def unseal(self, text: str, purpose: bytes) -> bytes | None:
        """Return the data of a text that `seal` returned, here or at a server with the same key; None for another."""
        try:
            raw = urlsafe_b64decode(text.encode("ascii"))
        except ValueError:
            return None
        signature, body = raw[:32], raw[32:]
        # One spelling only: the decoder ignores characters that are not base64.
        is_same = urlsafe_b64encode(raw).decode("ascii") == text
        expected = hmac.digest(self._key, purpose + body, "sha256")
        return body if hmac.compare_digest(signature, expected) and is_same else None


def binding_of(identity: Identity | None, method: str, params: Mapping[str, Any]) -> str:
    """Return the digest of a caller and its request, without what differs between two rounds."""
    unchanging_params = {name: value for name, value in params.items() if name not in _OWN_PARAMS}
    return state_digest([None if identity is None else identity.id, method, unchanging_params])


def state_digest(value: Any) -> str:
    """Return the digest of a JSON value, independent of the order of its keys, that the state of a client refers to."""
    return sha256(_encoder.encode(value)).hexdigest()[:32]


class StatelessQuestions:
    """The questions of one round of a request, and the answers that came with it. Created in the task of the request.

    Raises:
        RPCError: INVALID_PARAMS, the request state is invalid.
    """

    def __init__(
        self,
        states: RequestStates,
        identity: Identity | None,
        method: str,
        params: Mapping[str, Any],
        capabilities: Mapping[str, Any],
    ) -> None:
        self._states = states
        self._capabilities = capabilities
        self._request = (identity, method, params)
        self._given: Mapping[str, Any] = as_dict(params.get("inputResponses"))
        self._state = _NO_STATE
        if params.get("requestState") is not None:
            self._state = states.decode(str(params["requestState"]), binding_of(*self._request))
        self._used: dict[str, tuple[str, dict[str, Any]]] = {}
        self._open: dict[str, tuple[str, Question]] = {}
        self._times: dict[str, int] = {}
        self._missing: tuple[CallError, Question] | None = None
        self.instead: QuestionCallback | None = None
        """Answers further questions, once the request has ended and the call goes on."""
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._before = self._task.cancelling()
        self._ending: asyncio.TimerHandle | None = None
        self._has_cancelled = False

    async def __call__(self, question: Question) -> dict[str, Any]:
        """Return the answer of this round or an earlier one; without one, wait for the end of the round.

        Raises:
            CallError: ABORTED, the client has not declared the capability, or there are too many questions.
        """
        if self.instead is not None:
            return await self.instead(question)
        if not can_answer(self._capabilities, question):
            error = unanswerable(question)
            self._missing = (error, question)
            raise error
        # Without the id that older revisions have.
        params = {name: value for name, value in question.params.items() if name != "elicitationId"}
        question = replace(question, params=params)
        digest = state_digest([question.method, params])
        key = question.key or f"{question.kind}-{digest[:12]}"
        times = self._times[key] = self._times.get(key, 0) + 1
        key = key if times == 1 else f"{key}-{times}"
        earlier_answer = self._state.answers.get(key)
        if earlier_answer is not None:
            answer = earlier_answer[1] if earlier_answer[0] == digest else None
        else:
            sent_answer = self._given.get(key)
            is_same = self._state.question_digests.get(key, digest) == digest
            answer = cast("dict[str, Any]", sent_answer) if isinstance(sent_answer, dict) and is_same else None
        if answer is not None:
            self._used[key] = (digest, answer)
            return answer
        if len(self._used) + len(self._open) >= MAX_QUESTIONS:
            raise unanswerable(question, f"after {MAX_QUESTIONS} other questions")
        self._open[key] = (digest, question)
        if self._ending is None:
            self._ending = asyncio.get_running_loop().call_later(_QUESTION_ROUND_SECONDS, self._end_round)
        return await asyncio.get_running_loop().create_future()  # cancelled with the round

    def _end_round(self) -> None:
        self._has_cancelled = True
        self._task.cancel()

    def close(self) -> bool:
        """End the round; return True if its questions, and nothing else, have cancelled the request."""
        if self._ending is not None:
            self._ending.cancel()
        has_cancelled, self._has_cancelled = self._has_cancelled, False
        return has_cancelled and self._task.uncancel() <= self._before

    @property
    def is_asking(self) -> bool:
        """Whether the client has to answer before the request can be completed."""
        return bool(self._open)

    def result(self) -> dict[str, Any]:
        """Return the result that asks for input.

        Raises:
            RPCError: INVALID_PARAMS, the answers are too large to be kept by the client.
        """
        input_requests = {
            key: {"method": question.method, "params": question.params} for key, (_, question) in self._open.items()
        }
        digests = {key: digest for key, (digest, _) in self._open.items()}
        state = self._states.encode(binding_of(*self._request), digests, self._used)
        return {"resultType": "input_required", "inputRequests": input_requests, "requestState": state}

    def refusal(self, error: BaseException) -> RPCError | None:
        """Return the error for a client that lacks a capability, if this is what a handler failed with."""
        if self._missing is None or error is not self._missing[0]:
            return None
        required = required_capability(self._missing[1])
        return RPCError(RPCCode.MISSING_CAPABILITY, self._missing[0].message, {"requiredCapabilities": required})
