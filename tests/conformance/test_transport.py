"""The contract: what is shipped passes it, what is broken does not."""

import inspect
from collections.abc import Callable

import pytest

from opwire.protocol import MAX_MESSAGE
from opwire.transports.broker import BrokerTransport
from opwire.transports.memory import MemoryBus, MemoryTransport
from opwire_conformance import LIMIT_CONTRACT, TRANSPORT_CONTRACT, Connect, check_transport
from tests.chaos.virtual_time import run_virtually
from tests.conformance import broken
from tests.conformance.broker import BrokerLike
from tests.transports.broker_in_memory import MemoryBroker, MemoryBrokerConnection

PROMISES = (*TRANSPORT_CONTRACT, *LIMIT_CONTRACT)


def memory(*, codec: bool) -> Connect:
    bus = MemoryBus(codec=codec)
    return lambda: MemoryTransport(bus)


def broker() -> Connect:
    bus = MemoryBus(codec=True)
    return lambda: BrokerLike(bus)


def broker_in_memory() -> Connect:
    market = MemoryBroker()
    return lambda: BrokerTransport(MemoryBrokerConnection(market), heartbeat=1)


# One line for each transport that is shipped: what makes a medium, and its limit.
TRANSPORTS: dict[str, tuple[Callable[[], Connect], int | None]] = {
    "memory": (lambda: memory(codec=False), None),
    "memory with codec": (lambda: memory(codec=True), MAX_MESSAGE),
    "like a broker": (broker, MAX_MESSAGE),
    "a broker in memory": (broker_in_memory, MAX_MESSAGE),
}


@pytest.mark.parametrize("promise", TRANSPORT_CONTRACT)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_transport_keeps_its_promise(transport: str, promise: str) -> None:
    make, _ = TRANSPORTS[transport]
    await TRANSPORT_CONTRACT[promise](make())


@pytest.mark.parametrize("promise", LIMIT_CONTRACT)
@pytest.mark.parametrize("transport", [name for name, (_, limit) in TRANSPORTS.items() if limit is not None])
async def test_a_transport_keeps_its_promise_about_its_limit(transport: str, promise: str) -> None:
    make, limit = TRANSPORTS[transport]
    assert limit is not None
    await LIMIT_CONTRACT[promise](make(), limit)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_check_transport_runs_the_whole_contract_on_one_medium(transport: str) -> None:
    make, limit = TRANSPORTS[transport]
    await check_transport(make(), max_message=limit)


def broken_promises(kind: type[MemoryTransport]) -> dict[str, str]:
    """What the contract says of a broken transport, in virtual time, so that waiting in vain costs none."""
    complaints: dict[str, str] = {}
    for promise in PROMISES:
        bus = MemoryBus(codec=True, max_message=broken.LIMIT)
        connect: Connect = lambda bus=bus: kind(bus)  # noqa: E731
        try:
            if promise in TRANSPORT_CONTRACT:
                run_virtually(TRANSPORT_CONTRACT[promise](connect))  # pyright: ignore[reportArgumentType]
            else:
                run_virtually(LIMIT_CONTRACT[promise](connect, broken.LIMIT))  # pyright: ignore[reportArgumentType]
        except AssertionError as error:
            complaints[promise] = str(error)
    return complaints


