"""What every test of configurations leaves as it was."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _same_modules() -> Iterator[None]:
    """Modules that a test wrote are gone after it; `sys.path` is as it was."""
    before, path = set(sys.modules), list(sys.path)
    yield
    assert sys.path == path
    for name, module in tuple(sys.modules.items()):
        if name not in before and "pytest-" in str(getattr(module, "__file__", "")):
            del sys.modules[name]
