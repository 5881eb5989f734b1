"""Each kind of source, opened by its adapter: real servers, real files."""

import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from opwire import OperationRegistry
from opwire.asgi.listener import listening
from opwire.auth import callback
from opwire.config import load_config
from opwire.config.settings import ServerClient, ServerSource
from opwire.config.sources import ProjectModules, files_of, open_source
from opwire.errors import CallError, ConfigError, MissingExtraError, OpwireError, UsageError
from opwire.mcp.server import serve_mcp
from opwire.model.caller import with_caller_token
from opwire.model.context import Context
from opwire.model.identity import Identity
from opwire.registry.source import AdapterSource
from tests.auth.oauth.authorization_server import AuthorizationServer
from tests.config.projects import DOCUMENT, TINY, project, shop, write
from tests.openapi.client.echo import EchoServer, answer


async def opened(folder: Path, toml: str, **files: str) -> AdapterSource:
    """The only source of a project."""
    config = project(folder, toml, **files)
    ((name, settings),) = config.sources.items()
    return await open_source(name, settings, config.folder, ProjectModules(folder))


async def answered(source: AdapterSource, id: str, input: Any = None) -> Any:
    registry = OperationRegistry()
    registry.follow(source)
    return (await registry.execute(id, input)).data


def ids(source: AdapterSource) -> set[str]:
    return {each.spec.id for each in source}


async def test_a_python_module(tmp_path: Path) -> None:
    source = await opened(tmp_path, '[sources.any]\npython = "shop:registry"', shop_py=shop(7))
    assert await answered(source, "shop.price", {"article": "tea"}) == 7
    await source.close()


async def test_an_mcp_server_that_is_a_program(tmp_path: Path) -> None:
    source = await opened(tmp_path, f"[sources.tiny]\n{TINY}")
    try:
        assert ids(source) == {"tiny.where"}
        assert (await answered(source, "tiny.where"))["process"] != os.getpid()
    finally:
        await source.close()


async def test_a_program_runs_in_the_folder_of_the_file_with_the_variables_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWIRE_SECRET", "hunter2")
    toml = f'[sources.x]\n{TINY}\nnamespace = "y"\nenv = {{ KEY = "${{OPWIRE_SECRET}}" }}\n'
    source = await opened(tmp_path, toml)
    try:
        told = await answered(source, "y.where")
        assert told["folder"] == str(tmp_path)
        assert told["environment"]["KEY"] == "hunter2"
        assert "OPWIRE_SECRET" not in told["environment"]
    finally:
        await source.close()


async def test_an_mcp_server_behind_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opwire.asgi.listener import listening
    from opwire.auth import StaticTokens
    from opwire.model.identity import Identity

    monkeypatch.setenv("OPWIRE_TOKEN", "a-token-of-many-letters")
    registry = OperationRegistry()

    @registry.query("a.one")
    async def one() -> int:
        return 1

    tokens = StaticTokens({"a-token-of-many-letters": Identity(id="alice")})
    app = serve_mcp(registry).asgi(authenticate=tokens)
    async with listening(app, on_drain=app.drain) as address:
        toml = f'[sources.x]\nurl = "{address}/mcp"\nheaders = {{ Authorization = "Bearer ${{OPWIRE_TOKEN}}" }}'
        source = await opened(tmp_path, toml)
        try:
            (id,) = ids(source)
            assert await answered(source, id) == 1
        finally:
            await source.close()


async def test_all_servers_of_an_existing_file_one_of_which_fails(tmp_path: Path) -> None:
    tiny = Path(__file__).with_name("tiny_server.py")
    absent = {"command": "opwire-no-such-program"}
    servers = {"tiny": {"command": sys.executable, "args": ["-I", str(tiny)]}, "absent": absent}
    toml = '[sources.desktop]\nmcp_servers = "servers.json"'
    source = await opened(tmp_path, toml, servers_json=json.dumps({"mcpServers": servers}))
    try:
        assert ids(source) == {"tiny.where"}
        assert set(source.failures) == {"absent"}
    finally:
        await source.close()
    with pytest.raises(OpwireError):
        await opened(tmp_path, f"{toml}\nrequired = true")


