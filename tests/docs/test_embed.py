"""Generated parts of the pages agree with the code."""

import json
import re

import pytest

import opwire
import opwire.errors
from opwire import ERROR_TABLE
from opwire.cli.exit_codes import OF_ERROR_CODE
from opwire.config import TEMPLATE
from opwire.protocol.schemas import CALL_EVENT_SCHEMAS, RESPONSE_ENVELOPE_SCHEMA, SESSION_EVENT_SCHEMAS
from tests.docs.pages import DOCS, OWN_PAGES, embed, text_of


def rows_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_error_table_has_every_code_and_what_it_is_elsewhere() -> None:
    _, _, *rows = rows_of(embed().error_table())
    assert {row[0]: (row[2], row[3], row[6]) for row in rows} == {
        f"`{code}`": (str(row.http_status), str(row.json_rpc_code), str(OF_ERROR_CODE[code]))
        for code, row in ERROR_TABLE.items()
    }


def test_the_exit_codes_are_those_of_the_command_line() -> None:
    _, _, *rows = rows_of(embed().exit_codes())
    numbers = [row[0] for row in rows]
    assert numbers == sorted(set(numbers), key=int)
    named = {code: row[0] for row in rows for code in re.findall(r"`(\w+)`", row[2])}
    assert named == {code.value: str(number) for code, number in OF_ERROR_CODE.items()}


def test_the_files_of_the_schemas_are_those_of_the_code() -> None:
    """Every envelope and event has its JSON Schema in opwire.protocol.schemas and as a file."""
    files = embed().schema_files()
    shipped = set((DOCS / "reference" / "schemas").glob("*.json"))
    assert shipped == set(files)
    assert [path.name for path in shipped if path.read_text(encoding="utf-8") != files[path]] == []
    schemas = {path.stem: json.loads(text) for path, text in files.items()}
    assert schemas["response-envelope"].items() >= RESPONSE_ENVELOPE_SCHEMA.items()
    assert schemas.keys() >= CALL_EVENT_SCHEMAS.keys() | SESSION_EVENT_SCHEMAS.keys()


def test_pages_show_their_snippets_and_tables_as_they_are_now() -> None:
    for page in (*OWN_PAGES, "../README.md"):
        text = text_of(page)
        assert text == embed().fill(text), f"{page} is stale: run `python docs/embed.py`"


def test_the_configuration_that_init_writes_is_in_a_page() -> None:
    assert any(TEMPLATE in text_of(page) for page in OWN_PAGES)


def test_a_snippet_replaces_the_body_of_its_block_and_keeps_the_indentation() -> None:
    block = "  <!-- snippet: ten_lines.txt -->\n  ```text\n  stale\n  ```\n\n```text\nother\n```\n"
    assert embed().fill(block) == block.replace("stale", "3 local")
    with pytest.raises(FileNotFoundError):
        embed().fill(block.replace("ten_lines", "missing"))


def test_every_public_name_is_in_the_reference() -> None:
    shown = set(re.findall(r"^::: opwire\.(\w+)$", text_of("reference/opwire.md"), re.MULTILINE))
    assert "errors" in shown  # the whole module
    schemas = set(embed().ENVELOPE_SCHEMAS)
    elsewhere = set(re.findall(r"`(\w+)`", text_of("reference/opwire.md").partition("## Names imported on first")[2]))
    assert set(opwire.__all__) - shown - schemas - elsewhere <= set(vars(opwire.errors))


def test_a_page_that_asks_for_what_is_not_made_ends_the_build() -> None:
    with pytest.raises(KeyError, match="nonsense"):
        embed().fill("<!-- made: nonsense -->\n<!-- end -->")
