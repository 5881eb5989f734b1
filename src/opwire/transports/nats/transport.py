"""Calls over NATS.

Which subjects stand for what. No I/O.

    <prefix>.call.math.add          requests for math.add; those who serve it are a queue group
    <prefix>.in.<address>.-         messages for one end: answers, and whatever steers a call
    <prefix>.all                    messages for every end

The reply of a message, `<prefix>.in.<address>.<token>`, says who sent it and shows the token of its call, so that its
payload stays a plain event. If nobody listens, the server says so there. What is for one end has a receipt behind the
token, `<token>-<receipt>`, which names the receiver (see `Receipts`). A peer that knows nothing of this answers a
request where its reply says.

A plain NATS client asks with a reply of its own, such as `_INBOX.…`. Its address here is that subject behind an `@`.

Rule: answers are published with our own permissions, so they go to inboxes alone: those of opwire ends under this
prefix, those that NATS clients make (`_INBOX.…`, `_INBOX_name.…`) and those that a NATS server makes for requests from
another account (`_R_.…`). A message with any other reply, such as `$JS.API.STREAM.DELETE.orders`, is ignored.

What NATS' own tools ask every service (`nats service ls`, `info`, `stats`), and the answers. No I/O.

The questions are `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`: to all services, to those of one name, or to one of them
(NATS ADR-32). An operation is an endpoint of the service.

NATS as a `BrokerConnection`: how requests, answers and what steers them become messages on subjects.
"""

import logging
import re
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
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from opwire.call import MAX_MESSAGE, Address, Describing, Description
from opwire.errors import CallError, ErrorCode
from opwire.transports.broker import BrokerTransport
from opwire.transports.broker_connection import BrokerListener
from opwire.transports.nats.connection import Connection, Credentials, Security, Servers, open_any
from opwire.transports.nats.protocol import MAX_PAYLOAD, Info, Message, publish, subscribe, unsubscribe

if TYPE_CHECKING:
    from opwire.auth import SignedRequests


ABSENT = "-"
FOREIGN = "@"  # what the address of a plain NATS client begins with

_MAX_OPERATION = 1024  # bytes: a line may have 4,096, with two subjects in it
_MAX_NAME = 256
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_PUBLICATION = re.compile(r'Publish to "([^"]*)"')
_INBOX = re.compile(r"(?:_INBOX(?:_[A-Za-z0-9_-]{0,64})?|_R_)(?:\.[A-Za-z0-9_-]{1,64}){1,8}")
_MAX_WORD = 64  # characters of an address or a token, which are letters and digits


class Subjects:
    """The subjects under one prefix, and the name of the queue groups.

    Raises:
        CallError: VALIDATION_ERROR, for a prefix or a name that NATS cannot use.
    """

    def __init__(self, prefix: str, queue: str = "q") -> None:
        for what, name in (("prefix", prefix), ("queue", queue)):
            if not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
                wrong = f"{name[:80]!r} is no {what} for NATS: use letters, digits, _ and -, with dots in between"
                raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
        self.queue = queue
        self._own = f"{prefix}."
        self._calls = f"{prefix}.call."
        self._inboxes = f"{prefix}.in."
        self.all = f"{prefix}.all"

    def call(self, operation_id: str) -> str:
        """Where requests for an operation go."""
        return self._calls + encode_id(operation_id)

    def inbox(self, address: Address) -> str:
        """What the subjects for one end begin with; a token follows."""
        return f"{self._inboxes}{address}."

    def to(self, address: Address) -> str:
        """Where a message for one end goes.

        Raises:
            CallError: UNAVAILABLE, if that is not the address of an inbox.
        """
        if _is_word(address):
            return f"{self._inboxes}{address}.{ABSENT}"
        if address[:1] == FOREIGN and _INBOX.fullmatch(address, 1) is not None:
            return address[1:]
        wrong = f"{address[:80]!r} is not the address of an inbox" if address else "the peer gave no reply subject"
        raise CallError(ErrorCode.UNAVAILABLE, wrong)

    def asker(self, reply: str) -> tuple[Address, str] | None:
        """Return the address and the token that a reply shows; None where it is not an inbox."""
        if reply.startswith(self._inboxes):  # by hand, since a regular expression takes twice as long
            address, _, shown = reply[len(self._inboxes) :].partition(".")
            token = plain_token(shown)
            return (address, token) if _is_word(address) and token is not None and shown else None
        if reply.startswith(self._own) or _INBOX.fullmatch(reply) is None:
            return None
        return FOREIGN + reply, ""

    def forbidden(self, complaint: str) -> str | None:
        """The operation that we may not ask for, if that is what the server complains about."""
        match = _PUBLICATION.search(complaint)
        if match is None or not match[1].startswith(self._calls):
            return None
        return unquote(match[1][len(self._calls) :])


