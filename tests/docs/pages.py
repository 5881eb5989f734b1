"""The pages and snippets of the documentation."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
SNIPPETS = DOCS / "snippets"

PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
OWN_PAGES = [page for page in PAGES if not page.startswith("adr/")]

FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r'^ *--8<-- "([^"]+)"$', re.MULTILINE)


def text_of(page: str) -> str:
    """Return the Markdown source of a page."""
    return (DOCS / page).read_text(encoding="utf-8")


def included() -> set[str]:
    """Return the files that pages include."""
    return {name for page in OWN_PAGES for name in INCLUDE.findall(text_of(page))}


def settings() -> dict[str, Any]:
    """Return mkdocs.yml, parsed."""
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def hooks() -> ModuleType:
    """Import docs/hooks.py."""
    found = importlib.util.spec_from_file_location("opwire_docs_hooks", DOCS / "hooks.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
