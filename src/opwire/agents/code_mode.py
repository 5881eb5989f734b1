"""Code mode: one operation that runs Python which calls the others, in a sandbox.

    serve_mcp(code_mode(registry))

A model sees `tools_search` and `tools_run`, and what is pinned. A search returns functions; the program that the model
writes awaits them (`await github_issues_create(owner="…", title="…")`), filters and combines their results, and only
its last expression and what it prints reach the model. Access, validation, interceptors and the deadline apply to each
call as to any other.

Programs run in Monty, an interpreter of a subset of Python without files, network, environment or processes, in a
process of its own for each program: nothing is left of one when it ends.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from importlib import import_module
from math import ceil
from types import NoneType
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from opwire.agents.search_mode import HINT, NOTHING_FOUND, PUBLIC, Limit, Query, ToolSearch, nothing, signature
from opwire.agents.tools import error_text
from opwire.errors import CallError, ErrorCode, check_above_zero, check_counts, needs_extra
from opwire.model.context import REQUEST_STATE, Context
from opwire.model.envelope import MCPResponseMeta, ResponseEnvelope, tool_error_text
from opwire.names import limit_text, similar_names
from opwire.registry import OperationRegistry
from opwire.registry.invoke import CLOSE_GRACE
from opwire.registry.view import Pattern
from opwire.runtime.bounded import SharedLimit
from opwire.typed.plain import as_dict, survey

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_UNKNOWN_NAME = re.compile(r"NameError: name '(\w{1,200})' is not defined", re.ASCII)
_TIME_LIMIT = re.compile(r"feed time limit exceeded: \S+ > \S+")
_NOT_AWAITED = re.compile(r"<coroutine external_future\(\d{1,10}\)>")
_MAX_TRACEBACK_CHARACTERS = 2_000
_MAX_LARGE_CALLS = 4  # calls at the same time that may have the longest arguments
_MAX_FAILURE_CHARACTERS = 200  # a failure is found by them in a traceback
_CORRECTION_HINT = {"hint": "Correct the program and run it again."}
_NO_RESULT = "(no result: end the program with an expression, or print what you want to see)"
_encoder = msgspec.json.Encoder(enc_hook=str)

_DESCRIPTION = """Run Python that calls operations as functions, and return the value of its last expression.

