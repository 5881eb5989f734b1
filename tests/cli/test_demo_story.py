"""The story of the demo, told once: everything in it is real."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from opwire import Schema
from opwire.protocol.schemas import RESPONSE_ENVELOPE_SCHEMA

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
OFFER = "PriceOffer(article='tea', pieces=2, total=1468.8, currency='JPY', shelf='A1')"


def envelopes(told: str) -> list[Any]:
    """Return the envelopes that are printed as one wrapped line each."""
    return [json.loads(line) for line in re.sub(r"\n {5,}", " ", told).splitlines() if line.startswith("    {")]


def test_the_story_shows_what_it_says() -> None:
    wide = {**os.environ, "COLUMNS": "140"}
    demo = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=60, check=False, env=wide)
    assert (demo.returncode, demo.stderr) == (0, "")
    told = demo.stdout
    assert re.findall(r"^(\d)\. ", told, re.MULTILINE) == ["1", "2", "3", "4", "5", "6", "7", "8"]
    listed, called, composed, streamed, failed, served, found = re.split(r"\n\d\. .*\n", told)[1:-1]
    for id in ("shop.price", "shop.offer", "warehouse.stock", "warehouse.reserve", "rates.get", "rates.follow"):
        assert f"    {id} " in listed
    for source in ("local", "mcp", "http"):
        assert f'"source": "{source}"' in called
    assert len(set(re.findall(r'.*"source":.*', called))) <= 3, "they stand beside each other"
    assert OFFER in composed
    items = envelopes(streamed)
    assert [(item["data"], item["meta"]["lastEventId"]) for item in items] == [
        ({"rate": 1.09}, "0"),
        ({"rate": 1.1}, "1"),
        ({"rate": 1.11}, "2"),
    ]
    [refused] = envelopes(failed)
    assert refused["meta"]["isError"] is True
    assert [Schema(RESPONSE_ENVELOPE_SCHEMA).problems(each) for each in (*items, refused)] == [[]] * 4
    for code in ("VALIDATION_ERROR: shop.price", "EXECUTION_ERROR: HTTP 404", "OPERATION_NOT_FOUND: "):
        assert f"    {code}" in failed
    assert re.search(r"in this process +over MCP +over HTTP", served)
    assert served.count('"total": 1468.8') == 3
    assert "of 1,000 operations take" in found
    assert "travel.bookings.delete(id: int)" in found
    assert '{"done":true,"id":7}' in found
