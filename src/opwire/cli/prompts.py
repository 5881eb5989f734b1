"""Asks a person at a terminal for the required fields that the command line left out."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import click

from opwire.cli.arguments import from_text
from opwire.cli.fields import Field
from opwire.cli.outline import type_in_words, value_in_words
from opwire.cli.screen import harmless, one_line
from opwire.errors import SchemaError
from opwire.schema import Schema

_MAX_DEPTH = 4
_MAX_DEFAULT = 200  # characters of a default that a question shows


def complete_input(input: Any, schema: Schema) -> Any:
    """The input with its missing required fields, asked for one after the other."""
    field = Field(schema.json)
    if not field.required or not isinstance({} if input is None else input, dict):
        return input
    with _interruptible():
        return _completed(input or {}, field, schema, ())


def _completed(given: dict[str, Any], field: Field, schema: Schema, path: tuple[str, ...]) -> dict[str, Any]:
    completed = dict(given)
    for name in field.required:
        inner, here = field.field(name), (*path, name)
        known: Any = completed.get(name)
        if inner.required and (name not in completed or isinstance(known, dict)) and len(path) < _MAX_DEPTH:
            completed[name] = _completed(cast("dict[str, Any]", known or {}), inner, schema, here)
        elif name not in completed:
            completed[name] = _asked(inner, schema, here, {**completed})
    return completed


def _asked(field: Field, schema: Schema, path: tuple[str, ...], beside: dict[str, Any]) -> Any:
    """Ask until the schema accepts the answer; gives it."""
    default = _default(field)
    secret = field.first("format") == "password" or field.first("writeOnly") is True
    # click would show the default as it is; and an escaped one must not become the answer.
    shown = f" [{default[:_MAX_DEFAULT]}]" if default is not None and not secret else ""
    words = harmless(f"{'.'.join(path)} ({type_in_words(field)}){shown}").replace("\n", "\\n")
    about = one_line(str(field.first("description") or ""))
    if about:
        click.echo(about, err=True)
    while True:
        text = click.prompt(words, default=default, hide_input=secret, show_default=False, err=True, type=str)
        value = from_text(text, field)
        problem = _problem(value, path, schema, beside)
        if problem is None:
            return value
        click.echo(harmless(problem), err=True)


def _default(field: Field) -> str | None:
    default = field.first("default")
    return None if default is None else value_in_words(default)


def _problem(value: Any, path: tuple[str, ...], schema: Schema, beside: dict[str, Any]) -> str | None:
    """What the whole schema says of this place alone: it knows its references, this field by itself does not."""
    whole: Any = {**beside, path[-1]: value}
    for step in reversed(path[:-1]):
        whole = {step: whole}
    here = "/" + "/".join(step.replace("~", "~0").replace("/", "~1") for step in path)
    try:
        problems = schema.problems(whole)
    except SchemaError:  # the call says so
        return None
    found = [each for each in problems if each.path == here or each.path.startswith(f"{here}/")]
    return found[0].message if found else None


@contextmanager
def _interruptible() -> Generator[None]:
    """Let ^C end a question at once: asyncio's own handler would only ask a task to end, which waits for the answer."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
