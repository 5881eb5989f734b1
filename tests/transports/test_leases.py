"""The leases of one end of a broker: owners of calls, and how long they may be silent."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from opwire.model.envelope import local_envelope
from opwire.protocol import CallAborted, CallCompleted, CallCredit, CallEvent, CallFailed, CallResponded
from opwire.protocol.batch import MAX_TOKEN
from opwire.transports.leases import MOMENT, Leases, is_final
from tests.properties import examples

PATIENCE = 3.0


def answer(id: str, seq: int | None = None) -> CallResponded:
    return CallResponded(request_id=id, output=local_envelope(1, "math.add"), seq=seq)


def test_only_senders_with_the_token_are_believed() -> None:
    leases = Leases(PATIENCE)
    token = leases.ask("r", "math.add", 0.0, streams=False).token
    assert not leases.authenticates(answer("r"), "stranger", "", 1.0)
    assert not leases.authenticates(answer("r"), "stranger", "guess", 1.0)
    assert leases.authenticates(answer("r"), "server", token, 1.0)
    assert len(leases) == 0
    assert leases.authenticates(
        answer("r"), "anybody", "", 1.0
    )  # a response to an unknown request: its receiver drops it


def test_tokens_are_all_different() -> None:
    leases = Leases(PATIENCE)
    tokens = {leases.ask(f"{number}", "math.add", 0.0, streams=False).token for number in range(1_000)}
    assert len(tokens) == 1_000
    assert {len(token) for token in tokens} == {16}


def test_a_call_that_no_beat_names_is_lost_and_one_that_is_named_goes_on() -> None:
    leases = Leases(PATIENCE)
    tokens = [leases.ask(id, "math.add", 0.0, streams=False).token for id in ("dead", "alive")]
    assert leases.confirm("server", tokens[1:], 2.0) == (tokens[1], [])
    assert [each.request_id for each in leases.expire(3.5).calls] == ["dead"]
    assert [each.request_id for each in leases.expire(5.5).calls] == ["alive"]
    assert leases.expire(99.0) == ([], [])


def test_a_caller_that_does_not_answer_beats_is_lost_with_all_that_it_asked() -> None:
    leases = Leases(PATIENCE)
    leases.hold("ann", "r1", "t1", 0.0)
    leases.hold("ann", "r2", "t2", 0.0)
    leases.hold("bob", "r1", "t3", 0.0)
    assert leases.heard("bob", "t3", [], 2.0) == []
    assert leases.expire(3.5).callers == ["ann"]
    assert dict(leases.beats()) == {"bob": ["t3"]}


def test_a_caller_without_requests_is_forgotten_and_not_reported_as_lost() -> None:
    leases = Leases(PATIENCE)
    leases.hold("ann", "r1", "t1", 0.0)
    leases.release("ann", "r1")
    assert (leases.expire(2.0), list(leases.beats())) == (([], []), [])
    assert (leases.expire(3.5), leases._held, leases._heard) == (([], []), {}, {})


def test_many_callers_without_requests_take_no_memory() -> None:
    leases = Leases(PATIENCE)
    for number in range(5_000):
        leases.hold(f"{number}", "r", f"t{number}", 0.0)
        leases.release(f"{number}", "r")
    assert len(leases._held) == len(leases._heard) < 2_000
    assert (leases._new, len(leases)) == ({}, 0)


def test_a_caller_says_in_its_answer_what_it_has_given_up() -> None:
    leases = Leases(PATIENCE)
    leases.hold("ann", "r1", "t1", 0.0)
    leases.hold("ann", "r2", "t2", 0.0)
    assert leases.heard("ann", "t1", ["t2", "unknown"], 1.0) == ["r2"]
    assert leases.heard("ann", "", ["t2"], 1.0) == ["r2"]
    assert leases.heard("nobody", "t1", ["t1"], 1.0) == []


def test_only_a_caller_that_shows_a_token_of_its_calls_is_still_there() -> None:
    leases = Leases(PATIENCE)
    leases.hold("ann", "r1", "t1", 0.0)
    leases.hold("bob", "r1", "t2", 0.0)
    for token, gone in (("", []), ("guess", []), ("t2", ["guess"]), ("", ["t2"])):
        assert leases.heard("ann", token, gone, 2.0) == []
    assert leases.expire(3.5).callers == ["ann", "bob"]


def test_a_server_learns_of_abandoned_calls() -> None:
    leases = Leases(PATIENCE)
    token = leases.ask("r", "math.add", 0.0, streams=False).token
    assert leases.confirm("server", [token, "old", "x" * (MAX_TOKEN + 1)], 1.0) == (token, ["old"])


def test_a_peer_that_left_takes_along_what_it_had_and_what_it_asked() -> None:
    leases = Leases(PATIENCE)
    had = leases.ask("had", "math.add", 0.0, streams=False).token
    leases.confirm("server", [had], 1.0)
    leases.ask("other", "math.add", 0.0, streams=False)
    leases.hold("server", "r", "t", 0.0)
    assert [each.request_id for each in leases.left("server")[0]] == ["had"]
    assert [each.request_id for each in leases.unanswered("math.add")] == ["other"]
    assert len(leases) == 0


def test_a_farewell_ends_the_calls_and_requests_with_the_tokens_that_it_names_and_no_others() -> None:
    leases = Leases(PATIENCE)
    named = leases.ask("named", "math.add", 0.0, streams=False).token
    leases.ask("other", "math.add", 0.0, streams=False)
    leases.hold("ann", "r1", "t1", 0.0)
    leases.hold("ann", "r2", "t2", 0.0)
    leases.hold("bob", "r1", "t3", 0.0)
    calls, requests = leases.over([named, "t2", "unknown"])
    assert ([each.request_id for each in calls], requests) == (["named"], [("ann", "r2")])
    assert dict(leases.beats()) == {"ann": ["t1"], "bob": ["t3"]}  # another end may have stated the address of ann
    assert leases.over([]) == ([], [])


def test_a_call_with_an_unknown_server_is_named_by_its_token_alone() -> None:
    leases = Leases(PATIENCE)
    known, unknown = (leases.ask(id, "math.add", 0.0, streams=False).token for id in ("known", "unknown"))
    leases.confirm("server", [known], 1.0)
    leases.hold("server", "r", "t", 0.0)
    assert leases.clear() == {"server": ["t", known], "": [unknown]}
    assert len(leases) == 0


def test_a_request_that_is_asked_again_under_its_id_has_one_lease() -> None:
    leases = Leases(PATIENCE)
    first, second = (leases.ask("r", "math.add", 0.0, streams=False).token for _ in range(2))
    assert leases.confirm("server", [first, second], 1.0) == (second, [first])
    assert leases.end(second) is not None
    assert (leases.end(first), len(leases), leases._by_token) == (None, 0, {})


def test_a_request_in_flight_keeps_its_token_until_it_is_released() -> None:
    leases = Leases(PATIENCE)
    assert leases.hold("ann", "r", "t1", 0.0)
    assert leases.hold("ann", "r", "t1", 0.0), "the same request again"
    assert not leases.hold("ann", "r", "t2", 0.0)
    assert leases.held("ann", "r") == "t1"
    leases.release("ann", "r")
    assert leases.hold("ann", "r", "t2", 0.0)


# --- probes -----------------------------------------------------------------------------------------------------------


def probed(leases: Leases, now: float) -> list[tuple[str | None, str]]:
    return [(asked.server, asked.request_id) for asked in leases.watch(now)]


def test_the_server_of_a_call_that_takes_long_is_probed_once_for_all_of_its_calls() -> None:
    leases = Leases(PATIENCE)
    tokens = [leases.ask(f"r{number}", "math.add", 0.0, streams=False).token for number in range(5)]
    leases.confirm("server", tokens[:4], 0.0)
    leases.confirm("other", tokens[4:], 0.0)
    assert probed(leases, MOMENT / 2) == []
    assert probed(leases, 1.1 * MOMENT) == [("server", "r3"), ("other", "r4")]
    assert probed(leases, 1.2 * MOMENT) == [], "not again at once"
    assert probed(leases, 2.4 * MOMENT) == [("server", "r3"), ("other", "r4")]


def test_probes_become_rarer_the_longer_a_call_takes_until_a_younger_one_joins_it() -> None:
    leases = Leases(1e9)
    leases.routed(leases.ask("old", "math.add", 0.0, streams=False).token, "server")
    first_second = sum(len(leases.watch(tick * MOMENT)) for tick in range(50))
    assert first_second == 25, "at every other look"
    later = sum(len(leases.watch(1000 + tick * MOMENT)) for tick in range(50))
    assert later == 4
    leases.routed(leases.ask("young", "math.add", 1001.0, streams=False).token, "server")
    assert 24 <= sum(len(leases.watch(1001 + tick * MOMENT)) for tick in range(50)) <= 26


def test_a_server_that_was_just_heard_of_is_not_probed() -> None:
    leases = Leases(PATIENCE)
    token = leases.ask("r", "math.count", 0.0, streams=True).token
    leases.confirm("server", [token], 0.0)
    for tick in range(1, 20):
        assert leases.authenticates(answer("r", tick), "server", token, tick * MOMENT)
        assert leases.watch(tick * MOMENT + MOMENT / 4) == []
    hanging = leases.ask("hanging", "math.add", 1.0, streams=False).token
    leases.routed(hanging, "server")
    for tick in range(1, 20):  # what it answers others is a sign of life, too
        quick = leases.ask("quick", "math.add", 1.0 + tick * MOMENT, streams=False).token
        assert leases.authenticates(answer("quick"), "server", quick, 1.0 + tick * MOMENT)
        assert leases.watch(1.0 + tick * MOMENT + MOMENT / 4) == []


def test_a_limited_number_of_servers_are_probed_at_once_and_none_is_forgotten() -> None:
    leases = Leases(PATIENCE)
    for number in range(200):
        leases.routed(leases.ask(f"r{number}", "math.add", 0.0, streams=False).token, f"server{number}")
    seen: set[str | None] = set()
    for tick in range(1, 5):
        now = probed(leases, 1.5 * tick * MOMENT)
        assert len(now) <= 64
        seen.update(server for server, _ in now)
    assert len(seen) == 200


def test_a_call_that_no_server_has_named_is_probed_by_its_operation_if_an_end_like_this_one_has_answered_it() -> None:
    leases = Leases(PATIENCE)
    for id, sender in (("plain.add", ""), ("math.add", "server")):
        token = leases.ask("before", id, 0.0, streams=False).token
        assert leases.authenticates(answer("before"), sender, token, 0.0)
        leases.ask(f"{id} 1", id, 1.0, streams=False)
        leases.ask(f"{id} 2", id, 1.0, streams=False)
    assert probed(leases, 1.0 + 1.1 * MOMENT) == [(None, "math.add 2")]


def test_a_probe_that_no_server_got_ends_what_was_asked_before_it_and_named_by_no_server() -> None:
    leases = Leases(PATIENCE)
    leases.authenticates(answer("before"), "server", leases.ask("before", "math.add", 0.0, streams=False).token, 0.0)
    named, lost = (leases.ask(id, "math.add", 0.0, streams=False).token for id in ("named", "lost"))
    last = leases.ask("last", "math.add", 0.0, streams=False).token
    leases.ask("other", "math.mul", 0.0, streams=False)
    leases.confirm("server", [named], 0.0)
    assert [asked.token for asked in leases.watch(0.1) if asked.server is None] == [last]
    leases.ask("late", "math.add", 0.2, streams=False)
    assert {asked.token for asked in leases.undelivered(last)} == {lost, last}
    assert leases.undelivered(last) == []
    assert len(leases) == 3


def test_a_probe_that_no_server_got_does_not_end_a_call_that_was_named_meanwhile() -> None:
    leases = Leases(PATIENCE)
    leases.authenticates(answer("before"), "server", leases.ask("before", "math.add", 0.0, streams=False).token, 0.0)
    token = leases.ask("r", "math.add", 0.0, streams=False).token
    assert len(leases.watch(0.1)) == 1
    leases.confirm("draining", [token], 0.1)
    assert leases.undelivered(token) == []
    assert leases.asked("r") is not None


def test_calls_in_flight_are_named_after_a_moment_and_once() -> None:
    leases = Leases(PATIENCE)
    assert leases.pause(0.0) is None
    leases.hold("ann", "r1", "t1", 0.0)
    leases.hold("ann", "r2", "t2", 0.0)
    assert leases.pause(0.0) == MOMENT
    assert leases.news() == {}, "they came in this very moment"
    leases.hold("bob", "r1", "t3", 0.0)
    leases.release("ann", "r1")
    assert leases.news() == {"ann": ["t2"]}
    assert leases.news() == {"bob": ["t3"]}
    assert leases.news() == {}
    assert leases.pause(0.0) is None


def test_there_is_less_to_see_the_longer_calls_take_and_the_more_there_are() -> None:
    leases = Leases(PATIENCE)
    leases.ask("r", "math.add", 0.0, streams=False)

    def pause(now: float) -> float:
        leases.watch(now)
        return leases.pause(now) or 0

    assert pause(0.0) <= MOMENT
    assert pause(59.0) == pytest.approx(0.025)
    assert pause(1000.0) == pytest.approx(0.25)
    for number in range(50_000):
        leases.ask(f"r{number}", "math.add", 1000.0, streams=False)
    assert pause(1000.0) > 5 * MOMENT


def test_the_more_servers_are_probed_the_rarer_each_of_them_is() -> None:
    leases = Leases(1e9)
    for number in range(1_000):
        leases.routed(leases.ask(f"r{number}", "math.add", 0.0, streams=False).token, f"server{number}")
    second = [leases.watch(1.0 + tick / 100) for tick in range(100)]
    assert max(map(len, second)) <= 64
    assert 5_000 <= sum(map(len, second)) <= 10_000


def test_what_ends_a_call() -> None:
    ends: list[CallEvent] = [answer("r"), CallCompleted(request_id="r"), CallAborted(request_id="r")]
    ends.append(CallFailed(request_id="r", code="INTERNAL", message="no"))
    assert all(map(is_final, ends))
    assert not any(map(is_final, [answer("r", 1), CallCredit(request_id="r", n=1)]))
    assert not is_final(answer("r"), streams=True)


class Books(RuleBasedStateMachine):
    """For any events in any order: each own request ends once, and no table keeps what is over."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases(PATIENCE)
        self.now = 0.0
        self.open: dict[str, str] = {}  # token -> request id
        self.held: dict[tuple[str, str], str] = {}  # (caller, request id) -> token
        self.number = 0

    def over(self, asked: Any) -> None:
        assert self.open.pop(asked.token) == asked.request_id

    @rule(target=requests, streams=st.booleans(), again=st.booleans())
    def ask(self, streams: bool, again: bool) -> str:
        self.number += 1
        id = next(iter(self.open.values()), "r") if again else f"r{self.number}"
        token = self.leases.ask(id, "math.add", self.now, streams=streams).token
        self.open = {old: other for old, other in self.open.items() if other != id}
        self.open[token] = id
        return token

    @rule(token=requests, honest=st.booleans(), seq=st.none() | st.just(1))
    def answer(self, token: str, honest: bool, seq: int | None) -> None:
        id, was_open = self.open.get(token), token in self.open
        asked = self.leases.asked(id or "?")
        event = answer(id or "?", seq)
        believed = self.leases.authenticates(event, "server", token if honest else "guess", self.now)
        assert believed is (honest or not was_open)
        if asked is not None and believed and is_final(event, streams=asked.streams):
            self.over(asked)

    @rule(target=requests, token=consumes(requests))
    def end(self, token: str) -> Any:
        asked = self.leases.end(token)
        assert (asked is not None) == (token in self.open)
        if asked is not None:
            self.over(asked)
        return multiple()

    @rule(token=requests)
    def confirm(self, token: str) -> None:
        assert self.leases.confirm("server", [token], self.now) == (
            (token, []) if token in self.open else ("", [token])
        )

    @rule(token=requests)
    def route(self, token: str) -> None:
        self.leases.routed(token, "server")

    @rule()
    def look(self) -> None:
        named = self.leases.news()
        assert {token for tokens in named.values() for token in tokens} <= set(self.held.values())
        assert {asked.token for asked in self.leases.watch(self.now)} <= set(self.open)

    @rule(token=requests)
    def bounce(self, token: str) -> None:
        for asked in self.leases.undelivered(token):
            self.over(asked)

    @rule(caller=st.sampled_from("ab"), id=st.sampled_from(["x", "y"]))
    def hold(self, caller: str, id: str) -> None:
        self.number += 1
        new = (caller, id) not in self.held
        assert self.leases.hold(caller, id, f"t{self.number}", self.now) is new
        self.held.setdefault((caller, id), f"t{self.number}")

    @rule(caller=st.sampled_from("ab"), id=st.sampled_from(["x", "y"]))
    def release(self, caller: str, id: str) -> None:
        self.leases.release(caller, id)
        self.held.pop((caller, id), None)

    @rule(seconds=st.floats(0, 4))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        calls, callers = self.leases.expire(self.now)
        for asked in calls:
            self.over(asked)
        self.held = {key: token for key, token in self.held.items() if key[0] not in callers}

    @rule(peer=st.sampled_from(["server", "a"]))
    def leave(self, peer: str) -> None:
        for asked in self.leases.left(peer)[0]:
            self.over(asked)
        self.held = {key: token for key, token in self.held.items() if key[0] != peer}

    @rule(data=st.data())
    def farewell(self, data: st.DataObject) -> None:
        tokens = data.draw(st.sets(st.sampled_from(["guess", *self.open, *self.held.values()])))
        calls, requests = self.leases.over(tokens)
        assert {asked.token for asked in calls} == tokens & set(self.open)
        assert set(requests) == {key for key, token in self.held.items() if token in tokens}
        for asked in calls:
            self.over(asked)
        self.held = {key: token for key, token in self.held.items() if token not in tokens}

    @rule()
    def clear(self) -> None:
        farewell = self.leases.clear()
        told = [token for tokens in farewell.values() for token in tokens]
        assert sorted(told) == sorted([*self.held.values(), *self.open]), "each is told once, and nothing else"
        self.open, self.held = {}, {}

    @invariant()
    def the_leases_are_those_of_open_calls(self) -> None:
        assert len(self.leases) == len(self.open) + len(self.held)
        shown = {token for _, tokens in self.leases.beats() for token in tokens}
        assert shown == set(self.held.values())
        assert set(self.leases._heard) == set(self.leases._held)
        idle = set(self.leases._held) - {caller for caller, _ in self.held}
        assert set(self.leases._held) - idle == {caller for caller, _ in self.held}
        assert all(self.leases._heard[caller] >= self.now - PATIENCE for caller in idle)
        assert set(self.leases._by_token) == set(self.open)
        holders = [*self.leases._new.items(), *self.leases._recent.items(), *self.leases._reported.items()]
        assert sorted(holders) == sorted((token, caller) for (caller, _), token in self.held.items())
        assert (self.leases.pause(self.now) is None) <= (not self.open)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