Await functions that {} returned, with keyword arguments: `issues = await github_issues_list(owner="a")`.
For calls at the same time `import asyncio` and use asyncio.gather; print() anything else that you want to see. A
function that fails raises RuntimeError. Files, network and imports other than asyncio, json, re, math and datetime are
not available."""

Code = Annotated[str, Meta(max_length=50_000, description="Python; the value of its last expression is the result")]


class CodeLimits(Struct, frozen=True, kw_only=True):
    """What one program may use.

    `seconds` of its own computing, `total_seconds` with the calls that it waits for, `memory` in bytes, `calls` of
    operations, and `output` characters of result and printed text. At most `programs` run at the same time, half of
    them of one caller. The arguments of a call, and a result, may have a sixteenth of `memory` as JSON, where an object
    or list counts 16 characters at least; the arguments of all calls that run at the same time, a quarter.

    Raises:
        UsageError: a number is not above zero.
    """

    seconds: float = 5.0
    total_seconds: float = 60.0
    memory: int = 64 * 1024 * 1024
    calls: int = 100
    output: int = 20_000
    programs: int = 8

    def __post_init__(self) -> None:
        check_above_zero(seconds=self.seconds, total_seconds=self.total_seconds)
        check_counts(memory=self.memory, calls=self.calls, output=self.output, programs=self.programs)

    @property
    def longest(self) -> int:
        """Characters that one value may have as JSON."""
        return self.memory // 16


def code_mode(
    registry: OperationRegistry,
    *,
    pinned: Iterable[Pattern] = (),
    limits: CodeLimits | None = None,
    namespace: str = "tools",
) -> OperationRegistry:
    """Return a registry with the operations `search` and `run`, and those that are pinned.

    Programs may call all of `registry`: pass a view, and not `exclude` of a surface, to leave operations out.

    Raises:
        MissingExtraError: `opwire[code]` is not installed.
        UsageError: an option is invalid.
    """
    with needs_extra("code"):
        import_module("pydantic_monty")  # fails now rather than at the first program
    mode = registry.view(include=[*pinned] or [nothing])
    tools = _CodeTools(registry, limits or CodeLimits(), f"{namespace}_search")
    about = (
        f"Find functions for {namespace}_run by what they do, in plain words. There are {len(registry):,}. "
        "Returns a line for each: its name, its parameters (? is optional), what it does."
    )
    mode.query(f"{namespace}.search", description=about, access=PUBLIC)(tools.search)
    mode.mutation(f"{namespace}.run", description=_DESCRIPTION.format(f"{namespace}_search"), access=PUBLIC)(tools.run)
    return mode


class _CodeTools:
    """The two operations."""

    def __init__(self, registry: OperationRegistry, limits: CodeLimits, search: str) -> None:
        self._limits = limits
        self._search = search  # the name of the tool
        self._tools = ToolSearch(registry)
        self._places: SharedLimit[str | None] = SharedLimit(limits.programs, ceil(limits.programs / 2))  # by identity

    async def search(self, query: Query, context: Context, limit: Limit = 5) -> str:
        """Find functions by what they do, in plain words."""
        names = self._tools.names()[0]
        results = self._tools.found(query, context, limit)
        lines = [signature(spec).replace(spec.id, names.get(spec.id, spec.id), 1) for spec in results]
        return "\n".join(lines) or NOTHING_FOUND

    async def run(self, code: Code, context: Context) -> str:
        """Run a program."""
        caller = None if context.identity is None else context.identity.id
        if not self._places.take(caller, 1):
            running = self._places.held
            message = f"{sum(running.values())} programs are running already, {running[caller]} of this caller"
            raise CallError(ErrorCode.RATE_LIMITED, message)
        try:
            return await self._run(code, context)
        finally:
            self._places.give_back(caller, 1)

    async def _run(self, code: str, context: Context) -> str:
        from pydantic_monty import AsyncMonty, MontyCrashedError, MontyError

        limits = self._limits
        if REQUEST_STATE not in context.metadata:  # the calls of a program are calls of one request
            context = replace(context, metadata={**context.metadata, REQUEST_STATE: {}})
        printed, calls = _Printed(limits.output), _ProgramCalls(limits.calls, _MAX_LARGE_CALLS * limits.longest)
        ids = self._tools.names()[1]
        functions = {name: self._function(name, context, calls) for name in {*_NAME.findall(code)} & ids.keys()}
        remaining = limits.total_seconds if context.remaining is None else min(context.remaining, limits.total_seconds)
        allowed: Any = {
            "max_feed_duration_secs": limits.seconds,
            "max_memory": limits.memory,
            "max_suspensions": 4 * limits.calls + len(functions),  # lookups, starts and ends of calls: a second bound
        }
        try:
            async with (
                asyncio.timeout(max(remaining, 0)),
                AsyncMonty(min_processes=1, max_processes=1, request_timeout=limits.seconds + 1) as pool,
                pool.checkout(limits=allowed, os_policy={"sleep": "zero"}) as session,
            ):
                value = await session.feed_run(code, external_lookup=functions, print_callback=printed.add)
                calls.check(value)
        except TimeoutError:
            message = f"the program did not end within {limit_text(remaining)} s"
            raise CallError(ErrorCode.TIMEOUT, message, retryable=False) from None
        except MontyCrashedError as error:
            raise CallError(
                ErrorCode.EXECUTION_ERROR, f"the program was ended: {str(error)[:_MAX_TRACEBACK_CHARACTERS]}"
            ) from None
        except MontyError as error:
            display = cast("Callable[[], str]", getattr(error, "display", error.__str__))
            fault = _TIME_LIMIT.sub(f"computed for more than {limits.seconds:g} s", display())
            if len(fault) > _MAX_TRACEBACK_CHARACTERS:  # the kind of an error is before its message, which may be long
                fault = f"{fault[: _MAX_TRACEBACK_CHARACTERS // 2]}\n…\n{fault[-_MAX_TRACEBACK_CHARACTERS // 2 :]}"
            calls_text = f" after {calls.returned} calls, which are not undone" if calls.returned else ""
            message = f"the program failed{calls_text}:\n{printed.before}{fault}{self._hint(fault, code, context)}"
            caused = calls.failure and calls.failure[:_MAX_FAILURE_CHARACTERS] in fault
            details = {"hint": "The operation failed, not the program."} if caused else _CORRECTION_HINT
            raise CallError(ErrorCode.VALIDATION_ERROR, message, details) from None
        finally:
            await calls.stop()
        # In a thread: a value of 100,000 lists takes a third of a second.
        shown_value = await asyncio.to_thread(_shown, value, limits.output, limits.longest)
        return printed.before + shown_value or _NO_RESULT

    def _function(self, name: str, context: Context, calls: "_ProgramCalls") -> Callable[..., Awaitable[Any]]:
        """Return the function of an operation."""
        id = self._tools.names()[1][name]

        async def call(*arguments: Any, **keywords: Any) -> Any:
            if len(arguments) > 1 or (arguments and not isinstance(arguments[0], dict)):
                raise TypeError(f"{name}() takes keyword arguments; {self._search} returns their names")
            try:
                call_input = {**as_dict(arguments[0]), **keywords} if arguments else keywords
                length = await asyncio.to_thread(json_length, call_input, most := self._limits.longest)
                if length > most:
                    message = f"the arguments have more than {most:,} characters: pass less"
                    raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, message)
                with calls.running(name, length):
                    result = await self._tools.call(context.child(), id, call_input)
            except CallError as error:
                text = error_text(error, id, name, advises=False).replace(f"{HINT}{id}(", f"{HINT}{name}(")
                if error.code not in (ErrorCode.VALIDATION_ERROR, ErrorCode.PAYLOAD_TOO_LARGE):
                    calls.failure = text
                raise RuntimeError(text) from None
            if not isinstance(result, ResponseEnvelope):
                return result
            envelope = cast("ResponseEnvelope[Any]", result)
            if isinstance(envelope.meta, MCPResponseMeta) and envelope.meta.is_error:
                text = tool_error_text(envelope.meta, "")[:_MAX_TRACEBACK_CHARACTERS]
                text = text or await asyncio.to_thread(
                    _shown, envelope.data, _MAX_TRACEBACK_CHARACTERS, self._limits.longest
                )
                calls.failure = f"{name}: {text}"
                raise RuntimeError(calls.failure)
            return envelope.data

        return call

    def _hint(self, fault: str, code: str, context: Context) -> str:
        """Return what to write instead of an unknown name, as far as the caller may see it; or ""."""
        unknown = _UNKNOWN_NAME.search(fault)
        if unknown is None or "Did you forget to import" in fault:
            return ""
        ids, is_visible = self._tools.names()[1], self._tools.visible(context)

        def is_shown(name: str) -> bool:
            spec = self._tools.get(ids[name])
            return spec is not None and is_visible(spec)

        dotted = re.search(rf"\b{unknown[1]}((?:\.\w+)+)", code, re.ASCII)  # github.issues_list
        joined = f"{unknown[1]}{dotted[1]}".replace(".", "_") if dotted else unknown[1]
        close = [joined] if joined in ids and is_shown(joined) else similar_names(joined, ids, visible=is_shown)
        return f"\nDid you mean {' or '.join(close)}?" if close else f"\n{self._search} returns the names of functions."


class _ProgramCalls:
    """The calls of a program: how many it may still make, which are running, and the characters of their arguments.

    Arguments are copied on their way here: 100 calls with one text of 4 MB take 400 MB, and 4 MB in the interpreter.
    """

    def __init__(self, limit: int, longest: int) -> None:
        self._limit = self._left = limit
        self._longest = longest  # characters of the arguments of running calls
        self._length = 0
        self.returned = 0
        self.failure = ""  # the last one that the program cannot correct
        self._running: dict[asyncio.Task[Any], str] = {}  # names of functions, by the task that runs each

    @contextmanager
    def running(self, name: str, length: int) -> Generator[None]:
        """Count a call with this length of its arguments.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, there is no room for them beside those of other calls.
        """
        if self._left <= 0:
            raise RuntimeError(f"the program has made {self._limit} calls, and may not make more")
        if self._length + length > self._longest:
            message = f"the arguments of calls at the same time have more than {self._longest:,} characters: await some"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, f"{message} before you call more")
        self._left -= 1
        self._length += length
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._running[task] = name
        try:
            yield
            self.returned += 1
        finally:
            self._length -= length
            del self._running[task]

    def check(self, value: Any) -> None:
        """Raise if the program has ended before its calls, or its result is one of them.

        Raises:
            CallError: VALIDATION_ERROR.
        """
        if isinstance(value, str) and _NOT_AWAITED.fullmatch(value) and not self._running:
            message = "the result is a call that has run: write await before it"
            raise CallError(ErrorCode.VALIDATION_ERROR, message, _CORRECTION_HINT)
        if self._running:
            names = ", ".join(sorted({*self._running.values()})[:10])
            message = f"the program ended before calls that it did not await, and they were stopped: await {names}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message, _CORRECTION_HINT)

    async def stop(self) -> None:
        """Cancel the calls that are still running: Monty leaves them behind."""
        tasks = [*self._running]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_GRACE)


class _Printed:
    """What a program prints, up to a number of characters."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[str] = []
        self._length = 0

    def add(self, _: str, text: str) -> None:
        if self._length < self._limit:
            self._parts.append(text[: self._limit - self._length])
        self._length += len(text)

    @property
    def before(self) -> str:
        """The text, to stand before a result."""
        more = self._length - self._limit
        text = "".join(self._parts) + (f"… ({more:,} more characters)\n" if more > 0 else "")
        return text if not text or text.endswith("\n") else f"{text}\n"


