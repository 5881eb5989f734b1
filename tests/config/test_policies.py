"""Policies of a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from opwire.config import load_config, open_config
from opwire.errors import CallError, ConfigError, ErrorCode
from opwire.model.context import Context

SHOP = """
from opwire import OperationRegistry
registry = OperationRegistry()

@registry.query("shop.price")
async def price() -> float:
    return 2.5

@registry.mutation("shop.order")
async def order(article: str) -> str:
    return article

def ask(request):
    return request.input["article"] == "tea" or "too expensive"
"""
FILE = """
[sources.shop]
python = "shop.py"
[policies.audit]
path = "audit.jsonl"
values = true
[policies.budget]
[policies.rate]
calls = 3
per = 1000
exclude = ["type:mutation"]
[policies.concurrency]
calls = 8
[policies.breaker]
[policies.approval]
ask = "shop.py:ask"
"""


async def test_the_policies_of_a_file_apply_to_every_call(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "opwire.toml").write_text(FILE)
    async with open_config(load_config(tmp_path / "opwire.toml")) as opened:
        for _ in range(3):
            await opened.registry.execute("shop.price")
        with pytest.raises(CallError) as limited:
            await opened.registry.execute("shop.price")
        assert limited.value.code is ErrorCode.RATE_LIMITED
        await opened.registry.execute("shop.order", {"article": "tea"})
        with pytest.raises(CallError, match="too expensive") as denied:
            await opened.registry.execute("shop.order", {"article": "gold"})
        assert denied.value.code is ErrorCode.ACCESS_DENIED
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["OK", "OK", "OK", "RATE_LIMITED", "OK", "ACCESS_DENIED"]


async def test_calls_wait_for_the_console_where_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "opwire.toml").write_text("[sources.shop]\npython = 'shop.py'\n[policies.approval]")
    async with open_config(load_config(tmp_path / "opwire.toml")) as opened:
        opened.approvals.on_change(lambda change: opened.approvals.approve(change.request.id))
        assert (await opened.registry.execute("shop.order", {"article": "tea"})).data == "tea"


async def test_results_are_cached_and_a_caller_is_asked_where_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        SHOP.replace("return 2.5", "return time.perf_counter()").replace("from", "import time\nfrom", 1)
    )
    toml = "[sources.shop]\npython = 'shop.py'\n[policies.approval]\nask = 'caller'\n[policies.cache]\nttl = 1000\n"
    (tmp_path / "opwire.toml").write_text(toml + "include = ['shop.price']\nmax_entries = 5")

    async def yes(_: Any) -> dict[str, Any]:
        return {"action": "accept", "content": {"value": True}}

    async with open_config(load_config(tmp_path / "opwire.toml")) as opened:
        first, second = [(await opened.registry.execute("shop.price")).data for _ in range(2)]
        assert first == second
        with pytest.raises(CallError, match="was not approved"):
            await opened.registry.execute("shop.order", {"article": "tea"})
        assert (await opened.registry.execute("shop.price")).data == first  # nothing has changed
        await opened.registry.execute("shop.order", {"article": "tea"}, Context(on_question=yes))
        assert (await opened.registry.execute("shop.price")).data != first


@pytest.mark.parametrize(
    ("policies", "told"),
    [
        ("[policies.audit]\npath = 'no/such/folder/audit.jsonl'", "No such file"),
        ("[policies.approval]\nask = 'approvals.py:ask'", "policies.approval.ask"),
        ("[policies.rate]\ncalls = 0", "policies.rate.calls"),
        ("[policies.rate]\ncalls = 1\nby = ['user']", "policies.rate.by"),
        ("[policies.rates]\ncalls = 1", "rate"),
    ],
)
async def test_a_policy_that_cannot_be_installed_is_named(tmp_path: Path, policies: str, told: str) -> None:
    """Policies are installed by [policies] of opwire.toml."""
    (tmp_path / "opwire.toml").write_text(policies)
    with pytest.raises(ConfigError, match=told):
        async with open_config(load_config(tmp_path / "opwire.toml")):
            pass


async def test_a_pattern_of_a_policy_that_matches_nothing_is_reported(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    sources = "[sources.shop]\npython = 'shop.py'\n"
    policies = (
        "[policies.approval]\ninclude = ['shop.ordr', 'type:subscription']\n"
        "[policies.rate]\ncalls = 9\nexclude = ['type:mutaton']\n"
    )
    for more, problems in (
        ("", ["rate.exclude: 'type:mutaton' matches nothing", "approval.include: 'shop.ordr' matches nothing"]),
        ("[sources.gone]\npython = 'gone.py'\n", []),  # it may have them
    ):
        (tmp_path / "opwire.toml").write_text(sources + more + policies)
        async with open_config(load_config(tmp_path / "opwire.toml")) as opened:
            found = [each.partition(";")[0] for each in opened.policy_problems()]
            assert found == [f"policies.{each}" for each in problems]
