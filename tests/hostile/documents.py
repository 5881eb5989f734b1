"""YAML of 300 kB that is repaired as often as possible, read twice: `python -m tests.hostile.documents CASE`."""

from opwire.openapi.client.yaml_text import read_yaml
from tests.hostile.limits import Case, run

_LONG = "openapi: 3.1.0\npaths:\n" + "".join(f"  - a{number}: b\n" for number in range(25_000))
_ENDS = {
    "tabs": "y:\n" + "  -\tx: 1\n" * 400,
    "anchors": "".join(f"k{number}: &é{number} 1\n" for number in range(2_000)),
    "escapes": "".join(f'k{number}: "\\ud83d\\ude00"\n' for number in range(2_000)),
}


def case(end: str) -> Case:
    async def read() -> list[str]:
        problems: list[str] = []
        for _ in range(2):
            try:
                read_yaml(_LONG + end, lambda warning: None)
            except ValueError as error:
                problems.append(str(error))
        return problems

    return read


if __name__ == "__main__":
    run({name: case(end) for name, end in _ENDS.items()})
