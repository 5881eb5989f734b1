"""Questions of operations, answered at the terminal.

Lines are read on the event loop, so that the call goes on meanwhile: its connections stay alive, its deadline ends it,
and ^C cancels it. A thread that reads could not be interrupted, and would abort the interpreter at its end.
"""

import asyncio
import os
import sys
from typing import Any

import click

from opwire.cli.inputs import SchemaField, from_text, type_name, value_text
from opwire.cli.screen import Spinner
from opwire.questions import Question, unanswerable
from opwire.schema import Schema
from opwire.typed.plain import as_dict, harmless

DECLINE = "!"
"""What a person enters instead of a value, to decline the whole form."""

_LONGEST_LINE = 65_536  # bytes; a terminal ends lines after 4,096
_DECLINED = {"action": "decline"}


class TerminalAnswers:
    """Ask the person at the terminal; the spinner is paused meanwhile. One question at a time."""

    def __init__(self, spinner: Spinner) -> None:
        self._spinner = spinner
        self._one = asyncio.Lock()

    async def __call__(self, question: Question) -> dict[str, Any]:
        """Return the answer to a form or an address.

        Raises:
            CallError: ABORTED, a terminal cannot answer this kind of question.
        """
        if question.kind != "elicit":
            raise unanswerable(question, "which a terminal cannot answer")
        params = question.params
        async with self._one:
            with self._spinner.paused():
                try:
                    if params.get("mode") != "url":
                        return await _ask_form(params)
                    # Accepting an address means to visit it.
                    click.echo(harmless(f"{params.get('message', '')}\n{params.get('url', '')}"), err=True)
                    accepts = await _confirm("Do you open this address in a browser?")
                    return {"action": "accept"} if accepts else _DECLINED
                except EOFError:  # ^D
                    click.echo(err=True)
                    return {"action": "cancel"}


async def _read_line(words: str) -> str:
    """Return a line that a person enters.

    Raises:
        EOFError: the input has ended.
    """
    click.echo(words, nl=False, err=True)
    loop, line, fd = asyncio.get_running_loop(), bytearray(), sys.stdin.fileno()
    ended: asyncio.Future[None] = loop.create_future()

    def readable() -> None:
        chunk = os.read(fd, 4096)
        line.extend(chunk)
        if not ended.done() and (not chunk or chunk.endswith(b"\n") or len(line) >= _LONGEST_LINE):
            ended.set_result(None)

    try:
        loop.add_reader(fd, readable)
    except (NotImplementedError, OSError):  # Windows, and terminals that cannot be polled
        line.extend(sys.stdin.readline().encode())
    else:
        try:
            await ended
        finally:
            loop.remove_reader(fd)
    if not line:
        raise EOFError
    return line.decode(errors="replace").strip()


async def _confirm(message: str, default: bool | None = None) -> bool:
    choices = {None: "y/n", True: "Y/n", False: "y/N"}[default]
    while True:
        text = (await _read_line(f"{message} [{choices}]: ")).lower()
        if text in ("y", "yes", "n", "no"):
            return text[0] == "y"
        if not text and default is not None:
            return default


async def _ask_form(params: dict[str, Any]) -> dict[str, Any]:
    """Prompt for each field of a form until its value is valid."""
    message, json = harmless(str(params.get("message", ""))), as_dict(params.get("requestedSchema"))
    form = SchemaField(json)
    if not form.fields:
        return {"action": "accept", "content": {}} if await _confirm(message) else _DECLINED
    (name, field), *others = form.fields.items()
    if not others and field.kinds == ["boolean"]:
        default = field.first("default")
        return {
            "action": "accept",
            "content": {name: await _confirm(message, default if default in (True, False) else None)},
        }
    click.echo(f"{message}\n({DECLINE} declines, ^D cancels)", err=True)
    schema, content = Schema({**json, "required": []}), dict[str, Any]()
    for name, field in form.fields.items():
        text = await _prompt(name, field, schema, is_required=name in form.required)
        if text == DECLINE:
            return _DECLINED
        if text:
            content[name] = from_text(text, field)
    return {"action": "accept", "content": content}


async def _prompt(name: str, field: SchemaField, schema: Schema, *, is_required: bool) -> str:
    """Return a valid text for a field; an empty one if it is optional, and left out."""
    given = field.first("default")
    default = "" if given is None else value_text(given)
    words = harmless(f"{field.first('title') or name} ({type_name(field)}){f' [{default}]' if default else ''}: ")
    if about := field.first("description"):
        click.echo(harmless(str(about)), err=True)
    while True:
        text = await _read_line(words) or default
        if text == DECLINE or (not text and not is_required):
            return text
        problems = schema.problems({name: from_text(text, field)}, limit=1)
        if text and not problems:
            return text
        if problems:
            click.echo(harmless(problems[0].message), err=True)