async def test_an_http_api_from_a_file_with_a_key_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWIRE_KEY", "hunter2")
    async with EchoServer() as server:
        server.on("/v1/pets", answer(200, b"[1, 2]", {"content-type": "application/json"}))
        toml = (
            f'[sources.pets]\nopenapi = "pets.yaml"\nbase_url = "{server.url}/v1"\ncredentials.key = "${{OPWIRE_KEY}}"'
        )
        source = await opened(tmp_path, toml, pets_yaml=DOCUMENT)
        try:
            assert await answered(source, "pets.list_pets") == [1, 2]
            assert server.arrived[-1].header("x-api-key") == "hunter2"
        finally:
            await source.close()


async def test_an_http_api_from_a_url_of_which_some_operations_are_left_out(tmp_path: Path) -> None:
    async with EchoServer() as server:
        server.on("/openapi.yaml", answer(200, DOCUMENT.encode(), {"content-type": "application/yaml"}))
        toml = f'[sources.pets]\nopenapi = "{server.url}/openapi.yaml"\n'
        everything = await opened(tmp_path, toml)
        nothing = await opened(tmp_path, f'{toml}namespace = "p"\nexclude = ["list_*"]')
        assert (ids(everything), ids(nothing)) == ({"pets.list_pets"}, set())
        await everything.close()
        await nothing.close()


async def test_the_size_of_a_document_is_limited(tmp_path: Path) -> None:
    """Referenced files are limited by bytes, other documents also by number; as options say."""
    toml = '[sources.pets]\nopenapi = "pets.yaml"\nmax_documents = 5\nmax_document_bytes = 100'
    with pytest.raises(CallError, match="more than 100 bytes; the option `max_document_bytes`"):
        await opened(tmp_path, toml, pets_yaml=DOCUMENT)


async def test_what_a_document_says_of_itself_counts_only_where_it_is_trusted(tmp_path: Path) -> None:
    operation = {"x-opwire": {"id": "billing.overview", "type": "query"}, "responses": {}}
    text = json.dumps({"openapi": "3.1.0", "info": {}, "paths": {"/repos": {"delete": operation}}})
    found: dict[str, list[tuple[str, str]]] = {}
    for trust in ("", "trust_annotations = true"):
        (tmp_path / "api.json").write_text(text)
        source = await opened(tmp_path, f'[sources.api]\nopenapi = "api.json"\n{trust}')
        found[trust] = [(each.spec.id, each.spec.type.value) for each in source]
        await source.close()
    assert found == {
        "": [("api.delete_repos", "mutation")],
        "trust_annotations = true": [("api.overview", "query")],
    }


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ('command = "${OPWIRE_NO}"', "command"),
        ('command = "x"\nargs = ["a", "${OPWIRE_NO}"]', "args[1]"),
        ('command = "x"\nenv = { A = "${OPWIRE_NO}" }', "env.A"),
        ('command = "x"\ncwd = "${OPWIRE_NO}"', "cwd"),
        ('url = "https://${OPWIRE_NO}"', "url"),
        ('url = "https://x.example"\nheaders = { A = "${OPWIRE_NO}" }', "headers.A"),
        ('mcp_servers = "${OPWIRE_NO}"', "mcp_servers"),
        ('openapi = "${OPWIRE_NO}"', "openapi"),
        ('openapi = "x"\nbase_url = "${OPWIRE_NO}"', "base_url"),
        ('openapi = "x"\nserver_variables = { a = "${OPWIRE_NO}" }', "server_variables.a"),
        ('openapi = "x"\ncredentials.a = { env = "OPWIRE_NO" }', "credentials.a"),
        ('openapi = "x"\ncredentials.a = { user = "u", password = "${OPWIRE_NO}" }', "credentials.a.password"),
        (
            'openapi = "x"\ncredentials.a = { client_id = "c", client_secret = "${OPWIRE_NO}" }',
            "credentials.a.client_secret",
        ),
    ],
)
async def test_a_variable_that_is_not_set_is_named_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, key: str
) -> None:
    monkeypatch.delenv("OPWIRE_NO", raising=False)
    message = f"sources.x.{key}: the environment variable OPWIRE_NO is not set"
    with pytest.raises(ConfigError) as caught:
        await opened(tmp_path, f"[sources.x]\n{settings}")
    assert str(caught.value) == message


