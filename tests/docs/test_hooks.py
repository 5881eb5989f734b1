"""Generated parts of the pages agree with the code."""

import json
import re

import pytest

import opwire
import opwire.errors
from opwire import ERROR_TABLE
from opwire.call import CALL_EVENT_SCHEMAS
from opwire.cli.exit_codes import OF_ERROR_CODE
from opwire.config import TEMPLATE
from opwire.schemas import RESPONSE_ENVELOPE_SCHEMA
from tests.docs.pages import OWN_PAGES, hooks, text_of
from tests.requirements import requirement


def rows_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


@requirement("docs.made")
def test_the_error_table_has_every_code_and_what_it_is_elsewhere() -> None:
    _, _, *rows = rows_of(hooks().error_table())
    assert {row[0]: (row[2], row[3], row[6]) for row in rows} == {
        f"`{code}`": (str(row.http_status), str(row.json_rpc_code), str(OF_ERROR_CODE[code]))
        for code, row in ERROR_TABLE.items()
    }


@requirement("docs.made")
def test_the_exit_codes_are_those_of_the_command_line() -> None:
    _, _, *rows = rows_of(hooks().exit_codes())
    numbers = [row[0] for row in rows]
    assert numbers == sorted(set(numbers), key=int)
    named = {code: row[0] for row in rows for code in re.findall(r"`(\w+)`", row[2])}
    assert named == {code.value: str(number) for code, number in OF_ERROR_CODE.items()}


@requirement("docs.made")
def test_the_schemas_are_those_of_the_code() -> None:
    def schemas(text: str) -> list[object]:
        return [json.loads(each) for each in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]

    assert RESPONSE_ENVELOPE_SCHEMA in schemas(hooks().envelope_schemas())
    assert schemas(hooks().event_schemas()) == list(CALL_EVENT_SCHEMAS.values())


@requirement("docs.made")
def test_every_page_can_be_filled() -> None:
    pages = [hooks().fill(text_of(page)) for page in OWN_PAGES]
    assert not any("<!-- made" in page for page in pages)
    assert any(TEMPLATE in page for page in pages)


@requirement("docs.made")
def test_every_public_name_is_in_the_reference() -> None:
    shown = set(re.findall(r"^::: opwire\.(\w+)$", text_of("reference/opwire.md"), re.MULTILINE))
    assert "errors" in shown  # the whole module
    schemas = set(re.findall(r'^\?\?\? note "(\w+)"$', hooks().envelope_schemas(), re.MULTILINE))
    elsewhere = set(re.findall(r"`(\w+)`", text_of("reference/opwire.md").partition("## Names imported on first")[2]))
    assert set(opwire.__all__) - shown - schemas - elsewhere <= set(vars(opwire.errors))


def test_a_page_that_asks_for_what_is_not_made_ends_the_build() -> None:
    with pytest.raises(KeyError, match="nonsense"):
        hooks().fill("<!-- made: nonsense -->")
