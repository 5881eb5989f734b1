"""`opwire call`."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from opwire.cli.program import run
from tests.cli.process import SHOP, OnTerminal, opwire
from tests.openapi.client.echo import EchoServer

CALL = ("call", *SHOP)


def test_words_files_and_standard_input_are_the_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "order.json"
    file.write_text('{"customer": "Ann", "lines": []}')
    for words in (
        ["customer=Ann", 'lines:=[{"article": "tea", "pieces": 2}]'],
        [f"@{file}", 'lines=[{"article": "tea", "pieces": 2}]'],
        ['{"customer": "Ann", "lines": [{"article": "tea", "pieces": 2}]}'],
    ):
        assert run([*CALL, "--json", "shop.order", *words]) == 0
        assert json.loads(capsys.readouterr().out) == {"customer": "Ann", "pieces": 2, "size": "s"}
    ended = opwire(*CALL, "--envelope", "math.add", "-", input='{"a": 1, "b": 2}')
    assert json.loads(ended.stdout)["data"] == 3


def test_binary_data_is_described_saved_or_passed_on(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run([*CALL, "shop.bytes"]) == 0
    assert capsysbinary.readouterr().out == b"[application/octet-stream, 3 bytes] --output FILE saves it\n"
    assert run([*CALL, "shop.bytes", "--raw"]) == 0
    assert capsysbinary.readouterr().out == b"\xff\x00\xfe"
    assert run([*CALL, "shop.bytes", "-o", str(tmp_path / "x.bin")]) == 0
    assert (tmp_path / "x.bin").read_bytes() == b"\xff\x00\xfe"


def test_a_text_cannot_clear_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*CALL, "shop.text"]) == 0
    assert capsys.readouterr().out == "\\x1b[2Jxxx\n"


def test_an_answer_that_is_an_error_is_printed_and_told_by_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*CALL, "shop.tool", "is_error=true"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("hello\n[image/png, 4 bytes]")
    assert "the tool returned an error" in err


def test_a_terminal_shows_progress() -> None:
    with OnTerminal(*CALL, "shop.slow") as terminal:
        terminal.expect("shop.slow: 1 of 2 halfway")
        code, shown = terminal.end()
    assert code == 0
    assert "done" in shown


DOCUMENT = """
openapi: 3.1.0
info: {title: pets, version: '1'}
servers: [{url: %s}]
components: {securitySchemes: {key: {type: http, scheme: bearer}}}
paths:
  /pets/{id}:
    put:
      operationId: put
      security: [{key: []}]
      parameters: [{name: id, in: path, required: true, schema: {type: string}}]
      requestBody: {content: {%s: {schema: {type: %s, properties: {name: {type: string}}}}}}
      responses: {'200': {description: ok}}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, ...]]:
    monkeypatch.setenv("PETS_KEY", "s3cret")

    def write(url: str, media: str = "application/json", kind: str = "object") -> tuple[str, ...]:
        (tmp_path / "pets.yaml").write_text(DOCUMENT % (url, media, kind))
        lines = ["[sources.pets]", 'openapi = "pets.yaml"', 'credentials = { key = "${PETS_KEY}" }']
        (tmp_path / "opwire.toml").write_text("\n".join(lines))
        return "call", "-c", str(tmp_path / "opwire.toml"), "pets.put"

    return write


def test_a_dry_run_prints_the_request_without_credentials(
    config: Callable[..., tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    call = config("http://127.0.0.1:1")
    assert run([*call, "--dry-run", "id=a b", "name=Rex"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("PUT http://127.0.0.1:1/pets/a%20b\n")
    assert "\nAuthorization: Bearer ***\n" in out
    assert out.endswith('\n\n{"name":"Rex"}\n')
    assert "--show-credentials prints them" in err
    assert run([*call, "--dry-run", "--show-credentials", "--json", "id=a b"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["method"], shown["url"]) == ("PUT", "http://127.0.0.1:1/pets/a%20b")
    assert ["Authorization", "Bearer s3cret"] in shown["headers"]
    assert run([*CALL, "--dry-run", "math.add", "a=1", "b=2"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"a": 1, "b": 2}
    assert "nothing would be sent" in err
    assert run([*CALL, "--dry-run", "math.add", "a=x"]) == 4
    assert run([*CALL, "--curl", "math.add", "a=1", "b=2"]) == 2


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_curl_command_sends_the_same_request(
    config: Callable[..., tuple[str, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photo").write_bytes(bytes(range(256)))
    async with EchoServer() as server:
        for media, kind, words in (
            ("application/json", "object", ["name=it's $(touch x) `x` \\ \"\n"]),
            ("text/plain", "string", ['body:="@-x"']),
            ("application/octet-stream", "string", [f"body=@{tmp_path / 'photo'}"]),
            ("multipart/form-data", "object", ["name=Rex"]),
        ):
            call = *config(server.url, media, kind), "id=[1-3]{a,b}", *words
            capsys.readouterr()
            assert await asyncio.to_thread(run, [*call, "--curl", "--show-credentials"]) == 0
            printed = capsys.readouterr().out
            ended = await asyncio.create_subprocess_shell(
                f"set -e; {printed}", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
            )
            assert await ended.wait() == 0, printed
            assert await asyncio.to_thread(run, list(call)) == 0
            by_curl, by_opwire = server.arrived[-2:]
            assert (by_curl.method, by_curl.path, by_curl.query) == (by_opwire.method, by_opwire.path, by_opwire.query)
            assert by_curl.header("authorization") == by_opwire.header("authorization") == "Bearer s3cret"
            assert by_curl.header("accept") == by_opwire.header("accept")
            if media != "multipart/form-data":  # which has a random boundary
                assert by_curl.header("content-type") == by_opwire.header("content-type")
                assert by_curl.body == by_opwire.body
            else:
                assert len(by_curl.body) == len(by_opwire.body)


def test_a_subscription_is_watched_and_not_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*CALL, "clock.ticks"]) == 2
    assert "use `opwire watch clock.ticks`" in capsys.readouterr().err


def test_a_version_of_the_operation_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shop.py"
    file.write_text(
        "from opwire import OperationRegistry\n"
        "registry = OperationRegistry()\n"
        "@registry.query('shop.open', version='2')\n"
        "async def is_open() -> bool:\n"
        "    return True\n"
        "@registry.subscription('shop.news', version='2')\n"
        "async def news():\n"
        "    yield 'tea'\n"
    )
    for command, operation, result in (("call", "shop.open", "true"), ("watch", "shop.news", "tea")):
        words = [command, "--python", str(file), operation, "--operation-version"]
        assert run([*words, "2"]) == 0
        assert capsys.readouterr().out == f"{result}\n"
        assert run([*words, "1"]) == 3
        assert f"{operation} is served here as version 2, and not as version 1" in capsys.readouterr().err