async def test_credentials_of_every_kind_reach_the_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWIRE_SECRET", "hunter2")
    document = DOCUMENT.replace("type: apiKey, in: header, name: X-API-Key", "type: http, scheme: basic")
    async with EchoServer() as server:
        server.on("/pets", answer(200, b"[]", {"content-type": "application/json"}))
        toml = f'[sources.pets]\nopenapi = "pets.yaml"\nbase_url = "{server.url}"\n'
        basic = await opened(
            tmp_path, f'{toml}credentials.key = {{ user = "u", password = "${{OPWIRE_SECRET}}" }}', pets_yaml=document
        )
        await answered(basic, "pets.list_pets")
        assert server.arrived[-1].header("authorization") == "Basic dTpodW50ZXIy"
        await basic.close()
        document = DOCUMENT.replace(
            "type: apiKey, in: header, name: X-API-Key",
            f"type: oauth2, flows: {{clientCredentials: {{tokenUrl: {server.url}/token, scopes: {{}}}}}}",
        )
        token = b'{"access_token": "t", "token_type": "Bearer", "expires_in": 300}'
        server.on("/token", answer(200, token, {"content-type": "application/json"}))
        oauth = f'{toml}credentials.key = {{ client_id = "c", client_secret = "${{OPWIRE_SECRET}}" }}'
        client = await opened(tmp_path, oauth, pets_yaml=document)
        await answered(client, "pets.list_pets")
        assert server.arrived[-1].header("authorization") == "Bearer t"
        await client.close()


def test_the_files_of_a_source_are_those_that_it_is_read_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPWIRE_NO", raising=False)
    toml = """
    [sources]
    a.openapi = "a.yaml"
    b.openapi = "https://x.example/openapi.json"
    c.mcp_servers = "c.json"
    d.openapi = "${OPWIRE_NO}"
    e.command = "x"
    """
    write(tmp_path, opwire_toml=toml)
    config = load_config(tmp_path / "opwire.toml")
    found = {name: files_of(each, config.folder) for name, each in config.sources.items()}
    assert found == {"a": [tmp_path / "a.yaml"], "b": [], "c": [tmp_path / "c.json"], "d": [], "e": []}


@pytest.mark.parametrize(
    ("settings", "module", "extra"), [('openapi = "x"', "aiohttp", "openapi"), ('command = "x"', "mcp", "mcp")]
)
async def test_a_package_that_is_not_installed_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, module: str, extra: str
) -> None:
    def import_module(name: str) -> None:
        assert name == f"opwire.{extra}.client"
        raise ModuleNotFoundError(name=f"{module}.inner")

    monkeypatch.setattr("opwire.config.sources.importlib.import_module", import_module)
    with pytest.raises(MissingExtraError, match=rf"package {module} is not installed.*pip install 'opwire\[{extra}\]'"):
        await opened(tmp_path, f"[sources.x]\n{settings}")


async def test_an_unusable_url_is_reported_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWIRE_SECRET", "hunter2")
    with pytest.raises(UsageError) as caught:
        await opened(tmp_path, '[sources.x]\nurl = "ftp://u:${OPWIRE_SECRET}@x.example"')
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("caller", "sent"), [("token", "t-ann"), ("keys.py:key_of", "key-of-ann")])
async def test_an_http_api_is_called_with_the_credential_of_each_caller(tmp_path: Path, caller: str, sent: str) -> None:
    keys = "def key_of(context):\n    return f'key-of-{context.identity.id}'"
    async with EchoServer() as server:
        server.on("/v1/pets", answer(200, b"[1, 2]", {"content-type": "application/json"}))
        toml = f'[sources.pets]\nopenapi = "pets.yaml"\nbase_url = "{server.url}/v1"\n'
        toml += f'credentials.key = {{ caller = "{caller}" }}'
        source = await opened(tmp_path, toml, pets_yaml=DOCUMENT, keys_py=keys)
        try:
            registry = OperationRegistry()
            registry.follow(source)
            context = with_caller_token(Context(identity=Identity(id="ann")), "t-ann")
            await registry.execute("pets.list_pets", {}, context)
            assert server.arrived[-1].header("x-api-key") == sent
        finally:
            await source.close()


