"""Requests of both ends, in any order, without any I/O."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from opwire.errors import CallError, ErrorCode
from opwire.mcp.messages import ErrorObject, InvalidReply, RPCCode, RPCFailure, RPCNotification, RPCRequest, RPCResponse
from opwire.mcp.peer import Answer, CancelledRequest, JsonRpcPeer, Rejection, Reported


def told(method: str, **params: Any) -> RPCNotification:
    return RPCNotification(f"notifications/{method}", params)


def test_a_request_is_answered_once_and_what_answers_nothing_is_ignored() -> None:
    """Every request has at most one outcome, over any network."""
    peer: JsonRpcPeer[str] = JsonRpcPeer()
    request = peer.request("tools/call", {"a": 1}, "caller")
    assert request == RPCRequest(1, "tools/call", {"a": 1})
    response = RPCResponse(1, {})
    assert peer.receive(RPCResponse(2, {})) is None
    assert peer.receive(RPCFailure(None, ErrorObject(1, "unknown"))) is None
    assert peer.receive(response) == Answer("caller", response)
    assert peer.receive(response) is None
    assert peer.abandon(1) is None


@pytest.mark.parametrize("id", ["1", 1])
def test_a_number_that_comes_back_as_a_text_is_the_same_id(id: Any) -> None:
    peer: JsonRpcPeer[str] = JsonRpcPeer()
    peer.request("tools/call", None, "caller")
    assert peer.receive(told("progress", progressToken=id, progress=1)) == Reported(
        "caller", {"progressToken": id, "progress": 1}
    )
    answer = InvalidReply(id, ErrorCode.PROTOCOL_ERROR, "?")
    assert peer.receive(answer) == Answer("caller", answer)


@pytest.mark.parametrize("token", [[], {}, None, True, 1.0, "٣", "9" * 5000, 7])
def test_progress_of_nothing_is_ignored(token: Any) -> None:
    peer: JsonRpcPeer[str] = JsonRpcPeer()
    peer.request("tools/call", None, "caller")
    assert peer.receive(told("progress", progressToken=token, progress=1)) is None


def test_progress_is_asked_for_with_the_id_of_the_request() -> None:
    peer: JsonRpcPeer[str] = JsonRpcPeer()
    given = {"name": "x", "_meta": {"trace": 1}}
    request = peer.request("tools/call", given, "caller", reports=True)
    assert request.params == {"name": "x", "_meta": {"trace": 1, "progressToken": 1}}
    assert given == {"name": "x", "_meta": {"trace": 1}}


def test_a_request_that_is_abandoned_is_cancelled_at_the_other_end_except_in_the_handshake() -> None:
    peer: JsonRpcPeer[str] = JsonRpcPeer()
    peer.request("tools/call", None, "a")
    peer.request("initialize", None, "b")
    assert peer.abandon(1) == told("cancelled", requestId=1)
    assert peer.abandon(1) is None
    assert peer.abandon(2) is None
    assert list(peer.close()) == []


def test_what_is_pending_at_the_end_is_returned_once() -> None:
    peer: JsonRpcPeer[str] = JsonRpcPeer()
    peer.request("a", None, "a")
    peer.request("b", None, "b", id="listen-1")
    assert list(peer.close()) == ["a", "b"]
    assert list(peer.close()) == []
    assert peer.fail("listen-1") is None


def test_requests_above_the_limit_are_rejected_until_others_are_finished() -> None:
    peer: JsonRpcPeer[str] = JsonRpcPeer(max_open=3)
    requests = [RPCRequest(n, "sampling/createMessage") for n in range(5)]
    assert [peer.receive(each) for each in requests[:3]] == requests[:3]
    for each in requests[3:]:
        rejection = peer.receive(each)
        assert isinstance(rejection, Rejection)
        assert rejection.reply.id == each.id
        assert rejection.reply.error.code == RPCCode.INVALID_REQUEST
        assert "more than 3 requests are open" in rejection.reply.error.message
    peer.finish(0)
    assert peer.receive(requests[4]) is requests[4]


def test_requests_of_a_server_are_limited_by_those_of_this_end_and_pings_do_not_count() -> None:
    peer: JsonRpcPeer[str] = JsonRpcPeer(max_requests=3)

    def ask(id: int, method: str = "sampling/createMessage") -> bool:
        admitted = isinstance(peer.receive(RPCRequest(id, method)), RPCRequest)
        if admitted:
            peer.finish(id)
        return admitted

    assert [ask(1), ask(2, "ping"), ask(3), ask(4), ask(5)] == [True, True, True, True, False]
    peer.request("tools/call", None, "caller")
    assert ask(6)


def test_a_repeated_id_is_rejected_and_the_first_request_goes_on() -> None:
    peer: JsonRpcPeer[str] = JsonRpcPeer()
    peer.receive(RPCRequest("a", "ping"))
    assert isinstance(peer.receive(RPCRequest("a", "ping")), Rejection)
    assert peer.receive(told("cancelled", requestId="a")) == CancelledRequest("a")


@pytest.mark.parametrize("id", [[], None, "b", 1.5])
def test_a_cancellation_of_nothing_is_passed_on(id: Any) -> None:
    peer: JsonRpcPeer[str] = JsonRpcPeer()
    peer.receive(RPCRequest("a", "ping"))
    notification = told("cancelled", requestId=id)
    assert peer.receive(notification) is notification


def test_too_many_requests_of_this_end_are_an_error() -> None:
    """The other end has a bounded number of open requests, and each id once."""
    peer: JsonRpcPeer[str] = JsonRpcPeer(max_pending=1)
    peer.request("a", None, "a")
    with pytest.raises(CallError) as failure:
        peer.request("b", None, "b")
    assert failure.value.code is ErrorCode.UNAVAILABLE
    peer.abandon(1)
    peer.request("c", None, "c")


class TwoPeers(RuleBasedStateMachine):
    """Two ends, and a network that reorders, repeats and loses messages."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = (JsonRpcPeer[int](max_open=5), JsonRpcPeer[int](max_open=5))
        self.wire: list[tuple[int, Any]] = []  # the receiving end, and the message
        self.waiting: tuple[dict[int, Any], dict[int, Any]] = ({}, {})  # ids by waiter
        self.outcomes: list[int] = []
        self.open: tuple[set[Any], set[Any]] = (set(), set())
        self.count = 0

    @rule(end=st.sampled_from((0, 1)))
    def ask(self, end: int) -> None:
        self.count += 1
        request = self.ends[end].request("tools/call", None, self.count)
        self.waiting[end][self.count] = request.id
        self.wire.append((1 - end, request))

    @precondition(lambda self: self.waiting[0])
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(sorted(self.waiting[0])))
        notification = self.ends[0].abandon(self.waiting[0].pop(waiter))
        assert notification is not None
        self.wire.append((1, notification))

    @precondition(lambda self: self.wire)
    @rule(data=st.data(), keep=st.booleans())
    def deliver(self, data: st.DataObject, keep: bool) -> None:
        index = data.draw(st.integers(0, len(self.wire) - 1))
        end, message = self.wire[index] if keep else self.wire.pop(index)
        match self.ends[end].receive(message):
            case Answer(waiter=waiter):
                assert waiter in self.waiting[end]
                del self.waiting[end][waiter]
                self.outcomes.append(waiter)
            case RPCRequest(id=id):
                assert id not in self.open[end]
                self.open[end].add(id)
            case CancelledRequest(id=id):
                assert id in self.open[end]
                self.open[end].discard(id)
                self.ends[end].finish(id)
            case Rejection(reply=reply):
                self.wire.append((1 - end, reply))
            case _:
                pass

    @precondition(lambda self: any(self.open))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        end = 0 if self.open[0] else 1
        id = data.draw(st.sampled_from(sorted(self.open[end])))
        self.open[end].discard(id)
        self.ends[end].finish(id)
        self.wire.append((1 - end, RPCResponse(id, {})))

    @invariant()
    def every_request_has_at_most_one_outcome(self) -> None:
        assert len(set(self.outcomes)) == len(self.outcomes)
        assert max(map(len, self.open)) <= 5

    def teardown(self) -> None:
        for end in (0, 1):
            assert sorted(self.ends[end].close()) == sorted(self.waiting[end])


TwoPeers.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_two_peers_agree_over_any_network = TwoPeers.TestCase
