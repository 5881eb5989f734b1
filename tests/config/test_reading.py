"""From a file to settings, or to everything that is wrong with it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.config import find_config, load_config, read_config
from opwire.config.reading import parse_config
from opwire.config.settings import (
    ClientCredential,
    EnvText,
    OpenAPISettings,
    ProgramSource,
    PythonSource,
    Secret,
    ServersFileSource,
    ServerSource,
    UserCredential,
)
from opwire.errors import ConfigError, OpwireError

WRONG = """\
[registry]
normalize = "fits"

[sources.shop]
pyton = "shop:registry"

[sources.api]
openapi = "api.yaml"
timout = 3
credentials = { token = "hunter2" }

[serve.http]
port = "80"
anonymous = "gest"

[identities.guest]
"""


def test_each_kind_of_source_is_recognized_by_its_own_key() -> None:
    config, problems = parse_config(
        """
        [sources]
        a.python = "shop:registry"
        b = { command = "uvx", args = ["x"], env = { KEY = { env = "KEY" } } }
        c.url = "https://x.example"
        d.mcp_servers = "servers.json"
        [sources.e]
        openapi = "e.yaml"
        required = true
        [sources.e.credentials]
        key = { env = "KEY" }
        basic = { user = "u", password = "${P}" }
        oauth = { client_id = "c", client_secret = "${S}", scopes = ["a"] }
        """
    )
    assert problems == ()
    assert config is not None
    credentials = {
        "key": Secret("${KEY}"),
        "basic": UserCredential(user=EnvText("u"), password=Secret("${P}")),
        "oauth": ClientCredential(client_id=EnvText("c"), client_secret=Secret("${S}"), scopes=("a",)),
    }
    assert config.sources == {
        "a": PythonSource(python="shop:registry"),
        "b": ProgramSource(command=EnvText("uvx"), args=(EnvText("x"),), env={"KEY": EnvText("${KEY}")}),
        "c": ServerSource(url=EnvText("https://x.example")),
        "d": ServersFileSource(mcp_servers=EnvText("servers.json")),
        "e": OpenAPISettings(openapi=EnvText("e.yaml"), required=True, credentials=credentials),
    }


def test_every_problem_of_a_file_is_reported_at_once_with_its_line_and_key(tmp_path: Path) -> None:
    path = tmp_path / "opwire.toml"
    path.write_text(WRONG)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).splitlines() == [
        f"{path} has 6 problems:",
        '  line 2, registry.normalize: expected one of "fit", "cast", "check", "off", got "fits"; did you mean `fit`?',
        "  line 5, sources.shop.pyton: unknown key; did you mean `python`?",
        "  line 9, sources.api.timout: unknown key; did you mean `load_timeout` or `call_timeout`?",
        "  line 10, sources.api.credentials.token: secrets do not belong in a file; "
        'write "${NAME}", and set NAME in the environment',
        "  line 13, serve.http.port: expected `integer`, got `string`",
        "  line 14, serve.http.anonymous: unknown identity 'gest'; did you mean `guest`?",
    ]


def test_a_misspelt_table_has_the_line_of_its_first_header(tmp_path: Path) -> None:
    path = tmp_path / "opwire.toml"
    path.write_text("[registry]\n\n[source.shop]\npython = 'shop.py'\n")
    _, (problem,) = read_config(path)
    assert str(problem) == "line 3, source: unknown key; did you mean `sources`?"


def test_problems_can_be_had_as_data(tmp_path: Path) -> None:
    path = tmp_path / "opwire.toml"
    path.write_text("[limits]\nrate = 0\n")
    config, (problem,) = read_config(path)
    assert config is None
    assert (problem.key, problem.line) == ("limits.rate", 2)


def test_what_is_wrong_inside_a_table_hides_what_would_only_follow_from_it() -> None:
    jwt = '[auth.jwt]\nalgorithms = ["ES256"]\naudience = "a"\nissuer = "i"\nkey = 5\n'
    assert [each.key for each in parse_config(jwt)[1]] == ["auth.jwt.key"]


def test_a_text_that_is_not_toml_is_reported_with_its_line() -> None:
    (problem,) = parse_config('[sources]\na = "b\n')[1]
    assert problem.line == 2
    assert str(problem).startswith("line 2: invalid TOML: illegal character")
    (problem,) = parse_config('a = """')[1]
    assert str(problem).startswith("invalid TOML")
    _, [problem] = parse_config(f"n = {'9' * 5_000}")
    assert str(problem) == "invalid TOML: a number has too many digits"


@given(st.text(st.sampled_from("ab=[]{}.,\"'#\n ${}1"), max_size=60))
def test_no_text_whatsoever_makes_it_raise(text: str) -> None:
    config, problems = parse_config(text)
    assert (config is None) == bool(problems)


def test_a_file_that_is_nested_too_deep_is_a_problem() -> None:
    (problem,) = parse_config("a = " + "[" * 10_000)[1]
    assert "nested too deep" in problem.message


@pytest.mark.parametrize(
    ("content", "message"), [(None, "no such file; `opwire init`"), (b"a = '\xff'", "invalid UTF-8 at byte 5")]
)
def test_a_file_that_cannot_be_read_is_an_error_that_says_why(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "opwire.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OpwireError, match=message):
        load_config(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "opwire.toml"
    path.write_bytes(b"\xef\xbb\xbf[limits]\nburst = 7\n")
    config = load_config(path)
    assert (config.limits.burst, config.file) == (7, path)


def test_where_a_file_is_does_not_depend_on_where_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "opwire.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    config = load_config()
    monkeypatch.chdir("/")
    assert (config.file, config.folder) == (tmp_path / "opwire.toml", tmp_path)


def test_the_nearest_file_is_found(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "opwire.toml").write_text("")
    assert find_config(inner) == tmp_path / "opwire.toml"
    (inner / "opwire.toml").write_text("")
    assert find_config(inner) == inner / "opwire.toml"


def test_without_a_file_none_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwire.config.reading.NAME", "no-such-opwire.toml")
    assert find_config(tmp_path) is None
