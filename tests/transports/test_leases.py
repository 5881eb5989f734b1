"""The leases of one end of a broker: owners of calls, and how long they may be silent."""

from collections.abc import Iterable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from opwire.model.envelope import local_envelope
from opwire.protocol import CallAborted, CallCompleted, CallCredit, CallEvent, CallFailed, CallResponded
from opwire.protocol.events import Left, Serving, Waiting, is_final
from opwire.transports.leases import MAX_TOKEN_LENGTH, MOMENT, Action, Deliver, Leases, LosePeer, Send
from tests.properties import examples

PATIENCE = 3.0


def response(request_id: str, seq: int | None = None) -> CallResponded:
    return CallResponded(request_id=request_id, output=local_envelope(1, "math.add"), seq=seq)


def start(leases: Leases, request_id: str, **options: Any) -> str:
    """Start a call at time 0, and return its token."""
    return leases.calls.start(request_id, "math.add", 0.0, **options).token


def report(leases: Leases, server: str, tokens: list[str], now: float) -> list[Action]:
    return leases.handle(Serving(tokens=tokens), server, "", now)


def failures(actions: Iterable[Action]) -> list[str]:
    """The calls that fail by these actions."""
    return [
        action.event.request_id
        for action in actions
        if isinstance(action, Deliver) and isinstance(action.event, CallFailed)
    ]


def aborts(actions: Iterable[Action]) -> list[tuple[str, str]]:
    """The requests that are stopped by these actions: callers and ids."""
    return [
        (action.sender, action.event.request_id)
        for action in actions
        if isinstance(action, Deliver) and isinstance(action.event, CallAborted)
    ]


def lost_peers(actions: Iterable[Action]) -> list[str]:
    return [action.peer for action in actions if isinstance(action, LosePeer)]


def test_only_senders_with_the_token_are_believed() -> None:
    leases = Leases(PATIENCE)
    token = start(leases, "r")
    assert not leases.accept(response("r"), "stranger", "", 1.0)
    assert not leases.accept(response("r"), "stranger", "guess", 1.0)
    assert leases.accept(response("r"), "server", token, 1.0)
    assert len(leases) == 0
    assert leases.accept(response("r"), "anybody", "", 1.0), "its receiver drops a response to an unknown request"


def test_tokens_are_all_different() -> None:
    leases = Leases(PATIENCE)
    tokens = {start(leases, f"{number}") for number in range(1_000)}
    assert len(tokens) == 1_000
    assert {len(token) for token in tokens} == {16}


def test_a_call_that_no_heartbeat_names_is_lost_and_one_that_is_named_goes_on() -> None:
    leases = Leases(PATIENCE)
    _, token = start(leases, "dead"), start(leases, "alive")
    assert report(leases, "server", [token], 2.0) == [Send("server", token, Waiting(gone=[]))]
    assert failures(leases.expire(3.5)) == ["dead"]
    assert failures(leases.expire(5.5)) == ["alive"]
    assert leases.expire(99.0) == []


def test_the_error_of_a_lost_call_says_how_long_its_server_was_silent() -> None:
    leases = Leases(PATIENCE)
    start(leases, "r", server="server")
    (action,) = leases.expire(3.5)
    failure = CallFailed(
        request_id="r",
        code="UNAVAILABLE",
        message="the server of math.add is gone: no message from it for 3 s",
    )
    assert action == Deliver(failure, "server")


def test_a_caller_that_does_not_answer_heartbeats_is_lost_with_all_its_requests() -> None:
    leases = Leases(PATIENCE)
    for caller, request_id, token in (("ann", "r1", "t1"), ("ann", "r2", "t2"), ("bob", "r1", "t3")):
        leases.requests.add(caller, request_id, token, 0.0)
    assert leases.handle(Waiting(), "bob", "t3", 2.0) == []
    assert leases.expire(3.5) == [LosePeer("ann", "no message from it for 3 s")]
    assert dict(leases.requests.reports()) == {"bob": ["t3"]}


def test_a_caller_without_requests_is_forgotten_and_not_reported_as_lost() -> None:
    leases = Leases(PATIENCE)
    leases.requests.add("ann", "r1", "t1", 0.0)
    end_request(leases, "ann", "r1")
    for now in (2.0, 3.5):
        assert (leases.expire(now), list(leases.requests.reports())) == ([], [])
    assert leases.requests.callers == 0


