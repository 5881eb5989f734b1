"""NATS as a `Medium`: how requests, answers and what steers them become messages on subjects."""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count

from opwire.call import Address
from opwire.errors import CallError, ErrorCode
from opwire.transports.medium import Listener
from opwire.transports.nats import service
from opwire.transports.nats.connection import Connection, Security, open_any
from opwire.transports.nats.protocol import MAX_PAYLOAD, Info, Message, publish, subscribe, unsubscribe
from opwire.transports.nats.servers import Servers
from opwire.transports.nats.subjects import ABSENT, Receipts, Subjects, plain_token

logger = logging.getLogger("opwire.transports.nats")

_COMPLAINTS = 100  # that are logged of one connection: each message that is not allowed causes one

_NO_RESPONDERS = 503
_INBOX, _ALL, _SERVICE = "in", "all", "srv"  # what we call our subscriptions; those of operations have numbers


class NatsMedium:
    """One end of a NATS server or cluster: a `Medium`.

    `describe` tells NATS' own tools what this end serves; without it, or while it returns None, they get no answer.
    """

    def __init__(
        self,
        servers: Servers,
        subjects: Subjects,
        security: Security,
        *,
        describe: Callable[[], service.ServiceInfo | None] | None = None,
    ) -> None:
        self.name = str(servers)
        self.max_message = Info().max_payload
        self.ignored = 0  # messages that cannot be answered, or mean nothing
        self._servers = servers
        self._subjects = subjects
        self._receipts = Receipts()
        self._security = security
        self._describe = describe
        self._listener: Listener | None = None
        self._connection: Connection | None = None
        self._mine = ""  # what the subjects of our inbox begin with
        self._sids = count(1)
        self._serving: dict[str, int] = {}  # the subscription of each operation
        self._discoverable = False
        self._complaints: set[str] = set()

    # --- the connection -----------------------------------------------------------------------------------------------

    async def connect(self, address: Address, listener: Listener) -> None:
        """Connect to the first server that lets us.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._listener, self._mine = listener, self._subjects.inbox(address)
        self._serving.clear()
        self._complaints.clear()
        self._discoverable = False
        subscriptions = subscribe(f"{self._mine}*", _INBOX) + subscribe(self._subjects.all, _ALL)
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
                connection.link.control(unsubscribe([_INBOX, _ALL]))
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

    def ask(self, operation_id: str, token: str, message: bytes, sticky_key: str | None = None) -> None:
        """Publish a request. The server says where answers would go if nobody has subscribed.

        It picks one of those who have by itself, and knows no keys.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        self._publish(self._subjects.call(operation_id), token, message, control=False)

    def tell(self, to: Address, token: str, message: bytes, *, control: bool) -> None:
        """Publish to the inbox of one end.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        # One subject for all that goes to an end: NATS remembers who listens where, and each new subject costs it 1 µs.
        self._publish(self._subjects.to(to), token + self._receipts.make(to), message, control=control)

    def tell_all(self, token: str, message: bytes) -> None:
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
        if message.sid == _INBOX:
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
        questions = service.subjects(info.name, info.id)
        return b"".join(subscribe(subject, f"{_SERVICE}{number}") for number, subject in enumerate(questions))

    def _answer(self, question: str, asker: Address) -> None:
        info = None if self._describe is None else self._describe()
        text = None if info is None else service.answer(question, info)
        if text is None:
            self.ignored += 1
            return
        try:
            self.tell(asker, "", text, control=False)
        except CallError as error:
            logger.debug("a question about this service was not answered: %s", error)
