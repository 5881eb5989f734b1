"""The command line: `opwire ls`, `opwire call`, `opwire serve` and others. Needs `pip install 'opwire[cli]'`."""

import signal
import sys
from collections.abc import Sequence

from opwire.errors import MissingExtraError, needs_extra


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code. `arguments` default to those of the process."""
    try:
        with needs_extra("cli"):
            from opwire.cli.program import run
        code = run(arguments)
    except MissingExtraError as error:
        sys.exit(f"opwire: {error}, or without installing it: uvx --from 'opwire[cli]' opwire")
    except KeyboardInterrupt:  # while the program or the completion is imported
        code = 130  # `exit_codes.INTERRUPTED`
    if arguments is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ^C while the interpreter exits would print a traceback
    sys.exit(code)
