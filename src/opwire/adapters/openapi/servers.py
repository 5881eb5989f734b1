"""The address of an API: what the document says, its variables filled, read against the document's own address."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from opwire.adapters.openapi.endpoints import VARIABLE, Endpoint
from opwire.adapters.openapi.refs import Documents, joined
from opwire.adapters.openapi.report import Report
from opwire.adapters.openapi.shapes import mapping, sequence, text, texts

_MAX_ADDRESS = 8 * 1024  # characters, with its variables filled
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def server_of(endpoint: Endpoint, documents: Documents, variables: Mapping[str, str], report: Report) -> str:
    """The address that the paths of an operation are below; relative where nothing says more."""
    root = documents.main.root
    if documents.version == "2.0":
        return _from_swagger(endpoint, root, documents.main.uri)
    for owner in (endpoint.operation.value, endpoint.item.value, root):
        for server in sequence(owner.get("servers")):
            fields = mapping(server)
            if isinstance(fields.get("url"), str):
                return _absolute(_filled(fields, variables, report), documents.main.uri)
    return _absolute("/", documents.main.uri)


def _filled(server: dict[str, Any], given: Mapping[str, str], report: Report) -> str:
    """The address with its variables; one that has no value at all stays, and the first call says so."""
    declared = mapping(server.get("variables"))
    left = _MAX_ADDRESS

    @cache
    def value_of(name: str) -> str:
        variable = mapping(declared.get(name))
        choices = texts(variable.get("enum"))
        if name in given:
            if choices and str(given[name]) not in choices:
                report.warn(f"the server variable {name!r} is one of {', '.join(choices[:10])}, not {given[name]!r}")
            return str(given[name])
        default = variable.get("default")
        if isinstance(default, str | int | float):
            return text(default)
        return choices[0] if choices else f"{{{name}}}"

    def value(found: re.Match[str]) -> str:
        nonlocal left
        left -= len(value_of(found[1]))
        return value_of(found[1]) if left >= 0 else ""

    address = VARIABLE.sub(value, server["url"].strip())
    if left < 0 or len(address) > _MAX_ADDRESS:
        report.warn(f"the server's address has more than {_MAX_ADDRESS:,} characters: it is not used")
        return "/"
    return address


def _absolute(address: str, base: str) -> str:
    if _ABSOLUTE.match(address) or not base.startswith(("http://", "https://")):
        return address
    return joined(base, address or "/")


def _from_swagger(endpoint: Endpoint, root: dict[str, Any], base: str) -> str:
    home = urlsplit(base) if base.startswith(("http://", "https://")) else None
    host = text(root.get("host")).strip() or (home.netloc if home else "")
    path = "/" + text(root.get("basePath")).strip().strip("/")
    if not host:
        return path
    schemes = texts(endpoint.operation.value.get("schemes")) or texts(root.get("schemes"))
    usual = [each for each in ("https", "http") if each in schemes]
    scheme = usual[0] if usual else home.scheme if home else "https"
    return f"{scheme}://{host}{path}"
