"""The program `opwire`. ^C ends it quietly, also while its modules are imported.

It is outside the package: the import of that takes 0.1 s, more from a cold disk, and Python prints a traceback for ^C.
"""

import signal


def main() -> None:
    """Run a command and exit with its code."""
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # unlike in the background of a script
    if raises:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells report 130, as for ^C later
    from opwire.cli import main as run

    if raises:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
