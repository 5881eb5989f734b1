"""`opwire call` prints the result of an operation; `opwire watch` streams the items of a subscription."""

import asyncio
import os
import sys
from base64 import b64encode
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import structs

from opwire.cli import exit_codes
from opwire.cli.inputs import SchemaField, complete_input, from_text, read_input, type_name, value_text
from opwire.cli.options import (
    NumberRange,
    input_argument,
    operation_argument,
    result_options,
    shared_options,
    source_options,
)
from opwire.cli.screen import OutputFormat, Screen, Spinner, is_error, json_text, save, show
from opwire.cli.sources import Sources, cache_fields, run
from opwire.model.context import Context, Progress
from opwire.model.operation import OperationSpec, OperationType, PreparedRequest
from opwire.model.questions import Question, unanswerable
from opwire.registry import OperationRegistry
from opwire.runtime.deadlines import CALL_TIMEOUT
from opwire.runtime.text import harmless
from opwire.schema import Schema
from opwire.typed.plain import as_dict

_version = click.option(
    "--operation-version", "version", metavar="VERSION", help="The version of the operation, where several are served."
)


@click.command(name="call")
@operation_argument(subscriptions=False)
@input_argument
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Save the result to a file.")
@click.option("--timeout", type=NumberRange(min=0, min_open=True), help="Seconds to wait for the result.")
@_version
@click.option("--no-input", is_flag=True, help="Do not prompt for missing fields, or for answers.")
@click.option("--dry-run", is_flag=True, help="Print the request instead of sending it.")
@click.option("--curl", is_flag=True, help="Print the request of an HTTP API as a curl command instead of sending it.")
@click.option("--show-credentials", is_flag=True, help="Print credentials in the request, which are *** by default.")
@result_options
@source_options
@shared_options
@click.pass_obj
def call_command(
    screen: Screen,
    *,
    output: Path | None,
    form: OutputFormat,
    dry_run: bool,
    curl: bool,
    show_credentials: bool,
    **arguments: Any,
) -> int:
    """Call an operation and print its result.

    \b
    INPUT consists of
      count=5          typed by the schema: a number only if it accepts numbers
      filter.name=x    a nested field; lines.0.article=tea the field of an item
      tags=a tags=b    a list, also tags[]=a
      count:=5         JSON, ignoring the schema
      photo=@cat.png   the content of a file
      '{"count": 5}'   the whole input: JSON, @input.json, or - for standard input
    """
    if dry_run or curl:
        show_request(run(_call(screen, **arguments, preview=True, reveal=show_credentials)), screen, curl=curl)
        return exit_codes.OK
    envelope = run(_call(screen, **arguments))
    if output is None:
        show(envelope, form, screen)
    else:
        save(envelope, output, screen)
    if is_error(envelope):
        screen.note("the tool returned an error")
        return exit_codes.ERROR_RESULT
    return exit_codes.OK


async def _call(
    screen: Screen,
    *,
    operation_id: str,
    words: tuple[str, ...],
    sources: Sources,
    timeout: float | None,
    version: str | None,
    no_input: bool,
    preview: bool = False,
    reveal: bool = False,
) -> Any:
    """Return the envelope; with `preview`, the request."""
    async with sources.open(screen, operation_id) as loaded:
        spec = loaded.spec(operation_id)
        if spec.type is OperationType.SUBSCRIPTION:
            raise click.UsageError(f"{operation_id} is a subscription: use `opwire watch {operation_id}`")
        cache_fields(sources.key, spec)
        input = _input(spec, words, screen, no_input=no_input)
        if preview:
            if not isinstance(loaded.target, OperationRegistry):
                message = "--dry-run needs the source of the operation: use it where the source is, not --url"
                raise click.UsageError(message)
            return await loaded.target.preview(operation_id, input, reveal=reveal)
        async with loaded.client() as client:
            with Spinner(operation_id) as spinner:
                can_ask = screen.is_interactive and not no_input
                context = Context(
                    on_progress=lambda now: spinner.update(f"{operation_id}: {progress_text(now)}"),
                    on_question=TerminalAnswers(spinner, operation_id) if can_ask else None,
                )
                # A person takes longer to answer than a call.
                limit = timeout or spec.timeout or (CALL_TIMEOUT if can_ask else None)
                return await client.call_envelope(operation_id, input, timeout=limit, context=context, version=version)


