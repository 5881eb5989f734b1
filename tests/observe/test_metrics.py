"""Metrics for Prometheus."""

import socket
import struct
import threading
import time
from contextlib import ExitStack
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from opwire import CallError, OperationRegistry
from opwire.hub import Hub, Spoke
from opwire.observe import telemetry
from opwire.observe.telemetry import serve_metrics
from tests.hub.meeting import OPEN


def shop() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.query("shop.price")
    async def price(article: str) -> float:
        if article == "secret":
            raise CallError("EXECUTION_ERROR", "the password is hunter2")
        return 3.5

    return registry


def scraped(url: str) -> dict[str, float]:
    """The samples of a page by name and by the labels that matter."""
    with urlopen(url, timeout=20) as page:
        lines = [line for line in page.read().decode().splitlines() if not line.startswith("#")]
    samples: dict[str, float] = {}
    for name, value in (line.rsplit(" ", 1) for line in lines):
        labels = dict(label.split("=", 1) for label in name.partition("{")[2].rstrip("}").split(",") if "=" in label)
        shown = [
            labels[key].strip('"') for key in ("rpc_method", "error_type", "outcome") if labels.get(key, '""') != '""'
        ]
        samples[" ".join([name.partition("{")[0], *shown])] = float(value)
    return samples


async def test_calls_and_their_outcomes_are_counted_for_prometheus() -> None:
    registry = shop()
    with serve_metrics(registry, port=0) as url:
        await registry.execute("shop.price", {"article": "tea"})
        await registry.execute("shop.price", {"article": "jam"})
        with pytest.raises(CallError):
            await registry.execute("shop.price", {"article": "secret"})
        found = scraped(url)
        with urlopen(url, timeout=20) as page:
            assert "hunter2" not in page.read().decode()
    assert found["rpc_server_call_duration_seconds_count shop.price"] == 2
    assert found["rpc_server_call_duration_seconds_count shop.price EXECUTION_ERROR"] == 1
    with pytest.raises(OSError, match="refused"):
        scraped(url)


def test_metrics_on_a_loopback_address_are_not_for_pages_whose_name_leads_to_it() -> None:
    with serve_metrics(shop(), port=0) as url:
        for host in ("localhost", "127.0.0.1:1"):
            with urlopen(Request(url, headers={"host": host}), timeout=20) as page:
                assert page.status == 200
        with pytest.raises(HTTPError, match="421") as rejected:
            urlopen(Request(url, headers={"host": "evil.example"}), timeout=20)
        rejected.value.close()


def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_SCRAPE_TIMEOUT", 0.05)
    with (
        serve_metrics(shop(), port=0) as url,
        socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=20) as silent,
    ):
        assert silent.recv(1) == b""


def test_silent_connections_hold_a_bounded_number_of_threads_and_fill_no_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(telemetry, "_MAX_SCRAPE_CONNECTIONS", 3)
    with serve_metrics(shop(), port=0) as url, ExitStack() as stack:
        address, before = ("127.0.0.1", urlsplit(url).port or 0), threading.active_count()
        silent = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(20)]
        for each in silent:
            each.sendall(b"GET /metrics HTTP/1.1\r\nhost: ")
        for each in silent[:17]:
            try:
                assert each.recv(1) == b""
            except ConnectionResetError:
                pass
        scraped(url)
        while threading.active_count() > before + 3:  # they end soon
            time.sleep(0.01)
        for each in silent:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ends by a reset
    assert capfd.readouterr().err == ""


async def test_calls_that_a_hub_relays_are_counted_too() -> None:
    async with (
        Hub(None, "ws://127.0.0.1:0", authenticate=OPEN) as hub,
        Spoke(shop(), hub.url),
        Spoke(None, hub.url) as caller,
    ):
        with serve_metrics(hub, port=0) as url:
            assert await caller.call("shop.price", {"article": "tea"}) == 3.5
            with pytest.raises(CallError):
                await caller.call("shop.price", {"article": "secret"})
            found = scraped(url)
    assert found["opwire_relay_calls_total ok"] == 1
    assert found["opwire_relay_calls_total error"] == 1
    assert (found["opwire_relay_active_calls"], found["opwire_relay_peers"]) == (0, 2)


async def test_metrics_can_be_served_again_after_they_ended() -> None:
    for _ in range(2):
        registry = shop()
        with serve_metrics(registry, port=0) as url:
            await registry.execute("shop.price", {"article": "tea"})
            assert scraped(url)["rpc_server_call_duration_seconds_count shop.price"] == 1
