"""The errors: one tree, one table, and a CallError that keeps what it is given."""

import asyncio
import copy
import errno
import os
import pickle
import re
import socket
import ssl
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

from opwire import errors
from opwire.errors import (
    ERROR_TABLE,
    CallError,
    ErrorCode,
    ErrorRow,
    MissingExtraError,
    OpwireError,
    UsageError,
    check_above_zero,
    check_counts,
    check_not_below_zero,
    needs_extra,
    system_message,
)

# The table as the specification and its seeds demand it, written a second time on purpose: a changed number is a
# changed promise to peers.
EXPECTED = {
    "OPERATION_NOT_FOUND": (404, -32601, "not_found", False),
    "ACCESS_DENIED": (403, -32003, "authorization", False),
    "UNAUTHENTICATED": (401, -32001, "authorization", False),
    "VALIDATION_ERROR": (422, -32602, "validation", False),
    "EXECUTION_ERROR": (500, -32000, "execution", False),
    "TIMEOUT": (504, -32004, "timeout", True),
    "ABORTED": (499, -32005, "execution", False),
    "UNAVAILABLE": (503, -32006, "network", True),
    "RATE_LIMITED": (429, -32007, "rate_limit", True),
    "PAYLOAD_TOO_LARGE": (413, -32008, "validation", False),
    "PROTOCOL_ERROR": (400, -32600, "network", False),
    "INTERNAL": (500, -32603, "internal", False),
}
CATEGORIES = {
    "validation", "execution", "timeout", "model", "network", "authorization", "rate_limit", "not_found", "internal",
}  # fmt: skip


def subclass_tree(root: type, depth: int = 0) -> list[tuple[int, str]]:
    """The classes of the errors module below `root`, depth first, in the order of their definition."""
    tree = [(depth, root.__name__)]
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            tree += subclass_tree(child, depth + 1)
    return tree


def drawn_tree() -> list[tuple[int, str]]:
    """The tree in the docstring of the errors module: indentation of four columns is one level."""
    lines = re.findall(r"^ {4}([│├└─ ]*)([A-Z]\w+)", errors.__doc__ or "", flags=re.MULTILINE)
    return [(len(branch) // 4, name) for branch, name in lines]


def test_the_tree_in_the_docstring_is_the_real_one() -> None:
    """The tree of errors drawn in the docstring of the errors module is the real one."""
    assert drawn_tree() == subclass_tree(OpwireError)


def test_every_exception_of_the_module_has_the_one_root() -> None:
    """`except OpwireError` catches everything that opwire itself raises."""
    exceptions = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, Exception)]
    assert len(exceptions) > 1
    assert all(issubclass(exception, OpwireError) for exception in exceptions)


def test_the_codes_are_those_of_the_specification_and_their_values_are_their_names() -> None:
    """The error codes are exactly the twelve of the specification, spelled on the wire as named."""
    assert {code.name for code in ErrorCode} == set(EXPECTED)
    assert all(code.value == code.name for code in ErrorCode)


def test_the_table_has_a_row_for_every_code() -> None:
    assert set(ERROR_TABLE) == set(ErrorCode)


@pytest.mark.parametrize("code", ErrorCode)
def test_a_row_says_what_the_code_is_on_each_surface(code: ErrorCode) -> None:
    row = ERROR_TABLE[code]
    assert isinstance(row, ErrorRow)
    assert (row.http_status, row.json_rpc_code, row.category, row.retryable) == EXPECTED[code]


def test_categories_are_those_of_the_tool_envelope() -> None:
    assert {row.category for row in ERROR_TABLE.values()} <= CATEGORIES


def test_a_json_rpc_code_names_one_error_code_only() -> None:
    """One table maps each code to HTTP status, JSON-RPC code, ToolEnvelope category, whether it is retryable by
    default, and a default message."""
    assert len({row.json_rpc_code for row in ERROR_TABLE.values()}) == len(ERROR_TABLE)


