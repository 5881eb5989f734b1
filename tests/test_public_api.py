"""What `import opwire` gives: pinned names, there at once, and no optional dependency behind them."""

import importlib.metadata
import subprocess
import sys

import opwire
from tests.requirements import requirement

# Written a second time on purpose: a name that comes or goes is a change of the public API.
PINNED = """
    ERROR_TABLE HTTP_RESPONSE_META_SCHEMA LOCAL_RESPONSE_META_SCHEMA MCP_CONTENT_BLOCK_SCHEMA MCP_RESPONSE_META_SCHEMA
    RESPONSE_ENVELOPE_SCHEMA RESPONSE_META_SCHEMA RESPONSE_SOURCES UNKNOWN
    AccessControl CallError CastError ConfigError Context ConversionError ErrorCode HTTPResponseMeta Handler HintError
    Identity LocalResponseMeta MCPContentBlock MCPResponseMeta NotPlainError Operation OperationRegistry OperationSpec
    OperationType OpwireError Progress RegistrationError ResourceRule ResponseEnvelope ResponseMeta ResponseSource
    Schema SchemaError Source ToolEnvelopeError
    build_env check_access decode_envelope encode_envelope http_envelope is_response_envelope local_envelope
    mcp_envelope read_envelope unwrap
""".split()
OPTIONAL = ("aiohttp", "annotated_types", "attr", "attrs", "mcp", "nats", "pydantic", "redis", "rich")


def in_a_fresh_python(code: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@requirement("api.pinned")
def test_the_public_names_are_exactly_the_pinned_ones_in_order() -> None:
    assert opwire.__all__ == PINNED


@requirement("api.pinned")
def test_every_public_name_is_there_as_soon_as_opwire_is_imported() -> None:
    printed = in_a_fresh_python("import opwire; print(*(name for name in opwire.__all__ if name in vars(opwire)))")
    assert printed.split() == PINNED
    assert not hasattr(opwire, "__getattr__")


@requirement("api.pinned")
def test_the_version_is_the_one_of_the_distribution() -> None:
    assert opwire.__version__ == importlib.metadata.version("opwire")


@requirement("api.core-only", "envelope.no-sdk")
def test_importing_opwire_loads_no_optional_dependency() -> None:
    printed = in_a_fresh_python(
        "import sys, opwire, opwire.tool_envelope; print(*{name.partition('.')[0] for name in sys.modules})"
    )
    loaded = set(printed.split())
    assert {"opwire", "msgspec", "jsonschema_rs"} <= loaded
    assert loaded.isdisjoint(OPTIONAL)


@requirement("api.core-only")
def test_beside_the_standard_library_only_the_two_core_dependencies_are_loaded() -> None:
    printed = in_a_fresh_python(
        "import sys; before = set(sys.modules); import opwire; print(*sorted(set(sys.modules) - before))"
    )
    foreign = {name.partition(".")[0] for name in printed.split()} - sys.stdlib_module_names
    foreign.discard("typing_extensions")  # which msgspec prefers to `typing` where it is installed
    assert foreign == {"jsonschema_rs", "msgspec", "opwire"}


@requirement("api.core-only")
def test_users_types_work_without_the_libraries_that_are_not_loaded() -> None:
    code = """
import sys
from dataclasses import dataclass
import opwire

@dataclass
class Sum:
    total: int

envelope = opwire.local_envelope({"total": 3}, "math.add")
assert opwire.unwrap(envelope, Sum) == Sum(3)
assert opwire.Schema.from_type(Sum).is_valid({"total": 3})
print(sorted({"pydantic", "attr", "attrs"} & sys.modules.keys()))
"""
    assert in_a_fresh_python(code) == "[]\n"
