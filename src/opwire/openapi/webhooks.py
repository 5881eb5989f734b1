"""Webhooks: verify the signed requests of other systems, and pass them to subscribers.

    hooks = WebhookReceiver(StripeSignature(os.environ["STRIPE_WEBHOOK_SECRET"]))
    registry.register_all(from_openapi("stripe.json", webhooks=hooks))  # registers stripe.webhooks, …
    app = serve_http(registry, webhooks={"stripe": hooks})  # POST /webhooks/stripe

Rules: a signature is verified over the raw body, in constant time, before anything is parsed. Without a verifier every
request is rejected, unless `unsigned` allows them. `deliver` decides without awaiting, so that a delivery is either in
the queues of its subscribers or can be repeated by the sender.
"""

import asyncio
import binascii
import hmac
import inspect
import re
import time
from base64 import b64decode
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import msgspec

from opwire.errors import CallError, ErrorCode, UsageError, check_above_zero, check_counts, check_list
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope, http_envelope
from opwire.model.operation import Handler, NormalizeMode, Operation, OperationSpec, OperationType
from opwire.names import counted
from opwire.runtime.bounded import BoundedDict
from opwire.runtime.text import get_logger
from opwire.schema import UNKNOWN, Schema
from opwire.typed.plain import as_dict, parse_float, read_json

logger = get_logger("opwire.openapi")

WEBHOOKS = "webhooks"
"""The name of the operation that gets all webhooks of a source, and the prefix of those for one of them."""

MAX_BODY = 1024 * 1024
MAX_WAITING = 1_000
MAX_WAITING_BYTES = 16 * 1024 * 1024
"""Bodies that wait for one subscriber. They are decoded when it takes them, and shared between subscribers."""

TOLERANCE = 300.0
"""Seconds by which a signed timestamp may differ from the clock, as Stripe and Standard Webhooks recommend."""

MAX_TOLERANCE = 3_600.0
MAX_REMEMBERED = 100_000
"""Deliveries that are remembered, to reject their repetition: 12 MB."""

_RETRY_AFTER_SECONDS = 5.0
_MAX_SIGNATURES_PER_HEADER = 16  # there are several while a secret is replaced
_MAX_NAME_LENGTH = 256
_WILDCARDS = re.compile(r"[*?\[]")
_SEPARATORS = re.compile(r"[^a-z0-9]+")
_EVENT_FIELDS = ("type", "event", "event_type", "eventType")  # of a body, with the name of its event
_EVENT_HEADERS = re.compile(r"x-(?:.*-)?(?:event|event-key|event-type|topic)|ce-type")
_SECRET_HEADER = re.compile(r"authorization|cookie|token|secret|signature|api-?key")
_decoder = msgspec.json.Decoder(float_hook=parse_float)


class WebhookRequest(NamedTuple):
    """A request as it arrived: headers with lower-case names, and the raw body."""

    headers: Mapping[str, str]
    body: bytes


Verify = Callable[[WebhookRequest], "bool | str | Awaitable[bool | str]"]
"""Verifies a request: returns True, or the id of the delivery, which is then accepted once. Anything else rejects it.

It may be async, and may raise a `CallError`. Compare with `hmac.compare_digest`.
"""

Outcome = Literal["accepted", "duplicate", "ignored"]


# --- signatures -------------------------------------------------------------------------------------------------------


def _rejected(reason: str) -> CallError:
    return CallError(ErrorCode.ACCESS_DENIED, f"the webhook is rejected: {reason}")


def _header(request: WebhookRequest, name: str) -> str:
    value = request.headers.get(name)
    if not value:
        raise _rejected(f"it has no header {name}")
    return value


def _secrets(secrets: str | Sequence[str]) -> tuple[bytes, ...]:
    """Return the secrets as bytes. Several are accepted while one replaces another."""
    secret_texts = (secrets,) if isinstance(secrets, str) else tuple(secrets)
    if not secret_texts or not all(secret_texts):
        raise UsageError("the secret of a webhook is empty")
    return tuple(secret.encode() for secret in secret_texts)


def _matches(keys: Iterable[bytes], signed: bytes, signatures: Iterable[bytes]) -> bool:
    """Return whether one of the signatures is the HMAC-SHA256 by one of the keys. All pairs are compared."""
    expected = [hmac.digest(key, signed, sha256) for key in keys]
    comparisons = [hmac.compare_digest(digest, signature) for digest in expected for signature in signatures]
    return any(comparisons)


