"""What the judges stand on."""

import pytest

from tests.judges import programs


@pytest.fixture(scope="session", autouse=True)
def judges() -> None:
    """The programs that judge; they are installed by `make judges`."""
    if reason := programs.missing():
        pytest.skip(reason)
