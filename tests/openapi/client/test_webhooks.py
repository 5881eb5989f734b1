"""Webhooks and callbacks of documents, as subscriptions."""

from pathlib import Path
from typing import Any

import pytest

from opwire import OperationRegistry, OperationSpec, OperationType, UsageError
from opwire.openapi.client import OpenAPISource, from_openapi
from opwire.openapi.webhooks import WebhookReceiver
from tests.openapi.client.documents import document, json_body


def loaded(given: Any, **options: Any) -> tuple[OpenAPISource, dict[str, OperationSpec]]:
    """A source with webhooks, and its subscriptions by name."""
    source = from_openapi(given, namespace="api", webhooks=WebhookReceiver(unsigned=True, **options))
    specs = [each.spec for each in source]
    return source, {each.name: each for each in specs if each.type is OperationType.SUBSCRIPTION}


def hook(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"post": {"requestBody": json_body(schema), **fields}}


def test_each_webhook_is_a_subscription_with_the_schema_of_its_body() -> None:
    pet = {"type": "object", "properties": {"id": {"type": "integer", "readOnly": True}, "pin": {"writeOnly": True}}}
    given = document(
        {},
        webhooks={
            "pet.born": hook({"$ref": "#/components/schemas/Pet"}, summary="Born", description="A pet.", tags=["pets"]),
            "ping": {"post": {}},
            "shared": {"$ref": "#/components/pathItems/Shared"},
        },
        schemas={"Pet": pet},
        components={"pathItems": {"Shared": hook({"type": "integer"})}},
    )
    _, specs = loaded(given)
    assert list(specs) == ["webhooks", "webhooks.pet.born", "webhooks.ping", "webhooks.shared"]
    born = specs["webhooks.pet.born"]
    assert (born.id, born.title, born.description, born.tags) == ("api.webhooks.pet.born", "Born", "A pet.", ("pets",))
    assert born.output_schema.json == {"type": "object", "properties": {"id": {"type": "integer", "readOnly": True}}}
    assert specs["webhooks.ping"].output_schema.is_unknown
    assert specs["webhooks.shared"].output_schema.json == {"type": "integer"}
    assert born.input_schema.is_valid({})
    assert not born.input_schema.is_valid({"other": 1})


def test_callbacks_of_operations_and_webhooks_of_older_documents_are_webhooks_too() -> None:
    callbacks = {
        "paid": {"{$request.body#/url}": hook({"type": "object"}), "x-note": 1},
        "sent": {"$ref": "#/components/callbacks/Sent"},
    }
    order = {"callbacks": callbacks, "responses": {}}
    given = document(
        {"/orders": {"summary": "Orders", "post": order}, "/broken": {"$ref": "#/nowhere"}},
        version="3.0.3",
        components={"callbacks": {"Sent": {"{$request.query.url}": hook({"type": "string", "nullable": True})}}},
        **{"x-webhooks": {"paid": hook({"type": "integer"})}},
    )
    _, specs = loaded(given)
    assert list(specs) == ["webhooks", "webhooks.paid", "webhooks.paid_2", "webhooks.sent"]
    assert specs["webhooks.paid"].output_schema.json == {"type": "integer"}
    assert specs["webhooks.sent"].output_schema.json == {"type": ["string", "null"]}


def test_an_invalid_webhook_is_skipped_with_the_reason_and_the_others_are_not() -> None:
    xml = {"requestBody": {"content": {"application/xml": {"schema": {}}}}}
    webhooks = {
        "ok": hook({"type": "null"}),
        "get": {"get": {}},
        "xml": {"post": xml},
        "gone": {"$ref": "#/nowhere"},
        "number": 5,
        "body": {"post": {"requestBody": {"$ref": "#/nowhere"}}},
    }
    source, specs = loaded(document({}, webhooks=webhooks))
    assert list(specs) == ["webhooks", "webhooks.ok"]
    for name in ("get", "xml", "gone", "number", "body"):
        assert any(f"the webhook {name!r} is skipped" in each for each in source.report.warnings), name


def test_the_webhooks_that_become_operations_can_be_selected() -> None:
    webhooks = {name: hook({"type": "null"}) for name in ("issue-opened", "issue-closed", "push")}
    assert list(loaded(document({}, webhooks=webhooks), events=["issue-*"])[1]) == [
        "webhooks",
        "webhooks.issue-opened",
        "webhooks.issue-closed",
    ]


def test_without_a_receiver_webhooks_give_no_operations() -> None:
    assert not list(from_openapi(document({}, webhooks={"a": hook({})})))


def test_an_operation_of_the_document_keeps_its_name() -> None:
    paths = {"/webhooks": {"get": {"operationId": "webhooks", "responses": {}}}}
    source, specs = loaded(document(paths, webhooks={"a": hook({})}))
    assert list(specs) == ["webhooks.a"]
    assert any("webhooks is skipped" in each for each in source.report.warnings)


def test_a_receiver_belongs_to_one_source() -> None:
    receiver = WebhookReceiver(unsigned=True)
    registry = OperationRegistry()
    registry.register_all(from_openapi(document({}), namespace="a", webhooks=receiver))
    with pytest.raises(UsageError, match="one source"):
        registry.register_all(from_openapi(document({}), namespace="b", webhooks=receiver))


@pytest.mark.parametrize(
    ("name", "count", "example"),
    [("github_api.json", 270, "issues-opened"), ("openai.yaml", 16, "batch_completed"), ("museum.yaml", 1, None)],
)
def test_the_webhooks_of_real_documents_compile(shared: Path, name: str, count: int, example: str | None) -> None:
    source, specs = loaded(shared / "openapi" / name)
    hooks = {key.removeprefix("webhooks."): each for key, each in specs.items() if key.startswith("webhooks.")}
    assert len(hooks) == count
    assert not [each for each in source.report.warnings if "webhook" in each]
    for spec in [hooks[example]] if example else hooks.values():
        assert not spec.output_schema.compile().is_valid({})
