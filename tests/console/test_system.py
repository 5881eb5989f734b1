"""The system page: servers, sources, timings and the journal."""

from pathlib import Path
from typing import Any

import pytest

from opwire import CallError
from opwire.config import load_config, open_config
from opwire.console import ConsoleSystem, system
from opwire.console.system import KnownServers, shown_journal
from opwire.durable import MemoryJournal
from opwire.durable.journal import Outcome, Task
from opwire.observe.monitor import CallMonitor, ServerStatistics
from opwire.protocol.events import CallFailed, encode_event
from tests.console.served import CLERK, make_registry, page_of


def server(id: str) -> ServerStatistics:
    return ServerStatistics(
        id=id,
        name=id,
        version="1",
        kind="spoke",
        started=0,
        status="serving",
        in_flight=0,
        operations=1,
        calls=2,
        errors=0,
        seconds=0.1,
    )


async def test_durations_and_errors_of_operations_are_shown() -> None:
    async with page_of() as page:
        await page.log_in()
        for input in ({"a": 1}, {"a": 2}, {"a": "x"}):
            await page.call("math.add", input)
        found = (await page.api("GET", "system")).json
        (shown,) = found["operations"]
        assert (shown["id"], shown["calls"], shown["errors"]) == ("math.add", 3, 1)
        assert shown["byCode"] == {"OK": 2, "VALIDATION_ERROR": 1}
        assert 0 < shown["p50"] <= shown["p95"] <= shown["p99"]
        assert sum(count for _, count in shown["histogram"]) == 3
        assert [each["kind"] for each in found["servers"]] == ["server"]
        assert (found["sources"], found["journal"]) == ([], None)


async def test_servers_are_shown_for_a_while_after_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    present, asked = [server("a"), server("b")], list[int]()

    async def request() -> list[ServerStatistics]:
        asked.append(1)
        return present

    known = KnownServers(CallMonitor(make_registry(), name="hub"), request)
    assert [each["name"] for each in await known.shown()] == ["hub", "a", "b"]
    await known.shown()
    assert len(asked) == 1  # not again so soon
    del present[0]
    monkeypatch.setattr(system, "REFRESH", -1)
    shown = {each["name"]: each for each in await known.shown()}
    assert (shown["a"]["status"], shown["b"]["status"]) == ("gone", "serving")
    assert shown["a"]["lastSeen"] <= shown["b"]["lastSeen"]
    monkeypatch.setattr(system, "FORGET", 0)
    assert [each["name"] for each in await known.shown()] == ["hub"]


