"""Routes for Starlette's `Router` that accept one spelling of a path.

With several spellings of one path, a proxy's rule for one of them could be evaded by another. So nothing that is
percent-encoded matches, and a slash too many is another path.
"""

from opwire.asgi.problem import Send
from opwire.asgi.request import App, Receive, Scope, is_plain, is_spelled, path_in_app
from opwire.errors import needs_extra

with needs_extra("http"):
    from starlette.routing import BaseRoute, Match

PARENT_ROOT = "opwire.parent_root"
"""Key of the ASGI scope of a mounted app: the root path of the app that it is mounted into."""

_NO_MATCH: tuple[Match, Scope] = (Match.NONE, {})


class ExactRoute(BaseRoute):
    """One path, with all of its methods."""

    def __init__(self, path: str, app: App) -> None:
        self.path = path
        self.app = app

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the route serves a request."""
        return (Match.FULL, {}) if path_in_app(scope) == self.path and is_plain(scope) else _NO_MATCH

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        await self.app(scope, receive, send)


class PrefixRoute(ExactRoute):
    """All paths below one. What follows it may be encoded, and is for the app to decide about."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the route serves a request."""
        path, start = path_in_app(scope), f"{self.path}/"
        is_below = path.startswith(start) and path != start
        return (Match.FULL, {}) if is_below and is_spelled(scope, self.path) else _NO_MATCH


class AppMount(ExactRoute):
    """An app with paths of its own below one path, which itself is for the app, too."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the route serves a request."""
        path, root = path_in_app(scope), scope.get("root_path", "")
        is_inside = path == self.path or path.startswith(f"{self.path}/")
        if not is_inside or not is_spelled(scope, self.path):
            return _NO_MATCH
        return Match.FULL, {"root_path": root + self.path, PARENT_ROOT: root}
