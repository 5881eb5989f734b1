"""Operations as MCP prompts: list them, and return their messages. No I/O."""

from collections.abc import Iterator
from typing import Any, cast

from opwire.dispatch import Dispatcher
from opwire.envelope import MCPResponseMeta, ResponseEnvelope
from opwire.errors import CallError, ErrorCode
from opwire.operation import Identity, OperationSpec
from opwire.serve.mcp.resources import definition_of
from opwire.serve.mcp.tools import Result, forwarded_fields
from opwire.tools import ToolNames, data_block, encode_data
from opwire.typed.plain import as_dict, as_list

MAX_MESSAGES = 10_000
"""Messages of one prompt."""

_BEFORE_NAME = "prompts/"  # in the names of operations that are prompts of another server
_ROLES = ("user", "assistant")


class PromptCatalogue:
    """The prompts of a surface. Their names are made as those of tools, of a set of their own."""

    def __init__(self, dispatcher: Dispatcher, *, max_name: int) -> None:
        self._dispatcher = dispatcher
        self._names = ToolNames(max_name=max_name)
        self._short: dict[str, str] = {}  # what names are made of, by operation id
        self._ids: dict[str, str] = {}  # the reverse
        self._named_at = -1

    def find(self, name: str) -> OperationSpec | None:
        """Return the prompt of this name, regardless of the caller, or None."""
        self._name_all()
        id = self._ids.get(self._names.operation_id(name) or "")
        return None if id is None else self._dispatcher.registry.get_spec(id)

    def entries(self, identity: Identity | None) -> list[Result]:
        """Return all prompts that a caller may use, in the order of registration."""
        self._name_all()
        found: list[Result] = []
        for spec in self._dispatcher.visible(identity):
            if spec.id not in self._short:
                continue
            entry = definition_of(spec, name=self._names[self._short[spec.id]])
            arguments: list[Result] = []
            schema = as_dict(spec.input_schema.json)
            required = as_list(schema.get("required"))
            for name, each in as_dict(schema.get("properties")).items():
                about = as_dict(each)
                texts = {key: text for key in ("title", "description") if isinstance(text := about.get(key), str)}
                arguments.append({"name": name, **texts, "required": name in required})
            found.append({**entry, "arguments": arguments} if arguments else entry)
        return found

    def _name_all(self) -> None:
        """Name every prompt, if the registry has changed: `library.prompts/review` is `library_review`."""
        changes = self._dispatcher.registry.changes
        if self._named_at == changes:
            return
        prompts = [spec for spec in self._dispatcher.served() if spec.role == "prompt"]
        ids = {spec.id for spec in prompts}
        self._short = {}
        for spec in prompts:
            short = f"{spec.namespace}.{spec.name.removeprefix(_BEFORE_NAME)}"
            self._short[spec.id] = spec.id if short in ids else short
        self._ids = {short: id for id, short in self._short.items()}
        self._names.keep(self._ids)
        self._names.add(self._ids)
        self._named_at = changes


def prompt_result(envelope: ResponseEnvelope[Any], spec: OperationSpec) -> Result:
    """Return the result of `prompts/get`.

    Raises:
        CallError: EXECUTION_ERROR, if the data is not made of messages.
    """
    meta = envelope.meta
    if isinstance(meta, MCPResponseMeta) and "messages" in as_dict(envelope.data):
        data, fields = encode_data([envelope.data, forwarded_fields(meta)], spec.id).data
        return {**data, **fields}
    result: Result = {"description": spec.description} if spec.description else {}
    given: Any = envelope.data
    if isinstance(given, dict) and "messages" in given:
        result |= {key: value for key, value in as_dict(encode_data(given, spec.id).data).items() if key != "messages"}
        given = as_dict(given)["messages"]
    messages = _listed(given)
    if len(messages) > MAX_MESSAGES:
        raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, f"{spec.id}: more than {MAX_MESSAGES:,} messages")
    return {**result, "messages": [each for message in messages for each in _messages_of(message, spec.id)]}


def _messages_of(message: Any, label: str) -> Iterator[Result]:
    """Yield a message for each content block: a revision before 2026-07-28 has one in a message."""
    role, content = "user", message
    if isinstance(message, dict) and "role" in message:
        role, content = as_dict(message).get("role"), as_dict(message).get("content")
        if role not in _ROLES:
            raise CallError(ErrorCode.EXECUTION_ERROR, f"{label}: the role of a message is user or assistant")
    for each in _listed(content):
        encoded = encode_data(each, label)
        is_block = isinstance(each, dict) and isinstance(as_dict(each).get("type"), str)
        yield {"role": role, "content": encoded.data if is_block else data_block(each, encoded.json, label)}


def _listed(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else [value]
