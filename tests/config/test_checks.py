"""What is wrong between several settings."""

import pytest

from opwire.config.reading import parse_config

IDENTITY = "[identities.guest]\n"


def problems(text: str) -> list[str]:
    return [f"{each.key}: {each.message}" for each in parse_config(text)[1]]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[sources.a]\nurl = "https://x.example"\nheaders = { Authorization = "Bearer x" }', "headers.Authorization"),
        ('[sources.a]\nopenapi = "x.yaml"\nheaders = { x-api-key = "x" }', "headers.x-api-key"),
        ('[sources.a]\nurl = "https://user:pass@x.example"', "url"),
        ('[sources.a]\nopenapi = "x.yaml"\nbase_url = "https://user:pass@x.example"', "base_url"),
        ('[sources.a]\nopenapi = "x.yaml"\nproxy = "http://user:pass@x.example"', "proxy"),
        ('[sources.a]\nopenapi = "x.yaml"\ncredentials = { key = "hunter2" }', "credentials.key"),
    ],
)
def test_a_secret_in_the_file_is_a_problem(text: str, key: str) -> None:
    (problem,) = parse_config(text)[1]
    assert problem.key == f"sources.a.{key}"
    assert problem.message.endswith("secrets do not belong in a file")
    assert "${NAME}" in problem.suggestion
    assert "hunter2" not in str(problem)


def test_secrets_from_the_environment_are_fine_wherever_they_stand() -> None:
    assert problems('[sources.a]\nurl = "https://u:${P}@x"\nheaders = { Authorization = "Bearer ${T}", A = "b" }') == []
    assert problems('[spoke]\nurl = ["redis://:${P}@x.example", "http://[bad"]') == []


def test_passwords_of_hubs_and_brokers_are_not_in_the_file_either() -> None:
    assert problems('[spoke]\nurl = "redis://:x@x.example"') == [
        "spoke.url: contains a password: secrets do not belong in a file"
    ]
    assert problems('[hub]\nurl = "nats://u:x@x.example"')[0].startswith("hub.url: contains a password")
    assert problems('[hub]\ncluster = "nats://u:x@x.example"')[0].startswith("hub.cluster: contains a password")


def test_a_source_needs_a_name_that_can_be_a_namespace_unless_it_gives_one() -> None:
    (problem,) = parse_config('[sources."a.b"]\ncommand = "x"')[1]
    assert (problem.key, problem.suggestion) == ('sources."a.b"', 'write namespace = "…"')
    assert problems('[sources."a.b"]\ncommand = "x"\nnamespace = "ab"') == []
    assert problems('[sources.a]\nopenapi = "x"\nnamespace = "a.b"')[0].startswith(
        "sources.a.namespace: invalid namespace"
    )
    assert problems('[sources.a]\nopenapi = "x"\nnamespace = ""') == []  # from its title
    assert problems('[sources.a]\ncommand = "x"\nnamespace = ""')[0].startswith(
        "sources.a.namespace: invalid namespace"
    )
    assert problems('[sources."a.b"]\npython = "x"') == []  # its operations have the ids that the code gives them


def test_a_whole_command_line_is_not_a_program() -> None:
    (problem,) = parse_config('[sources.a]\ncommand = "uvx mcp-server-time --token hunter2"')[1]
    assert (problem.key, problem.message) == ("sources.a.command", "expected a program without arguments")
    assert problem.suggestion == 'write command = "uvx", and the rest as args = ["…", "…"]'
    assert problems('[sources.a]\ncommand = "/opt/my tools/server"') == []


@pytest.mark.parametrize("command", ["", " "])
def test_a_source_needs_a_program(command: str) -> None:
    assert problems(f'[sources.a]\ncommand = "{command}"') == ["sources.a.command: empty command"]


@pytest.mark.parametrize(
    "key",
    ["serve.mcp.anonymous", "serve.mcp.stdio_identity", "serve.http.anonymous", "hub.anonymous", "spoke.anonymous"],
)
def test_an_identity_that_is_used_has_to_be_there(key: str) -> None:
    table, _, name = key.rpartition(".")
    url = 'url = "ws://x"\n' if table == "spoke" else ""
    text = f'[{table}]\n{url}{name} = "gest"\n'
    (problem,) = parse_config(text + IDENTITY)[1]
    assert (problem.key, problem.suggestion) == (key, "did you mean `guest`?")
    (problem,) = parse_config(text)[1]
    assert problem.suggestion == "add [identities.gest]"
    assert problems(text.replace("gest", "guest") + IDENTITY) == []


def test_signed_tokens_need_one_key_and_keys_come_over_a_safe_way() -> None:
    jwt = '[auth.jwt]\nalgorithms = ["ES256"]\naudience = "a"\nissuer = "i"\n'
    assert problems(jwt) == ["auth.jwt: the key is missing"]
    assert problems(jwt + 'key_file = "a"\njwks_url = "https://a"') == [
        "auth.jwt: the keys key_file and jwks_url exclude each other"
    ]
    assert problems(jwt + 'jwks_url = "http://id.example"') == ["auth.jwt.jwks_url: must be https://"]
    assert problems(jwt + 'jwks_url = "http://127.0.0.1:1/keys"') == []
    assert problems(jwt + 'key = "hunter2"') == ["auth.jwt.key: secrets do not belong in a file"]


def test_a_hub_with_tls_needs_certificate_and_key() -> None:
    assert problems('[hub]\nurl = "wss://x"') == ["hub.url: wss:// needs a certificate"]
    assert problems('[hub]\ncertificate = "a"') == ["hub: missing key `private_key`"]
    assert problems('[hub]\nprivate_key = "a"') == ["hub: missing key `certificate`"]
    assert problems('[hub]\nurl = "wss://x"\ncertificate = "a"\nprivate_key = "b"') == []


def test_a_spoke_without_a_url_is_a_problem() -> None:
    assert problems("[spoke]\nurl = []") == ["spoke.url: empty array"]