def test_many_callers_without_requests_take_no_memory() -> None:
    leases = Leases(PATIENCE)
    for number in range(5_000):
        leases.requests.add(f"{number}", "r", f"t{number}", 0.0)
        end_request(leases, f"{number}", "r")
    assert leases.requests.callers < 2_000
    assert (leases.requests.are_reported, len(leases)) == (True, 0)


def end_request(leases: Leases, caller: str, request_id: str) -> None:
    leases.requests.end(leases.requests.by_caller_and_id[caller, request_id])


def test_a_caller_says_in_its_answer_what_it_does_not_wait_for() -> None:
    leases = Leases(PATIENCE)
    leases.requests.add("ann", "r1", "t1", 0.0)
    leases.requests.add("ann", "r2", "t2", 0.0)
    leases.requests.add("ann", "r3", "t3", 0.0)
    assert aborts(leases.handle(Waiting(gone=["t2", "unknown"]), "ann", "t1", 1.0)) == [("ann", "r2")]
    assert aborts(leases.handle(Waiting(gone=["t3"]), "ann", "", 1.0)) == [("ann", "r3")]
    assert aborts(leases.handle(Waiting(gone=["t1"]), "nobody", "t1", 1.0)) == []
    assert dict(leases.requests.reports()) == {"ann": ["t1"]}


def test_only_a_caller_that_shows_a_token_of_its_calls_is_still_there() -> None:
    leases = Leases(PATIENCE)
    leases.requests.add("ann", "r1", "t1", 0.0)
    leases.requests.add("bob", "r1", "t2", 0.0)
    for token, gone in (("", []), ("guess", []), ("t2", ["guess"]), ("", ["t2"])):
        assert leases.handle(Waiting(gone=gone), "ann", token, 2.0) == []
    assert lost_peers(leases.expire(3.5)) == ["ann", "bob"]


def test_a_server_learns_of_calls_that_have_ended() -> None:
    leases = Leases(PATIENCE)
    token = start(leases, "r")
    answers = report(leases, "server", [token, "old", "x" * (MAX_TOKEN_LENGTH + 1)], 1.0)
    assert answers == [Send("server", token, Waiting(gone=["old"]))]
    assert report(leases, "server", [], 1.0) == []


def test_a_peer_that_is_gone_takes_along_its_calls_and_its_requests() -> None:
    leases = Leases(PATIENCE)
    report(leases, "server", [start(leases, "served")], 1.0)
    start(leases, "other")
    leases.requests.add("server", "r", "t", 0.0)
    actions = leases.lose("server")
    assert failures(actions) == ["served"]
    assert lost_peers(actions) == ["server"]
    assert failures(leases.calls.refused("math.add", "no permission")) == ["other"]
    assert len(leases) == 0


def test_a_farewell_ends_the_calls_and_requests_with_the_tokens_that_it_names_and_no_others() -> None:
    leases = Leases(PATIENCE)
    token = start(leases, "named")
    start(leases, "other")
    for caller, request_id, its_token in (("ann", "r1", "t1"), ("ann", "r2", "t2"), ("bob", "r1", "t3")):
        leases.requests.add(caller, request_id, its_token, 0.0)
    actions = leases.handle(Left(tokens=[token, "t2", "unknown"]), "anyone", "", 1.0)
    assert (failures(actions), aborts(actions)) == (["named"], [("ann", "r2")])
    # Another peer may have stated the address of ann.
    assert dict(leases.requests.reports()) == {"ann": ["t1"], "bob": ["t3"]}
    assert leases.handle(Left(), "anyone", "", 1.0) == []


def test_a_call_with_an_unknown_server_is_named_by_its_token_alone() -> None:
    leases = Leases(PATIENCE)
    known, unknown = start(leases, "known"), start(leases, "unknown")
    report(leases, "server", [known], 1.0)
    leases.requests.add("server", "r", "t", 0.0)
    assert leases.clear() == {"server": ["t", known], "": [unknown]}
    assert len(leases) == 0


def test_a_request_that_is_sent_again_under_its_id_has_one_lease() -> None:
    leases = Leases(PATIENCE)
    previous = leases.calls.start("r", "math.add", 0.0)
    latest = leases.calls.start("r", "math.add", 0.0)
    answers = report(leases, "server", [previous.token, latest.token], 1.0)
    assert answers == [Send("server", latest.token, Waiting(gone=[previous.token]))]
    leases.calls.end(previous)
    assert len(leases) == 1
    leases.calls.end(latest)
    assert (len(leases), leases.calls.with_tokens([previous.token, latest.token])) == (0, [])