async def test_a_token_of_an_http_api_is_requested_for_the_identity_of_each_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWIRE_SECRET", "s3cret")
    keys = "def assertion_of(identity):\n    return f'assertion-{identity.id}'"
    flow = "{ clientCredentials: { tokenUrl: URL/token, scopes: {} } }"
    document = f"""
openapi: 3.1.0
info: {{ title: me, version: "1" }}
security: [{{ caller: [] }}]
components: {{ securitySchemes: {{ caller: {{ type: oauth2, flows: {flow} }} }} }}
paths: {{ /me: {{ get: {{ operationId: me, responses: {{ "200": {{ description: Me. }} }} }} }} }}
"""
    async with AuthorizationServer() as issuer:
        issuer.subjects = {"assertion-ann": "ann"}
        client = '{ client_id = "robot", client_secret = "${OPWIRE_SECRET}", exchange = true, subject = "SUBJECT" }'
        toml = f'[sources.api]\nopenapi = "me.yaml"\nbase_url = "{issuer.url}"\ncredentials.caller = {client}'
        files = {"me_yaml": document.replace("URL", issuer.url), "keys_py": keys}
        source = await opened(tmp_path, toml.replace("SUBJECT", "keys.py:assertion_of"), **files)
        try:
            registry = OperationRegistry()
            registry.follow(source)
            found = await registry.execute("api.me", {}, Context(identity=Identity(id="ann")))
            assert found.data["name"] == "ann"
        finally:
            await source.close()
        with pytest.raises(ConfigError, match="expected a function"):
            await opened(tmp_path, toml.replace("SUBJECT", "assertion_of"), **files)
        with pytest.raises(ConfigError, match="needs exchange"):
            await opened(tmp_path, toml.replace("exchange = true, ", ""), **files)


async def test_an_mcp_server_is_called_with_the_token_of_each_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWIRE_TOKEN", "t-listing")
    registry, client = OperationRegistry(), OperationRegistry()

    @registry.query("who.am_i")
    async def am_i(context: Context) -> str:
        return context.identity.id if context.identity else ""

    app = serve_mcp(registry).asgi(authenticate=callback({f"t-{id}": Identity(id=id) for id in ("ann", "listing")}.get))
    async with listening(app) as address:
        toml = f'[sources.up]\nurl = "{address}/mcp"\nheaders = {{ Authorization = "Bearer ${{OPWIRE_TOKEN}}" }}\n'
        source = await opened(tmp_path, toml + 'auth = { caller = "token" }')
        try:
            client.follow(source)
            context = with_caller_token(Context(identity=Identity(id="ann")), "t-ann")
            assert (await client.execute("up.who_am_i", {}, context)).data == "ann"
        finally:
            await source.close()


def test_wrong_credentials_of_callers_are_named(tmp_path: Path) -> None:
    for auth, told in (
        ('{ caller = "tokn" }', "expected a function"),
        ('{ caller = "token", client_id = "x" }', "client_id"),
        ("{ login = true, exchange = true }", "exclude each other"),
    ):
        with pytest.raises(ConfigError, match=told):
            project(tmp_path, f'[sources.x]\nurl = "https://x.example/mcp"\nauth = {auth}')
    config = project(
        tmp_path, '[sources.x]\nurl = "https://x.example/mcp"\nauth = { client_id = "x", exchange = true }'
    )
    auth = cast("ServerSource", config.sources["x"]).auth
    assert isinstance(auth, ServerClient)
    assert auth.exchange
