"""The base class of policies: interceptors that apply to selected operations."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, TypedDict, Unpack, cast

import msgspec
from msgspec import Struct

from opwire.errors import (
    check_keywords,
)
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.operation import Handler, OperationSpec, OperationType
from opwire.registry.view import Pattern, Selection
from opwire.typed.plain import survey, to_plain, write_json

lenient_encoder = msgspec.json.Encoder(enc_hook=repr)
"""Encodes what has no JSON form as its repr."""


class PolicyOptions(TypedDict, total=False):
    """Patterns of the operations that a policy applies to, as those of a view; all by default."""

    include: Iterable[Pattern]
    exclude: Iterable[Pattern]


class PolicyCall(Struct, frozen=True):
    """A call inside a policy: the context of its handler, and what is called with each of its results."""

    context: Context
    on_result: Callable[[ResponseEnvelope[Any]], object] | None = None


class Policy(ABC):
    """An interceptor that does something before and after each call, or around a whole subscription."""

    _summary = ""  # describes the options in the repr

    def __init__(self, **options: Unpack[PolicyOptions]) -> None:
        check_keywords(self, options, PolicyOptions)
        self._selection = Selection(options.get("include", ()), options.get("exclude", ()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{self._summary}{self._selection}>"

    def __call__(self, spec: OperationSpec, handler: Handler) -> Handler:
        """Return the handler with this policy around it."""
        if not self._selection.selects(spec):
            return handler

        async def call(input: Any, context: Context) -> Any:
            async with self._around(spec, input, context) as inner:
                envelope = await cast("Awaitable[Any]", handler(input, inner.context))
                if inner.on_result is not None:
                    inner.on_result(envelope)
                return envelope

        async def stream(input: Any, context: Context) -> AsyncGenerator[Any]:
            async with (
                self._around(spec, input, context) as inner,
                aclosing(cast("AsyncGenerator[Any]", handler(input, inner.context))) as envelopes,
            ):
                async for envelope in envelopes:
                    if inner.on_result is not None:
                        inner.on_result(envelope)
                    yield envelope

        return stream if spec.type is OperationType.SUBSCRIPTION else call

    @abstractmethod
    def _around(self, spec: OperationSpec, input: Any, context: Context) -> AbstractAsyncContextManager[PolicyCall]:
        """Return the context manager of a call."""


def plain_json(value: Any) -> bytes | None:
    """Return plain data as JSON; None if it has no JSON form, such as an integer of 5,000 digits, or is too deep."""
    try:
        return None if survey(value).deep else write_json(lenient_encoder, to_plain(value))
    except (TypeError, ValueError, RecursionError):
        return None