def test_a_request_in_flight_keeps_its_id_and_its_token() -> None:
    leases = Leases(PATIENCE)
    assert leases.requests.add("ann", "r", "t1", 0.0)
    assert leases.requests.add("ann", "r", "t1", 0.0), "the same request again"
    assert not leases.requests.add("ann", "r", "t2", 0.0)
    assert not leases.requests.add("ann", "s", "t1", 0.0)
    assert not leases.requests.add("bob", "r", "t1", 0.0)
    assert leases.requests.by_caller_and_id["ann", "r"].token == "t1"
    end_request(leases, "ann", "r")
    assert leases.requests.add("ann", "r", "t2", 0.0)


def test_only_the_caller_of_a_request_changes_it() -> None:
    leases = Leases(PATIENCE)
    leases.requests.add("ann", "r", "t1", 0.0)
    for event in (CallCredit(request_id="r", n=1), CallAborted(request_id="r")):
        assert not leases.accept(event, "ann", "guess", 1.0)
    assert leases.accept(CallCredit(request_id="r", n=1), "ann", "t1", 1.0)
    assert not leases.accept(response("r", 1), "ann", "t1", 1.0), "it is no event of a caller"
    assert leases.accept(CallAborted(request_id="r"), "ann", "t1", 1.0)
    assert len(leases) == 0


def test_an_undelivered_request_fails_with_the_reason_of_the_broker() -> None:
    leases = Leases(PATIENCE)
    (action,) = leases.calls.undelivered(start(leases, "r"), "no server available")
    assert isinstance(action.event, CallFailed)
    assert action.event.message == "math.add: no server available"
    assert leases.calls.undelivered("unknown", "no server available") == []


def test_requests_in_flight_are_reported_after_a_moment_and_once() -> None:
    leases = Leases(PATIENCE)
    assert leases.requests.are_reported
    leases.requests.add("ann", "r1", "t1", 0.0)
    leases.requests.add("ann", "r2", "t2", 0.0)
    assert not leases.requests.are_reported
    assert leases.requests.early_reports(MOMENT / 2) == {}
    leases.requests.add("bob", "r1", "t3", MOMENT)
    end_request(leases, "ann", "r1")
    assert leases.requests.early_reports(1.5 * MOMENT) == {"ann": ["t2"]}
    assert leases.requests.early_reports(2 * MOMENT) == {"bob": ["t3"]}
    assert leases.requests.early_reports(9 * MOMENT) == {}
    assert leases.requests.are_reported


def test_what_ends_a_call() -> None:
    final_events: list[CallEvent] = [response("r"), CallCompleted(request_id="r"), CallAborted(request_id="r")]
    final_events.append(CallFailed(request_id="r", code="INTERNAL", message="no"))
    assert all(map(is_final, final_events))
    assert not any(map(is_final, [response("r", 1), CallCredit(request_id="r", n=1)]))
    assert not is_final(response("r"), streams=True)


