"""Calls over NATS: `NatsTransport`, and its connection to the broker.

Subjects:

    <prefix>.call.math.add          requests for math.add; its servers are a queue group
    <prefix>.in.<address>.-         messages for one peer: responses, and events that control a call
    <prefix>.all                    messages for every peer

The reply subject of a message, `<prefix>.in.<address>.<token>`, holds the sender's address and the token of the call,
so that the payload stays a plain event. If a subject has no subscriber, the server's status arrives there. A message
for one peer has a receipt after the token, `<token>-<receipt>`, which names the receiver (see `Receipts`). A peer that
does not implement this publishes its response to the reply subject.

A plain NATS client sends a request with its own reply subject, such as `_INBOX.…`. Its address here is that subject
after an `@`.

Rule: responses are published with our own permissions, so they go to inboxes only: those of opwire ends with this
prefix, those of NATS clients (`_INBOX.…`, `_INBOX_name.…`) and those that a NATS server creates for requests from
another account (`_R_.…`). A message with any other reply, such as `$JS.API.STREAM.DELETE.orders`, is ignored.

`nats service ls`, `info` and `stats` query services by `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`: all services, those
of one name, or one of them (NATS ADR-32). An operation is an endpoint of the service.
"""

import re
import time
from asyncio import timeout
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2s, sha256
from hmac import compare_digest
from itertools import count
from os import PathLike
from secrets import token_bytes
from ssl import SSLContext
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from opwire.errors import CallError, ErrorCode, UsageError
from opwire.protocol.description import Describing, Description
from opwire.protocol.events import MAX_MESSAGE
from opwire.protocol.transport import Address
from opwire.runtime.bounded import BoundedDict
from opwire.runtime.limits import TokenBucket
from opwire.runtime.text import get_logger
from opwire.transports.broker import BrokerTransport
from opwire.transports.broker_connection import BrokerListener, RequestSigner
from opwire.transports.nats.connection import (
    MAX_PAYLOAD,
    Info,
    Message,
    NatsConnection,
    NatsCredentials,
    NatsServers,
    Security,
    open_any,
    subscribe,
    unsubscribe,
)
from opwire.transports.pacing import LARGE, LargeMessages

logger = get_logger("opwire.transports.nats")

# --- subjects ---------------------------------------------------------------------------------------------------------

ABSENT = "-"  # in place of a token, and before a receipt
FOREIGN = "@"  # the first character of the address of a plain NATS client

_MAX_OPERATION_BYTES = 1024  # a line may have 4,096, with two subjects in it
_MAX_NAME_LENGTH = 256
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_PUBLICATION = re.compile(r'Publish to "([^"]*)"')
_INBOX = re.compile(r"(?:_INBOX(?:_[A-Za-z0-9_-]{0,64})?|_R_)(?:\.[A-Za-z0-9_-]{1,64}){1,8}")
_MAX_WORD_LENGTH = 64  # an address or a token: letters and digits


class Subjects:
    """The subjects with one prefix, and the name of the queue groups.

    Raises:
        UsageError: a prefix or queue name that is invalid in NATS.
    """

    def __init__(self, prefix: str, queue: str = "q") -> None:
        for option, name in (("prefix", prefix), ("queue", queue)):
            if not _NAME.fullmatch(name) or len(name) > _MAX_NAME_LENGTH:
                raise UsageError(f"invalid {option} {name[:80]!r} for NATS: use letters, digits, _, - and inner dots")
        self.queue = queue
        self._own = f"{prefix}."
        self._calls = f"{prefix}.call."
        self._inboxes = f"{prefix}.in."
        self.all = f"{prefix}.all"

    def call(self, operation_id: str) -> str:
        """Return the subject of requests for an operation."""
        return self._calls + encode_id(operation_id)

    def inbox(self, address: Address) -> str:
        """Return the prefix of the subjects of one peer; a token follows."""
        return f"{self._inboxes}{address}."

    def to(self, address: Address) -> str:
        """Return the subject of messages for one peer.

        Raises:
            CallError: UNAVAILABLE, if the address is not that of an inbox.
        """
        if _is_word(address):
            return f"{self._inboxes}{address}.{ABSENT}"
        if address[:1] == FOREIGN and _INBOX.fullmatch(address, 1) is not None:
            return address[1:]
        wrong = f"{address[:80]!r} is not the address of an inbox" if address else "the peer gave no reply subject"
        raise CallError(ErrorCode.UNAVAILABLE, wrong)

    def sender(self, reply: str) -> tuple[Address, str] | None:
        """Parse address and token of a reply subject; return None if it is not an inbox."""
        if reply.startswith(self._inboxes):  # by hand, since a regular expression takes twice as long
            address, _, last_word = reply[len(self._inboxes) :].partition(".")
            token = last_word.partition(ABSENT)[0]
            # `_is_word` of both, without the calls.
            words = address.isalnum() and (not token or token.isalnum()) and address.isascii() and token.isascii()
            return (address, token) if words and last_word and len(address) <= _MAX_WORD_LENGTH >= len(token) else None
        if reply.startswith(self._own) or _INBOX.fullmatch(reply) is None:
            return None
        return FOREIGN + reply, ""

    def forbidden(self, error: str) -> tuple[str | None, Address | None]:
        """Return the operation, or the end, to which a permissions error of the server denies messages."""
        match = _PUBLICATION.search(error)
        subject = "" if match is None else match[1]
        if subject.startswith(self._calls):
            return unquote(subject[len(self._calls) :]), None
        if subject.startswith(self._inboxes):
            return None, subject[len(self._inboxes) :].partition(".")[0]
        return None, None


