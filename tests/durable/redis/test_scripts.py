"""The scripts of durable calls, asked directly: what they do when they are not asked as the journal asks them."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from opwire.durable.redis import journal as scripts
from opwire.durable.redis.journal import JournalKeys, without_space
from opwire.transports.redis.connection import Script
from tests.servers.brokers import RedisServer
from tests.transports.redis.ends import ask, exhaust

NAMES = JournalKeys("scripts")
TASK, STREAM = NAMES.task("k"), NAMES.stream("shop.order")
LATER, DEAD_LETTERS, REQUESTS = (
    NAMES.later("shop.order"),
    NAMES.dead_letters("shop.order"),
    NAMES.requests("shop.order"),
)
SUSPECTS, HISTORY = NAMES.suspects("shop.order"), NAMES.history("shop.order")


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    for key in (TASK, STREAM, LATER, SUSPECTS, HISTORY, DEAD_LETTERS, REQUESTS, NAMES.operations):
        ask(redis_server, "DEL", key)
    return redis_server


def run(server: RedisServer, script: Script, keys: list[bytes], *arguments: str | bytes | int) -> object:
    return ask(server, "EVAL", script.text, len(keys), *keys, *arguments)


def submit(server: RedisServer) -> object:
    arguments = ("shop.order", b"entry", "f", b"")
    return run(server, scripts.SUBMIT_SCRIPT, [STREAM, NAMES.operations, TASK], *arguments)


def take(
    server: RedisServer, consumer: str = "me:1000", *, look: int = 1, silence: int = 60_000, suspects: int = 1
) -> list[list[Any]]:
    keys = [NAMES.operations, STREAM, LATER, SUSPECTS, HISTORY]
    taken = run(server, scripts.TAKE_SCRIPT, keys, consumer, 9, look, 0, silence, suspects, "shop.order")
    assert isinstance(taken, list)
    return taken


def record(server: RedisServer, id: bytes, *, dead_letter: bool = False) -> object:
    keys = [STREAM, LATER, SUSPECTS, HISTORY, DEAD_LETTERS, REQUESTS, TASK]
    arguments = (60_000, "channel:", id, b"outcome", "1 k" if dead_letter else "")
    return run(server, scripts.RECORD_SCRIPT, keys, *arguments)


def consumers(server: RedisServer) -> set[bytes]:
    return {consumer[1] for consumer in ask(server, "XINFO", "CONSUMERS", STREAM, "workers")}


def test_digests_are_those_that_redis_computes(redis_server: RedisServer) -> None:
    for script in scripts.SCRIPTS:
        assert ask(redis_server, "SCRIPT", "LOAD", script.text) == script.digest


def test_every_script_is_loaded() -> None:
    assert set(scripts.SCRIPTS) == {each for each in vars(scripts).values() if isinstance(each, Script)}


def test_names_under_different_prefixes_and_of_different_kinds_differ() -> None:
    kinds = [
        name
        for names in (NAMES, JournalKeys("other"))
        for name in (
            names.task,
            names.stream,
            names.later,
            names.suspects,
            names.history,
            names.dead_letters,
            names.requests,
        )
    ]
    assert len({kind("same") for kind in kinds}) == len(kinds)
    assert NAMES.task("\ud800") != NAMES.task("?")  # no UTF-8, and no error


def test_fingerprints_have_no_white_space_and_stay_different() -> None:
    assert without_space("0aF9") == "0aF9"
    odd = ["", " ", "\n", "%20", "%0A", "a b", "a%20b", "é", "%C3%A9", "a-b"]
    assert len({without_space(each) for each in odd}) == len(odd)
    assert not any(character.isspace() for each in odd for character in without_space(each))


def test_a_task_that_has_ended_leaves_an_outcome_with_an_expiry_and_nothing_else(server: RedisServer) -> None:
    submit(server)
    ((_, id, attempt, fields),) = take(server)
    assert (attempt, fields) == (1, [b"task", b"entry"])
    assert ask(server, "PTTL", TASK) == -1  # what is not done does not expire
    assert record(server, id) == 0
    assert (ask(server, "XLEN", STREAM), ask(server, "XPENDING", STREAM, "workers")[0]) == (0, 0)
    assert ask(server, "GET", TASK) == b"f\noutcome"
    assert 0 < ask(server, "PTTL", TASK) <= 60_000
    assert record(server, id) == [b"outcome"]
    assert submit(server) == [b"outcome"]


def test_a_dead_letter_does_not_expire_and_keeps_its_request_until_it_is_replayed(server: RedisServer) -> None:
    submit(server)
    ((_, id, *_),) = take(server)
    assert record(server, id, dead_letter=True) == 0
    assert ask(server, "PTTL", TASK) == -1
    assert (ask(server, "HGET", REQUESTS, "k"), ask(server, "ZCARD", DEAD_LETTERS)) == (b"entry", 1)
    assert run(server, scripts.REPLAY_SCRIPT, [TASK, STREAM, DEAD_LETTERS, REQUESTS], "k") == 1
    assert ask(server, "EXISTS", REQUESTS, DEAD_LETTERS) == 0
    ((_, new_id, attempt, fields),) = take(server)
    assert (new_id != id, attempt, fields[-1]) == (True, 1, b"entry")
    assert record(server, new_id, dead_letter=True) == 0
    assert run(server, scripts.PURGE_SCRIPT, [TASK, DEAD_LETTERS, REQUESTS], "k") == 1
    assert ask(server, "EXISTS", TASK, REQUESTS, DEAD_LETTERS) == 0


def test_the_history_of_a_task_is_kept_until_it_has_ended(server: RedisServer) -> None:
    submit(server)
    ((_, id, *_),) = take(server, "lost:0")
    keys = [STREAM, LATER, SUSPECTS, HISTORY]
    ((_, _, attempt, _, history),) = take(server, "lost:0")
    assert (attempt, history) == (2, [0, 1, 0, 1, 0])
    run(server, scripts.RENEW_SCRIPT, [STREAM, HISTORY], id, "lost:0", 2, 1)
    ((_, _, attempt, _, history),) = take(server)
    assert (attempt, history) == (3, [0, 2, 1, 1, 0])
    assert run(server, scripts.RELEASE_SCRIPT, keys, id, "me:1000", 3, 0, 3, 0) == 1
    assert (ask(server, "ZCARD", LATER), ask(server, "ZCARD", SUSPECTS)) == (0, 1)
    assert run(server, scripts.COUNT_SCRIPT, [STREAM, LATER, SUSPECTS, DEAD_LETTERS]) == [1, 0, 0]
    assert take(server, suspects=0) == []
    ((_, _, attempt, _, history),) = take(server)
    assert (attempt, history) == (4, [0, 2, 1, 1, 0])
    run(server, scripts.RELEASE_SCRIPT, keys, id, "me:1000", 4, 0, 4, 1)
    assert (ask(server, "ZCARD", LATER), ask(server, "ZCARD", SUSPECTS)) == (1, 0)
    ((_, _, attempt, _, history),) = take(server, suspects=0)
    assert (attempt, history) == (5, [1, 2, 1, 0, 0])
    assert record(server, id) == 0
    assert ask(server, "EXISTS", LATER, SUSPECTS, HISTORY) == 0


def test_consumers_without_tasks_that_were_not_heard_of_for_long_are_removed(server: RedisServer) -> None:
    submit(server)
    ((_, id, *_),) = take(server, "idle:100000")
    record(server, id)
    ask(server, "DEL", TASK)
    submit(server)
    take(server, "busy:100000")
    take(server, silence=60_000)
    assert consumers(server) >= {b"busy:100000", b"idle:100000"}
    while b"idle:100000" in consumers(server):  # ends when a millisecond has passed
        take(server, silence=0)
    assert b"busy:100000" in consumers(server)


def test_a_peer_that_leaves_is_removed_only_where_it_holds_nothing(server: RedisServer) -> None:
    submit(server)
    ((_, id, *_),) = take(server)
    missing = NAMES.stream("shop.missing")
    for _ in range(2):
        run(server, scripts.LEAVE_SCRIPT, [STREAM, missing], "me:1000", "me:1000")
        assert consumers(server) == {b"me:1000"}
    record(server, id)
    run(server, scripts.LEAVE_SCRIPT, [STREAM], "me:1000")
    assert consumers(server) == set()


def test_deleted_entries_are_forgotten(server: RedisServer) -> None:
    submit(server)
    ((_, id, *_),) = take(server, "gone:0")
    ask(server, "XDEL", STREAM, id)
    assert take(server) == []
    assert ask(server, "XPENDING", STREAM, "workers")[0] == 0


def test_without_memory_nothing_is_submitted_and_what_is_there_can_still_be_ended(
    own_redis: Callable[..., RedisServer],
) -> None:
    server = own_redis()
    submit(server)
    ((_, id, *_),) = take(server)
    exhaust(server)
    keys = [STREAM, NAMES.operations, NAMES.task("k"), NAMES.task("new")]
    arguments = ("shop.order", b"entry", "f", b"channel", b"entry", "f", b"channel")
    assert re.search("OOM", str(run(server, scripts.SUBMIT_SCRIPT, keys, *arguments)))
    assert (ask(server, "EXISTS", NAMES.task("new")), ask(server, "XLEN", STREAM)) == (0, 1)
    assert run(server, scripts.RENEW_SCRIPT, [STREAM, HISTORY], id, "me:1000", 1, 1) == 1
    assert run(server, scripts.WAIT_SCRIPT, [TASK], "channel") is None
    assert run(server, scripts.RELEASE_SCRIPT, [STREAM, LATER, SUSPECTS, HISTORY], id, "me:1000", 1, 0, 1, 1) == 1
    ((_, id, attempt, _, history),) = take(server)
    assert (attempt, history) == (2, [1, 0, 0, 0, 0])
    assert record(server, id) == 0
    assert ask(server, "GET", TASK) == b"f\noutcome"
