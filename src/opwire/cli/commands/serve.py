"""`opwire serve`, `hub` and `spoke`: serve the operations until SIGINT or SIGTERM.

Every server requires authentication by default: see `with_callers`.
"""

import asyncio
import gc
import os
import secrets
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import click
from msgspec.structs import replace

from opwire.cli.options import BROKER_OPTIONS, grouped_options, log_options, served_source_options, shared_options
from opwire.cli.screen import Screen
from opwire.cli.sources import Sources, check_variables, opened, run, served_tables, serving, token_hint
from opwire.config.reading import load_config
from opwire.config.runtime import OpenedConfig, watch
from opwire.config.settings import (
    AuthSettings,
    Config,
    DurableSettings,
    EnvText,
    HTTPSurfaceSettings,
    HubSettings,
    IdentitySettings,
    MCPSurfaceSettings,
    Secret,
    ServeSettings,
    SignedSettings,
    SpokeSettings,
)
from opwire.errors import CallError, ConfigError, needs_extra
from opwire.names import counted
from opwire.observe.monitor import CallMonitor
from opwire.runtime.signals import stop_signals
from opwire.version import VERSION

if TYPE_CHECKING:
    from opwire.hub import BrokerNode, Hub
    from opwire.registry import OperationRegistry


TOKEN = "OPWIRE_TOKEN"  # noqa: S105 - its name
CLUSTER_SECRET = "OPWIRE_CLUSTER_SECRET"  # noqa: S105 - its name
ANONYMOUS = "anonymous"
_SHUTDOWN_NOTE_SECONDS = 1.0
_MAX_SHOWN_NAMESPACES = 5


def server_options(function: Any) -> Any:
    """Add the options of every server; the command receives the `Screen` first."""
    decorated = log_options(served_source_options(shared_options(click.pass_obj(function))))
    decorated = click.option(
        "--metrics", metavar="[HOST:]PORT", help="Serve metrics for Prometheus at this address, without a token."
    )(decorated)
    return click.option(
        "--open", "is_open", is_flag=True, help="Accept every caller without a token, with all permissions."
    )(decorated)


class Callers(NamedTuple):
    """A configuration with callers, and the token that was generated for this run, if any."""

    config: Config
    token: str | None = None

    def show_token(self, screen: Screen) -> None:
        """Print the generated token, once the server listens."""
        if self.token is not None:
            screen.note(f"token for this run: {self.token}   (set {TOKEN} to keep it)")


def with_callers(config: Config, screen: Screen, *, is_open: bool) -> Callers:
    """Return the configuration with an identity for the token in OPWIRE_TOKEN, unless it has callers of its own.

    Without OPWIRE_TOKEN, generate a token for this run.
    """
    identities, token = dict(config.identities), None
    if is_open:
        identities[ANONYMOUS] = IdentitySettings(scopes=("*",), announces=("*",))
    elif not identities and config.auth == AuthSettings():
        if not os.environ.get(TOKEN):
            if screen.log_format == "json":
                raise click.UsageError(f"set {TOKEN}, or use --open: a generated token would be in the JSON log")
            token = os.environ[TOKEN] = secrets.token_urlsafe()
        identities["owner"] = IdentitySettings(token=Secret(f"${{{TOKEN}}}"), scopes=("*",), announces=("*",))
    return Callers(replace(config, identities=identities), token)


def warn_if_exposed(screen: Screen, hosts: Iterable[str], *, is_open: bool, **_: Any) -> None:
    """Warn of a server that accepts callers of other machines without a token."""
    exposed = sorted({host for host in hosts if host != "localhost" and not host.startswith(("127.", "::1", "[::1"))})
    if is_open and exposed:
        screen.warning(
            f"ANYONE who can reach this machine can call every operation with all permissions: --open at "
            f"{', '.join(exposed)}. Listen on 127.0.0.1, or set {TOKEN} instead of --open"
        )


