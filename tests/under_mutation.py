"""A plugin for pytest inside mutmut: the two things that mutmut changes for the tests are put right again."""

import sys

import pytest

# Each mutated function is wrapped in two more frames: room for values 200 deep, and still none for 900.
sys.setrecursionlimit(1700)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Forget ids of an earlier run in this process: pytest would escape their backslashes a second time."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        object.__setattr__(mark._param_ids_from or mark, "_param_ids_generated", None)