def json_length(value: Any, most: int) -> int:
    """Return how many characters a value has as JSON, about, where shared parts are written each time.

    A list with a thousand references to one text takes little memory, in the interpreter and on its way here. Counting
    ends above `most`, after as many different values, however often each occurs; one that contains itself counts once.
    """
    sizes: dict[int, int] = {}  # of containers, by id; 0 while their parts are being counted
    parts: dict[int, list[Any]] = {}  # of containers, by id
    stack, seen = [value], 0
    while stack:
        container = stack[-1]
        if id(container) not in sizes:
            sizes[id(container)], parts[id(container)] = 0, _parts(container)
            seen += len(parts[id(container)])
            if not _FLAT_TYPES.issuperset(map(type, parts[id(container)])):
                inner = [part for part in parts[id(container)] if type(part) not in _FLAT_TYPES]
                if (least := _MIN_CONTAINER_CHARACTERS * len(inner)) > most:
                    return least
                stack += {id(part): part for part in inner if id(part) not in sizes}.values()
        else:
            stack.pop()
            sizes[id(container)] = sizes[id(container)] or max(
                _MIN_CONTAINER_CHARACTERS, 2 + _total(parts[id(container)], sizes)
            )
        if max(seen, sizes[id(container)]) > most:
            return max(seen, sizes[id(container)])
    return sizes[id(value)]


