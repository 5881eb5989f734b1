"""What is told while sources are loaded."""

from opwire import CallError
from opwire.config.runtime import Failed, Loaded, Reloaded


def test_events_can_be_compared_and_tell_what_they_are_about() -> None:
    error = CallError("TIMEOUT", "late")
    assert Failed("a", error, 1.0) == Failed("a", error, 1.0)
    assert Loaded("a", 3, 0.5).notes == ()


def test_a_reload_says_nothing_that_did_not_happen() -> None:
    assert Reloaded() == Reloaded(loaded=(), removed=(), failures={}, restart=(), error=None)
