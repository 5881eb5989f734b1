"""W3C Trace Context: the trace that a call belongs to."""

import re
from collections.abc import Mapping
from typing import Any, TypedDict

# An id of zeros is invalid, and versions after 00 may append fields. The patterns are compiled
# lazily, with the first trace: that takes longer than importing most modules.
_SPAN = r"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACEPARENT = rf"00{_SPAN}|(?!00|ff)[0-9a-f]{{2}}{_SPAN}(?:-[!-~]{{0,200}})?"
_TRACESTATE_MEMBER = r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]"  # one member
_MAX_TRACESTATE_LENGTH = 512


class Trace(TypedDict, total=False):
    """The headers of W3C Trace Context."""

    traceparent: str
    tracestate: str


def trace_of(carrier: Mapping[str, Any]) -> Trace:
    """Return the trace in `Context.metadata` or headers; empty if it is missing or invalid.

    It is propagated with every nested call, over every transport.
    """
    parent, state = carrier.get("traceparent"), carrier.get("tracestate")
    if not isinstance(parent, str) or not re.fullmatch(_TRACEPARENT, parent):
        return {}
    if not isinstance(state, str) or not state or len(state) > _MAX_TRACESTATE_LENGTH:
        return {"traceparent": parent}
    members = (member.strip(" \t") for member in state.split(","))
    is_valid = all(re.fullmatch(_TRACESTATE_MEMBER, member) for member in members if member)
    return {"traceparent": parent, "tracestate": state} if is_valid else {"traceparent": parent}
