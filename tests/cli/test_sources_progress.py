"""What is shown while sources are loaded."""

import sys

import pytest

from opwire import CallError
from opwire.cli.screen import Screen
from opwire.cli.sources import LoadProgress
from opwire.config.runtime import SourceFailed, SourceLoaded, SourceStarted
from tests.cli.test_screen_spinner import FakeTerminal


async def test_failures_are_shown_and_the_rest_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose in (False, True):
        screen = Screen()
        screen.verbose = verbose
        with LoadProgress(screen, silent=["needed"]) as progress:
            for each in (SourceStarted("a"), SourceStarted("b"), SourceStarted("needed")):
                progress.event(each)
            progress.event(SourceLoaded("a", 1200, 0.25, ("one was skipped\x1b",)))
            progress.event(SourceFailed("b", CallError("TIMEOUT", "too late"), 1.0))
            progress.event(SourceFailed("needed", CallError("TIMEOUT"), 1.0))
        said = capsys.readouterr().err
        assert "warning: source b failed to load and is skipped: TIMEOUT: too late\n" in said
        assert "needed" not in said
        assert ("a: 1,200 operations in 0.2 s\na: one was skipped\\x1b\n" in said) is verbose


async def test_on_a_terminal_a_line_says_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with LoadProgress(Screen()) as progress:
        progress.event(SourceStarted("slow"))
        progress.event(SourceStarted("quick"))
        await terminal.shows("loading slow, quick")
        progress.event(SourceLoaded("quick", 1, 0.1))
        await terminal.shows("loading slow\r")
