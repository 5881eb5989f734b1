"""Write snippets, tables and schemas into the pages, so that a code host shows them as the site does.

Run it as a program (`make docs` does). Two kinds of marks in a page are filled:

- `<!-- snippet: shop.py -->` above a fenced block: the block contains that file of docs/snippets, or of the repository.
- `<!-- made: error-table -->` … `<!-- end -->`: the lines between are the result of the function of that name.

The JSON Schemas of the protocol are files of their own, in docs/reference/schemas.

The tests fail if a page is stale. An unknown name is an error.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from opwire import ERROR_TABLE
from opwire.cli.exit_codes import MEANINGS, OF_ERROR_CODE
from opwire.cli.program import COMMANDS
from opwire.config import TEMPLATE
from opwire.protocol.schemas import (
    CALL_EVENT_SCHEMAS,
    HTTP_RESPONSE_META_SCHEMA,
    LOCAL_RESPONSE_META_SCHEMA,
    MCP_CONTENT_BLOCK_SCHEMA,
    MCP_RESPONSE_META_SCHEMA,
    RESPONSE_ENVELOPE_SCHEMA,
    RESPONSE_META_SCHEMA,
    SESSION_EVENT_SCHEMAS,
)

DOCS: Final = Path(__file__).parent
SNIPPETS: Final = DOCS / "snippets"
PAGES: Final = sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md"])
_SNIPPET: Final = re.compile(
    r"^(?P<head>(?P<indent> *)<!-- snippet: (?P<name>[^ ]+) -->\n *```[^\n]*\n)(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_MADE: Final = re.compile(r"^(<!-- made: ([a-z-]+) -->\n).*?^(<!-- end -->)$", re.MULTILINE | re.DOTALL)


def fill(markdown: str) -> str:
    """Return a page with the content of its marks.

    Raises:
        KeyError: a mark has an unknown name.
        OSError: a snippet is missing.
    """
    markdown = _SNIPPET.sub(
        lambda found: f"{found['head']}{snippet(found['name'], found['indent'])}{found['indent']}```",
        markdown,
    )
    return _MADE.sub(lambda found: f"{found[1]}\n{MADE[found[2]]()}\n\n{found[3]}", markdown)


def snippet(name: str, indent: str) -> str:
    """Return a file of docs/snippets, or else of the repository, indented."""
    path = SNIPPETS / name if (SNIPPETS / name).exists() else DOCS.parent / name
    lines = path.read_text(encoding="utf-8").splitlines()
    return "".join(f"{indent}{line}".rstrip() + "\n" for line in lines)


def error_table() -> str:
    """Return the twelve codes and their mapping to every surface."""
    head = (
        "code",
        "default message",
        "HTTP",
        "JSON-RPC",
        "ToolEnvelope",
        "retryable",
        "exit",
    )
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
    return table(
        ("command", "what it does"),
        ((f"`opwire {name}`", what) for name, what in COMMANDS.items()),
    )


ENVELOPE_SCHEMAS: Mapping[str, Any] = {
    "RESPONSE_ENVELOPE_SCHEMA": RESPONSE_ENVELOPE_SCHEMA,
    "RESPONSE_META_SCHEMA": RESPONSE_META_SCHEMA,
    "LOCAL_RESPONSE_META_SCHEMA": LOCAL_RESPONSE_META_SCHEMA,
    "HTTP_RESPONSE_META_SCHEMA": HTTP_RESPONSE_META_SCHEMA,
    "MCP_RESPONSE_META_SCHEMA": MCP_RESPONSE_META_SCHEMA,
    "MCP_CONTENT_BLOCK_SCHEMA": MCP_CONTENT_BLOCK_SCHEMA,
}


def schema_files() -> dict[Path, str]:
    """Return the files of docs/reference/schemas with their content."""
    schemas: dict[str, Any] = {
        **{name.removesuffix("_SCHEMA").lower().replace("_", "-"): each for name, each in ENVELOPE_SCHEMAS.items()},
        **CALL_EVENT_SCHEMAS,
        **SESSION_EVENT_SCHEMAS,
    }
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {
        DOCS / "reference" / "schemas" / f"{name}.json": json.dumps({**dialect, **schema}, indent=2) + "\n"
        for name, schema in schemas.items()
    }


def envelope_schemas() -> str:
    """Return the schemas of the envelope and the three kinds of meta, with their files."""
    names = {name: name.removesuffix("_SCHEMA").lower().replace("_", "-") for name in ENVELOPE_SCHEMAS}
    rows = ((f"`{name}`", f"[{file}.json](schemas/{file}.json)") for name, file in names.items())
    return table(("in `opwire.protocol.schemas`", "file"), rows)


def call_schemas() -> str:
    """Return the files of the schemas of a call's events."""
    return linked(CALL_EVENT_SCHEMAS)


def session_schemas() -> str:
    """Return the files of the schemas of a session's events."""
    return linked(SESSION_EVENT_SCHEMAS)


def redis_scripts() -> str:
    """Return the scripts that ends run in Redis, without their comments."""
    folder, scripts = DOCS.parent / "src/opwire/transports/redis/scripts", list[str]()
    for name in ("ROUTE", "ENTER", "PRUNE"):
        script = (folder / f"{name.lower()}.lua").read_text(encoding="utf-8")
        code = re.sub(r"^--.*\n", "", script, flags=re.MULTILINE)
        scripts.append(folded(name, f"```lua\n{code}```"))
    return "\n\n".join(scripts)


def configuration() -> str:
    """Return the file that `opwire init` writes."""
    return f"```toml\n{TEMPLATE}```"


def decisions() -> str:
    """Return the decision records, with their titles."""
    rows: list[tuple[str, str]] = []
    for path in sorted((DOCS / "adr").glob("[0-9]*.md")):
        number, _, title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ADR ").partition(": ")
        rows.append((number, f"[{title}]({path.name})"))
    return table(("", "decision"), rows)


MADE: Mapping[str, Callable[[], str]] = {
    "error-table": error_table,
    "exit-codes": exit_codes,
    "commands": commands,
    "envelope-schemas": envelope_schemas,
    "call-schemas": call_schemas,
    "session-schemas": session_schemas,
    "redis-scripts": redis_scripts,
    "configuration": configuration,
    "decisions": decisions,
}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def linked(schemas: Iterable[str]) -> str:
    """Return links to the files of schemas."""
    return ", ".join(f"[`{name}`](schemas/{name}.json)" for name in schemas)


def folded(title: str, block: str) -> str:
    """Return a collapsed block."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{block}\n\n</details>'


if __name__ == "__main__":
    made = schema_files()
    made |= {page: fill(page.read_text(encoding="utf-8")) for page in PAGES}
    for path, filled in made.items():
        if not path.exists() or path.read_text(encoding="utf-8") != filled:
            path.parent.mkdir(exist_ok=True)
            path.write_text(filled, encoding="utf-8")
            print("updated", path.relative_to(DOCS.parent))
