"""Line numbers of keys."""

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from opwire.config.reading import TOMLLines
from opwire.config.settings import Key

TEXT = """\
# a comment with key = 1
top = 1

[sources.shop]  # the shop
python = "x:y"
  [sources."my.shop" . 'a b']
  "quoted key" = 1
  dotted.key = 2
args = [
  "a",
  "b",
]
text = \"\"\"
[sources.fake]
python = 2
\"\"\"
after = '''one line'''
last = 1
inline = { a = { b = 1 } }
"""


def test_every_key_has_the_line_where_it_stands() -> None:
    lines_of = TOMLLines(TEXT)
    here = ("sources", "my.shop", "a b")
    assert lines_of.line_of(("top",)) == 2
    assert lines_of.line_of(("sources", "shop")) == 4
    assert lines_of.line_of(("sources", "shop", "python")) == 5
    assert lines_of.line_of(here) == 6
    assert lines_of.line_of((*here, "quoted key")) == 7
    assert lines_of.line_of((*here, "dotted", "key")) == 8
    assert lines_of.line_of((*here, "last")) == 18


def test_what_has_no_line_of_its_own_is_where_the_thing_around_it_is() -> None:
    lines_of = TOMLLines(TEXT)
    here = ("sources", "my.shop", "a b")
    assert lines_of.line_of((*here, "inline", "a", "b")) == 19
    assert lines_of.line_of((*here, "args", 1)) == 9
    assert lines_of.line_of(("sources", "shop", "absent")) == 4
    assert lines_of.line_of(("nowhere",)) is None
    assert lines_of.line_of(()) is None


def test_a_line_of_a_multiline_string_is_not_a_key() -> None:
    assert TOMLLines(TEXT).line_of(("sources", "fake")) is None


def test_what_only_looks_like_a_key_is_passed_over() -> None:
    assert TOMLLines('"\\q" = 1\na = 1').line_of(("a",)) == 2


names = st.text(st.characters(codec="ascii", categories=("L", "N")) | st.sampled_from("-_. "), min_size=1, max_size=5)
tables = st.dictionaries(names, st.dictionaries(names, st.integers() | st.text(max_size=5), max_size=3), max_size=4)


@given(tables)
def test_every_key_of_a_plain_file_is_found(tables: dict[str, dict[str, Any]]) -> None:
    lines: list[str] = []
    expected: dict[Key, int] = {}
    for name, table in tables.items():
        lines.append(f'["{name}"]')
        expected[name,] = len(lines)
        for key, value in table.items():
            lines.append(f'"{key}" = {value if isinstance(value, int) else _quoted(value)}')
            expected[name, key] = len(lines)
    text = "\n".join(lines)
    tomllib.loads(text)
    lines_of = TOMLLines(text)
    assert {key: lines_of.line_of(key) for key in expected} == expected


def _quoted(text: str) -> str:
    return '"' + "".join(f"\\U{ord(each):08x}" for each in text if not 0xD800 <= ord(each) < 0xE000) + '"'