def show_request(request: PreparedRequest, screen: Screen, *, curl: bool) -> None:
    """Print what a call would send."""
    from opwire.agents.snippets import curl_command, printable_body

    if curl and request.protocol != "http":
        raise click.UsageError("--curl is for operations of HTTP APIs; --dry-run prints the request of any operation")
    body = printable_body(request.body)
    if screen.as_json:
        encoded = None if request.body is None else {"base64": b64encode(request.body).decode()}
        screen.json({**structs.asdict(request), "body": encoded if body is None else body})
    elif request.protocol == "http":
        lines = [f"{request.method} {request.url}", *(f"{name}: {value}" for name, value in request.headers)]
        if request.body is not None:
            lines += ["", f"[{len(request.body):,} bytes of binary data]" if body is None else body]
        screen.line(curl_command(request) if curl else "\n".join(lines))
    else:
        screen.note(f"to the MCP server {request.url}" if request.url else "a local function: nothing would be sent")
        screen.line(json_text(msgspec.Raw(request.body or b"null"), indent=True))
    if any("***" in value for value in (request.url, *dict(request.headers).values())):
        screen.note("credentials are shown as ***; --show-credentials prints them")


def progress_text(now: Progress) -> str:
    """Return `1 of 2 halfway`."""
    share = f"{now.progress:g}" if now.total is None else f"{now.progress:g} of {now.total:g}"
    return f"{share} {now.message or ''}".rstrip()


def _input(spec: OperationSpec, words: tuple[str, ...], screen: Screen, *, no_input: bool) -> Any:
    input = read_input(words, SchemaField(spec.input_schema.json))
    return input if no_input or not screen.is_interactive else complete_input(input, spec.input_schema)


@click.command(name="watch")
@operation_argument(subscriptions=True)
@input_argument
@click.option("--count", type=click.IntRange(min=1), help="Stop after this number of items.")
@_version
@click.option("--resume", is_flag=True, help="Resume after a lost connection; the items need cursors.")
@click.option("--resume-from", metavar="CURSOR", help="Begin behind the item with this cursor: see --envelope.")
@click.option("--no-input", is_flag=True, help="Do not prompt for missing fields.")
@result_options
@source_options
@shared_options
@click.pass_obj
async def watch_command(
    screen: Screen,
    *,
    operation_id: str,
    words: tuple[str, ...],
    sources: Sources,
    form: OutputFormat,
    count: int | None,
    version: str | None,
    resume: bool,
    resume_from: str | None,
    no_input: bool,
) -> None:
    """Follow a subscription, item by item, until it ends or ^C stops it. INPUT is the same as for `opwire call`.

    In a pipe, --json and --envelope print one line of JSON per item.
    """
    async with sources.open(screen, operation_id) as loaded:
        spec = loaded.spec(operation_id)
        if spec.type is not OperationType.SUBSCRIPTION:
            raise click.UsageError(f"{operation_id} is a {spec.type.value}: use `opwire call {operation_id}`")
        cache_fields(sources.key, spec)
        input = _input(spec, words, screen, no_input=no_input)
        async with loaded.client() as client:
            stream = client.subscribe_envelopes(
                operation_id, input, version=version, resume=resume, resume_from=resume_from
            )
            async with aclosing(stream) as items:
                async for item in items:
                    show(item, form, screen)
                    count = None if count is None else count - 1
                    if count == 0:
                        return


# --- questions of operations ------------------------------------------------------------------------------------------
#
# They are answered at the terminal. Lines are read on the event loop, so that the call goes on meanwhile: its
# connections stay alive, its deadline ends it, and ^C cancels it. A thread that reads could not be interrupted, and
# would abort the interpreter at its end.

DECLINE = "!"
"""What a person enters instead of a value, to decline the whole form."""

_MAX_LINE_BYTES = 65_536  # a terminal ends lines after 4,096
_DECLINED_ANSWER = {"action": "decline"}


