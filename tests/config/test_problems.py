"""Messages of problems."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from opwire.config.reading import problems_message
from opwire.config.settings import ConfigProblem, dotted, similar_keys

ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=6)


def test_a_problem_is_its_line_its_key_the_message_and_a_suggestion() -> None:
    assert str(ConfigProblem(("a", "b"), "unknown key", "remove it", 3)) == "line 3, a.b: unknown key; remove it"
    assert str(ConfigProblem(("a",), "unknown key")) == "a: unknown key"
    assert str(ConfigProblem((), "invalid TOML", line=2)) == "line 2: invalid TOML"
    assert str(ConfigProblem((), "invalid TOML")) == "invalid TOML"


def test_one_problem_is_one_line_and_several_are_a_list() -> None:
    one = ConfigProblem(("a",), "unknown key", line=1)
    assert problems_message("opwire.toml", [one]) == "opwire.toml: line 1, a: unknown key"
    assert problems_message("opwire.toml", [one, one]) == (
        "opwire.toml has 2 problems:\n  line 1, a: unknown key\n  line 1, a: unknown key"
    )


def test_only_words_that_come_close_are_suggested() -> None:
    assert similar_keys("timout", ["timeout", "required"]) == "did you mean `timeout`?"
    assert similar_keys("xyz", ["timeout"]) == ""


def test_places_in_lists_are_counted_in_brackets() -> None:
    assert dotted(("sources", "my shop", "args", 2)) == 'sources."my shop".args[2]'


@given(st.lists(ASCII, min_size=1, max_size=4))
def test_a_key_is_written_as_toml_writes_it(names: list[str]) -> None:
    found = tomllib.loads(f"{dotted(tuple(names))} = 1")
    for name in names:
        found = found[name]
    assert found == 1


def test_a_message_shows_the_first_of_many_problems() -> None:
    message = problems_message("opwire.toml", [ConfigProblem((f"k{i}",), "unknown key") for i in range(1_000)])
    assert message.startswith("opwire.toml has 1000 problems:\n  k0: unknown key\n")
    assert message.endswith("\n  k19: unknown key\n  and 980 more")
