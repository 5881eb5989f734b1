"""Webhooks of a document: `webhooks` of OpenAPI 3.1, `x-webhooks` of 3.0, and the `callbacks` of operations."""

import contextlib
from collections.abc import Iterator
from typing import Any

from opwire.adapters.openapi.document import DocumentSet, Located, as_text, as_texts
from opwire.adapters.openapi.endpoints import contents, preferred
from opwire.adapters.openapi.operations import printable_name
from opwire.adapters.openapi.plan import media_type
from opwire.adapters.openapi.schemas import SchemaRewriter
from opwire.adapters.source import Report
from opwire.errors import SchemaError
from opwire.names import UniqueNames
from opwire.schema import UNKNOWN, Schema
from opwire.typed.plain import as_dict
from opwire.webhooks import DeclaredWebhook


def read_webhooks(documents: DocumentSet, report: Report) -> list[DeclaredWebhook]:
    """Return the webhooks of a document that are POST requests with JSON, each with its own name."""
    schemas = SchemaRewriter(documents, report)
    names = UniqueNames()
    found: list[DeclaredWebhook] = []
    for name, given in _path_items(documents):
        where = f"the webhook {name!r:.100}"
        try:
            item = documents.follow_object(*given, where)
            operation = documents.follow_object(item.value.get("post"), item.document, f"{where}, `post`")
            schema = _schema(operation, documents, schemas, where)
        except SchemaError as error:
            report.warn(f"{where} is skipped: {error}")
            continue
        own = operation.value
        found.append(
            DeclaredWebhook(
                name=names.take(printable_name(name) or "webhook"),
                schema=schema,
                title=as_text(own.get("summary")).strip(),
                description=as_text(own.get("description")).strip(),
                aliases=tuple(filter(None, [as_text(own.get("operationId"))])),
                tags=tuple(as_texts(own.get("tags"))),
            )
        )
    return found


def _path_items(documents: DocumentSet) -> Iterator[tuple[str, Located]]:
    """Iterate over the names and path items of webhooks, then of callbacks, which may be references."""
    root, main = documents.main.root, documents.main
    for key in ("webhooks", "x-webhooks"):
        yield from ((name, Located(each, main)) for name, each in as_dict(root.get(key)).items())
    for operation in _operations(documents):
        for name, given in as_dict(operation.value.get("callbacks")).items():
            with contextlib.suppress(SchemaError):
                callback = documents.follow(given, operation.document)
                for expression, each in as_dict(callback.value).items():
                    if not expression.startswith("x-"):
                        yield name, Located(each, callback.document)


def _operations(documents: DocumentSet) -> Iterator[Located]:
    with contextlib.suppress(SchemaError):  # reported where the operations are read
        paths = documents.follow(documents.main.root.get("paths"), documents.main)
        for given in as_dict(paths.value).values():
            with contextlib.suppress(SchemaError):
                item = documents.follow(given, paths.document)
                yield from (Located(each, item.document) for each in as_dict(item.value).values() if as_dict(each))


def _schema(operation: Located, documents: DocumentSet, schemas: SchemaRewriter, where: str) -> Schema:
    """Return the schema of the body, as the API sends it.

    Raises:
        SchemaError: it is not JSON, or a reference has no target.
    """
    given: Any = operation.value.get("requestBody")
    if given is None:
        return UNKNOWN
    body = documents.follow_object(given, operation.document, "`requestBody`")
    content = preferred(contents(body, documents))
    if content is None:
        return UNKNOWN
    if not media_type(content.content_type).is_json:
        raise SchemaError(f"its body is {content.content_type:.100}, not JSON")
    fields, home = content.fields
    if "schema" not in fields:
        return UNKNOWN

    return Schema.deferred(
        lambda: schemas.complete(schemas.read(fields["schema"], home, "output", where), "output"), checks_formats=False
    )
