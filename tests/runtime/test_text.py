"""No text of a peer can forge a line of the log, whatever handlers and formatters the program installs."""

import io
import logging
import pkgutil
from collections.abc import Iterator
from importlib import import_module

import pytest

import opwire
from opwire import CallError
from opwire.runtime.limits import LogLimit
from opwire.runtime.text import MAX_LOG_TEXT, EscapingLogger, get_logger

HOSTILE = "no\x1b]52;c;eA==\x07\u202e\nERROR forged"
ESCAPED = r"no\x1b]52;c;eA==\x07\u202e"


def modules() -> Iterator[str]:
    for module in pkgutil.walk_packages(opwire.__path__, "opwire."):
        if not module.name.endswith("__main__"):
            yield module.name


LOGGERS = {
    (name, logger.name): logger
    for name in modules()
    for logger in vars(import_module(name)).values()
    if isinstance(logger, EscapingLogger | logging.Logger)
}


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """What a program reads that does nothing but call `logging.basicConfig()`."""
    output = io.StringIO()
    root, handler = logging.getLogger(), logging.StreamHandler(output)
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    root.addHandler(handler)
    yield output
    root.removeHandler(handler)


@pytest.mark.parametrize(("module", "name"), sorted(LOGGERS))
def test_every_module_logs_through_an_escaping_logger_of_its_package(module: str, name: str) -> None:
    logger = LOGGERS[module, name]
    assert isinstance(logger, EscapingLogger)
    package = module if hasattr(import_module(module), "__path__") else module.rpartition(".")[0]
    if name != "opwire.access" and not name.startswith("opwire.auth"):  # whose limits its modules share
        assert name == package


@pytest.mark.parametrize("name", sorted({name for _, name in LOGGERS}))
def test_text_of_peers_in_a_log_is_escaped_and_forges_no_record(name: str, output: io.StringIO) -> None:
    get_logger(name).warning("a %s b %s c %d %r", HOSTILE, CallError("INTERNAL", HOSTILE), 7, {"a": HOSTILE})
    first, second, third, *others = output.getvalue().splitlines()
    assert first == f"WARNING:{name}:a {ESCAPED}"
    assert second == f"    ERROR forged b INTERNAL: {ESCAPED}"
    assert third.startswith("    ERROR forged c 7 {")
    assert others == []
    assert not set(output.getvalue()) & set("\x1b\x07\u202e")


@pytest.mark.parametrize("passed_as_argument", [True, False])
def test_a_traceback_that_quotes_a_peer_is_escaped(output: io.StringIO, passed_as_argument: bool) -> None:
    logger = get_logger("opwire.registry")
    try:
        raise RuntimeError(HOSTILE)
    except RuntimeError as error:
        if passed_as_argument:
            logger.error("failed", exc_info=error)
        else:
            logger.exception("failed")
    lines = output.getvalue().splitlines()
    assert lines[:2] == ["ERROR:opwire.registry:failed", "Traceback (most recent call last):"]
    assert lines[-2:] == [f"    RuntimeError: {ESCAPED}", "    ERROR forged"]
    assert all(line.startswith(" ") for line in lines[2:])


def test_a_long_text_of_a_peer_is_cut(output: io.StringIO) -> None:
    get_logger("opwire.registry").warning("a %s", "\x1b" * 1_000_000)
    assert len(output.getvalue()) < 5 * MAX_LOG_TEXT


def test_a_record_names_the_line_that_logged_it(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("opwire.registry").warning("here")
    get_logger("opwire.registry").log(logging.ERROR, "and here", stack_info=True, extra={"color": "red"})
    assert [(record.filename, record.funcName) for record in caplog.records] == [
        ("test_text.py", "test_a_record_names_the_line_that_logged_it")
    ] * 2
    assert vars(caplog.records[1])["color"] == "red"
    assert "test_text.py" in (caplog.records[1].stack_info or "")


def test_a_level_that_is_not_enabled_makes_no_record(caplog: pytest.LogCaptureFixture) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise AssertionError("a record that nobody reads was made")

    get_logger("opwire.registry").debug("%s", Unprintable())
    assert not caplog.records


def test_the_filters_of_a_logger_limit_its_lines_and_no_others(caplog: pytest.LogCaptureFixture) -> None:
    limited = get_logger("opwire.registry", LogLimit(burst=1))
    for number in range(3):
        limited.warning("line %d", number)
    get_logger("opwire.registry").warning("another")
    assert caplog.messages == ["line 0", "another"]
