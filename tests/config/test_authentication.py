"""Identities of callers by configuration."""

import json
import sys
from pathlib import Path

import pytest

from opwire import CallError, Identity
from opwire.auth import Authenticator, Grant
from opwire.config.surfaces import AnonymousGrant, AnyAuthenticator, build_authenticator, identity_of
from opwire.errors import ConfigError, MissingExtraError
from tests.auth.issuers import published, token, verification_key
from tests.auth.oauth.authorization_server import AuthorizationServer
from tests.config.projects import project
from tests.openapi.client.echo import EchoServer, answer, redirect

ALICE = """
[identities.alice]
token = "${OPWIRE_ALICE}"
scopes = ["a"]
resources = { order = ["read"] }
announces = ["shop"]
"""
JWT = '[auth.jwt]\nalgorithms = ["ES256"]\naudience = "opwire"\nissuer = "https://id.example"\n'
GRANT = Grant(Identity(id="alice", scopes=("a",), resources={"order": ("read",)}), ("shop",))
RESOURCE = "https://tools.example/mcp"
SECRET = "a-token-of-many-letters"


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWIRE_ALICE", SECRET)


def authenticator(folder: Path, toml: str) -> Authenticator:
    found = build_authenticator(project(folder, toml))
    assert found is not None
    return found


async def refused(authenticator: Authenticator, token: str | None) -> str:
    with pytest.raises(CallError) as caught:
        await authenticator.authenticate(token)
    return caught.value.code


async def test_a_token_gives_the_name_scopes_resources_and_namespaces_of_its_identity(tmp_path: Path) -> None:
    found = authenticator(tmp_path, ALICE)
    assert await found.authenticate(SECRET) == GRANT
    assert await refused(found, "another-token-of-many-letters") == "UNAUTHENTICATED"


def test_without_configured_tokens_no_authenticator_exists(tmp_path: Path) -> None:
    assert build_authenticator(project(tmp_path, "[identities.guest]")) is None


def test_a_token_that_is_not_in_the_environment_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPWIRE_ALICE")
    with pytest.raises(ConfigError, match=r"^identities\.alice\.token: the environment variable OPWIRE_ALICE is"):
        authenticator(tmp_path, ALICE)


def test_an_invalid_token_is_named_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWIRE_ALICE", "hunter2")
    with pytest.raises(ConfigError, match=r"^identities\.alice\.token: OPWIRE_ALICE has 7 characters") as caught:
        authenticator(tmp_path, ALICE)
    assert "hunter2" not in str(caught.value)


def test_two_identities_cannot_share_a_token(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"identities\.bob\.token: duplicate of the token of alice"):
        authenticator(tmp_path, ALICE + ALICE.replace("alice", "bob"))


async def test_signed_tokens_are_checked_with_the_key_of_a_file(tmp_path: Path) -> None:
    toml = f'{JWT}key_file = "key.pem"\nclaims = {{ id = "email" }}'
    found = authenticator_of_file(tmp_path, toml)
    grant = await found.authenticate(token("ES256", email="a@x.example"))
    assert grant.identity.id == "a@x.example"
    assert await refused(found, SECRET) == "UNAUTHENTICATED"


async def test_known_tokens_and_signed_ones_are_taken_side_by_side(tmp_path: Path) -> None:
    found = authenticator_of_file(tmp_path, f'{JWT}key_file = "key.pem"\n{ALICE}')
    assert await found.authenticate(SECRET) == GRANT
    assert (await found.authenticate(token("ES256"))).identity.id != "alice"
    assert await refused(found, "neither-of-the-two-kinds") == "UNAUTHENTICATED"


