"""Every way to end has its number."""

import pytest

from opwire import CallError, ConfigError, ErrorCode, RegistrationError
from opwire.cli import exit_codes


def test_every_error_code_has_an_exit_code_that_is_not_that_of_success_or_usage() -> None:
    assert set(exit_codes.OF_ERROR_CODE) == set(ErrorCode)
    assert set(exit_codes.OF_ERROR_CODE.values()) == {3, 4, 5, 6, 7, 8}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CallError("OPERATION_NOT_FOUND"), 3),
        (CallError("VALIDATION_ERROR"), 4),
        (CallError("UNAUTHENTICATED"), 5),
        (CallError("TIMEOUT"), 6),
        (CallError("EXECUTION_ERROR"), 7),
        (CallError("INTERNAL"), 8),
        (ConfigError("a mistake"), 2),
        (RegistrationError("a clash"), 2),
        (ZeroDivisionError(), 8),
    ],
)
def test_an_error_ends_a_command_with_the_number_of_its_class(error: Exception, code: int) -> None:
    assert exit_codes.of_error(error) == code


def test_the_help_explains_every_number() -> None:
    explained = {int(part.split()[0]) for part in exit_codes.MEANINGS.split(", ")}
    assert explained == {0, 1, 2, 130, *exit_codes.OF_ERROR_CODE.values()}
