"""What an operation asks of credentials: the document's security schemes and requirements as `Need`s."""

from typing import Any

from opwire.adapters.openapi.endpoints import Endpoint
from opwire.adapters.openapi.plan import Need, Scheme
from opwire.adapters.openapi.refs import Documents
from opwire.adapters.openapi.report import Report
from opwire.adapters.openapi.shapes import mapping, sequence, text, texts
from opwire.errors import SchemaError
from opwire.schema.refs import escaped


def needs_of(endpoint: Endpoint, documents: Documents, report: Report) -> tuple[tuple[Need, ...], ...]:
    """The alternatives of which one has to be met; the operation's own, else those of the whole document."""
    given = endpoint.operation.value.get("security", documents.main.root.get("security"))
    return tuple(
        tuple(
            Need(_scheme(name, documents, report), tuple(texts(scopes)))
            for name, scopes in mapping(alternative).items()
        )
        for alternative in sequence(given)
    )


def _scheme(name: str, documents: Documents, report: Report) -> Scheme:
    place = "securityDefinitions" if documents.version == "2.0" else "components/securitySchemes"
    try:
        found = documents.follow({"$ref": f"#/{place}/{escaped(name)}"}, documents.main)
        if fields := mapping(found.value):
            return _read(name, fields)
    except SchemaError:
        pass
    report.warn(f"the security scheme {name!r} is not declared")
    return Scheme(name=name, kind="other", said="not declared")


def _read(name: str, fields: dict[str, Any]) -> Scheme:
    kind, http = text(fields.get("type")), text(fields.get("scheme")).lower()
    match kind, fields.get("in"), http:
        case "apiKey", "header" | "query" | "cookie" as location, _:
            return Scheme(name=name, kind="apiKey", location=location, parameter=text(fields.get("name")))
        case "basic", _, _:  # as Swagger 2.0 says it
            return Scheme(name=name, kind="basic")
        case "http", _, "basic" | "bearer":
            return Scheme(name=name, kind="basic" if http == "basic" else "bearer")
        case "oauth2", _, _:
            return Scheme(name=name, kind="oauth2", token_url=_token_url(fields))
        case "openIdConnect", _, _:
            return Scheme(name=name, kind="openIdConnect")
        case _:
            return Scheme(name=name, kind="other", said=f"{kind} {http}".strip() or "of no type")


def _token_url(fields: dict[str, Any]) -> str:
    """As the document writes it: a relative one belongs to where requests go, which the user may have fixed."""
    flow = mapping(mapping(fields.get("flows")).get("clientCredentials"))
    return text(flow.get("tokenUrl")) or (text(fields.get("tokenUrl")) if fields.get("flow") == "application" else "")
