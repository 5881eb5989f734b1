"""Texts whose parts come from the environment, so that no secret has to stand in a file."""

import os
import re

from msgspec import Struct

from opwire.errors import ConfigError

_PLACEHOLDER = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

IN_FILE = "is a secret, and does not belong in a file"
SET_IT = 'write "${NAME}", and set NAME in the environment'


class EnvText(Struct, frozen=True):
    """A text in which `${NAME}`, or `${NAME:-default}`, stands for an environment variable.

    The variables are read when the text is used. Its repr names them, and shows nothing else.
    """

    template: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'${{{name}}}' for name in self.variables) or '…'})"

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the environment variables, each once."""
        return tuple(dict.fromkeys(found[1] for found in _PLACEHOLDER.finditer(self.template)))

    @property
    def missing(self) -> tuple[str, ...]:
        """The variables that are needed and not set."""
        found = _PLACEHOLDER.finditer(self.template)
        return tuple(dict.fromkeys(each[1] for each in found if each[2] is None and each[1] not in os.environ))

    def resolve(self, at: str) -> str:
        """The text as the environment makes it; `at` is the key that the text is the value of.

        Raises:
            ConfigError: a variable is not set.
        """
        if missing := self.missing:
            many = len(missing) > 1
            asked = f"the environment variable{'s' if many else ''} {' and '.join(missing)}"
            raise ConfigError(f"{at} asks for {asked}, which {'are' if many else 'is'} not set")
        return _PLACEHOLDER.sub(lambda found: os.environ.get(found[1], found[2] or ""), self.template)


class Secret(EnvText, frozen=True):
    """A text that has to come from the environment."""


def problem_of(text: EnvText) -> tuple[str, str] | None:
    """Why this text cannot be used, whatever the environment holds, and what to do; None if it can."""
    if "${" in _PLACEHOLDER.sub("", text.template):
        return 'has a "${" that names no environment variable', "write ${NAME}"
    if not isinstance(text, Secret):
        return None
    defaults = [found[2] for found in _PLACEHOLDER.finditer(text.template)]
    return None if defaults and set(defaults) == {None} else (IN_FILE, SET_IT)
