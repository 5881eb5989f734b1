"""Strings with parts from the environment."""

import pytest

from opwire.config.settings import EnvText, Secret
from opwire.errors import ConfigError


def test_variables_are_replaced_where_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWIRE_A", "one")
    monkeypatch.setenv("OPWIRE_B", "${OPWIRE_A}")
    assert EnvText("Bearer ${OPWIRE_A}, ${env:OPWIRE_A}").resolve("key") == "Bearer one, one"
    assert EnvText("${OPWIRE_B}").resolve("key") == "${OPWIRE_A}"  # what a variable holds is not looked into
    assert EnvText("$OPWIRE_A {OPWIRE_A} $$").resolve("key") == "$OPWIRE_A {OPWIRE_A} $$"


def test_a_default_is_for_a_variable_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPWIRE_A", raising=False)
    text = EnvText("${OPWIRE_A:-127.0.0.1}:80${OPWIRE_A:-}")
    assert text.resolve("key") == "127.0.0.1:80"
    assert text.missing == ()
    monkeypatch.setenv("OPWIRE_A", "")
    assert text.resolve("key") == ":80"


def test_every_variable_that_is_not_set_is_named_with_the_key_that_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPWIRE_A", "OPWIRE_B"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"^sources\.x\.url: the environment variable OPWIRE_A is not set"):
        EnvText("${OPWIRE_A}").resolve("sources.x.url")
    with pytest.raises(ConfigError, match="variables OPWIRE_A and OPWIRE_B are not set"):
        EnvText("${OPWIRE_A}${OPWIRE_B}${OPWIRE_A}").resolve("key")


def test_a_repr_names_the_variables_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWIRE_A", "hunter2")
    assert repr(EnvText("user:pass ${OPWIRE_A}")) == "EnvText(${OPWIRE_A})"
    assert repr(Secret("${OPWIRE_A}")) == "Secret(${OPWIRE_A})"
    assert repr(EnvText("plain")) == "EnvText(…)"


@pytest.mark.parametrize("template", ["${OPWIRE-A}", "${}", "${OPWIRE_A", "a ${1A}"])
def test_a_placeholder_that_names_no_variable_is_a_mistake_and_not_text(template: str) -> None:
    problem, suggestion = EnvText(template).problem or ("", "")
    assert (problem, suggestion) == ('invalid placeholder after "${"', "write ${NAME}")


@pytest.mark.parametrize("template", ["hunter2", "", "${OPWIRE_A:-hunter2}"])
def test_a_secret_that_does_not_come_from_the_environment_is_a_mistake(template: str) -> None:
    problem, _ = Secret(template).problem or ("", "")
    assert problem == "secrets do not belong in a file"
    assert EnvText(template).problem is None
    assert Secret("Bearer ${OPWIRE_A}").problem is None
