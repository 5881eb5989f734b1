"""The public API as a whole: one word for one thing, typed options, and messages that say what is wrong."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import opwire
import opwire_conformance
from opwire import (
    CallError,
    Client,
    Hub,
    Identity,
    OperationRegistry,
    OperationSpec,
    Spoke,
    UsageError,
    from_mcp,
    from_openapi,
    serve_http,
    serve_mcp,
)
from opwire.agents import openai_tools
from opwire.auth import SignedRequests, SigningKey, Verifier
from opwire.client import ToolErrorPolicy
from opwire.config.sync import SyncClient
from opwire.console import serve_console
from opwire.durable import DurableCalls, DurableWorker, MemoryJournal
from opwire.durable.jetstream import NatsJournal
from opwire.durable.redis import RedisJournal
from opwire.durable.streams import MemoryStream
from opwire.durable.streams.jetstream import NatsStream
from opwire.durable.streams.redis import RedisStream
from opwire.hub import Observer, RemoteServer
from opwire.mcp.server import DurableTasks
from opwire.observe.monitor import CallMonitor
from opwire.observe.telemetry import instrument
from opwire.openapi.webhooks import GitHubSignature, StripeSignature
from opwire.policies import Approval, ApprovalQueue, AuditLog, CallBudget, CircuitBreaker, ConcurrencyLimit, RateLimit
from opwire.policies.cache import ResponseCache
from opwire.protocol import PendingRequestMap
from opwire.transports.memory import MemoryBus, MemoryTransport
from opwire.version import VERSION

SECRET = "hunter2-hunter2"
DOCUMENT = {"openapi": "3.1.0", "info": {"title": "shop", "version": "1"}, "paths": {}}


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield what the `__all__` of every module names and can be called."""
    modules = [
        *pkgutil.walk_packages(opwire.__path__, "opwire."),
        *pkgutil.walk_packages(opwire_conformance.__path__, "opwire_conformance."),
    ]
    for module in modules:
        loaded = importlib.import_module(module.name)
        for name in getattr(loaded, "__all__", ()):
            found = getattr(loaded, name)
            if inspect.isfunction(found) or (inspect.isclass(found) and found.__init__ is not object.__init__):
                yield f"{module.name}.{name}", found


def parameters() -> Iterator[tuple[str, inspect.Parameter]]:
    """Yield the parameters of public functions and constructors."""
    for name, each in public():
        try:
            found = inspect.signature(each).parameters.values()
        except (NameError, ValueError):  # an import for type checkers only, or a class without a signature
            continue
        for parameter in found:
            yield name, parameter


def test_every_keyword_that_is_passed_on_is_typed() -> None:
    """Every option that a public function passes on to another one is typed."""
    passed_on = {name: each for name, each in parameters() if each.kind is inspect.Parameter.VAR_KEYWORD}
    assert {"opwire.hub.Observer", "opwire.hub.RemoteServer", "opwire_conformance.peers.check_peer"} <= set(passed_on)
    assert [name for name, each in passed_on.items() if "Any" in str(each.annotation)] == []


def test_a_server_has_the_version_of_opwire_unless_it_states_its_own() -> None:
    stated = {name: each.default for name, each in parameters() if each.name == "version" and each.default is not None}
    servers = {name: default for name, default in stated.items() if default not in ("", inspect.Parameter.empty)}
    assert {"opwire.hub.Spoke", "opwire.hub.Hub", "opwire.protocol.CallHandler"} <= set(servers)
    assert {"opwire.openapi.server.serve_http", "opwire.mcp.server.serve_mcp"} <= set(servers)
    assert {
        name: default for name, default in servers.items() if default != VERSION and "tool_envelope" not in name
    } == {}
    assert (CallMonitor(OperationRegistry()).version, MemoryJournal().trusted) == (VERSION, True)


def test_results_with_is_error_are_raised_or_returned_wherever_that_can_be_chosen() -> None:
    found = [each.annotation for _, each in parameters() if each.name == "is_error" and each.annotation is not bool]
    assert found.count(ToolErrorPolicy) == len(found) >= 1
    with pytest.raises(UsageError, match="is_error must be one of raise, return, not 'fail'"):
        serve_http(OperationRegistry(), is_error="fail")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="is_error must be one of raise, return, not 'fail'"):
        Client(OperationRegistry(), is_error="fail")  # pyright: ignore[reportArgumentType]