@pytest.mark.parametrize("code", ErrorCode)
def test_default_messages_are_sentences_for_people(code: ErrorCode) -> None:
    assert re.fullmatch(r"[A-Z][a-z ]+(opwire)?[a-z ]*\.", ERROR_TABLE[code].message)


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        ERROR_TABLE[ErrorCode.TIMEOUT] = ERROR_TABLE[ErrorCode.ABORTED]  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize("code", ErrorCode)
def test_a_bare_call_error_takes_its_defaults_from_the_table(code: ErrorCode) -> None:
    error = CallError(code)
    assert error.code is code
    assert error.message == ERROR_TABLE[code].message
    assert error.details is None
    assert error.retryable is ERROR_TABLE[code].retryable
    assert error.retry_after is None


def test_a_call_error_keeps_what_it_is_given() -> None:
    error = CallError(ErrorCode.EXECUTION_ERROR, "HTTP 503", {"status": 503}, retryable=True, retry_after=1.5)
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert error.message == "HTTP 503"
    assert error.details == {"status": 503}
    assert error.retryable is True
    assert error.retry_after == 1.5
    assert error.args == (ErrorCode.EXECUTION_ERROR, "HTTP 503", {"status": 503})


@pytest.mark.parametrize("retryable", [True, False])
@pytest.mark.parametrize("code", ["TIMEOUT", "EXECUTION_ERROR"])
def test_an_instance_may_override_whether_it_is_retryable(code: str, retryable: bool) -> None:
    assert CallError(code, retryable=retryable).retryable is retryable


def test_a_code_may_have_its_spelling_on_the_wire() -> None:
    assert CallError("RATE_LIMITED").code is ErrorCode.RATE_LIMITED


@pytest.mark.parametrize("code", ["NO_SUCH_CODE", "timeout", "", "ErrorCode.TIMEOUT"])
def test_an_unknown_code_is_a_value_error(code: str) -> None:
    """A CallError cannot be made with a code that is not in the table."""
    with pytest.raises(ValueError, match=re.escape(repr(code))):
        CallError(code)


def test_its_text_is_the_code_and_the_message() -> None:
    assert str(CallError("TIMEOUT", "no answer in 30 s")) == "TIMEOUT: no answer in 30 s"
    assert str(CallError("TIMEOUT")) == "TIMEOUT: The operation took too long."


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "error",
    [
        CallError("TIMEOUT"),
        CallError("TIMEOUT", "late", {"after": [1, 2.5, None]}, retryable=False, retry_after=0.0),
        CallError("INTERNAL", "", "x", retryable=True, retry_after=12.5),
    ],
    ids=str,
)
def test_pickling_keeps_every_field(error: CallError, protocol: int) -> None:
    """A CallError carries plain data, all of which survives copying and pickling."""
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is CallError
    assert fields(again) == fields(error)
    assert again.code is error.code


def test_copying_keeps_every_field() -> None:
    error = CallError("UNAVAILABLE", "gone", {"peer": ["a"]}, retryable=False, retry_after=3)
    assert fields(copy.copy(error)) == fields(error)
    deep = copy.deepcopy(error)
    assert fields(deep) == fields(error)
    assert deep.details is not error.details


def fields(error: CallError) -> tuple[object, ...]:
    return (error.code, error.message, error.details, error.retryable, error.retry_after, error.args, str(error))


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.RegistrationError, ValueError),
        (errors.HintError, TypeError),
        (errors.SchemaError, ValueError),
        (errors.CastError, ValueError),
        (errors.NotPlainError, TypeError),
        (errors.ConversionError, ValueError),
        (errors.ToolEnvelopeError, ValueError),
    ],
)
def test_an_error_about_a_value_is_also_the_builtin_that_python_raises_for_it(
    error: type[OpwireError], builtin: type[Exception]
) -> None:
    with pytest.raises(builtin, match="why") as caught:
        raise error("why")
    assert isinstance(caught.value, OpwireError)


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), 10**400, -(10**400), True, "5", [1]])
def test_an_option_that_is_not_a_usable_number_is_refused_by_its_name(wrong: Any) -> None:
    for check in (check_above_zero, check_not_below_zero, check_counts):
        with pytest.raises(UsageError, match=r"^max_things must be a ") as raised:
            check(fine=None, max_things=wrong)
        assert len(str(raised.value)) < 150


