"""`AuditLog`: a line of JSON for each call."""

import errno
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from opwire.errors import (
    CallError,
    ErrorCode,
)
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.operation import OperationSpec, OperationType
from opwire.observe.logs import masked
from opwire.policies.policy import Policy, PolicyCall, PolicyOptions, lenient_encoder, plain_json
from opwire.runtime.text import get_logger
from opwire.typed.plain import to_plain, write_json

logger = get_logger("opwire.policies")

_MAX_LOGGED_INPUT_BYTES = 16 * 1024


class AuditLog(Policy):
    """Write a line of JSON for each call: time, caller, operation, request id, outcome, duration and sizes in bytes.

    `target` is the path of a file, which is created for its owner alone, or a function that takes each line. With
    `values`, lines have the input, with the values of secret names (`password`, `token`, … and those in `redact`)
    replaced by "***". A subscription has one line, with the number of its items. `include` and `exclude` select
    operations. A call that succeeded but cannot be recorded, as on a full disk, fails with EXECUTION_ERROR.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | Callable[[bytes], object],
        *,
        values: bool = False,
        redact: Iterable[str] = (),
        **options: Unpack[PolicyOptions],
    ) -> None:
        super().__init__(**options)
        self._values = values
        self._redacted = frozenset(name.lower() for name in redact)
        self._write = target if callable(target) else partial(_append, Path(target))
        if not callable(target):
            _append(Path(target), b"")  # fails now rather than at the first call
            self._summary = f": {os.fspath(target)}"

    @asynccontextmanager
    async def _around(self, spec: OperationSpec, input: Any, context: Context) -> AsyncGenerator[PolicyCall]:
        start = time.perf_counter()
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "identity": None if context.identity is None else context.identity.id,
            "operation": spec.id,
            "requestId": context.request_id,
            "parentRequestId": context.parent_request_id,
            "outcome": "OK",
            "ms": 0.0,
            "inputBytes": _json_size(input),
            "outputBytes": 0,
        }
        if self._values:
            if (line["inputBytes"] or 0) > _MAX_LOGGED_INPUT_BYTES:
                line["input"] = "(too long)"
            elif plain_json(input) is None:  # which must not prevent the line
                line["input"] = "(no JSON form)"
            else:
                line["input"] = masked(to_plain(input), self._redacted)
        if spec.type is OperationType.SUBSCRIPTION:
            line["items"] = 0

        def count(envelope: ResponseEnvelope[Any]) -> None:
            line["outputBytes"] += _json_size(envelope.data) or 0
            if "items" in line:
                line["items"] += 1

        try:
            yield PolicyCall(context, count)
        except BaseException as error:
            line["outcome"] = error.code.value if isinstance(error, CallError) else "CANCELLED"
            raise
        finally:
            line["ms"] = round(1_000 * (time.perf_counter() - start), 3)
            self._record(line)

    def _record(self, line: dict[str, Any]) -> None:
        """Write a line. A call that succeeded and cannot be recorded fails; other outcomes are kept."""
        try:
            self._write(write_json(lenient_encoder, line) + b"\n")
        except OSError as error:
            operation, outcome = line["operation"], line["outcome"]
            problem = f"cannot write the audit log{self._summary}: {error.strerror}"
            logger.error("%s; %s ended with %s", problem, operation, outcome)
            if outcome == "OK":
                message = f"{operation} ran, but cannot be recorded: cannot write the audit log: {error.strerror}"
                raise CallError(ErrorCode.EXECUTION_ERROR, message) from error


def _append(path: Path, line: bytes) -> None:
    """Append in one write, so that processes may share a file; open it each time, so that it may be rotated."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # it had room for a part of the line
    finally:
        os.close(descriptor)


def _json_size(value: Any) -> int | None:
    try:
        return len(value if isinstance(value, bytes) else write_json(lenient_encoder, value))
    except (TypeError, ValueError, RecursionError):
        return None
