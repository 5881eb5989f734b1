"""Webhooks of a configuration: received by the surface that it serves."""

import asyncio
import hmac
from contextlib import aclosing
from pathlib import Path

import aiohttp
import pytest

from opwire.config import open_config
from opwire.config.reading import parse_config
from opwire.config.surfaces import http_surface
from opwire.errors import ConfigError
from tests.config.projects import project

DOCUMENT = """
openapi: 3.1.0
info: {title: Pets, version: "1"}
webhooks:
  born: {post: {requestBody: {content: {application/json: {schema: {type: object}}}}}}
"""
SOURCE = '[sources.pets]\nopenapi = "pets.yaml"\n[sources.pets.webhooks]\n'
SECRET = "a-secret-of-the-pets"
VERIFY = """
def verify(request):
    return request.headers.get("x-password") == "please"
"""


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PETS_SECRET", SECRET)
    monkeypatch.setenv("PETS_OLD", "an older secret")
    (tmp_path / "pets.yaml").write_text(DOCUMENT)
    (tmp_path / "pet_hooks.py").write_text(VERIFY)


def github(body: bytes, secret: str = SECRET) -> dict[str, str]:
    return {"x-hub-signature-256": f"sha256={hmac.digest(secret.encode(), body, 'sha256').hex()}"}


@pytest.mark.parametrize(
    ("settings", "headers"),
    [
        ('signature = "github"\nsecret = "${PETS_SECRET}"', github(b'{"name": "rex"}')),
        (
            'signature = "github"\nsecret = ["${PETS_SECRET}", "${PETS_OLD}"]',
            github(b'{"name": "rex"}', "an older secret"),
        ),
        ('verify = "pet_hooks:verify"', {"x-password": "please"}),
        ("unsigned = true", {}),
    ],
    ids=["signature", "two secrets", "verify", "unsigned"],
)
async def test_the_webhooks_of_a_source_are_received(tmp_path: Path, settings: str, headers: dict[str, str]) -> None:
    """The webhooks of a source are configured in `opwire.toml`."""
    config = project(tmp_path, f"{SOURCE}{settings}\n[serve.http]\n")
    async with open_config(config) as opened:
        assert opened.failures == {}
        app = http_surface(config, opened.registry, webhooks=opened.webhooks)
        async with (
            app.listening(drain_timeout=1) as address,
            aiohttp.ClientSession() as session,
            aclosing(opened.registry.subscribe("pets.webhooks.born")) as items,
        ):
            waiting = asyncio.ensure_future(anext(items))
            await asyncio.sleep(0)
            options = {"data": b'{"name": "rex"}', "headers": {"content-type": "application/json", **headers}}
            async with session.post(f"{address}/webhooks/pets", **options) as reply:
                assert (reply.status, await reply.json()) == (200, {"status": "accepted"})
            assert (await asyncio.wait_for(waiting, 5)).data == {"name": "rex"}
            if headers:
                options["headers"] = {"content-type": "application/json"}
                async with session.post(f"{address}/webhooks/pets", **options) as reply:
                    assert reply.status == 403


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("", "sources.pets.webhooks: the signature is missing"),
        ('signature = "github"', "sources.pets.webhooks: missing key `secret`"),
        ('secret = "${A}"\nunsigned = true', "sources.pets.webhooks: missing key `signature`"),
        ('unsigned = true\nverify = "a:b"', "sources.pets.webhooks: the keys verify and unsigned exclude each other"),
        ('signature = "github"\nsecret = "hunter2"', "sources.pets.webhooks.secret: secrets do not belong in a file"),
        ('verify = "pets"', "sources.pets.webhooks.verify: expected a function"),
        ("unsigned = true\ntolerance = 9999", "sources.pets.webhooks.tolerance: expected `number` <= 3600.0, got 9999"),
    ],
)
def test_problems_of_the_settings_are_found_before_the_start(settings: str, problem: str) -> None:
    found = [f"{each.key}: {each.message}" for each in parse_config(SOURCE + settings)[1]]
    assert problem in found


def test_the_name_of_a_source_with_webhooks_fits_a_path() -> None:
    text = SOURCE.replace("sources.pets", 'sources."my pets"') + "unsigned = true"
    assert any("part of the path" in each.message for each in parse_config(text)[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('verify = "pet_hooks:missing"', "has no function missing"),
        ('verify = "nothing_here:verify"', "unknown module nothing_here"),
        ('signature = "standard"\nsecret = "${PETS_SECRET}"', "sources.pets.webhooks.secret: .*base64"),
        ('signature = "github"\nsecret = "${PETS_MISSING}"', "PETS_MISSING is not set"),
    ],
)
async def test_a_source_with_webhooks_that_cannot_be_verified_fails(
    tmp_path: Path, settings: str, message: str
) -> None:
    async with open_config(project(tmp_path, SOURCE + settings)) as opened:
        with pytest.raises(ConfigError, match=message):
            raise opened.failures["pets"]
        assert opened.webhooks == {}
