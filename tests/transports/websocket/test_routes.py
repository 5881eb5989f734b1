"""The table of a relay, alone."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from opwire.errors import CallError, ErrorCode
from opwire.transports.websocket.routes import (
    SERVER,
    AbortedHead,
    CompletedHead,
    CreditHead,
    EventHead,
    EventRoute,
    FailedHead,
    ProgressHead,
    RequestedHead,
    RespondedHead,
    RoutedCall,
    Routes,
)
from tests.properties import examples


def routes(*addresses: str, max_calls: int = 100, max_operations: int = 100) -> Routes:
    table = Routes(max_calls=max_calls, max_operations=max_operations)
    for address in addresses:
        table.join(address)
    return table


def ask(id: str = "r", operation: str = "a.b", **fields: Any) -> RequestedHead:
    return RequestedHead(request_id=id, operation_id=operation, **fields)


def opened(table: Routes, caller: str, head: RequestedHead) -> RoutedCall:
    call = table.request(caller, head)
    assert call is not None
    return call


def error(table: Routes, caller: str, head: RequestedHead) -> CallError:
    with pytest.raises(CallError) as failure:
        table.request(caller, head)
    return failure.value


@pytest.mark.parametrize("asked", [True, None, "yes"])
def test_progress_goes_to_a_caller_that_asked_for_it_and_is_not_an_item(asked: Any) -> None:
    table = routes("s", "c", "x")
    table.announce("s", ["a.b"])
    call = opened(table, "c", ask(progress=asked, credits=8))
    grants, progress = call.grants, ProgressHead(request_id="r", peer="c")
    assert table.follow("s", progress) == (EventRoute("c", call) if asked is True else None)
    assert table.follow("x", progress) is None
    assert (call.open, call.grants) == (True, grants)
    table.end(call)
    assert table.follow("s", progress) is None  # late
    assert table.dropped["unknown"] == (2 if asked is True else 3)


def test_servers_of_an_operation_take_turns() -> None:
    table = routes("s1", "s2", "c")
    for each in ("s1", "s2", SERVER):
        table.announce(each, ["a.b", "a.b"])
    turns = [table.choose("a.b") for _ in range(9)]
    assert Counter(turns) == {"s1": 3, "s2": 3, SERVER: 3}
    assert turns[:3] == turns[3:6] == turns[6:]


def test_a_server_that_withdraws_or_leaves_has_no_more_turns() -> None:
    table = routes("s1", "s2", "s3")
    for each in ("s1", "s2", "s3"):
        table.announce(each, ["a.b", "a.c"])
    table.withdraw("s1", ["a.b", "a.unknown"])
    table.leave("s2")
    assert {table.choose("a.b") for _ in range(4)} == {"s3"}
    assert {table.choose("a.c") for _ in range(4)} == {"s1", "s3"}
    assert table.servers() == ["s1", "s3"]
    assert table.operations("s1") == ["a.c"]


def test_requests_with_one_key_go_to_one_server_until_it_leaves() -> None:
    table = routes("s1", "s2", "s3", "c")
    for each in ("s1", "s2", "s3"):
        table.announce(each, ["a.b"])
    before = {key: table.choose("a.b", key) for key in map(str, range(60))}
    assert {key: table.choose("a.b", key) for key in before} == before
    assert set(before.values()) == {"s1", "s2", "s3"}
    table.leave("s2")
    after = {key: table.choose("a.b", key) for key in before}
    assert all(after[key] == server for key, server in before.items() if server != "s2")
    assert set(after.values()) == {"s1", "s3"}


def test_an_operation_without_a_server_is_unavailable_at_once() -> None:
    table = routes("s", "c")
    table.announce("s", ["a.other"])
    failure = error(table, "c", ask())
    assert failure.code is ErrorCode.UNAVAILABLE
    assert "a.b" in failure.message
    assert len(table) == 0


def test_a_request_for_an_unserved_operation_goes_to_a_server_of_others() -> None:
    table = routes("c")
    table.announce(SERVER, ["a.other"])
    assert opened(table, "c", ask()).server == SERVER


def test_the_reason_why_an_operation_has_no_server_is_looked_up() -> None:
    def unserved(operation_id: str) -> None:
        if operation_id == "a.later":
            raise CallError(ErrorCode.UNAVAILABLE, "not yet")

    table = Routes(max_calls=100, max_operations=100)
    table.unserved = unserved
    table.join("c")
    assert opened(table, "c", ask()).server == SERVER
    assert error(table, "c", ask("other", "a.later")).message == "not yet"
    table.announce(SERVER, ["a.later"])
    assert opened(table, "c", ask("other", "a.later")).server == SERVER


def test_a_request_that_names_a_peer_goes_there() -> None:
    table = routes("s1", "s2", "c")
    table.announce("s1", ["a.b"])
    assert opened(table, "c", ask(peer="s2")).server == "s2"
    assert opened(table, "c", ask("other", peer=SERVER)).server == SERVER


def test_a_request_to_a_peer_that_is_not_there_is_unavailable() -> None:
    assert error(routes("c"), "c", ask(peer="s" * 1000)).code is ErrorCode.UNAVAILABLE


def test_the_open_calls_of_a_connection_are_limited() -> None:
    table = routes("s", "c", "d", max_calls=2)
    table.announce("s", ["a.b"])
    call = opened(table, "c", ask("1"))
    opened(table, "c", ask("2"))
    assert error(table, "c", ask("3")).code is ErrorCode.RATE_LIMITED
    opened(table, "d", ask("1"))
    table.end(call)
    opened(table, "c", ask("3", peer=SERVER))
    assert error(table, "c", ask("4", peer=SERVER)).code is ErrorCode.RATE_LIMITED


def test_an_identity_takes_no_more_of_the_calls_between_two_hubs_than_it_leaves_to_others() -> None:
    table = routes("s", max_calls=1)  # ten for a hub
    table.join("h", hub=True)
    table.announce("s", ["a.b"])

    def fill(identity: bytes) -> list[RoutedCall]:
        calls = list[RoutedCall | None]()
        with pytest.raises(CallError, match="this identity"):
            calls.extend(table.request("h", ask(f"{identity}/{number}"), identity) for number in range(10))
        return [call for call in calls if call is not None]

    greedy = fill(b"mallory")
    assert len(greedy) == 5
    assert len(fill(b"alice")) == 3, "of the five that are left"
    assert len(fill(b"bob")) == 1
    for call in greedy:
        table.end(call)
    assert len(fill(b"carol")) == 3
    table.leave("h")
    assert len(table) == 0


def test_an_open_call_keeps_no_long_ids() -> None:
    table, long = routes("s", "c"), "x" * 1_001
    for head in (ask(operation=long, peer="s"), ask(parent_request_id=long, peer="s")):
        assert error(table, "c", head).code is ErrorCode.VALIDATION_ERROR
    assert len(table) == 0
    opened(table, "c", ask(operation=long[:1_000], peer="s"))


@pytest.mark.parametrize("operation", ["a.3", "a." + "x" * 999])
def test_the_operations_of_a_peer_are_limited(operation: str) -> None:
    table = routes("s", "t", max_operations=2)
    table.announce("s", ["a.1", "a.1"])
    table.announce("s", [] if len(operation) > 100 else ["a.2"])
    with pytest.raises(CallError) as failure:
        table.check_room("s", [operation])
    assert failure.value.code is ErrorCode.RATE_LIMITED
    table.check_room("s", ["a.1"])
    table.check_room("t", ["a.1", "a.2"])
    with pytest.raises(CallError):
        table.check_room("t", ["a.1"], waiting=2)


def test_the_least_busy_one_gets_the_next_call() -> None:
    table = Routes(max_calls=100, max_operations=100, balance="least_busy")
    for each in ("s1", "s2", "s3", "c"):
        table.join(each)
    for each in ("s1", "s2", "s3"):
        table.announce(each, ["a.b"])
    calls = [opened(table, "c", ask(str(number))) for number in range(6)]
    assert Counter(call.server for call in calls) == {"s1": 2, "s2": 2, "s3": 2}
    for call in calls:
        if call.server == "s2":
            table.end(call)
    assert [opened(table, "c", ask(f"again-{number}")).server for number in range(2)] == ["s2", "s2"]
    assert table.choose("a.b", "key") == table.choose("a.b", "key")


def delegation(*, delegates: bool = True) -> Routes:
    """Callers, a service that serves a.b and opwire.about, and a server of a.c."""
    table = routes("t")
    for address in ("alice", "mallory"):
        table.join(address, address.encode())
    table.join("service", b"service", delegates=delegates)
    table.announce("service", ["a.b", "opwire.about"])
    table.announce("t", ["a.c", "opwire.operations"])
    return table


def refused(table: Routes, caller: str, request: Any) -> None:
    with pytest.raises(CallError) as refusal:
        table.request(caller, request)
    assert refusal.value.code is ErrorCode.ACCESS_DENIED
    assert "delegates=True" in refusal.value.message


def test_a_peer_that_delegates_makes_nested_calls_with_the_identity_of_its_caller() -> None:
    table = delegation()
    call = opened(table, "alice", ask("parent"))
    assert call.identity == b"alice"
    nested = ask("child", "a.c", parent_request_id="parent")
    assert opened(table, "service", nested).identity == b"alice"
    assert opened(table, "service", ask("own", "a.c")).identity == b"service"
    refused(table, "mallory", nested)  # that call was not routed there
    table.end(call)
    refused(table, "service", ask("late", "a.c", parent_request_id="parent"))


def test_a_peer_that_does_not_delegate_is_refused_nested_calls() -> None:
    table = delegation(delegates=False)
    opened(table, "alice", ask("parent"))
    refused(table, "service", ask("child", "a.c", parent_request_id="parent"))
    assert opened(table, "service", ask("own", "a.c")).identity == b"service"


def test_a_nested_call_is_refused_when_two_callers_chose_the_same_id() -> None:
    table = delegation()
    for caller in ("alice", "mallory"):
        opened(table, caller, ask("parent"))
    refused(table, "service", ask("child", "a.c", parent_request_id="parent"))


def test_operations_of_opwire_itself_neither_give_authority_nor_are_called_with_that_of_others() -> None:
    table = delegation()
    opened(table, "alice", ask("about", "opwire.about"))
    refused(table, "service", ask("child", "a.c", parent_request_id="about"))
    opened(table, "alice", ask("parent"))
    refused(table, "service", ask("child", "opwire.operations", parent_request_id="parent"))


def test_a_call_of_the_server_is_in_the_table_until_it_ends() -> None:
    table = routes("s", "t")
    for server in ("s", "t"):  # the same id again: its caller has forgotten the first one
        table.open(RoutedCall("r", SERVER, server, streams=False))
    assert len(table) == 1
    assert table.follow("s", RespondedHead(request_id="r", peer=SERVER)) is None
    table.give_up(SERVER, "r", "s")
    assert len(table) == 1
    table.give_up(SERVER, "r", "t")
    assert len(table) == 0
    call = table.open(RoutedCall("r", SERVER, "t", streams=False))
    assert table.follow("t", RespondedHead(request_id="r", peer=SERVER)) == EventRoute(SERVER, call)
    assert len(table) == 0
    table.open(RoutedCall("r", SERVER, "t", streams=True))
    assert [call.caller for call in table.leave("t")] == [SERVER]


def test_the_same_request_again_goes_nowhere_while_it_is_answered() -> None:
    table = routes("s", "c")
    table.announce("s", ["a.b"])
    call = opened(table, "c", ask())
    assert table.request("c", ask()) is None
    assert table.dropped == {"duplicate": 1}
    table.end(call)
    opened(table, "c", ask())


ENDS = [
    (RespondedHead("r"), False),
    (CompletedHead("r"), False),
    (FailedHead("r"), False),
    (AbortedHead("r"), False),
    (CompletedHead("r"), True),
    (FailedHead("r"), True),
    (AbortedHead("r"), True),
]


@pytest.mark.parametrize(("head", "streams"), ENDS)
def test_a_call_is_over_with_its_last_event(head: EventHead, streams: bool) -> None:
    table = routes("s", "c")
    table.announce("s", ["a.b"])
    call = opened(table, "c", ask(credits=3 if streams else None))
    assert table.follow("s", head) == EventRoute("c", call)
    assert (call.open, len(table)) == (False, 0)
    assert not table.end(call)


@pytest.mark.parametrize(("seq", "credits"), [(1, None), (1, 8), (None, 8)])
def test_an_item_is_not_the_end(seq: int | None, credits: int | None) -> None:
    table = routes("s", "c")
    table.announce("s", ["a.b"])
    call = opened(table, "c", ask(credits=credits))
    assert table.follow("s", RespondedHead("r", seq=seq)) == EventRoute("c", call)
    assert table.follow("c", CreditHead("r")) == EventRoute("s", call)
    assert call.open
    assert table.follow("c", AbortedHead("r", peer="s")) == EventRoute("s", call)
    assert not call.open


def test_equal_ids_of_two_callers_do_not_meet() -> None:
    table = routes("s", "c", "d")
    table.announce("s", ["a.b"])
    calls = {caller: opened(table, caller, ask()) for caller in ("c", "d")}
    assert table.follow("s", RespondedHead("r", peer="d")) == EventRoute("d", calls["d"])
    assert table.follow("s", RespondedHead("r", peer="c")) == EventRoute("c", calls["c"])
    assert len(table) == 0


def test_a_response_without_a_receiver_goes_to_the_first_caller() -> None:
    table = routes("s", "c", "d")
    table.announce("s", ["a.b"])
    calls = [opened(table, caller, ask()) for caller in ("c", "d")]
    assert table.follow("s", RespondedHead("r")) == EventRoute("c", calls[0])
    assert table.follow("s", RespondedHead("r")) == EventRoute("d", calls[1])


def test_a_peer_may_call_itself() -> None:
    table = routes("s")
    table.announce("s", ["a.b"])
    call = opened(table, "s", ask(credits=1))
    assert table.follow("s", CreditHead("r", peer="s")) == EventRoute("s", call)
    assert table.follow("s", RespondedHead("r", peer="s", seq=1)) == EventRoute("s", call)
    assert table.follow("s", CompletedHead("r", peer="s")) == EventRoute("s", call)
    assert len(table) == 0
    call = opened(table, "s", ask())
    assert table.leave("s") == [call]


@pytest.mark.parametrize(
    "head", [RespondedHead("r"), CompletedHead("r"), FailedHead("r"), AbortedHead("r"), CreditHead("r")]
)
def test_a_stranger_can_neither_answer_nor_steer_a_call(head: EventHead) -> None:
    table = routes("s", "c", "x")
    table.announce("s", ["a.b"])
    call = opened(table, "c", ask())
    head.peer = "c"
    assert table.follow("x", head) is None
    assert table.dropped == {"foreign": 1}
    head.peer = "s"
    assert table.follow("x", head) == EventRoute("s", None)  # a stray, from a peer that the server does not work for
    head.peer = None
    assert table.follow("x", head) == EventRoute(SERVER, None)
    assert call.open


def test_a_caller_cannot_answer_nor_a_server_steer() -> None:
    table = routes("s", "c")
    table.announce("s", ["a.b"])
    opened(table, "c", ask())
    assert table.follow("c", RespondedHead("r", peer="c")) is None
    assert table.follow("s", CreditHead("r", peer="c")) is None
    assert table.dropped == {"foreign": 2}
    assert len(table) == 1


def test_what_belongs_to_no_call_goes_to_the_peer_that_it_names() -> None:
    table = routes("s", "c")
    assert table.follow("s", RespondedHead("late", peer="c")) == EventRoute("c", None)
    assert table.follow("s", RespondedHead("late")) == EventRoute(SERVER, None)
    assert table.follow("s", RespondedHead("late", peer="gone")) is None
    assert table.dropped == {"unknown": 1}


def test_a_peer_that_leaves_ends_the_calls_it_made_and_those_it_served() -> None:
    table = routes("s", "c", "d")
    for each in ("s", "c"):
        table.announce(each, [f"{each}.op"])
    made = opened(table, "c", ask("1", "s.op"))
    served = opened(table, "d", ask("2", "c.op"))
    other = opened(table, "d", ask("3", "s.op"))
    assert table.leave("c") == [made, served]
    assert (made.open, served.open, other.open) == (False, False, True)
    assert table.leave("c") == []


class Table(RuleBasedStateMachine):
    """Any sequence of steps, against a model that is nothing but a list of the open calls."""

    peers = Bundle("peers")

    @initialize()
    def begin(self) -> None:
        self.table = routes(max_calls=3)
        self.here: list[str] = []
        self.serving: dict[str, set[str]] = {"a.b": set(), "a.c": set()}
        self.open: list[tuple[str, str, str]] = []  # caller, id, server
        self.number = 0

    @rule(target=peers)
    def join(self) -> str:
        self.number += 1
        address = f"p{self.number}"
        self.table.join(address)
        self.here.append(address)
        return address

    @rule(peer=peers, operation=st.sampled_from(["a.b", "a.c"]))
    def announce(self, peer: str, operation: str) -> None:
        self.table.announce(peer, [operation])
        self.serving[operation].add(peer)

    @rule(peer=peers, operation=st.sampled_from(["a.b", "a.c"]))
    def withdraw(self, peer: str, operation: str) -> None:
        self.table.withdraw(peer, [operation])
        self.serving[operation].discard(peer)

    @rule(
        caller=peers,
        to=peers | st.none() | st.sampled_from([SERVER, "gone"]),
        id=st.sampled_from("123"),
        operation=st.sampled_from(["a.b", "a.c"]),
    )
    def request(self, caller: str, to: str | None, id: str, operation: str) -> None:
        mine = [call for call in self.open if call[0] == caller]
        repeated = (caller, id) in [call[:2] for call in mine]
        nobody = to not in (*self.here, SERVER) if to is not None else not self.serving[operation]
        head = ask(id, operation, peer=to, credits=1)
        if not repeated and (nobody or len(mine) == 3):
            refused = error(self.table, caller, head)
            assert refused.code is (ErrorCode.UNAVAILABLE if nobody else ErrorCode.RATE_LIMITED)
            return
        call = self.table.request(caller, head)
        assert (call is None) is repeated
        if call is not None:
            assert call.server in (self.serving[operation] if to is None else {to})
            self.open.append((caller, id, call.server))

    @rule(
        sender=peers,
        peer=peers | st.none(),
        id=st.sampled_from("123"),
        kind=st.sampled_from([RespondedHead, CompletedHead, FailedHead, AbortedHead, CreditHead]),
        seq=st.none() | st.just(1),
    )
    def follow(self, sender: str, peer: str | None, id: str, kind: type[EventHead], seq: int | None) -> None:
        head = kind(id, peer)
        if isinstance(head, RespondedHead):
            head.seq = seq
        route = self.table.follow(sender, head)
        if route is None or route.call is None:
            assert route is None or (peer or SERVER, False) == (
                route.to,
                (route.to, id) in [each[:2] for each in self.open],
            )
            return
        call = (route.call.caller, route.call.request_id, route.call.server)
        assert call in self.open
        assert sender in (call[0], call[2])
        assert route.to == (call[2] if sender == call[0] else call[0])
        assert peer in (None, route.to)
        if not route.call.open:
            self.open.remove(call)

    @rule(peer=consumes(peers))
    def leave(self, peer: str) -> None:
        ended = {(call.caller, call.request_id, call.server) for call in self.table.leave(peer)}
        assert ended == {call for call in self.open if peer in (call[0], call[2])}
        self.open = [call for call in self.open if call not in ended]
        self.here.remove(peer)
        for serving in self.serving.values():
            serving.discard(peer)

    @rule(target=peers)
    def nothing(self) -> Any:
        return multiple()

    @invariant()
    def the_table_holds_what_is_open_and_nothing_else(self) -> None:
        if not hasattr(self, "table"):
            return
        assert len(self.table) == len(self.open)
        calls = [self.table.open_call(caller, request_id) for caller, request_id, _ in self.open]
        assert [call and (call.caller, call.request_id, call.server) for call in calls] == list(self.open)
        assert set(self.table.servers()) == set().union(*self.serving.values())


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_of_many_servers_an_idle_one_is_found_although_those_beside_it_are_busy() -> None:
    servers = [f"s{number}" for number in range(200)]
    table = routes(*servers, "c", max_calls=10_000)
    for each in servers:
        table.announce(each, ["a.b"])
    for number, busy in enumerate(servers[:100]):  # half of them, one beside the other
        opened(table, "c", ask(f"busy{number}", peer=busy))
    assert {table.choose("a.b") for _ in range(100)}.isdisjoint(servers[:100])


def test_servers_come_and_go_and_each_has_its_turns() -> None:
    servers = [f"s{number}" for number in range(20)]
    table = routes(*servers)
    for each in servers:
        table.announce(each, ["a.b"])
    for each in servers[::2]:
        table.withdraw(each, ["a.b"])
    assert {table.choose("a.b") for _ in range(10)} == set(servers[1::2])
    for each in servers[1::2]:
        table.leave(each)
    assert table.servers() == []
    with pytest.raises(CallError, match=r"no server for a\.b"):
        table.choose("a.b")


def test_the_type_of_an_operation_says_whether_a_call_streams() -> None:
    """A relay passes subscriptions whole, with or without credits and numbers."""
    table = routes("s", "c")
    table.announce("s", ["a.stream", "a.query"], ["a.stream"])
    assert opened(table, "c", ask("1", "a.stream")).streams
    assert not opened(table, "c", ask("2", "a.query")).streams
    assert opened(table, "c", ask("3", "a.query", credits=1)).streams
    assert opened(table, "c", ask("4", "opwire.operations", peer="s")).streams
    table.withdraw("s", ["a.stream"])
    table.announce("s", ["a.stream"])
    assert not opened(table, "c", ask("5", "a.stream")).streams, "it may be another operation than before"


def test_credits_for_many_more_items_than_there_were_are_in_excess() -> None:
    table = routes("s", "c")
    table.announce("s", ["a.b"])
    opened(table, "c", ask("r", credits=1))
    ways = [table.follow("c", CreditHead("r")) for _ in range(100)]
    assert [route == EventRoute("s", None) for route in ways] == [False] * 64 + [True] * 36
    for seq in range(10):
        table.follow("s", RespondedHead("r", seq=seq + 1))
    ways = [table.follow("c", CreditHead("r")) for _ in range(11)]
    assert [route == EventRoute("s", None) for route in ways] == [False] * 10 + [True]


def test_an_operation_that_is_announced_again_with_another_type_is_routed_as_that() -> None:
    table = routes("s", "c")
    table.announce("s", ["a.b"], ["a.b"])
    assert opened(table, "c", ask("1")).streams
    table.announce("s", ["a.b"])
    assert not opened(table, "c", ask("2")).streams
    table.follow("s", RespondedHead("2"))
    table.announce("s", ["a.b"], ["a.b"])
    assert opened(table, "c", ask("3")).streams
    assert table.open_call("c", "2") is None
