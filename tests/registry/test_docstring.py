"""Descriptions of parameters in docstrings."""

import time

import pytest

from opwire.registry.signature import parse_docstring

GOOGLE = """Order articles.

    More about it.

    Args:
        lines: What to order,
            line by line.
        currency (str, optional): The currency: EUR or USD.
        *rest: Others.
        nothing

    Returns:
        The total.
    """

NUMPY = """Order articles.

    Parameters
    ----------
    lines : list of str
        What to order,
        line by line.
    a, b : int
        Two numbers.
    bare

    Returns
    -------
    float
        The total.
    """

REST = """Order articles.

    :param lines: What to order,
        line by line.
    :param str currency: The currency: EUR or USD.
    :type lines: list
    :returns: The total.
    """


def test_google_style() -> None:
    text, parameters = parse_docstring(GOOGLE)
    assert text == "Order articles.\n\nMore about it.\n\nReturns:\n    The total."
    assert parameters == {
        "lines": "What to order, line by line.",
        "currency": "The currency: EUR or USD.",
        "rest": "Others.",
    }


def test_numpy_style() -> None:
    text, parameters = parse_docstring(NUMPY)
    assert text == "Order articles.\n\nReturns\n-------\nfloat\n    The total."
    assert parameters == {"lines": "What to order, line by line.", "a": "Two numbers.", "b": "Two numbers."}


def test_rest_style() -> None:
    text, parameters = parse_docstring(REST)
    assert text == "Order articles.\n\n:returns: The total."
    assert parameters == {"lines": "What to order, line by line.", "currency": "The currency: EUR or USD."}


@pytest.mark.parametrize(
    "text",
    ["", "One line.", "Args:", "x\n\nArgs:\n    see below", "Parameters\n----------", "Note: this\nArgs: inline"],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert parse_docstring(text) == (text, {})


def test_a_long_docstring_takes_linear_time() -> None:
    began = time.process_time()
    for hostile in ("Args:\n" + "    a: b\n" * 20_000, "(" * 100_000, ":param " + "x " * 50_000, " \n" * 50_000):
        parse_docstring(hostile)
    assert time.process_time() - began < 20  # quadratic time would be minutes
