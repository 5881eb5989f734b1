"""The tests of this package refuse many tokens: each may be logged."""

from collections.abc import Generator

import pytest

from opwire.auth import tokens


@pytest.fixture(autouse=True)
def whole_log() -> Generator[None]:
    tokens.logger.removeFilter(tokens.log_limit)
    yield
    tokens.logger.addFilter(tokens.log_limit)
