"""The command line: `opwire ls`, `opwire call`, `opwire serve` and others. Needs `pip install 'opwire[cli]'`."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the arguments name, those of the process unless given, and exit with its code."""
    try:
        from opwire.cli.program import run
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.exit("opwire: the command line needs the package click: pip install 'opwire[cli]'")
    sys.exit(run(arguments))
