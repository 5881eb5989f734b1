"""The tests of this package refuse many tokens: each may be logged."""

from collections.abc import Generator

import pytest

from opwire.auth import grants


@pytest.fixture(autouse=True)
def whole_log() -> Generator[None]:
    grants.logger.removeFilter(grants.log_limit)
    yield
    grants.logger.addFilter(grants.log_limit)