async def test_keys_that_an_issuer_publishes_are_fetched_and_no_redirect_is_followed(tmp_path: Path) -> None:
    async with EchoServer() as server:
        keys = json.dumps({"keys": [published("ES256")]}).encode()
        server.on("/keys", answer(200, keys, {"content-type": "application/json"}))
        server.on("/moved", redirect(302, f"{server.url}/keys"))
        found = authenticator(tmp_path, f'{JWT}jwks_url = "{server.url}/keys"')
        assert (await found.authenticate(token("ES256", headers={"kid": "ES256"}))).identity.id == "ann"
        found = authenticator(tmp_path, f'{JWT}jwks_url = "{server.url}/moved"')
        assert await refused(found, token("ES256")) == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('key = "${OPWIRE_NO}"', "auth.jwt.key: the environment variable OPWIRE_NO is not set"),
        ('key = "${OPWIRE_ALICE}"', "auth.jwt: "),
        ('key_file = "absent.pem"', "auth.jwt.key_file: cannot be read"),
    ],
)
def test_a_key_that_cannot_be_used_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, message: str
) -> None:
    monkeypatch.delenv("OPWIRE_NO", raising=False)
    with pytest.raises(ConfigError) as caught:
        authenticator(tmp_path, JWT + settings)
    assert str(caught.value).startswith(message)
    assert SECRET not in str(caught.value)


def test_a_package_that_is_not_installed_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "opwire.auth.jwt", raising=False)
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'opwire\[auth\]'"):
        authenticator(tmp_path, f'{JWT}jwks_url = "https://x.example"')


async def test_anonymous_callers_may_have_an_identity_and_an_invalid_token_is_still_rejected(tmp_path: Path) -> None:
    config = project(tmp_path, f"{ALICE}[identities.guest]\nscopes = ['g']")
    guest = Identity(id="guest", scopes=("g",))
    assert (identity_of(config, "guest"), identity_of(config, None)) == (guest, None)
    tokens = build_authenticator(config)
    found = AnonymousGrant(tokens, Grant(guest))
    assert await found.authenticate(None) == Grant(guest)
    assert await found.authenticate(SECRET) == GRANT
    assert await refused(found, "another-token-of-many-letters") == "UNAUTHENTICATED"
    alone = AnonymousGrant(None, Grant(guest))
    assert await alone.authenticate("whatever") == Grant(guest)


def authenticator_of_file(folder: Path, toml: str) -> Authenticator:
    (folder / "key.pem").write_text(verification_key("ES256"))
    return authenticator(folder, toml)


OAUTH = '[auth.oauth]\nresource = "https://tools.example/mcp"\nissuer = "{url}"\nrequired_scopes = ["tools"]\n'


async def test_tokens_of_an_authorization_server_are_accepted_beside_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROBOT", "s3cret")
    async with AuthorizationServer() as server:
        server.keys = [published("ES256")]
        server.introspections["opaque"] = {"active": True, "sub": "bob", "aud": RESOURCE, "scope": "tools"}
        client = 'client_id = "robot"\nclient_secret = "${ROBOT}"\n'
        found = authenticator(tmp_path, ALICE + OAUTH.format(url=server.url) + client)
        assert (await found.authenticate(SECRET)).identity.id == "alice"
        signed = token("ES256", headers={"kid": "ES256"}, aud=RESOURCE, iss=server.url, scope="tools")
        assert (await found.authenticate(signed)).identity.id == "ann"
        assert (await found.authenticate("opaque")).identity.id == "bob"
        assert await refused(found, token("ES256", headers={"kid": "ES256"}, iss=server.url)) == "UNAUTHENTICATED"
        assert isinstance(found, AnyAuthenticator)
        assert found.protected_resource is not None
        assert found.protected_resource.resource == RESOURCE


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ('client_id = "robot"', "client_id and client_secret belong together"),
        ('claims = { scope = "scp" }', "unknown key"),
    ],
)
def test_settings_of_oauth_that_cannot_be_meant_are_explained(tmp_path: Path, change: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        build_authenticator(project(tmp_path, OAUTH.format(url="https://id.example") + change))


def test_an_issuer_without_tls_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"auth\.oauth: issuer is an https URL"):
        build_authenticator(project(tmp_path, OAUTH.format(url="http://id.example")))
