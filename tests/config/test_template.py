"""The file that `opwire init` writes."""

import re

from opwire.config import TEMPLATE, Config
from opwire.config.reading import parse_config
from opwire.config.settings import OpenAPISettings, ProgramSource, PythonSource, ServersFileSource, ServerSource


def test_the_template_is_valid_unchanged_and_configures_nothing() -> None:
    """The file that `opwire init` writes is valid, unchanged and with every example in use."""
    assert parse_config(TEMPLATE) == (Config(), ())


def test_every_example_of_the_template_is_valid() -> None:
    config, mistakes = parse_config(re.sub(r"^#(?=[^\s#])", "", TEMPLATE, flags=re.MULTILINE))
    assert mistakes == ()
    assert config is not None
    kinds = [PythonSource, ProgramSource, ServerSource, ServersFileSource, OpenAPISettings]
    assert [type(each) for each in config.sources.values()] == kinds
    assert None not in (config.serve.mcp, config.serve.http, config.hub, config.spoke, config.auth.jwt)
    assert list(config.identities) == ["alice", "guest"]


def test_the_template_has_no_line_that_an_editor_would_wrap() -> None:
    assert max(map(len, TEMPLATE.splitlines())) <= 120
    assert TEMPLATE.endswith("\n")
