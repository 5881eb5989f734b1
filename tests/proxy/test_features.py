"""`from_mcp` → registry → `serve_mcp` loses nothing but what docs/howto/proxy.md says."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.properties import is_thorough
from tests.proxy.features import FEATURES, PATIENCE, Front
from tests.proxy.fronts import ERAS, running, through_opwire
from tests.proxy.table import COMBINATIONS, read_table

pytestmark = pytest.mark.slow

TABLE = read_table()


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with running() as found:
        yield found


def test_the_table_has_a_row_for_every_feature() -> None:
    assert list(TABLE) == list(FEATURES)


def _cases() -> Iterator[object]:
    for name in FEATURES:
        for (front, behind), kept in zip(COMBINATIONS, TABLE[name][0], strict=True):
            if front == behind and not is_thorough():  # two different revisions use all code of both
                continue
            lost = pytest.mark.xfail(strict=True, reason="docs/howto/proxy.md says that it is lost")
            yield pytest.param(name, front, behind, marks=() if kept else lost, id=f"{name}-{front}-{behind}")


@pytest.mark.parametrize(("name", "front", "behind"), [*_cases()])
async def test_the_client_in_front_gets_what_the_server_behind_has(
    name: str, front: str, behind: str, urls: dict[str, str]
) -> None:
    """A proxy loses nothing of the server behind it but what the documentation says, in both eras."""
    async with through_opwire(urls[behind], front) as client, asyncio.timeout(2 * PATIENCE):
        await FEATURES[name](client)


@pytest.mark.skipif(not is_thorough(), reason="runs with CI=true; it is the server of the tests that is tested")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", [*FEATURES])
async def test_a_client_without_a_proxy_gets_it_too(name: str, era: str, urls: dict[str, str]) -> None:
    front = Front(urls[era], era)
    async with front.client, asyncio.timeout(2 * PATIENCE):
        await FEATURES[name](front)
