"""What is wrong between several settings."""

import pytest

from opwire.config.reading import parse_config
from tests.requirements import requirement

IDENTITY = "[identities.guest]\n"


def mistakes(text: str) -> list[str]:
    return [f"{each.key} {each.problem}" for each in parse_config(text)[1]]


@requirement("config.secrets")
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
def test_a_secret_in_the_file_is_a_mistake(text: str, key: str) -> None:
    (mistake,) = parse_config(text)[1]
    assert mistake.key == f"sources.a.{key}"
    assert mistake.problem.endswith("is a secret, and does not belong in a file")
    assert "${NAME}" in mistake.suggestion
    assert "hunter2" not in str(mistake)


def test_secrets_from_the_environment_are_fine_wherever_they_stand() -> None:
    assert mistakes('[sources.a]\nurl = "https://u:${P}@x"\nheaders = { Authorization = "Bearer ${T}", A = "b" }') == []
    assert mistakes('[spoke]\nurl = ["redis://:${P}@x.example", "http://[bad"]') == []


def test_passwords_of_hubs_and_brokers_do_not_stand_in_the_file_either() -> None:
    assert mistakes('[spoke]\nurl = "redis://:x@x.example"') == [
        "spoke.url holds a password, which is a secret, and does not belong in a file"
    ]
    assert mistakes('[hub]\nurl = "nats://u:x@x.example"')[0].startswith("hub.url holds a password")


def test_a_source_needs_a_name_that_can_be_a_namespace_unless_it_gives_one() -> None:
    (mistake,) = parse_config('[sources."a.b"]\ncommand = "x"')[1]
    assert (mistake.key, mistake.suggestion) == ('sources."a.b"', 'write namespace = "…"')
    assert mistakes('[sources."a.b"]\ncommand = "x"\nnamespace = "ab"') == []
    assert mistakes('[sources.a]\nopenapi = "x"\nnamespace = "a.b"')[0].startswith("sources.a.namespace is no")
    assert mistakes('[sources."a.b"]\npython = "x"') == []  # its operations have the ids that the code gives them


def test_a_whole_command_line_is_not_a_program() -> None:
    (mistake,) = parse_config('[sources.a]\ncommand = "uvx mcp-server-time --token hunter2"')[1]
    assert (mistake.key, mistake.problem) == ("sources.a.command", "is the program alone")
    assert mistake.suggestion == 'write command = "uvx", and the rest as args = ["…", "…"]'
    assert mistakes('[sources.a]\ncommand = "/opt/my tools/server"') == []


@pytest.mark.parametrize("command", ["", " "])
def test_a_source_needs_a_program(command: str) -> None:
    assert mistakes(f'[sources.a]\ncommand = "{command}"') == ["sources.a.command is empty"]


@pytest.mark.parametrize(
    "key", ["serve.mcp.anonymous", "serve.mcp.identity", "serve.http.anonymous", "hub.anonymous", "spoke.anonymous"]
)
def test_an_identity_that_is_used_has_to_be_there(key: str) -> None:
    table, _, name = key.rpartition(".")
    url = 'url = "ws://x"\n' if table == "spoke" else ""
    text = f'[{table}]\n{url}{name} = "gest"\n'
    (mistake,) = parse_config(text + IDENTITY)[1]
    assert (mistake.key, mistake.suggestion) == (key, "did you mean guest?")
    (mistake,) = parse_config(text)[1]
    assert mistake.suggestion == "add [identities.gest]"
    assert mistakes(text.replace("gest", "guest") + IDENTITY) == []


def test_signed_tokens_need_one_key_and_keys_come_over_a_safe_way() -> None:
    jwt = '[auth.jwt]\nalgorithms = ["ES256"]\naudience = "a"\nissuer = "i"\n'
    assert mistakes(jwt) == ["auth.jwt has no key"]
    assert mistakes(jwt + 'key_file = "a"\njwks_url = "https://a"') == ["auth.jwt has key_file and jwks_url"]
    assert mistakes(jwt + 'jwks_url = "http://id.example"') == ["auth.jwt.jwks_url is not https://"]
    assert mistakes(jwt + 'jwks_url = "http://127.0.0.1:1/keys"') == []
    assert mistakes(jwt + 'key = "hunter2"') == ["auth.jwt.key is a secret, and does not belong in a file"]


def test_a_hub_with_tls_needs_certificate_and_key() -> None:
    assert mistakes('[hub]\nurl = "wss://x"') == ["hub.url is wss://, which needs a certificate"]
    assert mistakes('[hub]\ncertificate = "a"') == ["hub has no private_key"]
    assert mistakes('[hub]\nprivate_key = "a"') == ["hub has no certificate"]
    assert mistakes('[hub]\nurl = "wss://x"\ncertificate = "a"\nprivate_key = "b"') == []


def test_a_spoke_without_a_url_is_a_mistake() -> None:
    assert mistakes("[spoke]\nurl = []") == ["spoke.url is an empty list"]
