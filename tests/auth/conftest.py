"""The tests of this package refuse many tokens: each may be logged."""

from collections.abc import Generator

import pytest

from opwire.auth import tokens


@pytest.fixture(autouse=True)
def whole_log() -> Generator[None]:
    limits = tokens.log_limit, tokens.failure_limit
    for each in limits:
        tokens.logger.removeFilter(each)
    yield
    for each in limits:
        tokens.logger.addFilter(each)
