"""Paths and queries are what an implementation of RFC 6570 makes of the same values, also where Prism cannot read."""

import json
from pathlib import Path
from typing import Any

from opwire import OperationRegistry
from opwire.openapi.client import from_openapi
from tests.judges.openapi import styles
from tests.judges.programs import NODE, NODE_MODULES
from tests.judges.serving import finished
from tests.openapi.client.echo import EchoServer

EXPAND = Path(__file__).parent / "expand.cjs"
OPERATORS = {"path simple": "", "path label": ".", "path matrix": ";", "query form": "?"}
WRONG = {"path label exploded object"}  # it writes commas where RFC 6570 (3.2.5) has points


def template(case: styles.Case) -> str | None:
    """The template that means the same; None if RFC 6570 has none."""
    place, _, rest = case.name.rpartition(" ")[0].partition(" exploded")
    if place not in OPERATORS or rest:
        return None
    return f"{{{OPERATORS[place]}{styles.NAME}{'*' if 'exploded' in case.name else ''}}}"


async def expanded(given: list[tuple[str, Any]]) -> list[str]:
    """What the other implementation makes of templates and values."""
    command = [str(NODE), str(EXPAND), json.dumps([(each, {styles.NAME: value}) for each, value in given])]
    found = await finished(command, {"NODE_PATH": str(NODE_MODULES)})
    assert found.code == 0, found
    return json.loads(found.output)


async def test_what_is_written_is_what_rfc_6570_says() -> None:
    """Paths and queries are what another implementation of RFC 6570 writes."""
    cases = [case for case in styles.cases() if template(case) and case.name not in WRONG]
    registry, written = OperationRegistry(), list[str]()
    async with (
        EchoServer() as server,
        from_openapi(styles.document(exact=False), namespace="api", base_url=server.url) as api,
    ):
        registry.register_all(api)
        for case in cases:
            await registry.execute(f"api.{case.name}", case.input(styles.VALUES[case.kind]))
            arrived = server.arrived[-1]
            written.append(f"?{arrived.query}" if arrived.query else arrived.path.rpartition("/")[2])
    assert len(cases) == 31
    assert written == await expanded([(str(template(case)), styles.VALUES[case.kind]) for case in cases])
