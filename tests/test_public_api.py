"""What `import opwire` gives: pinned names, there at once, and no optional dependency behind them."""

import importlib.metadata
import subprocess
import sys

import jsonschema_rs
import pytest

import opwire
from opwire.protocol import schemas

# Written a second time on purpose: a name that comes or goes is a change of the public API.
PINNED = """
    ERROR_TABLE RESPONSE_SOURCES UNKNOWN AccessControl Annotations CallError CastError Change Client Completion
    CompletionRequest ConfigError Context ConversionError Depends Elicitation Env ErrorCode HTTPResponseMeta Handler
    HintError Hub Identity Interceptor Item LocalResponseMeta LogMessage MCPContentBlock MCPPresentation MCPResponseMeta
    MissingExtraError NormalizeMode NotPlainError Operation OperationRegistry OperationSpec OperationType OpwireError
    Problem Progress
    Question RegistrationError RegistryView Reshape ResourceRule ResponseEnvelope ResponseMeta ResponseSource Root
    SampledMessage Schema SchemaError Source SourceChange Spoke SyncClient ToolEnvelopeError UsageError build_env
    check_access decode_envelope encode_envelope from_mcp from_openapi http_envelope is_response_envelope
    is_resume_error local_envelope mcp_envelope read_envelope resume_error serve_http serve_mcp unwrap
""".split()
OPTIONAL = ("aiohttp", "annotated_types", "attr", "attrs", "mcp", "nats", "pydantic", "redis", "rich")


def in_a_fresh_python(code: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_public_names_are_exactly_the_pinned_ones_in_order() -> None:
    assert opwire.__all__ == PINNED


def test_names_without_optional_dependencies_are_loaded_at_once_and_the_others_on_access() -> None:
    printed = in_a_fresh_python("import opwire; print(*(name for name in opwire.__all__ if name not in vars(opwire)))")
    lazy = {"Client", "Hub", "Spoke", "SyncClient", "from_mcp", "from_openapi", "serve_http", "serve_mcp"}
    assert set(printed.split()) == lazy
    for name in lazy:
        assert callable(getattr(opwire, name))
    assert set(opwire.__all__) <= set(dir(opwire))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(opwire, "nothing")  # noqa: B009


def test_every_schema_that_is_exported_is_a_valid_schema() -> None:
    for name in schemas.__all__:
        exported = getattr(schemas, name)
        for each in exported.values() if name.endswith("_SCHEMAS") else [exported]:
            jsonschema_rs.meta.validate(each)


def test_the_version_is_the_one_of_the_distribution() -> None:
    assert opwire.__version__ == importlib.metadata.version("opwire")


def test_importing_opwire_loads_no_optional_dependency() -> None:
    """The core imports no MCP SDK."""
    printed = in_a_fresh_python(
        "import sys, opwire, opwire.model.tool_envelope; print(*{name.partition('.')[0] for name in sys.modules})"
    )
    loaded = set(printed.split())
    assert {"opwire", "msgspec"} <= loaded
    assert loaded.isdisjoint(OPTIONAL)


@pytest.mark.parametrize(
    ("use", "more"), [("pass", set[str]()), ("opwire.Schema({'type': 'integer'}).is_valid(1)", {"jsonschema_rs"})]
)
def test_beside_the_standard_library_only_msgspec_is_loaded_and_jsonschema_rs_to_validate(
    use: str, more: set[str]
) -> None:
    printed = in_a_fresh_python(
        f"import sys; before = set(sys.modules); import opwire; {use}; print(*sorted(set(sys.modules) - before))"
    )
    foreign = {name.partition(".")[0] for name in printed.split()} - sys.stdlib_module_names
    foreign.discard("typing_extensions")  # which msgspec prefers to `typing` where it is installed
    assert foreign == {"msgspec", "opwire", *more}


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
