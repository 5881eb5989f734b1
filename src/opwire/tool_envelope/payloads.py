"""The payloads that ToolEnvelope V1 documents, as types, and an error's text for people.

These are views: fields that are not known here are passed over, and kinds, classes and categories are plain strings,
so that a newer producer can still be read. On the wire the names are camelCase; an optional field that is None is
left out.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from opwire.content import TextBlock
from opwire.tool_envelope.block import encode_blocks

_LABELS: Mapping[str, str] = MappingProxyType(
    {
        "validation": "❌ Validation error",
        "execution": "\N{WARNING SIGN}\N{VARIATION SELECTOR-16}  Execution error",
        "timeout": "\N{STOPWATCH}  Timeout",
        "model": "🤖 Model error",
        "network": "🌐 Network error",
        "authorization": "🔒 Authorization error",
        "rate_limit": "🚦 Rate limit exceeded",
        "not_found": "🔍 Not found",
        "internal": "💥 Internal error",
    }
)
MCP_ERROR_CATEGORIES: tuple[str, ...] = tuple(_LABELS)


class McpErrorPayload(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Why a tool failed. `category` is one of `MCP_ERROR_CATEGORIES`, or one that a newer producer knows."""

    category: str
    code: str
    message: str
    details: str | None = None
    recoverable: bool
    suggested_action: str | None = None
    next_tool: str | None = None


class Model(Struct, frozen=True):
    """The model that a workflow ran on."""

    id: str
    label: str


class Step(Struct, frozen=True):
    """One step of a workflow."""

    kind: str
    label: str
    summary: str


class Recommendation(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An advice; `model_class` is free, cheap, strong or reviewer."""

    title: str
    detail: str
    model_class: str
    grounding_scope: str | None = None
    evidence_anchors: list[str] | None = None
    source_refs: list[str] | None = None
    problem: str | None = None
    suggested_action: str | None = None


class MatrixRow(Struct, frozen=True):
    """One row of a comparison matrix."""

    label: str
    values: list[Any]


class ToolChainStep(Struct, frozen=True, omit_defaults=True):
    """One call of a tool chain."""

    tool: str
    description: str | None = None


class Artifact(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Something that a workflow made. Which fields are set depends on `kind`."""

    kind: str
    title: str
    description: str | None = None
    input: Any | UnsetType = UNSET  # worked-example
    expected_output: Any | UnsetType = UNSET  # worked-example
    template: str | None = None  # output-template
    fields: list[str] | None = None  # output-template
    criteria: list[str] | None = None  # eval-criteria
    headers: list[str] | None = None  # comparison-matrix
    rows: list[MatrixRow] | None = None  # comparison-matrix
    steps: list[ToolChainStep] | None = None  # tool-chain


class WorkflowEnvelopePayload(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a workflow did and advises. The three lists are always written; one that is missing reads as empty."""

    display_name: str
    instruction_id: str
    model: Model
    steps: list[Step] = []
    recommendations: list[Recommendation] = []
    artifacts: list[Artifact] = []


def error_text(payload: McpErrorPayload) -> str:
    """The error for people: a line with category, code and message, then a line for each thing that is known."""
    lines = [f"{_label(payload.category)} [{payload.code}]: {payload.message}"]
    if payload.details:
        lines.append(f"Details: {payload.details}")
    if payload.suggested_action:
        lines.append(f"Suggestion: {payload.suggested_action}")
    if payload.next_tool:
        lines.append(f"Next: call `{payload.next_tool}` to proceed.")
    if payload.recoverable:
        lines.append("(This error may be recoverable — retry is safe.)")
    return "\n".join(lines)


def error_blocks(payload: McpErrorPayload, *, tool: str = "mcp", ts: str | None = None) -> list[TextBlock]:
    """The two blocks of a failed result, to be sent with `isError: true`."""
    return encode_blocks(error_text(payload), payload, tool=tool, ts=ts)


def _label(category: str) -> str:
    return _LABELS.get(category) or f"❌ {category.replace('_', ' ').capitalize() or 'Error'}"
