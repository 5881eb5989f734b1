"""What is shown during a wait."""

import asyncio
import io
import sys

import pytest

from opwire.cli.screen import Spinner


class FakeTerminal(io.StringIO):
    """Claims to be a terminal, and keeps what is shown."""

    def isatty(self) -> bool:
        return True

    async def shows(self, text: str) -> None:
        """Wait for a text."""
        async with asyncio.timeout(30):
            while text not in self.getvalue():
                await asyncio.sleep(0.02)


async def test_on_a_terminal_a_line_says_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Spinner("first [red]\x1b") as spinner:
        assert terminal.getvalue() == "", "nothing, as long as it is quick"
        await terminal.shows("first [red]\\x1b")
        spinner.update("second \\[bold]line\nthird line")
        await terminal.shows("second \\[bold]line")
    assert "third line" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K"), "the line is gone, and the cursor is back"


async def test_in_a_pipe_and_when_it_is_quick_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Spinner("waiting"):
        await asyncio.sleep(0)
    terminal = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Spinner("waiting") as spinner:
        spinner.update("still waiting")
    assert terminal.getvalue() == ""
    assert capsys.readouterr() == ("", "")
