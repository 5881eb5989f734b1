"""Helpers for tests of rejections: the code, the message, and that nothing secret is in it."""

import logging
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from opwire import CallError, ErrorCode
from opwire.errors import UsageError

E = TypeVar("E", bound=Exception)


async def refusal(attempt: Awaitable[Any], *secrets: str) -> CallError:
    """The error that an attempt ends with, checked for secrets."""
    with pytest.raises(CallError) as caught:
        await attempt
    return clean(caught.value, *secrets)


def refusal_of(attempt: Callable[..., Any], *arguments: Any, **options: Any) -> CallError:
    """The same for what is not async."""
    with pytest.raises(CallError) as caught:
        attempt(*arguments, **options)
    return caught.value


def wrong_use(attempt: Callable[..., Any], *arguments: Any, **options: Any) -> UsageError:
    """The error of invalid arguments."""
    with pytest.raises(UsageError) as caught:
        attempt(*arguments, **options)
    return caught.value


def clean(error: E, *secrets: str) -> E:
    """The error, if nothing that is shown of it, or of what it is chained to, holds a secret."""
    shown = "".join(traceback.format_exception(error)) + repr(error.args)
    cause: BaseException | None = error
    while cause is not None:
        shown += repr(cause) + repr(vars(cause))
        cause = cause.__cause__ or cause.__context__
    assert [secret for secret in secrets if secret in shown] == []
    return error


def unauthenticated(error: CallError) -> str:
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert error.details is None
    return error.message


def logged(caplog: pytest.LogCaptureFixture, *secrets: str) -> list[str]:
    """The log in its printed form, checked for secrets."""
    lines = [logging.Formatter("%(levelname)s %(message)s").format(record) for record in caplog.records]
    assert [secret for secret in secrets if secret in "\n".join(lines)] == []
    return lines
