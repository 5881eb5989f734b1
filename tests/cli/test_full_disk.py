"""A disk that is full: /dev/full for streams, a limit on the size of files for the others."""

import json
import os
import resource
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli.process import COMMAND, SHOP
from tests.servers.processes import unmeasured

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def with_full_output(*arguments: str) -> subprocess.CompletedProcess[str]:
    with Path("/dev/full").open("w") as full:
        command = [*COMMAND, *arguments]
        return subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60, env=BUFFERED
        )


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("ls", *SHOP), ("call", *SHOP, "math.add", "a=1", "b=2"), ("gen", "client", *SHOP)],
    ids=lambda arguments: arguments[0],
)
def test_output_that_cannot_be_written_is_one_line_on_standard_error(arguments: tuple[str, ...]) -> None:
    ended = with_full_output(*arguments)
    assert (ended.returncode, ended.stderr) == (2, "error: cannot write the output: No space left on device\n")


def test_so_it_is_as_json() -> None:
    ended = with_full_output("ls", "--json", *SHOP)
    assert json.loads(ended.stderr)["error"]["message"] == "cannot write the output: No space left on device"


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (("init", "opwire.toml"), "opwire.toml"),
        (("gen", "client", *SHOP, "-o", "client.py"), "client.py"),
        (("keys", "new", "ada"), "ada.pem"),
    ],
    ids=["init", "gen", "keys"],
)
def test_a_new_file_that_cannot_be_written_whole_is_named_and_removed(
    arguments: tuple[str, ...], file: str, tmp_path: Path
) -> None:
    """A full disk is reported as such, for output and files, and leaves no new file that is not whole; servers
    whose log is there go on."""
    *first, name = arguments
    ended = subprocess.run(
        [*COMMAND, *first, tmp_path / name],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=unmeasured(),  # coverage writes a file, too
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50)),
    )
    message = f"Error: {tmp_path / file}: cannot write the file: File too large\n"
    assert (ended.returncode, ended.stderr) == (2, message)
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_a_server_whose_log_cannot_be_written_starts_and_serves() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with Path("/dev/full").open("w") as full:
        command = [*COMMAND, "serve", *SHOP, "--http", "--open", "--port", str(port)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=full, env=BUFFERED)
    try:
        ends = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/math/add?a=1&b=2", timeout=10) as response:
                    assert response.read() == b"3"
                break
            except urllib.error.URLError:  # it is starting
                if server.poll() is not None or time.monotonic() > ends:
                    raise
                time.sleep(0.1)
        with pytest.raises(subprocess.TimeoutExpired):  # one that ends drains first, and answers as well
            server.wait(1)
    finally:
        server.kill()
        server.wait(20)
