"""Serve a web page on which a person sees, calls and watches the operations. Needs `pip install 'opwire[http]'`.

    console = serve_console(registry, authenticate=StaticTokens({...}))
    app = serve_http(registry, mounts={"/console": console}, authenticate=StaticTokens({...}))
    print(f"http://127.0.0.1:8000/console/#link={console.create_link()}")
    await app.run(port=8000)

A login, by a token or by a link that works once, decides what the page may do. Every action passes the guard, the
access checks and the interceptors of any other surface.
"""

from opwire.errors import needs_extra
from opwire.registry.source import Skipped

with needs_extra("http"):
    from opwire.console.app import ConsoleApp, serve_console
    from opwire.console.system import ConsoleSystem, SourceCatalog, SourceStatus

__all__ = ["ConsoleApp", "ConsoleSystem", "Skipped", "SourceCatalog", "SourceStatus", "serve_console"]
