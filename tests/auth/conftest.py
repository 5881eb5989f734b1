"""The tests of this package refuse many tokens: each may be logged."""

import pytest

from opwire.auth import jwt, tokens
from opwire.auth.oauth import resource
from opwire.runtime.text import get_logger


@pytest.fixture(autouse=True)
def unlimited_log(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tokens, jwt, resource):
        monkeypatch.setattr(module, "logger", get_logger("opwire.auth"))
