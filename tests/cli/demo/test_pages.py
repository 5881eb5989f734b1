"""How the story is printed."""

import pytest

from opwire.cli.demo.story import Pages


def test_texts_stand_beside_each_other_where_there_is_room(capsys: pytest.CaptureFixture[str]) -> None:
    Pages(width=100).beside("one\n  more", "two")
    assert capsys.readouterr().out == f"    one{' ' * 45}two\n      more\n"


def test_long_lines_are_broken_within_their_column(capsys: pytest.CaptureFixture[str]) -> None:
    Pages(width=80).beside("word " * 20, "two")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert all(len(line) <= 80 for line in lines)


def test_on_a_narrow_page_they_stand_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    Pages(width=50).beside("one", "two")
    assert capsys.readouterr().out == "    one\n    two\n"


def test_chapters_are_numbered_and_paragraphs_filled(capsys: pytest.CaptureFixture[str]) -> None:
    pages = Pages(width=40)
    pages.chapter("First")
    pages.chapter("Second")
    pages.say("A sentence\n     over two lines of the source, and longer than the page.")
    assert capsys.readouterr().out == (
        "\n1. First\n\n2. Second\nA sentence over two lines of the source,\nand longer than the page.\n"
    )