class TerminalAnswers:
    """Ask the person at the terminal; the spinner is paused meanwhile. One question at a time.

    A question is text of a server: the operation that asks is named, and the text indented, so that it cannot pose as a
    prompt of the system.
    """

    def __init__(self, spinner: Spinner, operation_id: str) -> None:
        self._spinner = spinner
        self._operation_id = operation_id
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
                click.echo(harmless(f"{self._operation_id} asks, and gets the answer:"), err=True)
                try:
                    if params.get("mode") != "url":
                        return await _ask_form(params)
                    # Accepting an address means to visit it.
                    click.echo(_quoted(f"{params.get('message', '')}\n{params.get('url', '')}"), err=True)
                    accepts = await _confirm("Do you open this address in a browser?")
                    return {"action": "accept"} if accepts else _DECLINED_ANSWER
                except EOFError:  # ^D
                    click.echo(err=True)
                    return {"action": "cancel"}


def _quoted(text: object) -> str:
    """Return text of a server, each line indented."""
    return "\n".join(f"  {line}" for line in harmless(str(text)).split("\n"))


async def _read_line(words: str) -> str:
    """Return a line that a person enters.

    Raises:
        EOFError: the input has ended.
    """
    click.echo(words, nl=False, err=True)
    loop, line, fd = asyncio.get_running_loop(), bytearray(), sys.stdin.fileno()
    end_of_input: asyncio.Future[None] = loop.create_future()

    def readable() -> None:
        chunk = os.read(fd, 4096)
        line.extend(chunk)
        if not end_of_input.done() and (not chunk or chunk.endswith(b"\n") or len(line) >= _MAX_LINE_BYTES):
            end_of_input.set_result(None)

    try:
        loop.add_reader(fd, readable)
    except (NotImplementedError, OSError):  # Windows, and terminals that cannot be polled
        line.extend(sys.stdin.readline().encode())
    else:
        try:
            await end_of_input
        finally:
            loop.remove_reader(fd)
    if not line:
        raise EOFError
    return line.decode(errors="replace").strip()


async def _confirm(message: str, default: bool | None = None) -> bool | None:
    """Return the answer to a question of yes or no; None if it is declined."""
    choices = {None: "y/n", True: "Y/n", False: "y/N"}[default]
    while True:
        text = (await _read_line(f"{message} [{choices}]: ")).lower()
        if text in ("y", "yes", "n", "no"):
            return text[0] == "y"
        if text == DECLINE:
            return None
        if not text and default is not None:
            return default


async def _ask_form(params: dict[str, Any]) -> dict[str, Any]:
    """Prompt for each field of a form until its value is valid."""
    message, json = _quoted(params.get("message", "")), as_dict(params.get("requestedSchema"))
    form = SchemaField(json)
    if not form.fields:
        return {"action": "accept", "content": {}} if await _confirm(message) else _DECLINED_ANSWER
    (name, field), *others = form.fields.items()
    if not others and field.kinds == ["boolean"]:
        default = field.first("default")
        decided = await _confirm(message, default if default in (True, False) else None)
        return _DECLINED_ANSWER if decided is None else {"action": "accept", "content": {name: decided}}
    click.echo(f"{message}\n({DECLINE} declines, ^D cancels)", err=True)
    schema, content = Schema({**json, "required": []}), dict[str, Any]()
    for name, field in form.fields.items():
        text = await _prompt(name, field, schema, is_required=name in form.required)
        if text == DECLINE:
            return _DECLINED_ANSWER
        if text:
            content[name] = from_text(text, field)
    return {"action": "accept", "content": content}


async def _prompt(name: str, field: SchemaField, schema: Schema, *, is_required: bool) -> str:
    """Return a valid text for a field; an empty one if it is optional, and left out."""
    default_value = field.first("default")
    default = "" if default_value is None else value_text(default_value)
    words = _quoted(f"{field.first('title') or name} ({type_name(field)}){f' [{default}]' if default else ''}: ")
    if about := field.first("description"):
        click.echo(_quoted(about), err=True)
    while True:
        text = await _read_line(words) or default
        if text == DECLINE or (not text and not is_required):
            return text
        problems = schema.problems({name: from_text(text, field)}, limit=1)
        if text and not problems:
            return text
        if problems:
            click.echo(_quoted(problems[0].message), err=True)