ONCE_IN_ORDER = "events arrive once, in the order in which they were sent"
SAME_IDS = "two callers with the same request id see only their own answers"
DATA = "data arrives as it was sent"
FIELDS = "every field of every event arrives as it was sent"
ANNOUNCED = "operations are reachable when announce returns"
WITHDRAWN = "operations are routed elsewhere when withdraw returns"
CLOSED = "a closed end refuses to send, and can be closed again"
ANSWERED = "a call is answered"
ERROR = "an error arrives with all its fields"
PROGRESS = "progress arrives before the outcome, if it was asked for"
QUESTIONS = "questions reach a caller that accepts them"
NOT_MIXED = "many calls at once are not mixed up"
ITEMS = "the items of many subscriptions arrive in order"
SLOW = "a slow consumer slows its producer, and no other"
RESUMED = "a subscription is resumed at another server"
LEAVING = "leaving a subscription stops its producer"
CANCELLING = "cancelling a caller stops its handler"
DEADLINES = "deadlines travel with the call"
SHARE = "several servers share the calls, and one that leaves gets no more"
NESTED = "an end may call while it serves, even itself"
FOUND = "all servers are found, and each can be asked"
DRAINING = "a server that drains finishes what it has, and others get the rest"
NOBODY = "a call without a server fails in time"
SERVER_CLOSES = "closing a server ends its calls in flight"
CALLER_CLOSES = "closing a caller stops its handlers, and no others"
STRAYS = "events of unknown requests are ignored"
STRANGER = "only the server that a call was routed to can answer it"
TASKS = "no task is left behind"
TOO_LARGE = "a message above the limit fails its own call alone"
BELOW = "a message just below the limit passes"

CAUGHT: dict[type[MemoryTransport], set[str]] = {
    broken.DropsEveryTenth: {ONCE_IN_ORDER, NOT_MIXED, ITEMS, SHARE},
    broken.DeliversTwice: {ONCE_IN_ORDER, SAME_IDS},
    broken.Reorders: {ONCE_IN_ORDER, ITEMS},
    broken.SwapsReplies: {NOT_MIXED},
    broken.AnswersTheLastCaller: {SAME_IDS, NESTED, CALLER_CLOSES},
    broken.MutatesPayloads: {DATA},
    broken.ForgetsFields: {FIELDS, ERROR, PROGRESS, QUESTIONS, SLOW, RESUMED, DEADLINES},
    broken.LeaksTasks: {TASKS},
    broken.HidesLosses: {SERVER_CLOSES, CALLER_CLOSES},
    broken.AcceptsAfterClose: {CLOSED},
    broken.CannotBeClosedTwice: {CLOSED},
    broken.AnnouncesLater: {ANNOUNCED},
    broken.NeverWithdraws: {WITHDRAWN},
    broken.WithdrawsAndForgetsWhatWasNotBegun: {DRAINING},
    broken.FindsNobody: {FOUND},
    broken.AsksEverybody: {SHARE},
    broken.AsksAlwaysTheSame: {SHARE},
    broken.BelievesTheSender: {STRANGER},
    broken.SwallowsAborts: {LEAVING, CANCELLING},
    broken.InflatesCredits: {SLOW},
    broken.OneAtATime: {NOT_MIXED, NESTED},
    broken.RaisesItsOwnErrors: {NOBODY},
    broken.BreaksOnStrays: {STRAYS},
    broken.HasNoLimit: {TOO_LARGE},
    broken.ClosesAboveTheLimit: {TOO_LARGE},
    broken.RefusesTooEarly: {BELOW},
    broken.NeverAnswers: {ANSWERED, ITEMS},
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "expected"), CAUGHT.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_a_broken_transport_is_caught(kind: type[MemoryTransport], expected: set[str]) -> None:
    complaints = broken_promises(kind)
    assert expected <= complaints.keys()
    for promise, complaint in complaints.items():
        assert complaint.startswith(f"broken promise: {promise}: ")


def test_every_promise_is_broken_by_some_transport() -> None:
    assert set().union(*CAUGHT.values()) == set(PROMISES)


def test_every_broken_transport_is_tried() -> None:
    kinds = {each for each in vars(broken).values() if inspect.isclass(each) and issubclass(each, MemoryTransport)}
    assert kinds - {MemoryTransport} == set(CAUGHT)


def test_check_transport_names_the_promise_that_is_broken() -> None:
    bus = MemoryBus()
    with pytest.raises(AssertionError, match=f"broken promise: {TASKS}"):
        run_virtually(check_transport(lambda: broken.LeaksTasks(bus)))


async def test_check_transport_looks_at_the_limit_where_there_is_one() -> None:
    bus = MemoryBus()
    with pytest.raises(AssertionError, match=f"broken promise: {TOO_LARGE}"):
        await check_transport(lambda: MemoryTransport(bus), max_message=broken.LIMIT)
