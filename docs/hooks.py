"""MkDocs hooks that generate tables, schemas and the list of decision records from the code.

A line `<!-- made: NAME -->` in a page is replaced by the result of the function of that name. An unknown name fails
the build.
"""

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opwire import ERROR_TABLE
from opwire.call import CALL_EVENT_SCHEMAS
from opwire.cli.exit_codes import MEANINGS, OF_ERROR_CODE
from opwire.cli.program import COMMANDS
from opwire.config import TEMPLATE
from opwire.schemas import (
    HTTP_RESPONSE_META_SCHEMA,
    LOCAL_RESPONSE_META_SCHEMA,
    MCP_CONTENT_BLOCK_SCHEMA,
    MCP_RESPONSE_META_SCHEMA,
    RESPONSE_ENVELOPE_SCHEMA,
    RESPONSE_META_SCHEMA,
)

_MARK = re.compile(r"^<!-- made: ([a-z-]+) -->$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Add every decision record to the navigation."""
    config["nav"] = with_decisions(config["nav"], Path(config["docs_dir"]))
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Generate the marked parts of a page."""
    return fill(markdown)


def with_decisions(nav: Sequence[Any], docs: Path) -> list[Any]:
    """Return the navigation with `adr/` replaced by the records."""
    records = sorted(f"adr/{path.name}" for path in (docs / "adr").glob("*.md"))
    return [{name: records} if where == "adr/" else {name: where} for each in nav for name, where in each.items()]


def fill(markdown: str) -> str:
    """Return a page with its marks replaced.

    Raises:
        KeyError: a mark has an unknown name.
    """
    return _MARK.sub(lambda found: MADE[found[1]](), markdown)


def error_table() -> str:
    """Return the twelve codes and their mapping to every surface."""
    head = ("code", "default message", "HTTP", "JSON-RPC", "ToolEnvelope", "retryable", "exit")
    rows = (
        (
            f"`{code.value}`",
            row.message,
            row.http_status,
            row.json_rpc_code,
            row.category,
            "yes" if row.retryable else "",
            OF_ERROR_CODE[code],
        )
        for code, row in ERROR_TABLE.items()
    )
    return table(head, rows)


def exit_codes() -> str:
    """Return the exit codes of the program `opwire`."""
    codes: dict[str, list[str]] = {}
    for code, number in OF_ERROR_CODE.items():
        codes.setdefault(str(number), []).append(f"`{code.value}`")
    meanings = re.findall(r"(\d+) ([^,.]+)", MEANINGS)
    rows = ((number, words, ", ".join(codes.get(number, ()))) for number, words in meanings)
    return table(("exit code", "meaning", "error codes"), rows)


def commands() -> str:
    """Return the commands of the program `opwire`."""
    return table(("command", "what it does"), ((f"`opwire {name}`", what) for name, what in COMMANDS.items()))


def envelope_schemas() -> str:
    """Return the schemas of the envelope and the three kinds of meta."""
    schemas = {
        "RESPONSE_ENVELOPE_SCHEMA": RESPONSE_ENVELOPE_SCHEMA,
        "RESPONSE_META_SCHEMA": RESPONSE_META_SCHEMA,
        "LOCAL_RESPONSE_META_SCHEMA": LOCAL_RESPONSE_META_SCHEMA,
        "HTTP_RESPONSE_META_SCHEMA": HTTP_RESPONSE_META_SCHEMA,
        "MCP_RESPONSE_META_SCHEMA": MCP_RESPONSE_META_SCHEMA,
        "MCP_CONTENT_BLOCK_SCHEMA": MCP_CONTENT_BLOCK_SCHEMA,
    }
    return folded(schemas)


def event_schemas() -> str:
    """Return the schemas of the call protocol's events."""
    return folded(CALL_EVENT_SCHEMAS)


def configuration() -> str:
    """Return the file that `opwire init` writes."""
    return f"```toml\n{TEMPLATE}```"


MADE: Mapping[str, Callable[[], str]] = {
    "error-table": error_table,
    "exit-codes": exit_codes,
    "commands": commands,
    "envelope-schemas": envelope_schemas,
    "event-schemas": event_schemas,
    "configuration": configuration,
}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def folded(schemas: Mapping[str, Any]) -> str:
    """Return schemas as collapsed notes."""
    notes: list[str] = []
    for name, schema in schemas.items():
        block = textwrap.indent(f"```json\n{json.dumps(schema, indent=2)}\n```", "    ")
        notes.append(f'??? note "{name}"\n\n{block}')
    return "\n\n".join(notes)