class Receipts:
    """What follows a token, so that the server's "no responders" names the receiver that is gone.

    Any client that may publish to our inbox can write such a status. It is believed only with a receipt of ours: the
    receiver's address, signed with a key that never leaves this process. The receiver sees its receipt, so all that it
    can forge is its own absence.
    """

    _DIGITS = 16
    _KEPT = 4096

    def __init__(self) -> None:
        self._key = token_bytes(32)
        self._made: dict[Address, str] = {}

    def make(self, address: Address) -> str:
        """Return the receipt for a receiver: one token of a subject, with a hyphen in front."""
        made = self._made.get(address)
        if made is None:
            if len(self._made) >= self._KEPT:
                self._made.clear()
            named = quote(address, safe="").replace(".", "%2E") if address[0] == FOREIGN else address
            made = self._made[address] = f"{ABSENT}{self._signature(address)}{named}"
        return made

    def receiver(self, shown: str) -> Address:
        """Return the receiver that a token with a receipt names; empty where the receipt is missing or not ours."""
        receipt = shown.partition(ABSENT)[2]
        signature, address = receipt[: self._DIGITS], unquote(receipt[self._DIGITS :])
        genuine = compare_digest(signature.encode("latin-1", "replace"), self._signature(address).encode())
        return address if address and genuine else ""

    def _signature(self, address: Address) -> str:
        named = address.encode(errors="replace")
        return blake2s(named, key=self._key, digest_size=self._DIGITS // 2).hexdigest()


def plain_token(shown: str) -> str | None:
    """Return the token at the end of a subject, without the receipt behind it; None where it is not a token."""
    token = shown.partition(ABSENT)[0]
    return token if not token or _is_word(token) else None


def _is_word(text: str) -> bool:
    return text.isalnum() and text.isascii() and len(text) <= _MAX_WORD


@lru_cache(maxsize=4096)
def encode_id(operation_id: str) -> str:
    """An operation's id in the form that subjects can have: escaped as in URLs, and no two ids alike.

    Dots stay what they are, `github.repos/get` becomes `github.repos%2Fget`. A dot with nothing before or after it is
    escaped, too. An id that is too long for a subject is replaced by its hash.
    """
    quoted = re.sub(r"^\.|(?<=\.)\.|\.$", "%2E", quote(operation_id, safe="", errors="surrogatepass"))
    if len(quoted) > _MAX_OPERATION:
        return f"%sha256.{sha256(operation_id.encode(errors='surrogatepass')).hexdigest()}"
    return quoted or "%"


_VERBS = ("PING", "INFO", "STATS")
_NANOSECONDS = 1_000_000_000
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


class Endpoint(Struct, frozen=True, kw_only=True):
    """One operation, where it is asked for, and what it has done since the service was started."""

    operation_id: str
    subject: str
    queue_group: str = "q"
    requests: int = 0
    errors: int = 0
    last_error: str = ""
    seconds: float = 0.0
    """How long all the requests together took."""


class ServiceInfo(Struct, frozen=True, kw_only=True):
    """One serving end. `name` is shared by all that serve the same, `id` is its own, `version` a semantic one."""

    name: str
    id: str
    version: str
    started: int
    """In epoch milliseconds."""
    description: str = ""
    metadata: dict[str, str] = {}
    endpoints: list[Endpoint] = []


def service_info(described: Description, subjects: Subjects) -> ServiceInfo:
    """What a serving end says about itself, in the words of NATS."""
    server = described.server
    return ServiceInfo(
        name=_NOT_IN_NAMES.sub("_", server.name),
        id=server.id,
        version=server.version,
        started=server.started,
        metadata={"status": server.status},
        endpoints=[
            Endpoint(
                operation_id=each.id,
                subject=subjects.call(each.id),
                queue_group=subjects.queue,
                requests=each.statistics.calls,
                errors=each.statistics.errors,
                last_error=each.statistics.last_error or "",
                seconds=each.statistics.seconds,
            )
            for each in described.operations
        ],
    )


def subjects(name: str, id: str) -> list[str]:
    """Where the questions to one serving end come."""
    return [f"$SRV.{verb}{to}" for verb in _VERBS for to in ("", f".{name}", f".{name}.{id}")]


def answer(subject: str, info: ServiceInfo) -> bytes | None:
    """The answer to a question, as JSON; None for what is no question."""
    verb = subject.split(".")[1:2]
    what = {"name": info.name, "id": info.id, "version": info.version, "metadata": info.metadata}
    match verb:
        case ["PING"]:
            pass
        case ["INFO"]:
            what |= {"description": info.description, "endpoints": [_described(each) for each in info.endpoints]}
        case ["STATS"]:
            what |= {"started": _time(info.started), "endpoints": [_counted(each) for each in info.endpoints]}
        case _:
            return None
    return msgspec.json.encode({"type": f"io.nats.micro.v1.{verb[0].lower()}_response", **what})


def _described(endpoint: Endpoint) -> dict[str, Any]:
    return {**_named(endpoint), "metadata": {"operation": endpoint.operation_id}}


def _counted(endpoint: Endpoint) -> dict[str, Any]:
    whole = round(endpoint.seconds * _NANOSECONDS)
    return {
        **_named(endpoint),
        "num_requests": endpoint.requests,
        "num_errors": endpoint.errors,
        "last_error": endpoint.last_error,
        "processing_time": whole,
        "average_processing_time": whole // endpoint.requests if endpoint.requests else 0,
        "data": {"operation": endpoint.operation_id},
    }


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _named(endpoint: Endpoint) -> dict[str, Any]:
    name = _NOT_IN_NAMES.sub("_", endpoint.operation_id)  # the tools know no other characters
    return {"name": name, "subject": endpoint.subject, "queue_group": endpoint.queue_group}


logger = logging.getLogger("opwire.transports.nats")

_COMPLAINTS = 100  # that are logged of one connection: each message that is not allowed causes one

_NO_RESPONDERS = 503
_OWN_INBOX, _ALL, _SERVICE = "in", "all", "srv"  # what we call our subscriptions; those of operations have numbers


class NatsBrokerConnection:
    """One end of a NATS server or cluster: a `BrokerConnection`.

    `describe` tells NATS' own tools what this end serves; without it, or while it returns None, they get no answer.
    """

    def __init__(
        self,
        servers: Servers,
        subjects: Subjects,
        security: Security,
        *,
        describe: Callable[[], ServiceInfo | None] | None = None,
    ) -> None:
        self.name = str(servers)
        self.max_message = Info().max_payload
        self.ignored = 0  # messages that cannot be answered, or mean nothing
        self._servers = servers
        self._subjects = subjects
        self._receipts = Receipts()
        self._security = security
        self._describe = describe
        self._listener: BrokerListener | None = None
        self._connection: Connection | None = None
        self._mine = ""  # what the subjects of our inbox begin with
        self._sids = count(1)
        self._serving: dict[str, int] = {}  # the subscription of each operation
        self._discoverable = False
        self._complaints: set[str] = set()

    # --- the connection -----------------------------------------------------------------------------------------------

    async def connect(self, address: Address, listener: BrokerListener) -> None:
        """Connect to the first server that lets us.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._listener, self._mine = listener, self._subjects.inbox(address)
        self._serving.clear()
        self._complaints.clear()
        self._discoverable = False
        subscriptions = subscribe(f"{self._mine}*", _OWN_INBOX) + subscribe(self._subjects.all, _ALL)
        self._connection = await open_any(self._servers, self, self._security, subscriptions)
        self.informed(self._connection.info)

    def beat(self, every: float) -> None:
        """Ask the server for a sign of life."""
        if self._connection is not None:
            self._connection.beat()

    async def close(self) -> None:
        """See that what was sent has arrived, and leave. From then on the server says that nobody is here."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(CallError):  # it is gone already
                connection.link.control(unsubscribe([_OWN_INBOX, _ALL]))
            await connection.close()

    def _connected(self) -> Connection:
        if self._connection is None:
            raise CallError(ErrorCode.UNAVAILABLE, f"there is no connection to {self.name}")
        return self._connection

    # --- serving ------------------------------------------------------------------------------------------------------

    async def serve(self, operation_ids: Iterable[str]) -> None:
        """Subscribe to requests for these operations: to all of them, or to none.

        Raises:
            CallError: UNAVAILABLE.
        """
        connection = self._connected()
        new = {each: next(self._sids) for each in operation_ids if each not in self._serving}
        lines = [subscribe(self._subjects.call(each), sid, self._subjects.queue) for each, sid in new.items()]
        connection.link.control(b"".join(lines) + self._discovery())
        self._serving |= new
        complaints = await connection.barrier()
        refused = next((text for text in complaints if self._concerns(text, new)), None)
        if refused is not None:
            await self.unserve(new)
            raise CallError(ErrorCode.UNAVAILABLE, f"{connection.server} refused: {refused}")

    def _concerns(self, complaint: str, operation_ids: Iterable[str]) -> bool:
        """Whether a complaint is about one of these subscriptions. One that names no subject may be about any."""
        quoted = complaint.split('"')[1:2]
        return not quoted or quoted[0] in {self._subjects.call(each) for each in operation_ids}

    async def unserve(self, operation_ids: Iterable[str]) -> None:
        """Unsubscribe. What the server sent before it knew is still delivered.

        Raises:
            CallError: UNAVAILABLE.
        """
        connection = self._connected()
        sids = [self._serving.pop(each) for each in operation_ids if each in self._serving]
        connection.link.control(unsubscribe(sids))
        await connection.barrier()

    # --- sending ------------------------------------------------------------------------------------------------------

    def request(self, operation_id: str, token: str, message: bytes, sticky_key: str | None = None) -> None:
        """Publish a request. The server says where answers would go if nobody has subscribed.

        It picks one of those who have by itself, and knows no keys.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        self._publish(self._subjects.call(operation_id), token, message, control=False)

    def send(self, to: Address, token: str, message: bytes, *, control: bool) -> None:
        """Publish to the inbox of one end.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        # One subject for all that goes to an end: NATS remembers who listens where, and each new subject costs it 1 µs.
        self._publish(self._subjects.to(to), token + self._receipts.make(to), message, control=control)

    def broadcast(self, token: str, message: bytes) -> None:
        """Publish to every end.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        self._publish(self._subjects.all, token or ABSENT, message, control=True)

    def _publish(self, subject: str, token: str, message: bytes, *, control: bool) -> None:
        if len(message) > self.max_message:  # the server would end the connection
            size = f"the message has {len(message):,} bytes, and {self.name} lets {self.max_message:,} through"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, size, {"bytes": len(message), "limit": self.max_message})
        link = self._connected().link
        data = publish(subject, self._mine + token, message)
        if control:
            link.control(data)
        else:
            link.write(data)

    # --- what arrives -------------------------------------------------------------------------------------------------

    def delivered(self, message: Message) -> None:
        """A message arrived; called by the connection."""
        if self._listener is None:
            return
        if message.sid == _OWN_INBOX:
            self._told(message)
        elif (asker := self._subjects.asker(message.reply)) is None:
            self.ignored += 1
        elif message.sid == _ALL:
            self._listener.overheard(*asker, message.payload)
        elif message.sid.startswith(_SERVICE):
            self._answer(message.subject, asker[0])
        else:
            self._listener.arrived(*asker, message.payload)

    def _told(self, message: Message) -> None:
        """Hand on what came to our inbox. The token is in the reply, or in the subject for a peer without an inbox."""
        shown = message.subject[len(self._mine) :]
        if message.status:
            self._bounced(shown, message.status)
            return
        sender = self._subjects.asker(message.reply) if message.reply else ("", "")
        token = sender and (sender[1] if shown == ABSENT else plain_token(shown))
        if sender is None or token is None or self._listener is None:
            self.ignored += 1
        else:
            self._listener.arrived(sender[0], token, message.payload)

    def _bounced(self, shown: str, status: int) -> None:
        """Nobody has subscribed to what we published: to an operation, or to the inbox of a peer.

        Any client can publish such a status: it counts with the token of an open request, or with a receipt of ours.
        """
        if status != _NO_RESPONDERS or self._listener is None:
            self.ignored += 1
        elif ABSENT not in shown:
            self._listener.undelivered(shown, "nobody serves it")
        elif peer := self._receipts.receiver(shown):
            self._listener.unreachable(peer)
        else:
            self.ignored += 1

    def informed(self, info: Info) -> None:
        """The server said something about itself; called by the connection."""
        self.max_message = min(max(info.max_payload, 1), MAX_PAYLOAD)
        if self._connection is not None:
            self._servers.learn(self._connection.server, info.connect_urls)
        if info.ldm:  # it closes its connections one by one when it thinks fit, and we then find another server
            logger.info("the NATS server %s is about to shut down", info.server_name)

    def complained(self, text: str) -> None:
        """The server did not do something; called by the connection."""
        if text not in self._complaints and len(self._complaints) < _COMPLAINTS:
            self._complaints.add(text)
            logger.warning("%s complains: %s", self.name, text)
        operation_id = self._subjects.forbidden(text)
        if operation_id is not None and self._listener is not None:
            self._listener.refused(operation_id, text)

    def dropped(self, reason: str) -> None:
        """The connection is gone; called by the connection."""
        self._connection = None
        if self._listener is not None:
            self._listener.disconnected(reason)

    # --- NATS' own tools ----------------------------------------------------------------------------------------------

    def _discovery(self) -> bytes:
        """The subscriptions to their questions: made once, together with those of the first operations."""
        info = None if self._describe is None or self._discoverable else self._describe()
        if info is None:
            return b""
        self._discoverable = True
        questions = subjects(info.name, info.id)
        return b"".join(subscribe(subject, f"{_SERVICE}{number}") for number, subject in enumerate(questions))

    def _answer(self, question: str, asker: Address) -> None:
        info = None if self._describe is None else self._describe()
        text = None if info is None else answer(question, info)
        if text is None:
            self.ignored += 1
            return
        try:
            self.send(asker, "", text, control=False)
        except CallError as error:
            logger.debug("a question about this service was not answered: %s", error)


class NatsTransport(BrokerTransport):
    """One end on a NATS server or cluster.

        async with PendingRequestMap(NatsTransport("nats://127.0.0.1:4222")) as calls:
            envelope = await calls.call("math.add", {"a": 1, "b": 2})

    Ends with the same `prefix` reach each other. Those who serve an operation share its requests; `queue` is the name
    of their group. `user` and `password`, `token` or `credentials` (a `.creds` file, or one with the seed of an NKEY)
    are for servers whose URL has no user. TLS is used where the server demands it, the URL says `tls://` or `ssl` is
    given; `tls_first` is for servers that are set to `handshake_first`.

    Plain NATS clients can call operations too: a request is a `call.requested` event on `<prefix>.call.<operation id>`,
    and its reply subject is an inbox (`_INBOX.…`, or `_INBOX_<name>.…` for private ones). Others are not answered.
    NATS' own tools (`nats service ls`, `info`, `stats`) show what is served.

    Raises:
        CallError: VALIDATION_ERROR, for a URL or a prefix that cannot be used.
    """

    def __init__(
        self,
        servers: str | Iterable[str] = "nats://127.0.0.1:4222",
        *,
        prefix: str = "opwire",
        queue: str = "q",
        heartbeat: float = 1.0,
        limit: int = MAX_MESSAGE,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        credentials: str | PathLike[str] | None = None,
        ssl: SSLContext | None = None,
        tls_first: bool = False,
        signed: "SignedRequests | None" = None,
    ) -> None:
        self._subjects = Subjects(prefix, queue)
        security = Security(Credentials(user, password, token, credentials), ssl, tls_first)
        medium = NatsBrokerConnection(Servers(servers), self._subjects, security, describe=self._describe)
        super().__init__(medium, heartbeat=heartbeat, max_message=limit, signed=signed)

    def _describe(self) -> ServiceInfo | None:
        """What is served here, for NATS' own tools."""
        described = self._receiver.describe() if isinstance(self._receiver, Describing) else None
        return None if described is None else service_info(described, self._subjects)
