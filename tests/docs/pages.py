"""The pages and snippets of the documentation."""

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
SNIPPETS = DOCS / "snippets"

PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
RECORDS = [page for page in PAGES if re.match(r"adr/\d", page)]
OWN_PAGES = [page for page in PAGES if page not in RECORDS]

FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
SNIPPET = re.compile(r"^ *<!-- snippet: ([^ ]+) -->$", re.MULTILINE)


def text_of(page: str) -> str:
    """Return the Markdown source of a page."""
    return (DOCS / page).read_text(encoding="utf-8")


def shown() -> set[str]:
    """Return the snippets that pages and the README show."""
    return {name for page in [*OWN_PAGES, "../README.md"] for name in SNIPPET.findall(text_of(page))}


def settings() -> dict[str, Any]:
    """Return zensical.toml, parsed."""
    return tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]


def embed() -> ModuleType:
    """Import docs/embed.py."""
    found = importlib.util.spec_from_file_location("opwire_docs_embed", DOCS / "embed.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