def test_a_number_that_python_itself_refuses_to_write_is_refused_too() -> None:
    with pytest.raises(UsageError, match="too many digits"):
        check_counts(a=10**5_000)


def test_zero_and_fractions_are_taken_where_they_mean_something() -> None:
    check_above_zero(a=0.5, b=3)
    check_not_below_zero(a=0.5, b=0)
    check_counts(a=1, b=None)
    for check, wrong in ((check_above_zero, 0), (check_counts, 0), (check_counts, 1.5)):
        with pytest.raises(UsageError, match="a must be a"):
            check(a=wrong)


def test_a_missing_dependency_names_the_extra_that_installs_it() -> None:
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'opwire[http]'")) as caught, needs_extra("http"):
        import_module("nowhere_to_be_found.inside")
    assert isinstance(caught.value, ImportError)
    assert str(caught.value).startswith("the package nowhere_to_be_found is not installed")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_module_of_opwire_that_is_missing_is_not_blamed_on_an_extra() -> None:
    with pytest.raises(ModuleNotFoundError), needs_extra("http"):
        import_module("opwire.nowhere")


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("opwire.observe.telemetry", "opentelemetry", "otel"), ("opwire.auth.jwt", "jwt", "auth")],
)
def test_a_module_with_a_missing_dependency_names_the_extra(module: str, package: str, extra: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; import {module}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"the package {package} is not installed; run: pip install 'opwire[{extra}]'" in ended.stderr


async def test_the_message_of_a_system_error_is_the_systems_with_what_to_check() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="attempting to bind") as in_use:
            await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", port)
    assert system_message(in_use.value).startswith(f"{os.strerror(errno.EADDRINUSE)}; choose another port")
    with pytest.raises(OSError, match=str(port)) as refused:
        await asyncio.open_connection("127.0.0.1", port)
    assert system_message(refused.value).startswith(f"{os.strerror(errno.ECONNREFUSED)}; check the port")
    several = OSError(f"Multiple exceptions: [Errno {errno.ECONNREFUSED}] a, [Errno {errno.ECONNREFUSED}] b")
    assert system_message(several) == system_message(refused.value)
    assert system_message(PermissionError(errno.EACCES, "a, b")) == os.strerror(errno.EACCES)


def test_an_error_that_is_not_the_systems_keeps_its_text() -> None:
    for error in (
        OSError("a port is a number"),
        ValueError("bad host"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
    ):
        assert system_message(error) == str(error)


async def test_a_host_name_that_is_unknown_or_invalid_is_said_to_be() -> None:
    for host, says in (
        ("no-such-host.invalid", "the host name cannot be resolved"),
        ("a" * 64, "the host name is inv"),
    ):
        with pytest.raises((OSError, UnicodeError)) as failed:
            await asyncio.open_connection(host, 1)
        assert system_message(failed.value).startswith(says)
        assert "check its spelling" in system_message(failed.value)
    with pytest.raises(OSError) as unbound:
        socket.create_server(("nowhere.invalid", 0))
    assert system_message(unbound.value).startswith("the host name cannot be resolved")


async def test_an_error_of_tls_is_told_in_words() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ready\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        with pytest.raises(OSError) as plain:
            await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=ssl.create_default_context())
    assert system_message(plain.value).startswith("the server does not use TLS there; check the scheme")
    other = ssl.SSLError(1, "[SSL: NO_CIPHERS_AVAILABLE] no ciphers available (_ssl.c:1)")
    assert system_message(other) == f"TLS failed: {other}"
    other.reason = "NO_CIPHERS_AVAILABLE"
    assert system_message(other) == "TLS failed: no ciphers available"
