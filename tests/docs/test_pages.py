"""Links, navigation and code of the pages. `make docs` builds them in strict mode, which finds the rest."""

import re
from pathlib import PurePosixPath
from pkgutil import resolve_name
from posixpath import normpath
from typing import Any

import pytest

from opwire.config.reading import parse_config
from tests.docs.pages import DOCS, FENCE, OWN_PAGES, PAGES, RECORDS, ROOT, SNIPPET, SNIPPETS, settings, shown, text_of

LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose_of(page: str) -> str:
    return FENCE.sub("", text_of(page))


def anchors_of(page: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", each).strip().lower()) for each in headings}


def test_every_link_within_the_documentation_leads_somewhere() -> None:
    links = {page: LINK.findall(prose_of(page)) for page in PAGES}
    for source, link in ((page, link) for page, found in links.items() for link in found):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = normpath((PurePosixPath(source).parent / path).as_posix()) if path else source
        assert target in PAGES or (
            path.endswith((".svg", ".png", ".json", ".txt", ".pml")) and (DOCS / target).is_file()
        ), f"{source}: {link}"
        assert not anchor or anchor in anchors_of(target), f"{source}: {link}"


def test_every_link_of_the_readme_leads_to_a_file() -> None:
    links = [link for link in LINK.findall(text_of("../README.md")) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []
    assert "docs/tutorial.md" in links


def listed(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for each in (nav.values() if isinstance(nav, dict) else nav) for page in listed(each)]


def test_every_page_is_in_the_navigation_once_and_the_records_in_the_list_of_decisions() -> None:
    assert sorted(listed(settings()["nav"])) == OWN_PAGES
    assert [f"adr/{name}" for name in LINK.findall(text_of("adr/index.md"))] == RECORDS


def test_every_decision_record_has_the_same_headings() -> None:
    for page in RECORDS:
        title, *headings = re.findall(r"^##? (.+)$", prose_of(page), re.MULTILINE)
        number = int(PurePosixPath(page).name[:4])
        assert title.startswith(f"ADR {number}: "), page
        with_alternatives = ["Status", "Context", "Decision", "Alternatives", "Consequences"]
        assert headings in (with_alternatives, [each for each in with_alternatives if each != "Alternatives"]), page


def test_the_glossary_has_few_terms_and_explains_each() -> None:
    text = text_of("glossary.md")
    terms = re.findall(r"^## .+\n\n\w", text, re.MULTILINE)
    assert len(terms) == text.count("\n## ") <= 12
    assert "docs/glossary.md" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_message_in_the_list_of_problems_is_one_of_opwire() -> None:
    """Every error message that the page of problems quotes is one of opwire's."""
    source = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    messages = re.findall(r"^### `(.+)`$", text_of("faq.md"), re.MULTILINE)
    assert len(messages) > 10
    for message in messages:
        parts = [part.strip() for part in message.split("…")]
        missing = [part for part in parts if len(part) > 3 and part not in source]
        assert not missing, f"{message}: {missing}"


def test_every_qualified_name_in_the_pages_exists() -> None:
    for page in (*OWN_PAGES, "../README.md"):
        for name in re.findall(r"\bopwire(?:\.[A-Za-z]\w*){2,}", text_of(page)):
            try:
                resolve_name(name)
            except (ImportError, AttributeError):
                pytest.fail(f"{page}: {name}")


def test_every_snippet_is_shown_by_a_page() -> None:
    files = (path for path in SNIPPETS.rglob("*.*") if "__pycache__" not in path.parts and path.name != "ruff.toml")
    shipped = {path.relative_to(SNIPPETS).as_posix() for path in files}
    assert shipped <= shown()


def test_a_page_says_where_the_files_are_that_its_programs_use() -> None:
    files = {path.name for path in SNIPPETS.iterdir() if path.suffix in (".py", ".toml", ".json", ".yaml")}
    for page in OWN_PAGES:
        shown = set(SNIPPET.findall(text_of(page)))
        used: set[str] = set()
        for name in (
            each for each in shown if (SNIPPETS / each).is_file() and each.endswith((".py", ".json", ".console"))
        ):
            code = (SNIPPETS / name).read_text(encoding="utf-8")
            modules = re.findall(r"^from (\w+) import|^import (\w+)$|--python (\w+):", code, re.MULTILINE)
            used |= {f"{module}.py" for found in modules for module in found}
            used |= set(re.findall(r'"(\w+\.(?:py|toml|json|yaml))"', code))
        linked = set(re.findall(r"\[`([\w.]+)`\]\(", prose_of(page)))
        assert (used & files) <= shown | linked, page


def test_code_in_pages_comes_from_files() -> None:
    for page in OWN_PAGES:
        text = text_of(page)
        for block in FENCE.finditer(text):
            if block[2] == "python":
                assert re.search(r"<!-- snippet: \S+ -->\n$", text[: block.start()]), f"{page}: {block[0]}"


def test_pieces_of_configuration_in_pages_are_valid() -> None:
    for page in OWN_PAGES:
        text = text_of(page)
        for block in FENCE.finditer(text):
            if block[2] == "toml" and not re.search(r"<!-- snippet: \S+ -->\n$", text[: block.start()]):
                assert parse_config(block[3])[1] == (), f"{page}: {block[3]}"


def test_nothing_is_fetched_from_elsewhere_when_the_site_is_read() -> None:
    assert settings()["theme"]["font"] is False
    scripts = re.findall(r"<script src=\"{{ '(.+?)'", (DOCS / "theme" / "main.html").read_text(encoding="utf-8"))
    assert [each for each in (*settings()["extra_css"], *scripts) if not each.startswith("assets/")] == []
    assert "extra_javascript" not in settings()


def test_pages_do_not_speak_of_programs_as_persons() -> None:
    """Pages name callers, peers, servers and workers, and do not speak of programs as persons."""
    persons = re.compile(r"\b(whoever|nobody|somebody|anybody|everybody)\b", re.IGNORECASE)
    assert {page: found for page in (*PAGES, "../README.md") if (found := persons.findall(text_of(page)))} == {}


@pytest.mark.parametrize(
    ("page", "begin", "end"),
    [("comparison.md", "## Numbers", "## FastMCP"), ("../README.md", "## Performance", "## Documentation")],
)
def test_every_number_of_a_comparison_was_measured(page: str, begin: str, end: str) -> None:
    """Numbers in the tables of the comparison and of the README are those of the benchmarks' last run."""
    numbers = text_of(page).partition(begin)[2].partition(end)[0]
    cells = [cell for row in re.findall(r"^\| .+", numbers, re.MULTILINE) for cell in row.split("|")[2:]]
    given = [number.rstrip(".,") for cell in cells for number in re.findall(r"\d[\d.,]*", cell)]
    measured = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert len(given) > 20
    assert [each for each in given if not re.search(rf"(?<![\d.,]){re.escape(each)}(?![\d.,]*\d)", measured)] == []