_TEXTS, _NUMBERS = frozenset({str, bytes}), frozenset({int, bool})
_FLAT_TYPES = _TEXTS | _NUMBERS | {float, NoneType}
_MIN_CONTAINER_CHARACTERS = 16  # JSON of a peer may have as many bytes for each container, since it costs as much


def _parts(value: Any) -> list[Any]:
    """Return the parts of a container, of a class of the program or of an instance of one."""
    attributes: Any = getattr(value, "attributes", value)
    if isinstance(attributes, dict):
        mapping = cast("dict[Any, Any]", attributes)
        return [*mapping, *mapping.values()]
    return [*attributes] if isinstance(attributes, list | tuple | set | frozenset) else []


def _total(parts: list[Any], sizes: dict[int, int]) -> int:
    """Return the length of the parts of a container as JSON; 60 ns for each of many scalars."""
    kinds = set(map(type, parts))
    if kinds <= _TEXTS:
        return sum(map(len, parts)) + 3 * len(parts)
    if kinds <= _NUMBERS:
        return sum(map(int.bit_length, parts)) // 3 + 2 * len(parts)
    return sum(sizes.get(id(part)) or _length(part) for part in parts)


def _length(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value) + 3
    return value.bit_length() // 3 + 2 if isinstance(value, int) else 8


def _shown(value: Any, limit: int, longest: int) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) and json_length(value, longest) > longest:
        return f"(not shown: the value has more than {longest:,} characters: return less)"
    try:
        if survey(value).deep:  # how deep the encoder can go depends on the version of Python
            raise RecursionError
        try:
            text = value if isinstance(value, str) else _encoder.encode(value).decode()
        except (TypeError, ValueError):
            text = repr(value)
    except RecursionError:
        text = "(not shown: the value is nested too deeply)"
    except ValueError:  # Python writes no integers of more than 4,300 digits
        text = "(not shown: the value has a number with too many digits)"
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters: return less)"