def _check_time(timestamp: str, tolerance: float) -> None:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 13):
        raise _rejected("its timestamp is not a number of seconds")
    age = time.time() - int(timestamp)
    if abs(age) > tolerance:
        direction = "old" if age > 0 else "in the future"
        raise _rejected(f"its timestamp is {abs(age):,.0f} s {direction}, and at most {tolerance:g} s are accepted")


def _check_tolerance(tolerance: float) -> float:
    check_above_zero(tolerance=tolerance)
    if tolerance > MAX_TOLERANCE:
        raise UsageError(f"tolerance is {tolerance:g} s, and at most {MAX_TOLERANCE:g}: it is the time for a replay")
    return tolerance


def _unhex(text: str) -> bytes:
    try:
        return bytes.fromhex(text) if text.isascii() else b""
    except ValueError:
        return b""


class _Signature:
    """The secrets of a sender, which the repr does not show."""

    _keys: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {counted(len(self._keys), 'secret')}>"


class StripeSignature(_Signature):
    """Verify `Stripe-Signature: t=…,v1=…`: a timestamp, and an HMAC-SHA256 of it and the body.

    `secret` is the signing secret of the endpoint (`whsec_…`); several are accepted while it is rolled.

    Raises:
        UsageError: the secret is empty, or the tolerance invalid.
    """

    def __init__(self, secret: str | Sequence[str], *, tolerance: float = TOLERANCE) -> None:
        self._keys = _secrets(secret)
        self._tolerance = _check_tolerance(tolerance)

    def __call__(self, request: WebhookRequest) -> str:
        """Return the id of a valid delivery.

        Raises:
            CallError: ACCESS_DENIED, if the signature is missing, invalid or too old.
        """
        fields = [field.strip().partition("=") for field in _header(request, "stripe-signature").split(",")]
        times = [value for name, _, value in fields if name == "t"]
        signatures = [_unhex(value) for name, _, value in fields if name == "v1"][:_MAX_SIGNATURES_PER_HEADER]
        if len(times) != 1 or not signatures:
            raise _rejected("stripe-signature needs one t and a v1")
        _check_time(times[0], self._tolerance)
        if not _matches(self._keys, times[0].encode() + b"." + request.body, signatures):
            raise _rejected("its signature does not match")
        return sha256(times[0].encode() + b"." + request.body).hexdigest()


class GitHubSignature(_Signature):
    """Verify `X-Hub-Signature-256: sha256=…`, an HMAC-SHA256 of the body.

    It has no timestamp, and `X-GitHub-Delivery` is not signed: a body that was accepted before is a duplicate.

    Raises:
        UsageError: the secret is empty.
    """

    def __init__(self, secret: str | Sequence[str]) -> None:
        self._keys = _secrets(secret)

    def __call__(self, request: WebhookRequest) -> str:
        """Return the id of a valid delivery.

        Raises:
            CallError: ACCESS_DENIED, if the signature is missing or invalid.
        """
        scheme, _, signature = _header(request, "x-hub-signature-256").partition("=")
        if scheme != "sha256" or not _matches(self._keys, request.body, [_unhex(signature)]):
            raise _rejected("its signature does not match")
        return sha256(request.body).hexdigest()


class StandardSignature(_Signature):
    """Verify the headers of Standard Webhooks: `webhook-id`, `webhook-timestamp` and `webhook-signature: v1,…`.

    `secret` is base64, optionally after `whsec_`. Asymmetric signatures (`v1a`) are not supported.

    Raises:
        UsageError: the secret is empty or not base64, or the tolerance invalid.
    """

    def __init__(self, secret: str | Sequence[str], *, tolerance: float = TOLERANCE) -> None:
        try:
            self._keys = tuple(b64decode(key.removeprefix(b"whsec_"), validate=True) for key in _secrets(secret))
        except binascii.Error:
            raise UsageError("the secret of a standard webhook is base64, optionally after whsec_") from None
        if not all(self._keys):
            raise UsageError("the secret of a webhook is empty")
        self._tolerance = _check_tolerance(tolerance)

    def __call__(self, request: WebhookRequest) -> str:
        """Return the id of a valid delivery.

        Raises:
            CallError: ACCESS_DENIED, if the signature is missing, invalid or too old.
        """
        id, sent = _header(request, "webhook-id"), _header(request, "webhook-timestamp")
        signature_fields = _header(request, "webhook-signature").split(" ")[:_MAX_SIGNATURES_PER_HEADER]
        _check_time(sent, self._tolerance)
        signatures: list[bytes] = []
        for kind, _, value in (signature.partition(",") for signature in signature_fields):
            if kind == "v1":
                with suppress(ValueError):
                    signatures.append(b64decode(value, validate=True))
        if not _matches(self._keys, f"{id}.{sent}.".encode("utf-8", "replace") + request.body, signatures):
            raise _rejected("its signature does not match")
        return id


