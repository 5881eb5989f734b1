"""Middleware that checks headers: their size, those that two parsers could read differently, host and origin."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from itertools import chain

from opwire.asgi.problem import Header, HTTPStatusError, Send
from opwire.asgi.request import ADMITTED, AdmittedRequest, App, Receive, Scope
from opwire.errors import CallError, ErrorCode
from opwire.http.hosts import LOOPBACK, HostNames

CLOSE: Header = (b"connection", b"close")
"""Sent if the rest of a connection is not read."""

CHUNKED = b"transfer-encoding"
UPGRADE = b"upgrade"

_BODY_HEADERS = b"content-length content-type content-encoding transfer-encoding".split()
_UNIQUE_HEADERS = b"host origin referer sec-fetch-site authorization x-api-key mcp-session-id".split() + _BODY_HEADERS
_MAX_HOST_LENGTH = 253


class HeaderChecks:
    """Reject requests whose headers are too large, ambiguous, for another host, or from a page of another origin."""

    def __init__(self, app: App, *, hosts: Iterable[str] | None, origins: Iterable[str], max_bytes: int) -> None:
        self._app = app
        self._hosts = HostNames(LOOPBACK if hosts is None else hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the headers of a request, then serve it.

        Raises:
            HTTPStatusError, CallError: it is rejected.
        """
        request: AdmittedRequest = scope[ADMITTED]
        self._check_lines(request)
        _check_transfer(request.headers)
        host = self._check_host(request.headers)
        self._check_page(request.headers, host)
        await self._app(scope, receive, send)

    def _check_lines(self, request: AdmittedRequest) -> None:
        """Check the size of the headers and which are repeated, and remove white space at the end of their values."""
        lines = request.lines
        text = b"\n".join(chain.from_iterable(lines))
        if b" \n" in text or b"\t\n" in text or text.endswith((b" ", b"\t")):
            # httptools leaves white space at the end of a value, which is not part of it (RFC 9110).
            lines = request.lines = [(name, value.rstrip(b" \t")) for name, value in lines]
            request.headers = dict(lines)
        if len(text) - 2 * len(lines) >= self._max_bytes:  # without the line breaks, which are one less
            error = CallError(ErrorCode.PAYLOAD_TOO_LARGE, f"the headers have more than {self._max_bytes:,} bytes")
            raise HTTPStatusError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, error)
        if len(request.headers) != len(
            lines
        ):  # those that decide anything must be unique, or two parsers could disagree
            names = [name for name, _ in lines]
            for name in _UNIQUE_HEADERS:
                if names.count(name) > 1:
                    raise CallError(ErrorCode.PROTOCOL_ERROR, f"duplicate header {name.decode()}")

    def _check_host(self, headers: Mapping[bytes, bytes]) -> str:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self._hosts.include(host):
            wrong = f"this server does not accept the host name {host[:_MAX_HOST_LENGTH]!r}; allow it with the option "
            wrong += "--allow-host of `opwire serve`, `hosts` in opwire.toml, hosts= of serve_http, asgi and run_http"
            raise HTTPStatusError(HTTPStatus.MISDIRECTED_REQUEST, CallError(ErrorCode.ACCESS_DENIED, wrong))
        return host

    def _check_page(self, headers: Mapping[bytes, bytes], host: str) -> None:
        """Reject requests that a page of another host makes a browser send.

        Browsers send `Origin` with requests by scripts and with those that change anything. For links and images they
        send the relation of the page to this server (`Sec-Fetch-Site`; "none" is the address bar), or, if the browser
        is old or the host not trustworthy, its address (`Referer`). Other programs omit all three.
        """
        origin, site, page = headers.get(b"origin"), headers.get(b"sec-fetch-site"), headers.get(b"referer")
        if (origin is None and site is None and page is None) or "*" in self._origins:
            return
        # Pages of the same host may call, unless any host name is accepted: then it proves nothing.
        own_origins = (f"http://{host}", f"https://{host}")
        allowed = self._origins if self._hosts.any else self._origins.union(own_origins)
        if origin is not None:
            is_allowed = origin.decode("latin-1").lower() in allowed
        elif site is not None:
            is_allowed = site == b"none" or (site == b"same-origin" and not allowed.isdisjoint(own_origins))
        else:
            scheme, _, address = (page or b"").decode("latin-1").lower().partition("://")
            is_allowed = f"{scheme}://{address.partition('/')[0]}" in allowed
        if not is_allowed:
            wrong = "pages of other origins may not call this server; its option origins= names those that may"
            raise CallError(ErrorCode.ACCESS_DENIED, wrong)


def malformed(message: str) -> HTTPStatusError:
    """Return the error for a request after which the connection cannot be read on."""
    return HTTPStatusError(HTTPStatus.BAD_REQUEST, CallError(ErrorCode.PROTOCOL_ERROR, message), CLOSE)


def _check_transfer(headers: Mapping[bytes, bytes]) -> None:
    coding = headers.get(CHUNKED)
    if coding is None:
        return
    if b"content-length" in headers:  # a proxy may go by the other one: request smuggling
        raise malformed("content-length and transfer-encoding exclude each other")
    if coding.lower() != b"chunked":  # httptools ignores what comes before it
        raise malformed("the only transfer-encoding is chunked")
