"""Small documents for tests, and what becomes of them."""

from typing import Any

from opwire.openapi.client.document import DocumentSet, version_of
from opwire.openapi.client.operations import LazyOperation, ReadOptions, read_operations
from opwire.registry.source import Report
from opwire.schema import Schema

JSON = "application/json"


def document(paths: Any, version: str = "3.1.0", **fields: Any) -> dict[str, Any]:
    """A document with these paths; `schemas` go where the version has them."""
    schemas = fields.pop("schemas", {})
    info = {"title": "Test", "version": "1"}
    if version == "2.0":
        return {"swagger": version, "info": info, "paths": paths, "definitions": schemas, **fields}
    components = {"schemas": schemas, **fields.pop("components", {})}
    return {"openapi": version, "info": info, "paths": paths, "components": components, **fields}


def json_body(schema: Any, *, required: bool = True) -> dict[str, Any]:
    """A `requestBody` in JSON."""
    return {"required": required, "content": {JSON: {"schema": schema}}}


def answers(schema: Any, status: str = "200", content_type: str = JSON) -> dict[str, Any]:
    """`responses` with one kind of answer."""
    return {status: {"description": "", "content": {content_type: {"schema": schema}}}}


def parameter(name: str, location: str = "query", **fields: Any) -> dict[str, Any]:
    """A parameter; it is required where it has to be."""
    return {"name": name, "in": location, "required": location == "path", "schema": {"type": "string"}, **fields}


class Read:
    """A document, read: its operations by name, and the report."""

    def __init__(self, root: dict[str, Any], *, uri: str = "", **options: Any) -> None:
        self.report = Report()
        self.documents = DocumentSet(root, uri, version_of(root, "test", self.report))
        options = {"namespace": "test", **options}
        found = read_operations(self.documents, self.report, ReadOptions(**options))
        self.operations = {each.spec.name: each for each in found}

    def __getitem__(self, name: str) -> LazyOperation:
        return self.operations[name]

    @property
    def only(self) -> LazyOperation:
        """The one operation that there is."""
        (operation,) = self.operations.values()
        return operation


def read(root: dict[str, Any], **options: Any) -> Read:
    """Read a whole document."""
    return Read(root, **options)


def read_one(operation: dict[str, Any], path: str = "/things", method: str = "post", **fields: Any) -> LazyOperation:
    """Read a document that has this one operation."""
    return Read(document({path: {method: operation}}, **fields)).only


def input_of(operation: dict[str, Any], path: str = "/things", method: str = "post", **fields: Any) -> dict[str, Any]:
    """The input schema of an operation."""
    json = read_one(operation, path, method, **fields).spec.input_schema.json
    assert isinstance(json, dict)
    return json


def output_of(operation: dict[str, Any], method: str = "get", **fields: Any) -> Any:
    """The output schema of an operation."""
    return read_one(operation, method=method, **fields).spec.output_schema.json


def accepts(schema: Any, value: Any) -> bool:
    """Whether a value fits a schema that is given as plain data."""
    return Schema(schema).is_valid(value)
