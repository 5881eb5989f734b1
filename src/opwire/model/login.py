"""How a person signs in to a source: what is shown, and by which way."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct


class LoginPrompt(Struct, frozen=True, kw_only=True):
    """What a person has to do: open `url` and, if there is a `code`, enter it there."""

    url: str
    code: str | None = None


Show = Callable[[LoginPrompt], Any]
"""Shows a prompt, or opens the URL in a browser; may be a coroutine function."""


class LoginOptions(Struct, frozen=True, kw_only=True):
    """How a person signs in.

    `paste` returns the address at which the browser ended, instead of waiting for the redirect: the browser may run on
    another machine.
    """

    show: Show
    device: bool = False
    paste: Callable[[], Awaitable[str]] | None = None
    timeout: float = 300.0  # seconds
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