def test_times_are_seconds_and_limits_are_whole_numbers() -> None:
    """One thing has one name, one type, one unit and one default in the whole public API."""
    for name, each in parameters():
        annotation = str(each.annotation)
        if each.name.endswith("timeout"):
            assert "float" in annotation, (name, each.name)
        if each.name.startswith("max_") and each.name not in ("max_seconds", "max_back_off", "max_lifetime"):
            assert "int" in annotation, (name, each.name)
        assert not each.name.endswith(("_ms", "_seconds")) or name.startswith("opwire.protocol.") or "max" in each.name


def late(function: Any, *arguments: Any, **options: Any) -> Callable[[], Any]:
    return lambda: function(*arguments, **options)


registry = OperationRegistry()
WRONG: list[tuple[Callable[[], Any], str]] = [
    (late(OperationRegistry, max_workers=0), "max_workers must be a whole number above zero, not 0"),
    (late(OperationRegistry, normalize="fits"), "normalize must be one of fit, cast, check, off, not 'fits'"),
    (late(registry.view, inclde=["x"]), "view() has no option 'inclde'; did you mean include?"),
    (late(CallError, "NOPE"), "unknown error code 'NOPE'; use one of OPERATION_NOT_FOUND, "),
    (late(registry.register, "shop.order", print), "spec must be an instance of OperationSpec, not str"),
    (late(Client, "ann:s3cret@host"), "a URL without a scheme; write ws://… for a hub"),
    (late(Client, 3), "a client calls a registry, a transport, or the URL of a server, not int"),
    (late(Client, registry, retries=3), "retries must be an instance of Retries, not int"),
    (late(Client, registry, act_as="me"), "act_as must be an instance of Identity, not str"),
    (late(Hub, "ws://127.0.0.1:0"), "registry must be an instance of OperationRegistry, not str"),
    (late(Hub, anonymous="me"), "anonymous must be an instance of Identity, not str"),
    (late(Spoke, registry, 3), "url must be an instance of Transport, not int"),
    (late(Observer, 3), "url must be an instance of Transport, not int"),
    (late(Observer, "ws://127.0.0.1:1", foo=1), "ws:// has no option 'foo'"),
    (late(RemoteServer, 3), "url must be an instance of str, not int"),
    (late(serve_http, "shop"), "registry must be an instance of OperationRegistry, not str"),
    (late(serve_http, None), "registry must be an instance of OperationRegistry, not None"),
    (late(serve_http, registry, max_boddy=1), "serve_http has no option 'max_boddy'; did you mean max_body?"),
    (late(serve_http, registry, anonymous="me"), "anonymous must be an instance of Identity, not str"),
    (late(serve_http, registry, cors_origins="x"), "cors_origins is a list of origins: write ['x']"),
    (late(serve_console, registry, foo=1), "serve_console has no option 'foo'"),
    (late(serve_mcp, registry, stdio_identity="me"), "stdio_identity must be an instance of Identity"),
    (late(serve_mcp(registry).asgi, foo=1), "serve_mcp over HTTP has no option 'foo'"),
    (late(openai_tools, registry, identity="me"), "identity must be an instance of Identity, not str"),
    (late(openai_tools, registry, max_chrs=1), "OpenAITools has no option 'max_chrs'; did you mean max_chars?"),
    (late(RateLimit, 1, per=1, inclde=["x"]), "RateLimit has no option 'inclde'; did you mean include?"),
    (late(Approval, print, timout=1), "Approval has no option 'timout'; did you mean timeout?"),
    (late(SyncClient, registry, retries=3), "retries must be an instance of Retries, not int"),
    (late(SyncClient, "shop.toml", tokn="x"), "OperationRegistry: tokn"),
    (late(SyncClient, Path("shop.yaml")), "the name of a configuration ends in .toml, that of shop.yaml does not"),
    (late(from_openapi, DOCUMENT, foo=1), "from_openapi has no option 'foo'"),
    (late(from_openapi, DOCUMENT, normalize="no"), "normalize must be one of"),
    (late(from_openapi, DOCUMENT, include="pets"), "include is a list of patterns: write ['pets']"),
    (late(from_openapi, 3), "document must be an instance of"),
    (late(from_mcp, "http://127.0.0.1:1", foo=1), "from_mcp has no option 'foo'"),
    (late(from_mcp, "http://127.0.0.1:1", connect_timeout=-1), "connect_timeout must be a number above zero, not -1"),
    (late(from_mcp, "http://127.0.0.1:1", normalize="no"), "normalize must be one of"),
    (late(from_mcp, 3), "server must be an instance of"),
    (late(from_mcp, ["npx"]), "an instance of StdioServer | HTTPServer | Mapping | Path | str, not list"),
    (
        late(from_mcp, "npx -y server"),
        'No such file or directory; to start a program, write {"command":"npx","args":["-y","server"]}',
    ),
    (late(MemoryBus, max_message=0), "max_message must be a whole number above zero, not 0"),
    (late(instrument, "shop"), "can be instrumented, not str"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_argument_is_named_with_what_it_has_to_be(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        call()


async def test_arguments_of_a_call_that_are_not_an_id_or_a_context_are_not_failures_of_the_operation() -> None:
    calls = OperationRegistry()

    @calls.query("math.add")
    async def add(a: int, b: int) -> int:
        return a + b

    execute: Any = calls.execute
    with pytest.raises(UsageError, match="context must be an instance of Context, not int"):
        await execute("math.add", 1, 2)
    with pytest.raises(UsageError, match="operation_id must be an instance of str, not function"):
        await execute(add, {"a": 1, "b": 2})


def test_tags_are_a_list() -> None:
    with pytest.raises(opwire.RegistrationError, match=r"a\.b: tags is a list of texts: write \['shop'\]"):
        OperationSpec(namespace="a", name="b", tags="shop")


async def test_the_repr_of_a_public_object_is_one_line_without_a_secret(tmp_path: Path) -> None:
    journal = MemoryJournal()
    url = f"redis://user:{SECRET}@127.0.0.1:1"
    shown = [
        *(journal, RedisJournal(url, trusted=True), NatsJournal("nats://127.0.0.1:1", password=SECRET, user="a")),
        *(MemoryStream("orders"), RedisStream(url, "orders"), NatsStream("nats://127.0.0.1:1", "orders")),
        *(DurableCalls(journal), DurableWorker(registry, journal), DurableTasks(journal, ["shop.order"])),
        *(serve_http(registry, title="Shop"), serve_console(registry, title="Shop"), serve_mcp(registry, name="shop")),
        *(Approval(lambda _: True, include=["bank"]), ApprovalQueue(), AuditLog(tmp_path / "audit.log")),
        *(RateLimit(100, per=60), ConcurrencyLimit(2), CircuitBreaker(3), CallBudget(5, exclude=["a.*"])),
        *(ResponseCache(), CallMonitor(registry, name="shop"), PendingRequestMap(MemoryTransport(MemoryBus()))),
        *(Observer("ws://127.0.0.1:1", token=SECRET), RemoteServer(f"nats://user:{SECRET}@127.0.0.1:1")),
        *(
            SignedRequests(),
            Verifier(SigningKey.generate().public_pem),
            StripeSignature(SECRET),
            GitHubSignature([SECRET]),
        ),
        *(from_openapi(DOCUMENT).report, Client(registry), Identity(id="ann")),
    ]
    texts = [repr(each) for each in shown]
    for each, text in zip(shown, texts, strict=True):
        assert type(each).__name__ in text
        assert f"{type(each).__name__} object at" not in text
        assert "\n" not in text
        assert SECRET not in text
    assert "<RateLimit: 100 calls in 60 s>" in texts
    assert "<Approval, include=['bank']>" in texts
    assert "<CallBudget: 5 calls, exclude=['a.*']>" in texts
    assert "<HTTPApp 'Shop' of <OperationRegistry of 0 operations>>" in texts
    assert "<Observer of ws://127.0.0.1:1>" in texts
    assert "<StripeSignature, 1 secret>" in texts
