"""Values that a typed parameter cannot hold: the answer is the result or a 4xx, never a 500."""

import datetime
import enum
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal
from urllib.parse import quote
from uuid import UUID

import msgspec
import pydantic
import pytest
import pytest_asyncio

from opwire import AccessControl, OperationRegistry
from tests.openapi.server.served import Client, served


class Colour(enum.Enum):
    RED = "red"
    ONE = 1


@dataclass
class Price:
    amount: Decimal
    lasts: datetime.timedelta | None = None


class Model(pydantic.BaseModel):
    amount: Decimal
    lasts: datetime.timedelta | None = None
    made: datetime.datetime | None = None


KINDS: dict[str, Any] = {
    "integer": int,
    "number": float,
    "decimal": Decimal,
    "even_decimal": Annotated[Decimal, msgspec.Meta(gt=0, multiple_of=2)],
    "half": Annotated[float, msgspec.Meta(multiple_of=0.5)],
    "datetime": datetime.datetime,
    "date": datetime.date,
    "time": datetime.time,
    "duration": datetime.timedelta,
    "uuid": UUID,
    "enum": Colour,
    "literal": Literal["a", 1],
    "bytes": bytes,
    "decimals": list[Decimal],
    "by_number": dict[int, Decimal],
    "by_date": dict[datetime.date, int],
    "dataclass": Price,
    "model": Model,
    "union": Decimal | datetime.timedelta | None,
}

LONG = "9" * 5_000
TEXTS = [
    *("1e999999999", "-1E+999999999", "1e-999999999", f"1e{LONG}", "1e308", "NaN", "sNaN", "-Infinity"),
    *("P999999999999Y", "P999999999999D", "P999999999DT86400S", f"P{LONG}D", f"PT0.{LONG}S", "-P999999999D"),
    *("9" * 400, LONG, f"-{LONG}", f"0.{LONG}", "\u0663", "1_000", "0x10"),
    *("9999-12-31T23:59:60Z", "0001-01-01T00:00:00+23:59", "+99999-01-01", "0000-00-00", "2020-02-30", "24:00:00"),
    *(f"2020-01-01T00:00:00.{LONG}Z", "12:00:00+99:99", "A===", "\u00ff", "\x00", "", "null", "a" * 50_000),
]
RAW = [
    *("1e999999999", "1e400", "1e308", "9" * 400, LONG, f"{LONG}.5", f"0.{LONG}", "NaN", "Infinity", "-0.0"),
    *(r'"\ud800"', r'["\ud800"]', r'{"\ud800": 1}', f'{{"{LONG}": "1"}}', '{"1": "1e999999999"}', '{"9999-99-99": 1}'),
    *('["1e999999999"]', '["sNaN"]', '{"amount": "1e999999999"}', '{"amount": "1", "lasts": "P999999999999D"}'),
    *('{"amount": "1", "lasts": 1e300}', '{"amount": "1", "made": 99999999999999999999}'),
]


def make_registry() -> OperationRegistry:
    registry = OperationRegistry()
    for name, kind in KINDS.items():

        async def echo(value: Any) -> Any:
            return value

        echo.__annotations__ = {"value": kind, "return": kind}
        registry.query(f"hostile.{name}", access=AccessControl(public=True))(echo)
    return registry


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def echoing() -> AsyncGenerator[Client]:
    async with served(make_registry()) as found:
        yield found


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_hostile_value_is_the_callers_error(echoing: Client, kind: str) -> None:
    """A value that a typed parameter cannot hold, however large, is the caller's error."""
    path = f"/hostile/{kind}"
    replies = {f"GET {text[:40]}": await echoing.get(f"{path}?value={quote(text)}") for text in TEXTS}
    replies["GET surrogate"] = await echoing.get(f"{path}?value=%ED%A0%80")
    replies |= {f"POST {text[:40]}": await echoing.post(path, {"value": text}) for text in TEXTS}
    replies |= {f"POST {raw[:40]}": await echoing.send(f'{{"value": {raw}}}', path) for raw in RAW}
    failed = {
        name: reply.problem for name, reply in replies.items() if reply.status not in (200, 400, 405, 413, 422, 431)
    }
    assert failed == {}
    assert any(reply.status == 422 for reply in replies.values())


@pytest.mark.asyncio(loop_scope="module")
async def test_the_exponent_of_a_decimal_is_bounded(echoing: Client) -> None:
    assert (await echoing.get("/hostile/decimal?value=1e9999")).json == "1E+9999"
    assert (await echoing.get("/hostile/decimal?value=1e-9999")).status == 200
    assert (await echoing.get("/hostile/decimal?value=1e10000")).status == 422
    assert (await echoing.get("/hostile/even_decimal?value=1e308")).json == "1E+308"
    assert (await echoing.get(f"/hostile/even_decimal?value={LONG}")).status == 422
