"""Importing opwire does nothing else."""

import subprocess
import sys
from textwrap import dedent

IMPORT_EVERY_MODULE = dedent("""
    import asyncio, gc, logging, os, pkgutil, signal, sys, threading
    from importlib import import_module

    def state():
        opwire_loggers = [
            (name, logger.level, logger.filters, logger.handlers, logger.propagate, logger.disabled)
            for name, logger in logging.Logger.manager.loggerDict.items()
            if isinstance(logger, logging.Logger) and name.split(".")[0] in ("opwire", "asyncio")
        ]
        return {
            "configured loggers": [each for each in opwire_loggers if each[1:] != (0, [], [], True, False)],
            "root logger": (logging.root.level, logging.root.filters, logging.root.handlers, logging.lastResort),
            "logging classes": (logging.getLoggerClass(), logging.getLogRecordFactory()),
            "threads": threading.enumerate(),
            "tasks": [each for each in gc.get_objects() if isinstance(each, asyncio.Task)],
            "event loops": [each for each in gc.get_objects() if isinstance(each, asyncio.AbstractEventLoop)],
            "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
            "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook, sys.meta_path[:]),
            "environment": (dict(os.environ), os.getcwd()),
            "garbage collector": (gc.isenabled(), gc.get_threshold(), gc.callbacks[:]),
            "open files": os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else [],
        }

    asyncio.Task, logging.getLogger("asyncio")
    before = state()
    import opwire
    for module in pkgutil.walk_packages(opwire.__path__, "opwire."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    after = state()
    print([name for name in before if before[name] != after[name]])
""")


def test_importing_every_module_has_no_side_effects() -> None:
    program = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERY_MODULE], capture_output=True, text=True, timeout=60, check=True
    )
    assert program.stdout == "[]\n"
    assert program.stderr == ""


def test_importing_opwire_imports_only_the_core() -> None:
    code = (
        "import opwire, sys; print(*sorted({name.split('.')[1] for name in sys.modules if name.startswith('opwire.')}))"
    )
    program = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert set(program.stdout.split()) == {
        "errors",
        "model",
        "names",
        "registry",
        "runtime",
        "schema",
        "typed",
        "version",
    }
