"""How the story is printed: paragraphs, and texts beside each other where the page is wide enough."""

import shutil
import textwrap
from itertools import zip_longest

import click

_GAP = "  "
_NARROWEST = 30  # a column of less is not read with pleasure


class Pages:
    """Prints the story, numbering its chapters."""

    def __init__(self, width: int | None = None) -> None:
        self._width = width or min(shutil.get_terminal_size((110, 24)).columns, 140)
        self._chapter = 0

    def chapter(self, title: str) -> None:
        """Begin something new."""
        self._chapter += 1
        click.secho(f"\n{self._chapter}. {title}", bold=True)

    def say(self, text: str) -> None:
        """A paragraph."""
        click.echo(textwrap.fill(" ".join(text.split()), min(self._width, 100)))

    def show(self, text: str) -> None:
        """Something as it is, set in."""
        click.echo(textwrap.indent(text, "    "))

    def beside(self, *texts: str) -> None:
        """Texts beside each other, or one below the other on a narrow page."""
        width = (self._width - 4) // len(texts) - len(_GAP)
        if width < _NARROWEST:
            for text in texts:
                self.show(text)
            return
        columns = [[part for line in text.splitlines() for part in _wrapped(line, width)] for text in texts]
        for row in zip_longest(*columns, fillvalue=""):
            self.show(_GAP.join(part.ljust(width) for part in row).rstrip())


def _wrapped(line: str, width: int) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]
