"""`ls` and `describe` with large documents, on terminals of several widths."""

import re
import sys
from pathlib import Path

import pytest

from tests.cli.process import OnTerminal, unstyled
from tests.properties import is_thorough

WIDTHS = (60, 80, 100, 140)
DOCUMENTS = [("stripe_spec3.json", "api.PostCharges"), ("github_api.json", "api.repos/create-using-template")]


@pytest.mark.parametrize(("document", "id"), DOCUMENTS if is_thorough() else DOCUMENTS[:1])
def test_ids_are_whole_and_descriptions_fit_at_every_width(shared: Path, document: str, id: str) -> None:
    command = [sys.executable, "-m", "tests.cli.widths", str(shared / "openapi" / document), id, *map(str, WIDTHS)]
    with OnTerminal(command=command) as terminal:
        code, shown = terminal.end(100)
    assert code == 0
    _, *found = re.split(r"^=== (\w+ \d+)\n", unstyled(shown), flags=re.MULTILINE)
    outputs = dict(zip(found[::2], found[1::2], strict=True))
    rows = [line.split("\t") for line in outputs["ls 0"].split("\n") if line]
    assert len(rows) > 400
    for columns in WIDTHS:
        _check_listing(outputs[f"ls {columns}"], rows, columns)
        _check_description(outputs[f"describe {columns}"], columns)


def _check_listing(shown: str, rows: list[list[str]], columns: int) -> None:
    heading, *lines, count = shown.rstrip("\n").split("\n")
    assert heading == f"api  {len(rows):,} operations"
    assert count == f"{len(rows):,} operations"
    assert [line.split()[:2] for line in lines] == [[type, id] for id, type, _ in rows]
    for line, (id, _, about) in zip(lines, rows, strict=True):
        assert len(line) <= max(columns, line.index(id) + len(id))
        assert about.startswith(line.partition(id)[2].strip().removesuffix("…"))
    explained = sum(bool(line.partition(id)[2].strip()) for line, (id, *_) in zip(lines, rows, strict=True))
    assert explained > len(lines) * (0.9 if columns >= 80 else 0.4)


def _check_description(shown: str, columns: int) -> None:
    lines = shown.split("\n")
    assert not any("<p>" in line or "](" in line or "**" in line for line in lines)
    for line in lines[: lines.index("Example")]:
        assert len(line) <= columns or " " not in line.strip()
