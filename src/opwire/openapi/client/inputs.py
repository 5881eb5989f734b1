"""The input of an operation: one object with its parameters and its body.

The input is flat if possible: `{"petId": 1, "name": "Rex"}`. Parameters are keys. The properties of a body are keys
beside them if it is a JSON object or a form that `plain_object` can split; any other body is the key `body`. If two
names collide, everything is grouped by location instead: `{"path": {"id": 1}, "body": {"id": 2}}`.

The input of another opwire's operation is its body, of any type, if its document is trusted.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from opwire.openapi.client.document import DocumentSet, Located
from opwire.openapi.client.endpoints import DeclaredParameter, HTTPEndpoint, is_any, is_text, read_parameters
from opwire.openapi.client.plan import (
    InputPath,
    PartEncoding,
    RequestBody,
    RequestParameter,
    SecretPlace,
    is_idempotency_key,
    media_type,
    secret_place,
)
from opwire.openapi.client.request_bodies import (
    BodyDeclaration,
    DeclaredFields,
    FormEncoding,
    FormReader,
    PlainObject,
    edited,
    fields_of,
    is_binary_body,
    or_null,
    plain_object,
    read_body,
    read_part,
)
from opwire.openapi.client.schemas import RewrittenSchema, SchemaRewriter
from opwire.openapi.client.serialize import FILE_SCHEMA
from opwire.openapi.client.xml_text import XMLRoot
from opwire.registry.source import Report
from opwire.schema import JSONSchema
from opwire.schema.shape import type_names
from opwire.typed.plain import as_list

STREAM = "stream"
"""The property of a request that asks an API to stream."""

_BODY = "body"
_MAX_DEPENDENT_NAMES = 20  # that each property of an optional body requires
_GROUPS = {"querystring": "query"}


class OperationInput(NamedTuple):
    """The input schema of an operation, and where its values are sent."""

    schema: JSONSchema
    parameters: tuple[RequestParameter, ...]
    body: RequestBody | None
    file_paths: tuple[InputPath, ...]


class _BodyInput(NamedTuple):
    """The body, with the schemas of its properties if it can be split."""

    declaration: BodyDeclaration
    schema: JSONSchema
    plain: PlainObject | None = None
    properties: Mapping[str, JSONSchema] = {}
    form: FormEncoding = FormEncoding()
    fixed: Mapping[str, Any] = {}
    binary: bool = False
    xml: XMLRoot | None = None

    @property
    def required(self) -> bool:
        """Whether the body is always sent, as it is with fixed properties."""
        return self.declaration.required or bool(self.fixed)

    @property
    def required_properties(self) -> list[str]:
        """The required properties that the caller has to give."""
        required = self.plain.required if self.plain else []
        declared = self.plain.properties if self.plain else {}
        return [name for name in required if name in self.properties or name not in declared]


class InputReader(Struct, eq=False):
    """Reads the input of one operation.

    `streams` is True for the streaming form of an operation, False for the plain form of one that can stream, and None
    for any other. A parameter in one of the `secret_places` is optional: a credential fills it. An idempotency key is
    optional too: it has a random value by default.
    """

    endpoint: HTTPEndpoint
    documents: DocumentSet
    schemas: SchemaRewriter
    report: Report
    streams: bool | None
    secret_places: Collection[SecretPlace | None] = ()
    uses: set[str] = field(default_factory=set[str])  # definitions that the schema of the input refers to

    def whole(self) -> OperationInput | None:
        """Return the body as the input itself; None if it is missing or not JSON."""
        declaration = read_body(self.endpoint, self.documents)
        if declaration is None or not declaration.is_json:
            return None
        rewritten = self.schemas.read(*declaration.schema, "input", f"{self.endpoint}, the body")
        schema = self.schemas.complete(rewritten, "input")
        body = RequestBody(content_type=declaration.content_type, required=True, input_path=(), open=True, whole=True)
        return OperationInput(schema, (), body, ())

    def read(self) -> OperationInput:
        """Return the input, flat or grouped."""
        parameters: list[DeclaredParameter] = []
        repeatable = self.endpoint.method in ("POST", "PATCH")
        for parameter in read_parameters(self.endpoint, self.documents, self.report):
            is_key = repeatable and is_idempotency_key(parameter.location, parameter.name)
            is_filled = is_key or secret_place(parameter.location, parameter.name) in self.secret_places
            parameters.append(replace(parameter, required=False) if is_filled else parameter)
        declaration = read_body(self.endpoint, self.documents)
        body = None if declaration is None else self._body(declaration)
        names = [parameter.name for parameter in parameters]
        if body is not None:
            # A property may be required without being declared.
            names += {*body.properties, *body.fixed, *body.required_properties} if body.plain else {_BODY}
        is_flat = len(set(names)) == len(names)
        return self._flat(parameters, body) if is_flat else self._grouped(parameters, body)

    def _flat(self, parameters: list[DeclaredParameter], body: _BodyInput | None) -> OperationInput:
        properties = {parameter.name: self._property(parameter) for parameter in parameters}
        required = [parameter.name for parameter in parameters if parameter.required]
        schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        body_path: InputPath = (_BODY,)
        if body is not None and body.plain is not None:  # its properties go among the parameters
            body_path = ()
            properties |= body.properties
            required_names = body.required_properties
            if body.required:
                required += required_names
            else:  # any of its properties makes a body, which has to be complete
                # The first needed one demands the others, so that the rest demand only the first of many: 2,000
                # properties that each listed 2,000 names took 31 MB.
                required_by_others = (
                    required_names[:1] if len(required_names) > _MAX_DEPENDENT_NAMES else required_names
                )
                required_by_property = {
                    property_name: required_names if [property_name] == required_by_others else required_by_others
                    for property_name in body.properties
                }
                others = {
                    property_name: [name for name in names if name != property_name]
                    for property_name, names in required_by_property.items()
                }
                if any(others.values()):
                    schema["dependentRequired"] = {
                        property_name: names for property_name, names in others.items() if names
                    }
            if body.plain.extras is None:
                del schema["additionalProperties"]
            else:
                schema["additionalProperties"] = self._extras(body.plain.extras, body.form)
        elif body is not None:
            properties[_BODY] = body.schema
            required += [_BODY] if body.required else []
        if required:
            schema["required"] = required
        return self._input(schema, [(parameter.name,) for parameter in parameters], parameters, body, body_path)

    def _grouped(self, parameters: list[DeclaredParameter], body: _BodyInput | None) -> OperationInput:
        groups: dict[str, dict[str, Any]] = {}
        paths: list[InputPath] = []
        for parameter in parameters:
            name = _GROUPS.get(parameter.location, parameter.location)
            group = groups.setdefault(name, {"type": "object", "properties": {}, "additionalProperties": False})
            group["properties"][parameter.name] = self._property(parameter)
            if parameter.required:
                group.setdefault("required", []).append(parameter.name)
            paths.append((name, parameter.name))
        properties: dict[str, JSONSchema] = {**groups}
        required = [name for name, group in groups.items() if "required" in group]
        if body is not None:
            properties[_BODY] = body.schema
            required += [_BODY] if body.required else []
        schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            schema["required"] = required
        return self._input(schema, paths, parameters, body, (_BODY,))

    def _input(
        self,
        schema: dict[str, Any],
        paths: list[InputPath],
        parameters: list[DeclaredParameter],
        body: _BodyInput | None,
        body_path: InputPath,
    ) -> OperationInput:
        complete = self.schemas.complete(RewrittenSchema(schema, self.uses), "input")
        sent: list[RequestParameter] = []
        for declared, path in zip(parameters, paths, strict=True):
            parts: dict[str, PartEncoding] = {}
            if declared.is_form and declared.encoding is not None:
                for name, field_encoding in declared.encoding.value.items():
                    located = Located(field_encoding, declared.encoding.document)
                    parts[name] = read_part(f"the field {name!r}", located, self.documents, self._warn)
            sent.append(replace(declared, input_path=path, parts=parts))
        if body is None:
            return OperationInput(complete, tuple(sent), None, ())
        form, extras = body.form, body.plain.extras if body.plain else None
        request_body = RequestBody(
            content_type=body.declaration.content_type,
            required=body.required,
            input_path=body_path,
            properties=() if body_path else tuple(body.properties),
            open=not body_path and (extras is None or extras.value is not False),
            parts=form.parts,
            others=form.others,
            positions=form.positions,
            items=form.items,
            binary=body.binary,
            xml=body.xml,
            fixed=body.fixed,
        )
        files = [(*body_path, name) for name, part in form.parts.items() if part.binary]
        return OperationInput(complete, tuple(sent), request_body, (body_path,) if body.binary else tuple(files))

    # --- schemas ----------------------------------------------------------------------------------------------------

    def _property(self, declared: DeclaredParameter) -> JSONSchema:
        if declared.schema.value is None:
            self._warn(f"the parameter {declared.name!r} has no schema: any value is accepted")
        schema = self._read(declared.schema, f"the parameter {declared.name!r}")
        kind = declared.content_type
        if kind is not None and not media_type(kind).is_json and not declared.is_form and not _is_scalar(schema):
            schema = {"type": "string"}
        return _annotated(schema if declared.required else or_null(schema), declared.annotations)

    def _body(self, declaration: BodyDeclaration) -> _BodyInput:
        annotations = {"description": declaration.description}
        kind = media_type(declaration.content_type)
        root = None if kind.is_json else self.schemas.xml_root(*declaration.schema)
        if is_binary_body(declaration, self.schemas):
            if root is not None:
                self._warn(f"the body is an array or object, and {kind.name!r} is unknown: it is given as bytes")
            return _BodyInput(declaration, _annotated(FILE_SCHEMA, annotations), binary=True)
        if root is not None and not (kind.is_xml and root.name):
            if is_text(kind.name):
                missing = "its schema does not name the root element (`xml.name`)" if kind.is_xml else "is text"
                self._warn(f"the body is an array or object, and {missing}: it is given as text")
            root = None
        has_parts = declaration.is_form or declaration.is_multipart
        fields, form = DeclaredFields({}, {}, [], set()), FormEncoding()
        if self.streams is not None or has_parts:
            fields = fields_of(*declaration.schema, self.schemas)
        if has_parts:
            reader = FormReader(
                declaration, self.documents, self.schemas, lambda problem: self._warn(f"the body: {problem}")
            )
            is_array = "array" in type_names(self.schemas.resolve(*declaration.schema).value)
            by_position = declaration.is_multipart and not fields.properties and is_array
            form = reader.read_array() if by_position else reader.read(fields)
        if declaration.is_form or declaration.is_json or is_any(kind.name) or root is not None:
            plain = plain_object(*declaration.schema, self.schemas)
            if plain is not None:
                return self._split_body(declaration, plain, fields, form)._replace(xml=root)
        # The schema constrains more than single properties: the body stays one value.
        fixed = self._fixed(fields.properties, fields.required) if declaration.is_json else None
        edits = form.edits if fixed is None else replace(form.edits, dropped=frozenset({STREAM}))
        body_schema = self.schemas.read(*declaration.schema, "input", f"{self.endpoint}, the body")
        rewritten = edited(body_schema, edits, self.schemas)
        self.uses |= rewritten.uses
        schema = rewritten.schema
        if is_text(kind.name) and root is None and not _is_scalar(schema):
            schema = {"type": "string"}
        return _BodyInput(declaration, _annotated(schema, annotations), form=form, fixed=fixed or {}, xml=root)

    def _split_body(
        self, declaration: BodyDeclaration, plain: PlainObject, fields: DeclaredFields, form: FormEncoding
    ) -> _BodyInput:
        properties: Mapping[str, JSONSchema] = {}
        for name, located in plain.properties.items():
            if any(self.schemas.is_hidden(*located_schema, "input") for located_schema in located):
                continue
            file = form.edits.properties.get(name)
            if file is not None:
                properties[name] = file
                continue
            schemas = [self._read(located_schema, f"the property {name!r}") for located_schema in located]
            schema: JSONSchema = schemas[0] if len(schemas) == 1 else {"allOf": schemas}
            omits_null = declaration.is_form or media_type(declaration.content_type).is_xml
            is_optional = omits_null and name not in plain.required
            properties[name] = or_null(schema) if is_optional else schema
        fixed = self._fixed(fields.properties, plain.required)
        if fixed is not None:
            properties.pop(STREAM, None)
        whole: dict[str, Any] = {"type": "object", "properties": properties}
        body = _BodyInput(declaration, whole, plain, properties, form, fixed or {})
        if body.required_properties:
            whole["required"] = body.required_properties
        if plain.extras is not None:
            whole["additionalProperties"] = self._extras(plain.extras, form)
        return body._replace(schema=_annotated(whole, {"description": declaration.description}))

    def _extras(self, located: Located, form: FormEncoding) -> JSONSchema:
        file = form.edits.extras
        return self._read(located, "the body") if file is None else file

    def _fixed(self, properties: dict[str, list[Located]], required: Collection[str]) -> dict[str, Any] | None:
        """Return the value of `stream` that is always sent; None if the caller decides."""
        located = properties.get(STREAM, [])
        if self.streams is None or not any(self._is_boolean(located_schema) for located_schema in located):
            return None
        if self.streams:
            return {STREAM: True}
        by_default = any(
            self.schemas.resolve(*located_schema).value.get("default") is True for located_schema in located
        )
        return {STREAM: False} if by_default or STREAM in required else {}

    def _is_boolean(self, located: Located) -> bool:
        node, home = self.schemas.resolve(*located)
        if "boolean" in type_names(node):
            return True
        values = [node["const"]] if "const" in node else as_list(node.get("enum"))
        if node.get("type") is None and values and all(isinstance(option, bool) for option in values):
            return True
        branches = [*as_list(node.get("anyOf")), *as_list(node.get("oneOf"))]
        return any(self.schemas.resolve(branch, home).value.get("type") == "boolean" for branch in branches)

    def _read(self, located: Located, what: str) -> JSONSchema:
        rewritten = self.schemas.read_shared(*located, "input", f"{self.endpoint}, {what}")
        self.uses |= rewritten.uses
        return rewritten.schema

    def _warn(self, warning: str) -> None:
        self.report.warn(f"{self.endpoint}: {warning}")


def _annotated(schema: JSONSchema, annotations: Mapping[str, Any]) -> JSONSchema:
    """Return the schema with annotations, which override its own."""
    annotations = {keyword: value for keyword, value in annotations.items() if value}
    if not annotations or schema is False:
        return schema
    return {**schema, **annotations} if isinstance(schema, dict) else annotations


def _is_scalar(schema: JSONSchema) -> bool:
    types = type_names(schema) if isinstance(schema, dict) else []
    return bool(types) and not {"object", "array"} & set(types)