async def test_sources_are_shown_with_what_was_skipped_and_why(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from opwire import OperationRegistry\nregistry = OperationRegistry()\n")
    document = (
        '{"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "servers": [{"url": "http://127.0.0.1:9"}],'
        '"paths": {"/a": {"get": {"parameters": [{"name": "x", "in": "nowhere"}], "responses": {}}}}}'
    )
    (tmp_path / "api.json").write_text(document)
    (tmp_path / "opwire.toml").write_text(
        '[sources.shop]\npython = "shop.py"\n[sources.api]\nopenapi = "api.json"\n'
        '[sources.gone]\nurl = "http://127.0.0.1:9/mcp"\n[sources.off]\npython = "x.py"\nenabled = false\n'
    )
    async with (
        open_config(load_config(tmp_path / "opwire.toml")) as opened,
        page_of(opened.registry, system=ConsoleSystem(sources=opened)) as page,
    ):
        await page.log_in()
        found = {each["name"]: each for each in (await page.api("GET", "system")).json["sources"]}
    assert {name: (each["kind"], each["state"]) for name, each in found.items()} == {
        "shop": ("python", "loaded"),
        "api": ("openapi", "loaded"),
        "gone": ("mcp", "failed"),
        "off": ("python", "disabled"),
    }
    assert found["api"].get("skipped") or found["api"].get("warnings")
    assert found["gone"]["error"]


async def bury(journal: MemoryJournal, key: str) -> None:
    """Submit a task that was given up."""
    await journal.submit(Task(key=key, operation_id="shop.order", request=b"{}", fingerprint="f", submitted=0))
    (claim,) = await journal.claim(["shop.order"], lease=10, wait=1)
    error = CallFailed.of("r", CallError("TIMEOUT", "too slow for hunter2"))
    outcome = Outcome(
        key=key, operation_id="shop.order", event=encode_event(error), attempts=5, recorded=1, dead_letter=True
    )
    await journal.record(claim, outcome)


async def test_buried_tasks_are_shown_retried_and_discarded() -> None:
    journal = MemoryJournal()
    await journal.start()
    await bury(journal, "order/1")
    await bury(journal, "2")
    async with page_of(system=ConsoleSystem(journal=journal)) as page:
        await page.log_in()
        found = (await page.api("GET", "system")).json["journal"]
        assert found["operations"] == [{"id": "shop.order", "waiting": 0, "claimed": 0, "buried": 2}]
        assert found["tasks"][0] == {
            "id": "order/1",
            "operationId": "shop.order",
            "state": "buried",
            "attempts": 5,
            "lastError": {"code": "TIMEOUT", "message": "too slow for hunter2"},
            "since": 1,
        }
        assert (await page.api("POST", "journal/order%2F1", {"action": "retry"})).status == 204
        assert (await page.api("POST", "journal/order%2F1", {"action": "retry"})).status == 404
        assert (await page.api("POST", "journal/2", {"action": "discard"})).status == 204
        assert (await page.api("POST", "journal/2", {"action": "burn"})).status == 422
        found = (await page.api("GET", "system")).json["journal"]
        assert found["operations"][0]["waiting"] == 1
        assert [(each["id"], each["state"]) for each in found["tasks"]] == [("order/1", "waiting")]
        await page.log_in(CLERK)
        assert (await page.api("POST", "journal/2", {"action": "discard"})).status == 403


async def test_tasks_that_wait_and_run_are_shown_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = MemoryJournal()
    await journal.start()
    await bury(journal, "buried")
    for key in ("later", "running", "waiting"):
        task = Task(key=key, operation_id="shop.order", request=b"{}", fingerprint="f", submitted=7)
        await journal.submit(task)
        if key != "waiting":
            (claim,) = await journal.claim(["shop.order"], lease=10, wait=1)
        if key == "later":
            await journal.release(claim, 60, failed=True)
    found = await shown_journal(journal, messages=False)
    states = [(each["id"], each["state"], each["attempts"], each["since"]) for each in found["tasks"]]
    assert states == [
        ("buried", "buried", 5, 1),
        ("later", "retried later", 1, 7),
        ("running", "running", 1, 7),
        ("waiting", "waiting", 0, 7),
    ]
    assert found["more"] is False
    monkeypatch.setattr(system, "MAX_PENDING", 2)
    found = await shown_journal(journal, messages=False)
    assert (len(found["tasks"]), found["more"]) == (3, True)


async def test_error_messages_need_the_scope_for_values_and_tasks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "MAX_TASKS", 1)
    journal = MemoryJournal()
    await journal.start()
    await bury(journal, "1")
    await bury(journal, "2")
    found = await shown_journal(journal, messages=False)
    assert (len(found["tasks"]), found["more"]) == (1, True)
    assert found["tasks"][0]["lastError"] == {"code": "TIMEOUT", "message": None}


class Unreachable(MemoryJournal):
    async def info(self) -> Any:
        raise CallError("UNAVAILABLE", "no engine")


async def test_a_journal_that_is_down_does_not_hide_the_rest() -> None:
    async with page_of(system=ConsoleSystem(journal=Unreachable())) as page:
        await page.log_in()
        found = (await page.api("GET", "system")).json
        assert found["servers"]
        assert "no engine" in found["journal"]["error"]


async def test_a_server_without_a_journal_has_nothing_to_decide() -> None:
    async with page_of() as page:
        await page.log_in()
        assert (await page.api("POST", "journal/1", {"action": "retry"})).status == 404
