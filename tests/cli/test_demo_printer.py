"""How the story is printed."""

import pytest

from opwire.cli.demo_story import DemoPrinter


def test_texts_stand_beside_each_other_where_there_is_room(capsys: pytest.CaptureFixture[str]) -> None:
    DemoPrinter(width=100).columns("one\n  more", "two")
    assert capsys.readouterr().out == f"    one{' ' * 45}two\n      more\n"


def test_long_lines_are_broken_within_their_column(capsys: pytest.CaptureFixture[str]) -> None:
    DemoPrinter(width=80).columns("word " * 20, "two")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert all(len(line) <= 80 for line in lines)


def test_on_a_narrow_page_they_stand_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    DemoPrinter(width=50).columns("one", "two")
    assert capsys.readouterr().out == "    one\n    two\n"


def test_chapters_are_numbered_and_paragraphs_filled(capsys: pytest.CaptureFixture[str]) -> None:
    printer = DemoPrinter(width=40)
    printer.section("First")
    printer.section("Second")
    printer.paragraph("A sentence\n     over two lines of the source, and longer than the page.")
    assert capsys.readouterr().out == (
        "\n1. First\n\n2. Second\nA sentence over two lines of the source,\nand longer than the page.\n"
    )


def test_code_is_wrapped_with_a_hanging_indent(capsys: pytest.CaptureFixture[str]) -> None:
    DemoPrinter(width=40).code('{"a": 1}\n' + '"word" ' * 12)
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == '    {"a": 1}'
    assert len(rest) > 1
    assert all(len(line) <= 40 and line.startswith("    ") for line in rest)
    assert all(line.startswith("      ") for line in rest[1:])
