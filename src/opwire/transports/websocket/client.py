"""`WebSocketTransport`: the end that connects to a `WebSocketServer`, and comes back when the connection is lost."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from ssl import SSLContext

from websockets.exceptions import InvalidURI
from websockets.uri import WebSocketURI, parse_uri

from opwire.call import MAX_MESSAGE, Address, CallEvent, CallRequested, CallResponded, Receiver
from opwire.call.events import Here, RefusedOperation, Who, Withdraw, refusal_error
from opwire.deadlines import back_off
from opwire.errors import CallError, ErrorCode, check_above_zero
from opwire.transports.link import MAX_BACKLOG
from opwire.transports.websocket.routes import SERVER
from opwire.transports.websocket.session import Dropped, Visit

logger = logging.getLogger("opwire.transports")

_STEADY = 5.0  # seconds: a connection that lasted longer was not refused

# At most 2 s between two attempts, so that a hub that was restarted soon has all its spokes again.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class WebSocketTransport:
    """A connection to a `WebSocketServer`: a `Transport`.

        transport = WebSocketTransport("wss://hub.example:8765", token="…")
        async with PendingRequestMap(transport) as calls:
            ...

    Of several URLs, one after the other is tried. `token` is shown to the server; a function is asked for a new one at
    every connection, and returns it at once. If it raises, that is logged, and the connection is tried again later.

    After a loss it connects again by itself, and announces its operations again; those that the server refuses then are
    logged. Until it is `connected`, whatever would send raises UNAVAILABLE. `heartbeat` is how often, in seconds, the
    server has to be heard of; by default as often as it says itself. Identities on requests are believed: the server
    has written them, and it was chosen here.
    """

    local = False
    trusted = True
    vouches = False
    lossy = False
    hub = SERVER

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        token: str | Callable[[], str] | None = None,
        heartbeat: float | None = None,
        limit: int = MAX_MESSAGE,
        ssl: SSLContext | None = None,
        connect_timeout: float = 10.0,
        max_backlog: int = MAX_BACKLOG,
    ) -> None:
        check_above_zero(limit=limit, connect_timeout=connect_timeout, max_backlog=max_backlog)
        if heartbeat is not None:
            check_above_zero(heartbeat=heartbeat)
        self._uris = [_parsed(each) for each in ([url] if isinstance(url, str) else url)]
        if not self._uris:
            raise CallError(ErrorCode.VALIDATION_ERROR, "at least one URL is needed: ws://host:port or wss://host:port")
        self._name = _shown(self._uris[0])
        self._token = token
        self._heartbeat = heartbeat
        self._limit = limit
        self._ssl = ssl
        self._connect_timeout = connect_timeout
        self._max_backlog = max_backlog
        self._receiver: Receiver | None = None
        self._visit: Visit | None = None
        self._connected = False  # there is a visit, and what was announced before is announced again
        self._closed = True
        self._operations: dict[str, None] = {}  # what we serve, in the order of the announcements
        self._broken = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self.dropped: Counter[Dropped] = Counter()

    @property
    def connected(self) -> bool:
        """Whether the server can be reached at the moment."""
        return self._connected

    async def start(self, receiver: Receiver) -> None:
        """Connect.

        Raises:
            CallError: UNAVAILABLE; UNAUTHENTICATED, if the server does not take the token.
        """
        self._receiver, self._closed = receiver, False
        self._operations.clear()
        try:
            await self._connect_somewhere(receiver)
        except BaseException:
            self._closed = True
            raise
        self._keeper = asyncio.get_running_loop().create_task(self._stay_connected(receiver))

    async def announce(self, operation_ids: Iterable[str]) -> None:
        """Serve these operations, now and after every reconnection.

        Raises:
            CallError: UNAVAILABLE; ACCESS_DENIED or VALIDATION_ERROR, if the server refuses some of them. It is not
                asked for these again; the others are served.
        """
        if self._closed:
            raise self._unavailable()
        wanted = list(dict.fromkeys(operation_ids))
        self._operations.update(dict.fromkeys(wanted))
        refused = await self._announce(self._here(), wanted)
        if refused:
            await self.withdraw([each.operation for each in refused])  # an earlier version may have been taken
            raise refusal_error(refused)

    async def _announce(self, visit: Visit, operation_ids: list[str]) -> list[RefusedOperation]:
        try:
            return await visit.announce(operation_ids)
        except CallError as error:
            if visit.welcome and visit is self._visit:  # then it is not known what is served: begin again
                visit.drop()
                self._lost(error.message)
            raise

    async def withdraw(self, operation_ids: Iterable[str]) -> None:
        """Serve these operations no longer."""
        known = [each for each in dict.fromkeys(operation_ids) if each in self._operations]
        for each in known:
            del self._operations[each]
        if not known:
            return
        try:
            await self._here().ask(Withdraw, operations=known)
        except CallError as gone:  # then nothing is routed here, and they will not be announced again
            logger.debug("a withdrawal was not confirmed: %s", gone)

    async def servers(self, wait: float = 0.5) -> list[Address]:
        """Who serves anything. There is nobody to wait for, since the server knows them all.

        Raises:
            CallError: UNAVAILABLE.
        """
        answer = await self._here().ask(Who)
        return answer.peers if isinstance(answer, Here) else []

    def request(self, event: CallRequested) -> None:
        """Send a request to one of those who serve its operation.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        self._request(event, None)

    def send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event to a peer, or to whoever has the request.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        if isinstance(event, CallRequested):
            self._request(event, to)
        else:
            self._here().send(event, to, control=not isinstance(event, CallResponded))

    async def close(self) -> None:
        """Leave: the server routes nothing here any more, and tells those who share calls with this end."""
        if self._closed:
            return
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        visit = self._visit
        self._forget()
        if visit is not None:
            await visit.close()

    def _request(self, event: CallRequested, to: Address | None) -> None:
        visit = self._here()
        if visit.leaving or not self._connected:
            raise self._unavailable()
        visit.request(event, to)

    def _here(self) -> Visit:
        if self._visit is None or not self._visit.welcome:
            raise self._unavailable()
        return self._visit

    def _unavailable(self) -> CallError:
        if self._closed:
            return CallError(ErrorCode.UNAVAILABLE, "this end is closed")
        leaving = self._visit is not None and self._visit.leaving
        state = "is about to leave" if leaving else "is not reachable at the moment"
        return CallError(ErrorCode.UNAVAILABLE, f"{self._name} {state}")

    # --- connections --------------------------------------------------------------------------------------------------

    async def _connect_somewhere(self, receiver: Receiver) -> None:
        """Connect to the first of the servers that can be reached.

        Raises:
            CallError: what the last one said, if none can.
        """
        for left in reversed(range(len(self._uris))):
            try:
                await self._connect(receiver)
                break
            except CallError as error:
                if not left:
                    raise
                logger.info("%s", error)
                self._uris.append(self._uris.pop(0))

    async def _connect(self, receiver: Receiver) -> None:
        """Connect, and serve what was announced.

        Raises:
            CallError: UNAVAILABLE, or what the server refuses us with.
        """
        self._broken.clear()
        self._name = _shown(self._uris[0])
        token = self._new_token()
        visit = self._visit = Visit(
            self._uris[0],
            receiver,
            self._lost,
            self.dropped,
            limit=self._limit,
            heartbeat=self._heartbeat,
            max_backlog=self._max_backlog,
            token=token,
        )
        try:
            async with asyncio.timeout(self._connect_timeout):
                await visit.begin(self._ssl)
            await self._announce_again(visit)
        except (OSError, ValueError, CallError) as error:
            code = error.code if isinstance(error, CallError) else ErrorCode.UNAVAILABLE
            raise CallError(code, self._explained(error)) from error
        finally:
            if not self._connected:
                visit.drop()
                self._forget()

    def _new_token(self) -> str | None:
        if not callable(self._token):
            return self._token
        try:
            return self._token()
        except Exception as error:  # a user's own function; what it says may hold a secret
            failed = f"the function that gives the token for {self._name} raised {type(error).__name__}"
            raise CallError(ErrorCode.UNAVAILABLE, failed) from error

    def _explained(self, error: OSError | ValueError | CallError) -> str:
        match error:
            case TimeoutError():
                return f"{self._name} did not answer within {self._connect_timeout:g} s"
            case CallError():
                return f"{self._name} cannot be used: {error.message}"
            case _:
                return f"{self._name} cannot be reached: {error}"

    async def _announce_again(self, visit: Visit) -> None:
        announced: set[str] = set()
        while new := [each for each in self._operations if each not in announced]:  # there may be more meanwhile
            refused = await visit.announce(new)
            if refused:  # the others are served, and these are announced again after the next loss
                logger.warning("%s: %s", self._name, refusal_error(refused).message)
            announced.update(new)
        visit.check()  # it may have ended just now
        self._connected = True

    def _lost(self, reason: str) -> None:
        """The connection is gone. Every call over it ends at once."""
        self._forget()
        self._broken.set()
        logger.warning("the connection to %s was lost: %s", self._name, reason)
        if self._receiver is not None:
            self._receiver.lost(None, f"the connection to {self._name} was lost ({reason})")

    def _forget(self) -> None:
        self._visit = None
        self._connected = False

    async def _stay_connected(self, receiver: Receiver) -> None:
        """Whenever the connection is lost, connect again, however often it takes."""
        attempt, tried_at = 0, time.monotonic()
        while True:
            await self._broken.wait()
            if time.monotonic() - tried_at > _STEADY:  # else it was refused or dropped at once, and would be again
                attempt = 0
            await asyncio.sleep(back_off(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE) if attempt else 0)
            attempt += 1
            self._uris.append(self._uris.pop(0))
            try:
                await self._connect(receiver)
            except CallError as error:
                # Where a server cannot be reached is told once, when it is lost; what else goes wrong every time.
                expected = error.code is ErrorCode.UNAVAILABLE and isinstance(error.__cause__, OSError)
                logger.log(logging.DEBUG if expected else logging.WARNING, "not connected yet: %s", error)
                self._broken.set()
            except Exception:  # a fault of ours: it must not end the attempts
                logger.exception("not connected yet")
                self._broken.set()
            else:
                logger.info("connected to %s again", self._name)
            tried_at = time.monotonic()


def _shown(uri: WebSocketURI) -> str:
    """The address without user, password and query, where tokens are."""
    host = f"[{uri.host}]" if ":" in uri.host else uri.host
    return f"{'wss' if uri.secure else 'ws'}://{host}:{uri.port}{uri.path}"


def _parsed(url: str) -> WebSocketURI:
    """Parse a URL. Errors do not name it: there may be a password in it.

    Raises:
        CallError: VALIDATION_ERROR.
    """
    try:
        return parse_uri(url)
    except (InvalidURI, ValueError, TypeError, AttributeError):
        wrong = "the address of a WebSocket server looks like ws://host:port or wss://host:port"
        raise CallError(ErrorCode.VALIDATION_ERROR, wrong) from None