class Books(RuleBasedStateMachine):
    """For any events in any order: each own call ends once, and nothing is kept of what has ended."""

    tokens = Bundle("tokens")

    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases(PATIENCE)
        self.now = 0.0
        self.calls: dict[str, str] = {}  # request ids by token
        self.requests: dict[tuple[str, str], str] = {}  # tokens by caller and request id
        self.number = 0

    def fail(self, actions: Iterable[Action]) -> None:
        """Remove the calls that fail, each of which was open."""
        for request_id in failures(actions):
            (token,) = (token for token, open_id in self.calls.items() if open_id == request_id)
            del self.calls[token]

    @rule(target=tokens, streams=st.booleans(), again=st.booleans())
    def start(self, streams: bool, again: bool) -> str:
        self.number += 1
        request_id = next(iter(self.calls.values()), "r") if again else f"r{self.number}"
        token = self.leases.calls.start(request_id, "math.add", self.now, streams=streams).token
        self.calls = {open_token: open_id for open_token, open_id in self.calls.items() if open_id != request_id}
        self.calls[token] = request_id
        return token

    @rule(token=tokens, honest=st.booleans(), seq=st.none() | st.just(1))
    def respond(self, token: str, honest: bool, seq: int | None) -> None:
        request_id = self.calls.get(token, "?")
        call = self.leases.calls.by_request_id.get(request_id)
        event = response(request_id, seq)
        accepted = self.leases.accept(event, "server", token if honest else "guess", self.now)
        assert accepted is (honest or call is None)
        if call is not None and accepted and is_final(event, streams=call.streams):
            del self.calls[token]

    @rule(target=tokens, token=consumes(tokens))
    def end(self, token: str) -> Any:
        calls = self.leases.calls.with_tokens([token])
        assert [call.request_id for call in calls] == [self.calls[open] for open in {token} & set(self.calls)]
        for call in calls:
            self.leases.calls.end(call)
            del self.calls[token]
        return multiple()

    @rule(token=tokens)
    def report(self, token: str) -> None:
        open_token, ended = (token, []) if token in self.calls else ("", [token])
        answer = Send("server", open_token, Waiting(gone=ended))
        assert report(self.leases, "server", [token], self.now) == [answer]

    @rule(token=tokens)
    def route(self, token: str) -> None:
        self.leases.calls.routed(token, "server")

    @rule()
    def report_early(self) -> None:
        reports = self.leases.requests.early_reports(self.now)
        assert {token for tokens in reports.values() for token in tokens} <= set(self.requests.values())

    @rule(token=tokens)
    def return_to_sender(self, token: str) -> None:
        self.fail(self.leases.calls.undelivered(token, "no server"))

    @rule(caller=st.sampled_from("ab"), request_id=st.sampled_from(["x", "y"]))
    def receive(self, caller: str, request_id: str) -> None:
        self.number += 1
        is_new = (caller, request_id) not in self.requests
        assert self.leases.requests.add(caller, request_id, f"t{self.number}", self.now) is is_new
        self.requests.setdefault((caller, request_id), f"t{self.number}")

    @rule(caller=st.sampled_from("ab"), request_id=st.sampled_from(["x", "y"]))
    def finish(self, caller: str, request_id: str) -> None:
        request = self.leases.requests.by_caller_and_id.get((caller, request_id))
        assert (request and request.token) == self.requests.pop((caller, request_id), None)
        if request is not None:
            self.leases.requests.end(request)
            self.leases.requests.end(request)  # a second time: nothing happens

    @rule(seconds=st.floats(0, 4))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        actions = self.leases.expire(self.now)
        self.fail(actions)
        callers = lost_peers(actions)
        self.requests = {key: token for key, token in self.requests.items() if key[0] not in callers}

    @rule(peer=st.sampled_from(["server", "a"]))
    def lose(self, peer: str) -> None:
        actions = self.leases.lose(peer)
        self.fail(actions)
        assert lost_peers(actions) == [peer]
        self.requests = {key: token for key, token in self.requests.items() if key[0] != peer}

    @rule(data=st.data())
    def farewell(self, data: st.DataObject) -> None:
        tokens = data.draw(st.sets(st.sampled_from(["guess", *self.calls, *self.requests.values()])))
        actions = self.leases.handle(Left(tokens=sorted(tokens)), "anyone", "", self.now)
        assert sorted(failures(actions)) == sorted(self.calls[token] for token in tokens & set(self.calls))
        self.fail(actions)
        assert set(aborts(actions)) == {key for key, token in self.requests.items() if token in tokens}
        self.requests = {key: token for key, token in self.requests.items() if token not in tokens}

    @rule()
    def clear(self) -> None:
        farewells = [token for tokens in self.leases.clear().values() for token in tokens]
        assert sorted(farewells) == sorted([*self.requests.values(), *self.calls]), "each is told once, nothing else"
        self.calls, self.requests = {}, {}

    @invariant()
    def the_leases_are_those_of_open_calls(self) -> None:
        assert len(self.leases) == len(self.calls) + len(self.requests)
        assert {call.token for call in self.leases.calls} == set(self.calls)
        assert {call.token for call in self.leases.calls.with_tokens(self.calls)} == set(self.calls)
        reported = {token for _, tokens in self.leases.requests.reports() for token in tokens}
        assert reported == set(self.requests.values())
        assert set(self.leases.requests.by_caller_and_id) == set(self.requests)
        assert self.leases.requests.callers <= 2
        if not self.requests:
            assert self.leases.requests.are_reported


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