# --- receiving --------------------------------------------------------------------------------------------------------


class DeclaredWebhook(NamedTuple):
    """A webhook of a document: its name there, other names of its event, and the schema of its body."""

    name: str
    schema: Schema = UNKNOWN
    title: str = ""
    description: str = ""
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


class _Delivery(NamedTuple):
    """An accepted webhook, which is decoded for each subscriber: they may change the data."""

    body: bytes
    headers: dict[str, str]
    webhook: str | None
    id: str | None

    def envelope(self) -> ResponseEnvelope[Any]:
        return http_envelope(
            read_json(_decoder, self.body),
            status_code=200,
            headers=self.headers,
            content_type=self.headers.get("content-type", "application/json"),
            event_type=self.webhook,
            last_event_id=self.id,
        )


class _Subscriber:
    """The queue of one subscriber, which may run on another event loop than the server."""

    def __init__(self, webhook: str | None, max_waiting: int) -> None:
        self.webhook = webhook  # None: all
        self.error: CallError | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Delivery] = deque()
        self._max_waiting = max_waiting
        self._bytes_put = 0  # changed by the server alone, and the other by the subscriber: they may be two threads
        self._bytes_taken = 0
        self._wake = asyncio.Event()

    def has_space(self, size: int) -> bool:
        waiting = len(self._waiting)
        used_bytes = self._bytes_put - self._bytes_taken
        return not waiting or (waiting < self._max_waiting and used_bytes + size <= MAX_WAITING_BYTES)

    def put(self, delivery: _Delivery) -> None:
        self._bytes_put += len(delivery.body)
        self._waiting.append(delivery)
        self._notify()

    def fail(self, error: CallError) -> None:
        """End the stream with an error, after what is in the queue."""
        self.error = error
        self._notify()

    def _notify(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:  # its event loop is closed
            self.error = self.error or CallError(ErrorCode.ABORTED)

    async def items(self) -> AsyncGenerator[ResponseEnvelope[Any]]:
        while True:
            while self._waiting:
                delivery = self._waiting.popleft()
                self._bytes_taken += len(delivery.body)
                yield delivery.envelope()
            if self.error is not None:
                raise self.error
            self._wake.clear()
            if not self._waiting and self.error is None:
                await self._wake.wait()


class WebhookReceiver:
    """Receives the webhooks of one system, and passes each to the subscribers of its operations.

    `verify` is `StripeSignature`, `GitHubSignature`, `StandardSignature` or any other `Verify`. `unsigned` accepts
    requests without verification: then any client that reaches the server can send anything.

    `events` are patterns (`*` and `?`) of the webhooks that become operations, by default all of the document; a name
    without wildcards may be missing there. `strict` rejects a body that does not match the schema of its webhook;
    otherwise it is passed on, with a warning. `max_body` is in bytes. `max_waiting` is the number of webhooks that wait
    for one subscriber, of 16 MiB at most: a subscriber that has fallen behind is ended with an error if others can take
    the webhook; if none can, the sender is asked to repeat it.

    Raises:
        UsageError: neither or both of `verify` and `unsigned` are given, or a number is invalid.
    """

    def __init__(
        self,
        verify: Verify | None = None,
        *,
        unsigned: bool = False,
        events: Iterable[str] = (),
        strict: bool = True,
        max_body: int = MAX_BODY,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        if verify is None and not unsigned:
            advice = "give verify=StripeSignature(…), or unsigned=True to accept all"
            raise UsageError(f"webhooks need a signature: {advice}")
        if verify is not None and unsigned:
            raise UsageError("verify and unsigned=True exclude each other")
        check_list("patterns", events=events)
        check_counts(max_body=max_body, max_waiting=max_waiting)
        self._verify = verify
        self._events = tuple(events)
        self._strict = strict
        self._max_body = max_body
        self._max_waiting = max_waiting
        self._webhooks: dict[str, DeclaredWebhook] | None = None
        self._names: dict[str, str] = {}  # webhooks by the normalized names of their events
        self._subscribers: dict[_Subscriber, None] = {}
        self._remembered: BoundedDict[bytes, None] = BoundedDict(MAX_REMEMBERED)  # digests of accepted deliveries
        self._closed = False

    def __repr__(self) -> str:
        subscribers = counted(len(self._subscribers), "subscriber")
        return f"<WebhookReceiver: {counted(len(self._webhooks or ()), 'webhook')}, {subscribers}>"

    # --- operations -------------------------------------------------------------------------------------------------

    def operations(
        self,
        namespace: str,
        webhooks: Iterable[DeclaredWebhook],
        *,
        normalize: NormalizeMode | None = None,
        strip: bool = False,
    ) -> Iterator[Operation]:
        """Declare the webhooks of a source, once, and yield their operations: one for all, and one for each.

        Raises:
            UsageError: another source uses this receiver.
        """
        if self._webhooks is not None:
            raise UsageError("a WebhookReceiver belongs to one source: create another one")
        declared_webhooks = [
            webhook
            for webhook in webhooks
            if not self._events or any(fnmatchcase(webhook.name, p) for p in self._events)
        ]
        for webhook in declared_webhooks:
            for name in (webhook.name, *webhook.aliases):
                self._names.setdefault(_normalized(name), webhook.name)
        for name in self._events:  # Stripe's document declares none
            if not _WILDCARDS.search(name) and _normalized(name) not in self._names:
                self._names[_normalized(name)] = name
                declared_webhooks.append(DeclaredWebhook(name))
        self._webhooks = {webhook.name: webhook for webhook in declared_webhooks}
        every = DeclaredWebhook("", title="Webhooks", description="All webhooks of this API, declared or not.")
        for webhook in (every, *declared_webhooks):
            spec = OperationSpec(
                namespace=namespace,
                name=f"{WEBHOOKS}.{webhook.name}" if webhook.name else WEBHOOKS,
                type=OperationType.SUBSCRIPTION,
                title=webhook.title,
                description=webhook.description,
                tags=webhook.tags,
                input_schema=Schema({"type": "object", "properties": {}, "additionalProperties": False}),
                output_schema=webhook.schema,
                normalize=normalize,
                strip=strip,
            )
            yield Operation(spec, self._handler(webhook.name or None))

    def _handler(self, webhook: str | None) -> Handler:
        async def subscribe(input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
            if self._closed:
                raise _closed()
            subscriber = _Subscriber(webhook, self._max_waiting)
            self._subscribers[subscriber] = None
            try:
                async for item in subscriber.items():
                    yield item
            finally:
                self._subscribers.pop(subscriber, None)

        return subscribe

    def close(self) -> None:
        """End all subscriptions, and ask senders to repeat what they send from now on; idempotent."""
        self._closed = True
        for subscriber in tuple(self._subscribers):
            subscriber.fail(_closed())

    # --- deliveries -------------------------------------------------------------------------------------------------

    async def verify(self, request: WebhookRequest) -> str | None:
        """Return the id of a delivery, or None if its scheme has none.

        Raises:
            CallError: PAYLOAD_TOO_LARGE; ACCESS_DENIED, if it is not verified.
        """
        if len(request.body) > self._max_body:
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, f"the webhook has more than {self._max_body:,} bytes")
        if self._verify is None:
            return None
        try:
            verified = self._verify(request)
            if inspect.isawaitable(verified):
                verified = await verified
        except CallError:
            raise
        except Exception as error:
            logger.exception("the verification of a webhook raised")
            raise _rejected("it cannot be verified; the log of the server has the reason") from error
        if verified is True:
            return None
        if not isinstance(verified, str) or not verified:
            raise _rejected("it is not verified")
        return verified

    def deliver(
        self, payload: Any, request: WebhookRequest, *, delivery: str | None, webhook: str | None = None
    ) -> Outcome:
        """Pass a verified request to its subscribers; `payload` is its decoded body.

        `webhook` is its name, if the path has one; otherwise it is found by the name of its event.

        Raises:
            CallError: OPERATION_NOT_FOUND, VALIDATION_ERROR; UNAVAILABLE, if the sender has to repeat it.
        """
        webhooks = self._webhooks or {}
        if webhook is None:
            names = tuple(_event_names(as_dict(payload), request.headers))
            matching_webhooks = [webhooks[self._names[name]] for name in names if name in self._names]
            if not names and len(webhooks) == 1:
                matching_webhooks = [*webhooks.values()]
            declared = matching_webhooks[0] if matching_webhooks else None
        elif (declared := webhooks.get(webhook)) is None:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"unknown webhook {webhook[:100]!r}")
        key = None if delivery is None else sha256(delivery.encode("utf-8", "replace")).digest()
        if key in self._remembered:
            return "duplicate"
        if declared is not None and self._strict and (problems := declared.schema.problems(payload)):
            problem_details = [{"path": problem.path, "message": problem.message} for problem in problems]
            message = f"the webhook {declared.name}: {problems[0].path or 'the body'}: {problems[0].message}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message, {"problems": problem_details})
        outcome = self._enqueue(request, declared, delivery)
        if key is not None:
            self._remembered[key] = None
        return outcome

    def _enqueue(self, request: WebhookRequest, declared: DeclaredWebhook | None, delivery: str | None) -> Outcome:
        listening = [
            subscriber for subscriber in tuple(self._subscribers) if subscriber.error is None
        ]  # other threads may subscribe
        if self._closed or not listening:
            message = "nothing is subscribed to webhooks at the moment: repeat it later"
            raise CallError(ErrorCode.UNAVAILABLE, message, retry_after=_RETRY_AFTER_SECONDS)
        name = None if declared is None else declared.name
        wanting = [subscriber for subscriber in listening if subscriber.webhook in (None, name)]
        ready = [subscriber for subscriber in wanting if subscriber.has_space(len(request.body))]
        if wanting and not ready:
            message = f"{self._max_waiting:,} webhooks, or 16 MiB, are waiting already: repeat it later"
            raise CallError(ErrorCode.UNAVAILABLE, message, retry_after=_RETRY_AFTER_SECONDS)
        headers = {key: value for key, value in request.headers.items() if not _SECRET_HEADER.search(key)}
        accepted = _Delivery(request.body, headers, name, None if delivery is None else delivery[:_MAX_NAME_LENGTH])
        for subscriber in wanting:
            if subscriber in ready:
                subscriber.put(accepted)
            else:
                message = f"the subscriber is too slow: {self._max_waiting:,} webhooks, or 16 MiB, were waiting for it"
                subscriber.fail(CallError(ErrorCode.UNAVAILABLE, message))
        return "accepted" if ready else "ignored"


def _closed() -> CallError:
    return CallError(ErrorCode.UNAVAILABLE, "the source of these webhooks is closed")


def _normalized(name: str) -> str:
    """Return a name in which `batch.cancelled`, `batch_cancelled` and `batch-cancelled` are the same."""
    return _SEPARATORS.sub("_", name.lower()).strip("_")


def _event_names(payload: Mapping[str, Any], headers: Mapping[str, str]) -> Iterator[str]:
    """Yield the normalized names that an event may have: from its body, which is signed, then from headers.

    GitHub sends `X-GitHub-Event: issues` and `"action": "opened"` for `issues-opened`.
    """
    event_names = [event_name for field in _EVENT_FIELDS if isinstance(event_name := payload.get(field), str)]
    event_names += [value for name, value in headers.items() if _EVENT_HEADERS.fullmatch(name)]
    action = payload.get("action")
    for name in event_names:
        if isinstance(action, str):
            yield _normalized(f"{name[:_MAX_NAME_LENGTH]} {action[:_MAX_NAME_LENGTH]}")
        yield _normalized(name[:_MAX_NAME_LENGTH])


__all__ = [
    "MAX_REMEMBERED",
    "DeclaredWebhook",
    "GitHubSignature",
    "StandardSignature",
    "StripeSignature",
    "Verify",
    "WebhookReceiver",
    "WebhookRequest",
]