@asynccontextmanager
async def _loaded(config: Config, screen: Screen) -> AsyncGenerator[OpenedConfig]:
    """Run a configuration whose operations garbage collections skip: each would take 0.1 s for 10,000 of them."""
    async with opened(config, screen) as running:
        gc.collect()
        gc.freeze()
        yield running


@contextmanager
def metrics_at(address: str | None, screen: Screen, *targets: Any) -> Generator[None]:
    """Serve the metrics of a registry, hub or spoke at an address, if there is one."""
    if address is None:
        yield
        return
    with needs_extra("prometheus"):
        from opwire.observe.telemetry import serve_metrics

    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 2**16):
        raise click.UsageError(f"--metrics is [HOST:]PORT, such as 9464 or 0.0.0.0:9464, unlike {address!r}")
    with serve_metrics(*targets, host=host.strip("[]") or "127.0.0.1", port=int(port)) as url:
        screen.note(f"metrics at {url}")
        yield


async def until_stopped(screen: Screen, *running: Awaitable[Any], ready: Callable[[], object]) -> None:
    """Wait for SIGINT, SIGTERM or the end of an awaitable, and cancel the rest. A second signal acts at once.

    `ready` is called once signals are handled: what it prints may be an orchestrator's cue. If a server then takes long
    to end, because of calls in flight, it says so.

    Raises:
        Exception: the one that an awaitable raised.
    """
    tasks: list[asyncio.Future[Any]] = []
    try:
        with stop_signals() as stop:
            ready()
            tasks += [asyncio.ensure_future(awaitable) for awaitable in (stop.wait(), *running)]
            ended_tasks, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for ended_task in ended_tasks:
            ended_task.result()
    finally:
        asyncio.get_running_loop().call_later(
            _SHUTDOWN_NOTE_SECONDS, screen.note, "waiting for calls in flight; ^C stops at once"
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def served_text(registry: "OperationRegistry") -> str:
    """Return what a registry serves: `12 operations (github 9, shop 3)`."""
    counts = Counter(spec.namespace for spec in registry.list())
    namespace_counts = [f"{namespace} {count:,}" for namespace, count in counts.most_common(_MAX_SHOWN_NAMESPACES)]
    more = [f"{len(counts) - len(namespace_counts):,} more"] if len(counts) > len(namespace_counts) else []
    total = counted(len(registry), "operation")
    return f"{total} ({', '.join([*namespace_counts, *more])})" if counts else total


def shown_url(url: str) -> str:
    """Return scheme, host and port of a URL, without credentials."""
    scheme, _, location = url.partition("://")
    return f"{scheme}://{location.partition('/')[0].partition('?')[0].rpartition('@')[2]}"


class ServeOptions(NamedTuple):
    """The options of `opwire serve` that override the configuration."""

    mcp: str | None = None
    http: bool = False
    host: str | None = None
    port: int | None = None
    allow_host: tuple[str, ...] = ()
    is_open: bool = False
    console: bool = False


@click.command(name="serve")
@click.option(
    "--as",
    "surfaces",
    multiple=True,
    type=click.Choice(["mcp-stdio", "mcp-http", "http"]),
    help="An MCP server over standard input or HTTP, or an HTTP API with an OpenAPI document; may be repeated.",
)
@click.option("--http", is_flag=True, help="Short for --as http.")
@click.option("--console", is_flag=True, help="Serve the console too: a web page at /console of the HTTP API.")
@click.option("--host", help="The address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="The port; 0 selects a free one. A second surface uses the next port.",
)
@click.option("--allow-host", multiple=True, metavar="NAME", help="An accepted Host header, in addition to localhost.")
@click.option("--reload", is_flag=True, help="Restart after changes of the configuration, Python modules or documents.")
@server_options
def serve_command(
    screen: Screen,
    *,
    sources: Sources,
    surfaces: tuple[str, ...],
    http: bool,
    reload: bool,
    metrics: str | None,
    **options: Any,
) -> None:
    """Serve the operations as an MCP server, an HTTP API, or both, until ^C.

    Without --as it serves the surfaces of the configuration, by default both over HTTP. Without callers in
    the configuration, a token is required: the one in OPWIRE_TOKEN, or a generated one that is printed.

    \b
      opwire serve --python shop.py --as mcp-stdio  for Claude Desktop and others
      opwire serve --as http --port 8080 --reload   while you write the operations
    """
    mcp = [surface.removeprefix("mcp-") for surface in surfaces if surface != "http"]
    if len(set(mcp)) > 1:
        raise click.UsageError("--as mcp-stdio and --as mcp-http exclude each other: start two processes")
    serve_options = ServeOptions(mcp=mcp[0] if mcp else None, http=http or "http" in surfaces, **options)
    config = chosen_surfaces(sources.read(), serve_options)
    callers = Callers(config)
    if config.serve.http is not None or (config.serve.mcp is not None and config.serve.mcp.transport == "http"):
        callers = with_callers(config, screen, is_open=options["is_open"])
        config = callers.config
        warn_if_exposed(
            screen, (surface.host for surface in (config.serve.mcp, config.serve.http) if surface), **options
        )
    check_variables(config, *served_tables(config))
    if reload and config.serve.mcp is not None and config.serve.mcp.transport == "stdio":
        reason = "--reload restarts the process, which would end an MCP session over stdio"
        raise click.UsageError(f"{reason}: use --as mcp-http")
    if reload:
        # Python compares source files by second and size, and files are saved more often than that.
        sys.dont_write_bytecode = True
    if run(serve(callers, screen, reload=reload, metrics=metrics), serves=True):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same command again


def chosen_surfaces(config: Config, options: ServeOptions) -> Config:
    """Return the configuration with the surfaces that the options select."""

    def override(settings: Any, port: int | None) -> Any:
        overrides: dict[str, Any] = {"host": options.host, "port": port}
        overrides["anonymous"] = ANONYMOUS if options.is_open else None
        if options.allow_host:
            overrides["hosts"] = ("localhost", "127.0.0.1", "[::1]", *options.allow_host)
        return replace(settings, **{name: value for name, value in overrides.items() if value is not None})

    mcp, http = config.serve.mcp, config.serve.http
    if options.mcp is not None or options.http or (mcp is None and http is None):
        both = options.mcp is None and not options.http
        transport: Any = options.mcp or "http"
        mcp = replace(mcp or MCPSurfaceSettings(), transport=transport) if options.mcp or both else None
        http = (http or HTTPSurfaceSettings()) if options.http or both else None
    if options.console:
        http = replace(http or config.serve.http or HTTPSurfaceSettings(), console=True)
    if mcp is not None:
        mcp = override(mcp, None if http is not None and mcp.transport == "stdio" else options.port)
    if http is not None:
        second = mcp is not None and mcp.transport == "http"
        http = override(http, options.port + 1 if options.port and second else options.port)
    return replace(config, serve=ServeSettings(mcp=mcp, http=http))


async def serve(
    callers: Callers,
    screen: Screen,
    *,
    reload: bool = False,
    metrics: str | None = None,
    on_link: Callable[[str], object] = lambda url: None,
) -> bool:
    """Serve until stopped; return whether to restart because of changed files.

    `on_link` is called with the link that opens the console, if it is served.
    """
    config = callers.config
    async with _loaded(config, screen) as running, AsyncExitStack() as surfaces:
        for problem in running.policy_problems():
            screen.warning(problem)
        waiting: list[Awaitable[Any]] = []
        changed = asyncio.create_task(_wait_for_changes(running, screen)) if reload else None
        if changed is not None:
            surfaces.callback(changed.cancel)
            waiting.append(changed)
        http, mcp = config.serve.http, config.serve.mcp
        name = mcp.name if mcp is not None else http.title if http is not None else "opwire"
        version = mcp.version if mcp is not None else http.version if http is not None else VERSION
        monitor = CallMonitor(running.registry, name=name, version=version)
        surfaces.callback(monitor.close)
        surfaces.enter_context(metrics_at(metrics, screen, running.registry))
        waiting += await _serve_mcp(config, running, surfaces, screen, monitor)
        link = await serve_http(config, running, surfaces, screen, monitor)
        callers.show_token(screen)

        def ready() -> None:
            screen.note(f"serving {served_text(running.registry)}; ^C stops")
            if link is not None:
                on_link(link)

        await until_stopped(screen, *waiting, ready=ready)
        return changed is not None and changed.done() and not changed.cancelled()


async def _serve_mcp(
    config: Config, running: OpenedConfig, surfaces: AsyncExitStack, screen: Screen, monitor: CallMonitor
) -> list[Awaitable[None]]:
    """Listen over HTTP, or return the awaitable that serves standard input; run a worker for durable tasks."""
    from opwire.config.surfaces import durable_of, mcp_http_options, mcp_surface

    settings = config.serve.mcp
    if settings is None:
        return []
    pair = durable_of(config, running.registry) if settings.durable_tasks else None
    surface = mcp_surface(config, running.registry, journal=None if pair is None else pair[0])
    if pair is not None:
        for stream in pair:
            await surfaces.enter_async_context(stream)
        screen.note(f"durable mutations from {pair[0].name}")
    surface.use(monitor.interceptor("mcp"))
    if settings.transport == "stdio":
        screen.note("MCP server on standard input and output")
        return [surface.run_stdio()]
    from opwire.asgi.listener import listening

    app = surface.asgi(**mcp_http_options(config))
    address = await surfaces.enter_async_context(listening(app, settings.host, settings.port, on_drain=app.drain))
    screen.note(f"MCP server at {address}{settings.path}")
    return []


async def serve_http(
    config: Config,
    running: OpenedConfig,
    surfaces: AsyncExitStack,
    screen: Screen,
    monitor: CallMonitor,
    *,
    hub: "Hub | BrokerNode | None" = None,
) -> str | None:
    """Listen over HTTP; return the link that opens the console, if it is served."""
    from opwire.config.surfaces import CONSOLE, console_surface, durable_of, http_surface

    settings = config.serve.http
    if settings is None:
        for name in running.webhooks:
            screen.warning(f"the webhooks of {name} are not received: add [serve.http], or --http")
        return None
    console = None
    if settings.console:
        journal = None
        if (durable := durable_of(config, running.registry)) is not None:
            journal, _ = durable
            surfaces.push_async_callback(journal.close)
            try:
                await journal.start()
            except CallError as error:  # it connects again when the page is opened
                screen.warning(f"the journal is not available: {error.message}")
        console = console_surface(config, running, monitor=monitor, journal=journal, hub=hub)
    app = http_surface(config, running.registry, monitor=monitor, webhooks=running.webhooks, console=console)
    address = await surfaces.enter_async_context(app.listening(settings.host, settings.port))
    screen.note(f"HTTP API at {address}, described at {address}/openapi.json")
    for name in running.webhooks:
        screen.note(f"webhooks of {name} at {address}/webhooks/{name}")
    if console is None:
        return None
    page = f"{address}{CONSOLE}/"
    if screen.log_format == "json":
        screen.note(f"console at {page}")  # sign in by a token: the link would be in the log
        return None
    link = f"{page}#link={console.create_link()}"
    screen.note("console at this link, which signs in once, within 5 minutes:")
    screen.note(link)
    return link


async def _wait_for_changes(running: OpenedConfig, screen: Screen) -> None:
    """Return when files have changed and the configuration is valid."""
    async for changed in watch(running.files):
        try:
            if running.config.file is not None:
                load_config(running.config.file)
        except ConfigError as error:
            screen.warning(f"not restarted: {error}")
        else:
            screen.note(f"restarting: {', '.join(sorted(path.name for path in changed))} changed")
            return


class BrokerOptions(NamedTuple):
    """The options of `hub` and `spoke` that override the connection of the configuration."""

    name: str | None = None
    prefix: str | None = None
    signing_key: str | None = None
    certificate: str | None = None
    authority: tuple[str, ...] = ()

    def override(self, settings: Any) -> Any:
        """Return the settings of a hub or spoke with these options."""
        overrides = {name: value for name in ("name", "prefix") if (value := getattr(self, name)) is not None}
        files = {"key": self.signing_key, "certificate": self.certificate}
        signed = {name: str(Path(file).absolute()) for name, file in files.items() if file is not None}
        if signed or self.authority:
            signed_settings = settings.signed or SignedSettings()
            changes: dict[str, Any] = {f"{name}_file": file for name, file in signed.items()}
            changes |= dict.fromkeys(signed)  # a file overrides a variable
            if self.authority:
                changes["authorities"] = tuple(str(Path(file).absolute()) for file in self.authority)
            overrides["signed"] = replace(signed_settings, **changes)
        return replace(settings, **overrides)


def broker_options(function: Any) -> Any:
    """Add the options that secure the connection to a broker; the command receives `broker`."""
    file, help = click.Path(exists=True, dir_okay=False), "Verify callers on a broker by this public key."
    options = {
        "name": click.option("--name", help="The name that `opwire ps` shows."),
        **BROKER_OPTIONS,
        "authority": click.option("--authority", type=file, metavar="FILE", multiple=True, help=help),
    }
    return grouped_options(function, "broker", BrokerOptions, options)


@click.command(name="hub")
@click.argument("url", required=False)
@click.option("--console", is_flag=True, help="Serve the console and the HTTP API too, by default at 127.0.0.1:8080.")
@click.option("--cluster", metavar="URL", help="Be one hub with those that name the same broker: redis:// or nats://.")
@broker_options
@server_options
@serving
async def hub_command(
    screen: Screen,
    *,
    url: str | None,
    console: bool,
    cluster: str | None,
    is_open: bool,
    metrics: str | None,
    sources: Sources,
    broker: BrokerOptions,
) -> None:
    """Run a hub at URL until ^C. URL defaults to the configuration, then to ws://127.0.0.1:8700.

    Spokes connect to it, serve operations and call each other's. The hub also serves the operations of its own
    sources, if there are any. Without callers in the configuration, a token is required: the one in OPWIRE_TOKEN, or a
    generated one that is printed.

    With --cluster, several hubs are one: a caller at one of them reaches the spokes of all. OPWIRE_CLUSTER_SECRET
    proves the hubs to each other where other programs use the same broker.
    """
    from opwire.config.surfaces import hub_of

    callers = with_callers(sources.read(may_be_empty=True), screen, is_open=is_open)
    config = chosen_hub(callers.config, url, is_open=is_open, broker=broker, cluster=cluster)
    if console:
        config = chosen_surfaces(config, ServeOptions(http=True, is_open=is_open, console=True))
    check_variables(config, config.identities, config.auth, config.hub, *(served_tables(config) if console else ()))
    if config.hub is not None:
        warn_if_exposed(screen, [urlsplit(config.hub.url.resolve("hub.url")).hostname or ""], is_open=is_open)

    async with (
        _loaded(config, screen) as running,
        hub_of(config, running.registry) as hub,
        AsyncExitStack() as surfaces,
    ):
        surfaces.enter_context(metrics_at(metrics, screen, hub))
        if console:
            await serve_http(config, running, surfaces, screen, hub.handler.monitor, hub=hub)
        callers.show_token(screen)
        ready = f"hub at {hub.url}; serving {served_text(running.registry)}; ^C stops"
        await until_stopped(screen, ready=lambda: screen.note(ready))
        await hub.drain()


def chosen_hub(
    config: Config, url: str | None, *, is_open: bool, broker: BrokerOptions | None = None, cluster: str | None = None
) -> Config:
    """Return the configuration with the URLs and the anonymous identity that the options override."""
    hub = config.hub or HubSettings()
    if url is not None:
        hub = replace(hub, url=EnvText(url))
    if cluster is not None:
        hub = replace(hub, cluster=EnvText(cluster))
    if hub.cluster is not None and hub.cluster_secret is None and os.environ.get(CLUSTER_SECRET):
        hub = replace(hub, cluster_secret=Secret(f"${{{CLUSTER_SECRET}}}"))
    if broker is not None:
        hub = broker.override(hub)
    return replace(config, hub=replace(hub, anonymous=ANONYMOUS) if is_open else hub)


@click.command(name="spoke")
@click.argument("url", required=False)
@click.option("--announce", multiple=True, metavar="PATTERN", help="Show others only these operations: shop, shop.*")
@click.option("--durable", metavar="URL", help="Also run durable mutations, from a journal at redis:// or nats://.")
@broker_options
@server_options
@serving
async def spoke_command(
    screen: Screen, sources: Sources, durable: str | None, metrics: str | None, **options: Any
) -> None:
    """Serve the operations at URL until ^C: ws:// of a hub, redis:// or nats:// of a broker.

    The token for a hub is the one in OPWIRE_TOKEN, unless the configuration overrides it. Callers over a broker are
    anonymous, and without --open they can call public operations only, unless they sign their requests and --authority
    verifies them.
    """
    from opwire.config.surfaces import durable_of, spoke_of

    config = chosen_spoke(sources.read(), **options)
    if durable is not None:
        config = chosen_durable(config, durable)
    check_variables(config, config.spoke, config.durable)
    configured_url = None if config.spoke is None else config.spoke.url
    urls = configured_url if isinstance(configured_url, tuple) else () if configured_url is None else (configured_url,)
    where = " and ".join(shown_url(url.resolve("spoke.url")) for url in urls)

    async with _loaded(config, screen) as running, AsyncExitStack() as stack:
        for problem in running.policy_problems():
            screen.warning(problem)
        with token_hint(TOKEN):
            spoke = await stack.enter_async_context(spoke_of(config, running.registry))
        stack.enter_context(metrics_at(metrics, screen, spoke))
        worker = None
        if (pair := durable_of(config, running.registry)) is not None:
            await stack.enter_async_context(pair[0])
            worker = await stack.enter_async_context(pair[1])
            screen.note(f"durable mutations from {pair[0].name}")
        ready = f"serving {served_text(running.registry)} at {where}; ^C stops"
        await until_stopped(screen, ready=lambda: screen.note(ready))
        if worker is not None:
            await worker.drain()
        await spoke.drain()


def chosen_durable(config: Config, url: str) -> Config:
    """Return the configuration with a journal at this URL; its callers are those of the spoke."""
    if config.durable is not None:
        return replace(config, durable=replace(config.durable, url=EnvText(url)))
    prefix, anonymous = (config.spoke.prefix, config.spoke.anonymous) if config.spoke else (None, None)
    return replace(config, durable=DurableSettings(url=EnvText(url), prefix=prefix, anonymous=anonymous))


def chosen_spoke(
    config: Config,
    url: str | None,
    *,
    is_open: bool,
    broker: BrokerOptions | None = None,
    announce: tuple[str, ...] = (),
) -> Config:
    """Return the configuration with the spoke that the options select.

    Raises:
        click.UsageError: the URL is missing.
    """
    spoke = config.spoke
    if url is not None:
        token = Secret(f"${{{TOKEN}}}") if url.startswith("ws") and os.environ.get(TOKEN) else None
        spoke = replace(spoke, url=EnvText(url)) if spoke else SpokeSettings(url=EnvText(url), token=token)
    if spoke is None:
        advice = "run `opwire spoke ws://127.0.0.1:8700`, or add [spoke] to the configuration"
        raise click.UsageError(f"missing URL: {advice}")
    if broker is not None:
        spoke = broker.override(spoke)
    if announce:
        spoke = replace(spoke, announces=announce)
    if not is_open:
        return replace(config, spoke=spoke)
    anonymous = {ANONYMOUS: IdentitySettings(scopes=("*",))}
    return replace(config, identities={**config.identities, **anonymous}, spoke=replace(spoke, anonymous=ANONYMOUS))
