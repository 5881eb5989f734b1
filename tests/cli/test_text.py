"""Text for a terminal: width, wrapping, and what is left of Markdown and HTML."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opwire.cli.text import cells, cut, rendered, summary, wrapped


@pytest.mark.parametrize(
    ("markup", "lines"),
    [
        ("Plain words.", ["Plain words."]),
        ("one\ntwo\n\nthree", ["one two", "", "three"]),
        ("# Title\nText\n\nOther\n-----\nmore", ["Title", "", "Text", "", "Other", "", "more"]),
        ("See [the docs](https://x.example/a).", ["See the docs (https://x.example/a)."]),
        ("See [the docs](/rest/a) and ![a cat](cat.png)", ["See the docs and a cat"]),
        ("**bold** *it* __b__ _i_ snake_case_name 2*3*4", ["bold it b i snake_case_name 2*3*4"]),
        ("`a*b*c` and [`code`](https://x.example)", ["`a*b*c` and `code` (https://x.example)"]),
        ("- one\n- two\n  more\n1. three", ["- one", "- two more", "1. three"]),
        ("> [!NOTE]\n> Careful.", ["Note: Careful."]),
        ("| A | B |\n|---|---|\n| 1 | 2 |", ["- A | B", "- 1 | 2"]),
        ("Run:\n```sh\nls  -l\n```\nDone.", ["Run:", "", "    ls  -l", "", "Done."]),
        ("<p>One &amp; <b>two</b></p><ul><li>three</li></ul>", ["One & two", "", "- three"]),
        ('<a href="https://x.example">here</a><br/>then <code>x</code>', ["here (https://x.example)", "", "then `x`"]),
        ("GET /repos/<owner>/<repo>", ["GET /repos/<owner>/<repo>"]),
        ("a <!-- hidden --> b", ["a b"]),
        ("## Title ##\nSee /a?b=1&copy=2&#228;", ["Title", "", "See /a?b=1&copy=2ä"]),
        (r"a \* b", ["a * b"]),
        ("", []),
    ],
)
def test_markup_becomes_text(markup: str, lines: list[str]) -> None:
    assert [" ".join(line.split()) if line[:1] != " " else line for line in rendered(markup)] == lines


_MARKUP = st.sampled_from(
    [
        *"[]()!*_`#<>/-=|\\&:'\"\n\t .~+a1é界",
        *(
            "](",
            "<a ",
            "</a>",
            "<!--",
            "-->",
            "<![CDATA[",
            'href="',
            "href='",
            "&#",
            "&#x",
            "&amp;",
            "http://",
            "[!",
            "> ",
        ),
        *("\ue0000\ue001", "```", "# ", "- ", "1. ", "--", "| "),
    ]
)
_SHORT = st.lists(_MARKUP, max_size=3).map("".join)


@given(_SHORT, _SHORT, _SHORT)
@example("[](", "a", "")  # the address of a link, and what follows it
@example("", "-", "x")  # a rule
@example("# a", " ", "x")  # the spaces before the end of a heading
@example("# ", "#", "x")
@example("", "界", "")
@example("", "a\n", "")
@example("<", "<a ", "")  # a parser of HTML took 15 s
@example("", "[a](http:", "")
@example("&#", "1", ";")  # a number of 20,000 digits
@example("`" + "a" * 10_000 + "`", "\ue0000\ue001", "")  # the mark of a kept code span
def test_hostile_markup_takes_linear_time(head: str, repeated: str, tail: str) -> None:
    """Descriptions in Markdown and HTML are shown as text, in linear time."""
    text = head + repeated * (20_000 // max(len(repeated), 1))
    began = time.process_time()
    lines = rendered(text[: 20_000 - len(tail)] + tail, 80)
    summary(text)
    assert time.process_time() - began < 1  # seconds; linear ones take 0.05, and quadratic ones 2 to 3,000
    assert sum(map(len, lines)) < 200_000


@given(st.text(), st.integers(20, 100))
def test_nothing_but_a_long_word_exceeds_the_width(text: str, width: int) -> None:
    for line in wrapped(text, width, "  "):
        assert cells(line) <= width or line.isascii()


def test_a_longer_word_keeps_a_line_of_its_own() -> None:
    assert wrapped("see https://x.example/long there", 12, "  ") == ["  see", "  https://x.example/long", "  there"]


@given(st.text(), st.integers(0, 50))
def test_a_text_is_cut_to_its_width(text: str, width: int) -> None:
    assert cells(cut(text, width)) <= max(width, 0)


def test_the_summary_is_the_first_paragraph_without_addresses() -> None:
    assert summary("<p>Get <a href='https://x.example'>it</a>.</p><p>More.</p>") == "Get it."
    assert summary("First\nline.\n\nSecond.") == "First line."
    assert summary("\n") == ""