class Receipts:
    """The receipts after tokens, by which the server's "no responders" names the receiver that is gone.

    Any client with permission to publish to our inbox can forge such a status. So it is ignored without a receipt of
    ours: the receiver's address, signed with a key that never leaves this process. The receiver can read its receipt,
    so it can forge its own absence and nothing else.
    """

    _DIGITS = 16

    def __init__(self) -> None:
        self._key = token_bytes(32)

    def make(self, address: Address) -> str:
        """Return the receipt for a receiver: one token of a subject, after a hyphen."""
        receiver_word = quote(address, safe="").replace(".", "%2E") if address[0] == FOREIGN else address
        return f"{ABSENT}{self._signature(address)}{receiver_word}"

    def receiver(self, token_with_receipt: str) -> Address:
        """Return the receiver that a token with a receipt names; empty if the receipt is missing or invalid."""
        receipt = token_with_receipt.partition(ABSENT)[2]
        signature, address = receipt[: self._DIGITS], unquote(receipt[self._DIGITS :])
        genuine = compare_digest(signature.encode("latin-1", "replace"), self._signature(address).encode())
        return address if address and genuine else ""

    def _signature(self, address: Address) -> str:
        encoded_address = address.encode(errors="replace")
        return blake2s(encoded_address, key=self._key, digest_size=self._DIGITS // 2).hexdigest()


def plain_token(token_with_receipt: str) -> str | None:
    """Return the token at the end of a subject, without its receipt; None if it is invalid."""
    token = token_with_receipt.partition(ABSENT)[0]
    return token if not token or _is_word(token) else None


def _is_word(text: str) -> bool:
    return text.isalnum() and text.isascii() and len(text) <= _MAX_WORD_LENGTH


@lru_cache(maxsize=4096)
def encode_id(operation_id: str) -> str:
    """Encode an operation's id for a subject: escaped as in URLs, and unique.

    Dots are kept: `github.repos/get` becomes `github.repos%2Fget`. A dot without a character before or after it is
    escaped, too. An id that is too long for a subject is replaced by its hash.
    """
    quoted = re.sub(r"^\.|(?<=\.)\.|\.$", "%2E", quote(operation_id, safe="", errors="surrogatepass"))
    if len(quoted) > _MAX_OPERATION_BYTES:
        return f"%sha256.{sha256(operation_id.encode(errors='surrogatepass')).hexdigest()}"
    return quoted or "%"


# --- the service protocol ---------------------------------------------------------------------------------------------

_VERBS = ("PING", "INFO", "STATS")
_NANOSECONDS = 1_000_000_000
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")  # the tools accept no other characters


def service_subjects(described: Description) -> list[str]:
    """Return the subjects of the queries to one service."""
    name, id = _NOT_IN_NAMES.sub("_", described.server.name), described.server.id
    return [f"$SRV.{verb}{to}" for verb in _VERBS for to in ("", f".{name}", f".{name}.{id}")]


def service_response(subject: str, described: Description, subjects: Subjects) -> bytes | None:
    """Return the response to a query, as JSON; None for an unknown query."""
    verb = (subject.split(".")[1:2] or [""])[0]
    if verb not in _VERBS:
        return None
    server = described.server
    response: dict[str, Any] = {
        "type": f"io.nats.micro.v1.{verb.lower()}_response",
        "name": _NOT_IN_NAMES.sub("_", server.name),
        "id": server.id,
        "version": server.version,
        "metadata": {"status": server.status},
    }
    endpoints: list[dict[str, Any]] = []
    for operation in () if verb == "PING" else described.operations:
        statistics, custom = operation.statistics, {"operation": operation.id}
        nanoseconds = round(statistics.seconds * _NANOSECONDS)
        counted = {
            "num_requests": statistics.calls,
            "num_errors": statistics.errors,
            "last_error": statistics.last_error or "",
            "processing_time": nanoseconds,
            "average_processing_time": nanoseconds // statistics.calls if statistics.calls else 0,
            "data": custom,
        }
        name = _NOT_IN_NAMES.sub("_", operation.id)
        endpoint = {"name": name, "subject": subjects.call(operation.id), "queue_group": subjects.queue}
        endpoints.append(endpoint | (counted if verb == "STATS" else {"metadata": custom}))
    if verb == "INFO":
        response |= {"description": "", "endpoints": endpoints}
    elif verb == "STATS":
        started = datetime.fromtimestamp(server.started / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        response |= {"started": started, "endpoints": endpoints}
    return msgspec.json.encode(response)


# --- the broker connection --------------------------------------------------------------------------------------------

_MAX_CACHED_SUBJECTS = 4096
_MAX_LOGGED_ERRORS = 100  # every denied message causes one
_QUERIES_PER_SECOND, _QUERIES_AT_ONCE = 10.0, 20  # a response about 1,200 operations takes 3 ms and 150 kB
_NO_RESPONDERS = 503
_CLOSE_TIMEOUT = 1.0  # seconds
_OWN_INBOX, _ALL, _SERVICE = "in", "all", "srv"  # ids of our subscriptions; those of operations are numbers


class NatsBrokerConnection:
    """A `BrokerConnection` over a NATS server or cluster.

    `describe` returns what this peer serves, for NATS' own tools; their queries are ignored without it, or while it
    returns None.
    """

    def __init__(
        self,
        servers: NatsServers,
        subjects: Subjects,
        security: Security,
        *,
        describe: Callable[[], Description | None] = lambda: None,
    ) -> None:
        self.name = str(servers)
        self.max_message = Info().max_payload
        self.ignored = 0  # messages that are invalid or have no inbox for the response, and queries above their rate
        self.servers = servers
        self._subjects = subjects
        self.receipts = Receipts()
        self._security = security
        self._describe = describe
        self._listener: BrokerListener | None = None
        self._connection: NatsConnection | None = None
        self._large = LargeMessages("NATS", 16 * 1024 * 1024, 64 * 1024 * 1024)
        self._inbox = ""  # the prefix of the subjects of our inbox
        # What precedes and follows the token in the line of a message, for each operation and each receiver.
        self._call_lines: BoundedDict[str, bytes] = BoundedDict(_MAX_CACHED_SUBJECTS)
        self._receivers: BoundedDict[Address, tuple[bytes, bytes]] = BoundedDict(_MAX_CACHED_SUBJECTS)
        self._sids = count(1)
        self._serving: dict[str, int] = {}  # the subscription of each operation
        self._discoverable = False
        self._queries = TokenBucket(_QUERIES_PER_SECOND, _QUERIES_AT_ONCE)
        self._errors: set[str] = set()

    async def connect(self, address: Address, listener: BrokerListener) -> None:
        """Connect to the first server that accepts."""
        self._listener, self._inbox = listener, self._subjects.inbox(address)
        for state in (self._serving, self._errors, self._call_lines, self._receivers):
            state.clear()
        self._discoverable = False
        subscriptions = subscribe(f"{self._inbox}*", _OWN_INBOX) + subscribe(self._subjects.all, _ALL)
        self._connection = await open_any(self.servers, self, self._security, subscriptions)
        self.on_info(self._connection.info)

    def beat(self, every: float) -> None:
        """Check that the server is alive."""
        if self._connection is not None:
            self._connection.beat()

    async def close(self) -> None:
        """Flush all writes and disconnect. From then on the server reports that this inbox has no subscriber.

        What arrives until then is still handled: a request that was sent to this peer directly is rejected, not lost.
        """
        connection = self._connection
        if connection is not None:
            with suppress(CallError, TimeoutError):  # lost already, or silent
                connection.link.control(unsubscribe([_OWN_INBOX, _ALL]))
                async with timeout(_CLOSE_TIMEOUT):
                    await connection.barrier()
            self._connection = None
            await connection.close()

    def _open(self) -> NatsConnection:
        if self._connection is None:
            raise self._disconnected()
        return self._connection

    def _disconnected(self) -> CallError:
        return CallError(ErrorCode.UNAVAILABLE, f"not connected to {self.name}")

    async def serve(self, operation_ids: Iterable[str]) -> None:
        """Subscribe to requests for these operations, all or nothing."""
        connection = self._open()
        new_sids = {
            operation_id: next(self._sids) for operation_id in operation_ids if operation_id not in self._serving
        }
        lines = [
            subscribe(self._subjects.call(operation_id), sid, self._subjects.queue)
            for operation_id, sid in new_sids.items()
        ]
        described = None if self._discoverable else self._describe()
        if described is not None:  # once, along with the first operations
            self._discoverable = True
            queries = service_subjects(described)
            lines += [subscribe(subject, f"{_SERVICE}{number}") for number, subject in enumerate(queries)]
        connection.link.control(b"".join(lines))
        self._serving |= new_sids
        errors = await connection.barrier()
        subjects = {self._subjects.call(operation_id) for operation_id in new_sids}
        for error in errors:
            quoted = error.split('"')[1:2]
            if not quoted or quoted[0] in subjects:  # an error without a subject may be about any
                await self.unserve(new_sids)
                raise CallError(ErrorCode.UNAVAILABLE, f"{connection.server} refused: {error}")

    async def unserve(self, operation_ids: Iterable[str]) -> None:
        """Unsubscribe. Requests that the server has sent before are still delivered."""
        connection = self._open()
        sids = [self._serving.pop(operation_id) for operation_id in operation_ids if operation_id in self._serving]
        connection.link.control(unsubscribe(sids))
        await connection.barrier()

    def request(self, operation_id: str, token: str, message: bytes, sticky_key: str | None = None) -> None:
        """Publish a request. The server chooses a subscriber, and ignores sticky keys."""
        line = self._call_lines.get(operation_id)
        if line is None:
            line = self._call_lines[operation_id] = self._line(self._subjects.call(operation_id))
        self._publish(line, token, b"", message, receiver=operation_id)

    def send(self, to: Address, token: str, message: bytes, *, control: bool) -> None:
        """Publish to the inbox of one peer."""
        receiver = self._receivers.get(to)
        if receiver is None:
            # One subject for all messages to a peer: NATS caches the subscribers of a subject; a new one costs 1 µs.
            line, receipt = self._line(self._subjects.to(to)), self.receipts.make(to)
            receiver = self._receivers[to] = line, receipt.encode("latin-1")
        line, receipt = receiver
        self._publish(line, token, receipt, message, receiver="" if control else to)

    def broadcast(self, token: str, message: bytes) -> None:
        """Publish to every peer."""
        self._publish(self._line(self._subjects.all), token or ABSENT, b"", message)

    def _line(self, subject: str) -> bytes:
        """Return the line of a message to a subject, up to the token in its reply subject."""
        return f"PUB {subject} {self._inbox}".encode("latin-1")

    def _publish(self, line: bytes, token: str, receipt: bytes, message: bytes, *, receiver: str = "") -> None:
        """Publish a message. `receiver` is whom large ones are paced for; without one it is a control message."""
        if len(message) > self.max_message:  # the server would end the connection
            size = f"the message has {len(message):,} bytes; {self.name} accepts {self.max_message:,}"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, size, {"bytes": len(message), "limit": self.max_message})
        if self._connection is None:
            raise self._disconnected()
        link = self._connection.link
        if receiver and len(message) > LARGE:
            self._large.pace(receiver, len(message), link)
        data = b"%b%b%b %d\r\n%b\r\n" % (line, token.encode("latin-1"), receipt, len(message), message)
        if receiver:
            link.write(data)
        else:
            link.control(data)

    def on_message(self, message: Message) -> None:
        """Handle a message; called by the connection."""
        if self._listener is None:
            return
        if message.sid == _OWN_INBOX:
            self._inbox_message(message, self._listener)
        elif (sender := self._subjects.sender(message.reply)) is None:
            self.ignored += 1
        elif message.sid == _ALL:
            self._listener.overheard(*sender, message.payload)
        elif message.sid.startswith(_SERVICE):
            described = None if self._queries.take(time.monotonic()) else self._describe()
            response = None if described is None else service_response(message.subject, described, self._subjects)
            if response is None:
                self.ignored += 1
                return
            try:
                self.send(sender[0], "", response, control=False)
            except CallError as error:
                logger.debug("a service query was not answered: %s", error)
        else:
            self._listener.arrived(*sender, message.payload)

    def _inbox_message(self, message: Message, listener: BrokerListener) -> None:
        """Dispatch a message to our inbox. The token is in the reply, or in the subject for a peer without an inbox."""
        last_word = message.subject[len(self._inbox) :]
        if message.status == _NO_RESPONDERS:
            # Any client can forge the status: it counts with the token of an open request, or with a receipt of ours.
            if ABSENT not in last_word:
                listener.undelivered(last_word, "no server available")
                return
            if peer := self.receipts.receiver(last_word):
                listener.unreachable(peer)
                return
        elif not message.status:
            sender = self._subjects.sender(message.reply) if message.reply else ("", "")
            if sender is not None:
                token = sender[1] if last_word == ABSENT else plain_token(last_word)
                if token is not None:
                    listener.arrived(sender[0], token, message.payload)
                    return
        self.ignored += 1

    def on_info(self, info: Info) -> None:
        """Handle INFO of the server; called by the connection."""
        self.max_message = min(max(info.max_payload, 1), MAX_PAYLOAD)
        if self._connection is not None:
            self.servers.discover(self._connection.server, info.connect_urls)
        if info.ldm:  # it closes its connections one by one; we then connect to another server
            logger.info("the NATS server %s is about to shut down", info.server_name)

    def on_error(self, text: str) -> None:
        """Handle an error of the server; called by the connection."""
        if text not in self._errors and len(self._errors) < _MAX_LOGGED_ERRORS:
            self._errors.add(text)
            logger.warning("%s reports: %s", self.name, text)
        operation_id, peer = self._subjects.forbidden(text)
        if operation_id is not None and self._listener is not None:
            self._listener.refused(operation_id, text)
        elif peer is not None and self._listener is not None:
            self._listener.forbidden(peer)

    def on_lost(self, reason: str) -> None:
        """Handle the loss of the connection; called by it."""
        self._connection = None
        if self._listener is not None:
            self._listener.disconnected(reason)


class NatsTransport(BrokerTransport):
    """A `Transport` over a NATS server or cluster.

        async with PendingRequestMap(NatsTransport("nats://127.0.0.1:4222")) as calls:
            envelope = await calls.call("math.add", {"a": 1, "b": 2})

    Peers with the same `prefix` reach each other. The servers of an operation share its requests; `queue` names their
    group. `user` and `password`, `token` or `credentials_file` (a `.creds` file, or one with the seed of an NKEY)
    are the defaults for servers without credentials in the URL. TLS is used if the server requires it, the URL starts
    with `tls://` or `ssl` is given; `tls_first` is for servers that are configured with `handshake_first`.

    Plain NATS clients can call operations too: a request is a `call.requested` event on `<prefix>.call.<operation id>`,
    and its reply subject is an inbox (`_INBOX.…`, or `_INBOX_<name>.…` for private ones). Other requests are ignored.
    NATS' own tools (`nats service ls`, `info`, `stats`) show the operations.

    Raises:
        UsageError: an invalid URL, prefix or queue.
    """

    def __init__(
        self,
        url: str | Iterable[str] = "nats://127.0.0.1:4222",
        *,
        prefix: str = "opwire",
        queue: str = "q",
        heartbeat: float = 1.0,
        max_message: int = MAX_MESSAGE,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        credentials_file: str | PathLike[str] | None = None,
        ssl: SSLContext | None = None,
        tls_first: bool = False,
        signed: RequestSigner | None = None,
    ) -> None:
        security = Security(NatsCredentials(user, password, token, credentials_file), ssl, tls_first)

        def describe() -> Description | None:
            return self._receiver.describe() if isinstance(self._receiver, Describing) else None

        connection = NatsBrokerConnection(NatsServers(url), Subjects(prefix, queue), security, describe=describe)
        super().__init__(connection, heartbeat=heartbeat, max_message=max_message, signed=signed)
