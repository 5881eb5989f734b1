"""The document of a served registry, judged by validators."""

import json
import os
from pathlib import Path

from tests.judges.openapi.conftest import Served
from tests.judges.programs import npm_program, python_program
from tests.judges.serving import finished

CONFIG = Path(__file__).parent / "redocly.yaml"
QUIET = {**os.environ, "REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}


async def test_openapi_spec_validator_finds_nothing(served: Served) -> None:
    """Validators find nothing wrong with the served document, in 3.1 and in 3.2."""
    documents = (served.document, served.newer, served.of_guest)
    found = await finished([python_program("openapi-spec-validator"), *map(str, documents)])
    assert (found.code, found.output.count(": OK")) == (0, 3), found


async def test_openapi_spec_validator_is_awake(served: Served, tmp_path: Path) -> None:
    broken = json.loads(served.document.read_bytes())
    broken["paths"]["/shop/add"]["get"]["parameters"][0]["in"] = "nowhere"
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    assert (await finished([python_program("openapi-spec-validator"), str(tmp_path / "broken.json")])).code == 1


async def test_redocly_finds_nothing_that_the_specification_forbids(served: Served) -> None:
    for document in (served.document, served.newer, served.of_guest):
        command = [*npm_program("redocly"), "lint", "--config", str(CONFIG), "--format", "json", str(document)]
        found = await finished(command, QUIET)
        assert found.code == 0, found
        assert json.loads(found.output)["totals"] == {"errors": 0, "warnings": 0, "ignored": 0}, found.output


def test_a_guest_is_not_told_of_what_he_may_not_call(served: Served) -> None:
    paths, of_guest = (json.loads(each.read_bytes())["paths"].keys() for each in (served.document, served.of_guest))
    assert paths - of_guest == {"/shop/order"}
