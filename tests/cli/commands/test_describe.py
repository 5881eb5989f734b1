"""`opwire describe`."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from opwire import AccessControl, ResourceRule
from opwire.cli.commands.listing import access_text
from opwire.cli.program import run
from tests.cli.process import SHOP, OnTerminal, unstyled
from tests.cli.shop import registry


def test_an_operation_is_described_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["describe", *SHOP, "shop.order"]) == 0
    said = capsys.readouterr().out
    for part in ("Order something.", "pieces   integer", "How many; ≥ 1; default 1", "one of s, m", "shop:write"):
        assert part in said


@pytest.mark.parametrize("id", [spec.id for spec in registry.list()])
def test_the_example_can_be_run(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["describe", *SHOP, id]) == 0
    example = capsys.readouterr().out.splitlines()[-1].strip()
    program, verb, *words = shlex.split(example)
    assert (program, verb) == ("opwire", "watch" if id == "clock.ticks" else "call")
    assert words[: len(SHOP)] == list(SHOP)
    assert run([verb, *words]) == (7 if id == "shop.fail" else 0)


def test_as_json_it_has_the_schemas(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["describe", *SHOP, "--json", "math.add"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["inputSchema"]["required"] == ["a", "b"]
    assert said["outputSchema"] == {"type": "integer"}
    assert run(["describe", *SHOP, "--json", "math.sub"]) == 3


def test_of_a_schema_with_very_many_fields_the_first_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {f"field_{number}": {"type": "string"} for number in range(100)}
    (tmp_path / "wide_schema.py").write_text(
        "from opwire import OperationRegistry, OperationSpec\nregistry = OperationRegistry()\n"
        f"registry.register(OperationSpec(namespace='a', name='b', input_schema={{'properties': {fields}}}))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run(["describe", "--python", "wide_schema", "a.b"]) == 0
    said = capsys.readouterr().out
    assert "field_59 " in said
    assert "field_60" not in said
    assert "  … and 40 more: --json shows the whole schema\n" in said


def test_a_type_longer_than_the_line_is_broken_between_words(tmp_path: Path) -> None:
    values = [f"FIRST_VALUE_{number}" for number in range(12)]
    (tmp_path / "long_type.py").write_text(
        "from opwire import OperationRegistry, OperationSpec\nregistry = OperationRegistry()\n"
        f"schema = {{'properties': {{'choice': {{'enum': {values}, 'description': 'Which one.'}}}}}}\n"
        "registry.register(OperationSpec(namespace='a', name='b', input_schema=schema))\n"
    )
    with OnTerminal("describe", "--python", str(tmp_path / "long_type.py"), "a.b", columns=60) as terminal:
        lines = unstyled(terminal.end()[1]).splitlines()
    start = lines.index("Input") + 1
    assert lines[start].startswith("  choice one of FIRST_VALUE_0,")
    assert all(len(line) <= 60 for line in lines[: lines.index("Example")])
    assert set(values) <= set(" ".join(lines).replace(",", "").split())


def test_a_description_longer_than_the_terminal_is_paged() -> None:
    pager = f"{sys.executable} -c 'import sys; print(sys.stdin.readline().strip(), \"paged\")'"
    with OnTerminal("describe", *SHOP, "shop.order", rows=8, PAGER=pager) as terminal:
        assert unstyled(terminal.end()[1]) == "shop.order paged\n"
    with OnTerminal("describe", *SHOP, "shop.order", "--no-pager", rows=8, PAGER=pager) as terminal:
        assert "Order something." in terminal.end()[1]


@pytest.mark.parametrize(
    ("access", "words"),
    [
        (AccessControl(public=True), "public"),
        (AccessControl(), "requires a token"),
        (AccessControl(required_scopes=("a", "b")), "requires the scope a and the scope b"),
        (
            AccessControl(required_scopes_any=("a", "b"), resources=(ResourceRule("order", "read"),)),
            "requires one of the scopes a, b and read on order",
        ),
    ],
)
def test_the_allowed_callers_are_described_in_words(access: AccessControl, words: str) -> None:
    assert access_text(access) == words


def test_what_has_no_schema_is_not_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["describe", *SHOP, "shop.tool"]) == 0
    assert "Output\n  not described" in capsys.readouterr().out


def test_an_operation_of_an_http_api_has_its_method_and_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = {"summary": "Get <b>one</b>.", "description": "See [here](https://x.example).\n\n- a\n- b"}
    paths = {"/pets/{id}": {"get": {"operationId": "get", **about, "responses": {"200": {"description": "ok"}}}}}
    servers = [{"url": "http://127.0.0.1:9/v1/"}]
    document = {"openapi": "3.1.0", "info": {"title": "Pets API", "version": "1"}, "servers": servers, "paths": paths}
    (tmp_path / "pets.json").write_text(json.dumps(document))
    pets = ("--openapi", str(tmp_path / "pets.json"))
    assert run(["describe", *pets, "pets.get"]) == 0
    expected = "query\nGET http://127.0.0.1:9/v1/pets/{id}\n\nGet one.\n\nSee here (https://x.example).\n\n- a\n- b\n"
    assert expected in capsys.readouterr().out
    assert run(["describe", *pets, "pets.get", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["endpoint"] == "GET http://127.0.0.1:9/v1/pets/{id}"
