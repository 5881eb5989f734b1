"""A result for a person, for a program, and for a file."""

import json
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import click
import pytest

from opwire import ResponseEnvelope, http_envelope, local_envelope, mcp_envelope
from opwire.cli.screen import MAX_SHOWN, OutputFormat, Screen, is_error, save, show

PNG = b64encode(b"\x89PNG").decode()
IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}
TEXT = {"type": "text", "text": "hello\x1b"}


def tool(*content: dict[str, Any], **fields: Any) -> ResponseEnvelope[Any]:
    return mcp_envelope(list(content), is_error=False, content=content, **fields)


def shown(envelope: ResponseEnvelope[Any], form: OutputFormat, capsys: pytest.CaptureFixture[str]) -> str:
    show(envelope, form, Screen())
    return capsys.readouterr().out


def test_json_is_the_data_and_envelope_is_all_that_travels(capsys: pytest.CaptureFixture[str]) -> None:
    envelope = local_envelope({"a": [1, "\x9b"]}, "math.add")
    assert shown(envelope, OutputFormat.JSON, capsys) == '{"a":[1,"\\u009b"]}\n'
    whole = json.loads(shown(envelope, OutputFormat.ENVELOPE, capsys))
    assert whole["data"] == {"a": [1, "\x9b"]}
    assert whole["meta"]["operationId"] == "math.add"
    binary = json.loads(shown(local_envelope(b"\xff", "x.y"), OutputFormat.ENVELOPE, capsys))
    assert (binary["data"], binary["meta"]["encoding"]) == ("/w==", "base64")


@pytest.mark.parametrize(
    ("envelope", "text"),
    [
        (local_envelope("\x1b[2J", "x.y"), "\\x1b[2J\n"),
        (local_envelope({"a": 1}, "x.y"), '{\n  "a": 1\n}\n'),
        (local_envelope(None, "x.y"), "null\n"),
        (local_envelope(b"\xff\x00", "x.y"), "[application/octet-stream, 2 bytes] --output FILE saves it\n"),
        (
            http_envelope(b"\xff", status_code=200, headers={}, content_type="image/gif; x=y"),
            "[image/gif, 1 bytes] --output FILE saves it\n",
        ),
        (tool(TEXT, IMAGE), "hello\\x1b\n[image/png, 4 bytes] --output FILE saves it\n"),
        (
            tool({"type": "resource_link", "uri": "file:///x", "name": "notes"}),
            "[notes] file:///x\n",
        ),
        (tool({"type": "resource", "resource": {"uri": "x:y", "text": "read me"}}), "read me\n"),
        (tool({"type": "resource", "resource": {"uri": "x:y", "text": "{}", "mimeType": "application/json"}}), "{}\n"),
        (tool({**IMAGE, "data": "this is not base64"}), "this is not base64\n"),
        (local_envelope("half a pair: \ud800", "x.y"), "half a pair: \\ud800\n"),
        (
            tool({"type": "resource", "resource": {"uri": "x:y", "blob": PNG}}),
            "[application/octet-stream, 4 bytes] --output FILE saves it\n",
        ),
        (
            mcp_envelope({"a": 1}, is_error=False, content=[TEXT, IMAGE], structured_content={"a": 1}),
            '{\n  "a": 1\n}\n[image/png, 4 bytes] --output FILE saves it\n',
        ),
    ],
)
def test_a_person_reads_text_and_learns_of_the_rest(
    envelope: ResponseEnvelope[Any], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(envelope, OutputFormat.READABLE, capsys) == text


def test_a_long_text_is_cut_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope = local_envelope("x" * (MAX_SHOWN + 5), "x.y")
    assert len(shown(envelope, OutputFormat.READABLE, capsys)) == MAX_SHOWN + 6
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show(envelope, OutputFormat.READABLE, Screen())
    out, err = capsys.readouterr()
    assert len(out) == MAX_SHOWN + 1
    assert err.startswith("… 5 more characters")


def test_raw_is_the_bytes_as_they_are_but_not_into_a_terminal(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for data, written in ((b"\xff\x00", b"\xff\x00"), ("a\x1b", b"a\x1b"), ({"a": 1}, b'{\n  "a": 1\n}\n')):
        show(local_envelope(data, "x.y"), OutputFormat.RAW, Screen())
        assert capsysbinary.readouterr().out == written
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show(local_envelope("a\x1b", "x.y"), OutputFormat.RAW, Screen())
    assert capsysbinary.readouterr().out == b"a\\x1b\n"
    with pytest.raises(click.UsageError, match="2 bytes of binary data"):
        show(local_envelope(b"\xff\x00", "x.y"), OutputFormat.RAW, Screen())


def test_a_result_is_saved_and_each_part_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(local_envelope(b"\xff\x00", "x.y"), tmp_path / "one.bin", Screen())
    assert (tmp_path / "one.bin").read_bytes() == b"\xff\x00"
    save(tool(TEXT, IMAGE, IMAGE), tmp_path / "answer", Screen())
    assert (tmp_path / "answer-1.txt").read_text() == "hello\x1b"
    assert (tmp_path / "answer-3.png").read_bytes() == b"\x89PNG"
    assert "[image/png, 4 bytes] saved to" in capsys.readouterr().err
    save(tool(TEXT, IMAGE), tmp_path / "out.png", Screen())
    assert (tmp_path / "out.png").read_bytes() == b"\x89PNG"
    assert capsys.readouterr().out == "hello\\x1b\n"
    with pytest.raises(click.ClickException, match="cannot write the file"):
        save(local_envelope("x", "x.y"), tmp_path / "nowhere" / "x", Screen())


def test_an_answer_that_is_an_error_is_known() -> None:
    assert is_error(mcp_envelope([], is_error=True, content=[]))
    assert not is_error(tool(TEXT))
    assert not is_error(local_envelope({"isError": True}, "x.y"))
