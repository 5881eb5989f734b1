"""The address of a request but for its query: the server's, and the path with its variables filled. Pure."""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

from yarl import URL

from opwire.adapters.openapi.plan import Plan

_VARIABLE = re.compile(r"\{([^{}]*)\}")
_IN_PATH = "/:@!$&'()*+,;=-._~%"  # what a template may hold as it is
_IN_QUERY = _IN_PATH + "?"
_DOTS = (".", "..")


class Address(NamedTuple):
    """What the paths of a document are appended to. `path` ends without a slash."""

    origin: str
    path: str
    query: str


def read_address(plan: Plan) -> Address:
    """The address that the user fixed, else that of the document.

    Raises:
        ValueError: it is not a complete address. The message does not show it, because it may hold a password.
    """
    given = plan.server if plan.base_url is None else plan.base_url
    if unknown := _VARIABLE.search(given):
        raise ValueError(f"its server's address has a variable {unknown[0]} without a value; base_url= gives another")
    try:
        url = URL(given)
        origin = str(url.origin())
    except ValueError:
        raise ValueError("its server has no complete address; base_url= gives one") from None
    if url.scheme not in ("http", "https"):
        raise ValueError("its server's address is neither http:// nor https://; base_url= gives another")
    if url.raw_user is not None or url.raw_password is not None:
        raise ValueError("its server's address holds a user name or password; give credentials= instead")
    return Address(origin, url.raw_path.removesuffix("/"), url.raw_query_string)


class PathTemplate:
    """A path of a document, `/pets/{petId}/toys/{kind}.{format}`. A query in it is kept, a fragment is not.

    Raises:
        ValueError: a variable is not among the names.
    """

    def __init__(self, template: str, names: set[str]) -> None:
        path, _, query = template.partition("#")[0].partition("?")
        self.query = quote(query, safe=_IN_QUERY)
        self._segments: list[str | list[str]] = []  # a list alternates literal text and names
        for segment in path.removeprefix("/").split("/"):
            pieces = _VARIABLE.split(segment)
            pieces[::2] = [quote(piece, safe=_IN_PATH) for piece in pieces[::2]]
            for name in pieces[1::2]:
                if name not in names:
                    raise ValueError(f"its path has a variable {{{name}}} that no parameter describes")
            self._segments.append(pieces[0] if len(pieces) == 1 else pieces)

    def fill(self, texts: Mapping[str, str]) -> str:
        """The path with these texts, which are encoded already.

        Raises:
            ValueError: a segment would be empty, `.` or `..`. Servers and proxies resolve these, even when encoded.
        """
        path = ""
        for segment in self._segments:
            path += f"/{segment if isinstance(segment, str) else _filled(segment, texts)}"
        return path


def _filled(pieces: list[str], texts: Mapping[str, str]) -> str:
    segment = "".join([texts[piece] if index % 2 else piece for index, piece in enumerate(pieces)])
    # Some servers take off what follows a semicolon before they resolve the dots.
    if not segment or segment.lower().replace("%2e", ".").partition(";")[0] in _DOTS:
        variables = " and ".join(f"{{{name}}}" for name in pieces[1::2])
        raise ValueError(f"{variables} would make a segment of the path {segment!r}, which is another path")
    return segment
