"""Allowed callers, and when to stop."""

import asyncio
import os
import signal

import pytest

from opwire.cli.commands.serve import until_stopped, warn_if_exposed, with_callers
from opwire.cli.screen import Screen
from opwire.config import Config, build_authenticator
from opwire.config.settings import IdentitySettings, Secret


async def test_without_configured_callers_a_token_is_made_and_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without configured callers, serving requires a token, generated for the run if none is set; --open must be
    explicit."""
    monkeypatch.setenv("OPWIRE_TOKEN", "")
    callers = with_callers(Config(), Screen(), is_open=False)
    token = os.environ["OPWIRE_TOKEN"]
    assert capsys.readouterr().err == ""  # the server may fail to listen
    callers.show_token(Screen())
    assert f"token for this run: {token}" in capsys.readouterr().err
    authenticator = build_authenticator(callers.config)
    assert authenticator is not None
    assert (await authenticator.authenticate(token)).identity.scopes == ("*",)


def test_a_token_that_is_given_is_used_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPWIRE_TOKEN", "a-long-random-secret")
    callers = with_callers(Config(), Screen(), is_open=False)
    callers.show_token(Screen())
    assert list(callers.config.identities) == ["owner"]
    assert capsys.readouterr().err == ""


def test_callers_of_the_configuration_stay_and_open_adds_the_anonymous_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = Config(identities={"ann": IdentitySettings(token=Secret("${ANN}"))})
    assert list(with_callers(named, Screen(), is_open=False).config.identities) == ["ann"]
    assert list(with_callers(named, Screen(), is_open=True).config.identities) == ["ann", "anonymous"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_stops_and_ends_what_runs(number: signal.Signals) -> None:
    ended = asyncio.Event()

    async def run() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with asyncio.timeout(30):
        await until_stopped(Screen(), run(), ready=list)
    assert ended.is_set()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


async def test_what_ends_by_itself_stops_too_and_its_failure_is_raised() -> None:
    async def end() -> None:
        pass

    async def fail() -> None:
        raise ZeroDivisionError

    async with asyncio.timeout(30):
        await until_stopped(Screen(), end(), ready=list)
        with pytest.raises(ZeroDivisionError):
            await until_stopped(Screen(), fail(), ready=list)


@pytest.mark.parametrize(
    ("hosts", "is_open", "shown"),
    [(["0.0.0.0"], True, True), (["0.0.0.0"], False, False), (["127.0.0.1", "localhost", "::1"], True, False)],
)
def test_an_open_server_for_other_machines_is_warned_of(
    hosts: list[str], is_open: bool, shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_if_exposed(Screen(), hosts, is_open=is_open)
    assert ("warning: ANYONE who can reach this machine" in capsys.readouterr().err) is shown
