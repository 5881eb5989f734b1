"""Run `ls` and `describe` at several widths of this terminal, with a document that is loaded once.

    python -m tests.cli.widths github_api.json api.gists/get 60 80

Every output follows a line `=== COMMAND COLUMNS`; the first one, of `ls` in a pipe, has 0 columns.
"""

import fcntl
import io
import struct
import sys
import termios
from contextlib import redirect_stdout

import click

from opwire import OperationRegistry, from_openapi
from opwire.cli.program import run

registry = OperationRegistry()


def main(document: str, operation_id: str, *widths: str) -> None:
    """Print everything."""
    sys.modules["tests.cli.widths"] = sys.modules["__main__"]
    registry.register_all(from_openapi(document, namespace="api"))
    source = ("--python", "tests.cli.widths:registry")
    plain = io.StringIO()
    with redirect_stdout(plain):
        run(["ls", *source])
    click.echo(f"=== ls 0\n{plain.getvalue()}")
    for columns in map(int, widths):
        fcntl.ioctl(sys.stdout, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        for command in (["ls", "--no-pager"], ["describe", "--no-pager", operation_id]):
            click.echo(f"=== {command[0]} {columns}")
            run([*command, *source])


if __name__ == "__main__":
    main(*sys.argv[1:])
