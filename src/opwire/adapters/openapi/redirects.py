"""Where a redirect leads, and what goes along. No I/O.

The method and the body change as fetch changes them: 303 turns everything but HEAD into a GET without a body, 301 and
302 do so with POST, 307 and 308 keep both, to whatever place the API names. Credentials stay in their origin:
what authenticates, every cookie, and the headers that the user gave for this API are left behind at its border, and
do not come back if a later redirect returns. From https to http no redirect is followed.
"""

import re

from msgspec.structs import replace
from yarl import URL

from opwire.adapters.openapi.request import HTTPRequest
from opwire.errors import CallError, ErrorCode

REDIRECTS = frozenset({301, 302, 303, 307, 308})

_ENCODED = re.compile(r"[!-~]*")
_ABOUT_THE_BODY = frozenset({"content-type", "content-length", "content-encoding", "content-language"})
_ALWAYS_SECRET = frozenset({"authorization", "cookie", "proxy-authorization"})


def redirected(request: HTTPRequest, status: int, location: str) -> HTTPRequest:
    """The request that follows a redirect.

    Raises:
        CallError: EXECUTION_ERROR, if it leads to no place that may be asked.
    """
    here = URL(request.url, encoded=True)
    there = _target(here, location)
    if there.scheme not in ("http", "https") or not there.raw_host:
        raise _refused(here, "leads to no HTTP address")
    if here.scheme == "https" and there.scheme == "http":
        raise _refused(here, f"leads from https to http, at {there.raw_host}")
    headers, dropped = request.headers, frozenset[str]()
    if _origin(here) != _origin(there):
        dropped = _ALWAYS_SECRET | request.secret_headers
    method, body = request.method, request.body
    if _becomes_get(status, method):
        method, body, dropped = "GET", None, dropped | _ABOUT_THE_BODY
    if dropped:
        headers = [pair for pair in headers if pair[0].lower() not in dropped]
    # What was secret in the query is not sent again: the address is the API's own now.
    return replace(request, method=method, url=str(there), headers=headers, body=body, secret_query=False)


def _target(here: URL, location: str) -> URL:
    location = location.strip()
    try:
        # One that is encoded is taken as it is, since it may be signed; yarl quotes what others left unquoted.
        there = here.join(URL(location, encoded=bool(_ENCODED.fullmatch(location)))).with_fragment(None)
        return there if there.raw_authority == here.raw_authority else there.with_user(None)
    except ValueError:
        raise _refused(here, "leads to what is no address") from None


def _origin(url: URL) -> tuple[str, str, int | None]:
    return url.scheme, (url.raw_host or "").lower(), url.port  # that of the scheme, where none is given


def _becomes_get(status: int, method: str) -> bool:
    return (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST")


def _refused(here: URL, why: str) -> CallError:
    return CallError(ErrorCode.EXECUTION_ERROR, f"a redirect of {here.raw_host} is not followed: it {why}")
