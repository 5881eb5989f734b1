"""What the pages say that the code knows better: tables, schemas and the list of decisions are made when the site is.

A line `<!-- made: NAME -->` in a page is replaced by what the function of that name gives. A name that there is none
of ends the build.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opwire import ERROR_TABLE
from opwire.call import CALL_EVENT_SCHEMAS
from opwire.cli.exit_codes import IN_WORDS, OF_ERROR_CODE
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
    """List every decision record in the navigation."""
    config["nav"] = with_decisions(config["nav"], Path(config["docs_dir"]))
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill a page."""
    return fill(markdown)


def with_decisions(nav: Sequence[Any], docs: Path) -> list[Any]:
    """The navigation with the records where it says `adr/`."""
    records = sorted(f"adr/{path.name}" for path in (docs / "adr").glob("*.md"))
    return [{name: records} if where == "adr/" else {name: where} for each in nav for name, where in each.items()]


def fill(markdown: str) -> str:
    """The page with everything that is made for it.

    Raises:
        KeyError: it asks for what is not made here.
    """
    return _MARK.sub(lambda found: MADE[found[1]](), markdown)


def error_table() -> str:
    """The twelve codes, and what each is on every surface."""
    head = ("code", "when nothing else is said", "HTTP", "JSON-RPC", "ToolEnvelope", "retryable", "exit")
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
    """How a command of the program `opwire` can end."""
    codes: dict[str, list[str]] = {}
    for code, number in OF_ERROR_CODE.items():
        codes.setdefault(str(number), []).append(f"`{code.value}`")
    meanings = re.findall(r"(\d+) ([^,.]+)", IN_WORDS)
    rows = ((number, words, ", ".join(codes.get(number, ()))) for number, words in meanings)
    return table(("exit code", "meaning", "error codes"), rows)


def commands() -> str:
    """The commands of the program `opwire`."""
    return table(("command", "what it does"), ((f"`opwire {name}`", what) for name, what in COMMANDS.items()))


def envelope_schemas() -> str:
    """The envelope, and the three kinds of meta."""
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
    """The events of the call protocol."""
    return folded(CALL_EVENT_SCHEMAS)


def configuration() -> str:
    """The file that `opwire init` writes."""
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
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def folded(schemas: Mapping[str, Any]) -> str:
    """Schemas that one opens to read."""
    return "\n\n".join(_folded(name, json.dumps(schema, indent=2)) for name, schema in schemas.items())


def _folded(name: str, text: str) -> str:
    block = "\n".join(f"    {line}" for line in ["```json", *text.splitlines(), "```"])
    return f'??? note "{name}"\n\n{block}'
