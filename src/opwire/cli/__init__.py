"""The command line: `opwire ls`, `opwire call`, `opwire serve` and others. Needs `pip install 'opwire[cli]'`."""

import sys
from collections.abc import Sequence

from opwire.errors import MissingExtraError, needs_extra


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code. `arguments` default to those of the process."""
    try:
        with needs_extra("cli"):
            from opwire.cli.program import run
    except MissingExtraError as error:
        sys.exit(f"opwire: {error}, or without installing it: uvx --from 'opwire[cli]' opwire")
    sys.exit(run(arguments))
