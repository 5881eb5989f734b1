"""Prism takes every request that opwire sends, and what it does not take is a fault of its own, listed with the reason.

The lists are exact: a test fails when one would have to grow, and when it could shrink.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from opwire import OperationRegistry
from opwire.openapi.client import from_openapi
from tests.judges.openapi import styles
from tests.judges.openapi.excerpt import write_excerpt
from tests.judges.openapi.prism import complaint_about, prism, refused

ONLY_REDIRECTS = "the document has no answer but a redirect to nowhere"
INVENTED = "Prism makes an object of every deepObject, given or not, and misses what is required of it"
ARRAYS_OF_OBJECTS = "Prism takes the objects of an array in a form for JSON text, after it has read them"
NOT_ENCODED = "Prism wants the fields of a multipart body to be percent-encoded"
REAL: dict[str, dict[str, str]] = {
    "swagger_petstore3.yaml": {},
    "museum.yaml": {},
    "httpbin.yaml": {
        f"{operation} {extent}": ONLY_REDIRECTS
        for operation in (
            *("get_absolute_redirect_n", "get_redirect_n", "get_relative_redirect_n"),
            *(f"{method}_redirect_to" for method in ("delete", "get", "patch", "post", "put", "trace")),
        )
        for extent in ("full", "simple", "least")
    },
}
STRIPE = {
    **dict.fromkeys(
        (f"Post{name} full" for name in ("CheckoutSessions", "Customers", "Orders", "Prices", "Subscriptions")),
        ARRAYS_OF_OBJECTS,
    ),
    **dict.fromkeys(
        (
            *(f"Post{name} least" for name in ("CheckoutSessions", "Files", "Orders", "PaymentIntents", "Prices")),
            *("PostSkus least", "PostSubscriptions least", "GetInvoicesUpcoming least"),
        ),
        INVENTED,
    ),
    **dict.fromkeys(("PostFiles full", "PostFiles simple"), NOT_ENCODED),
}

CRASHES = "Prism ends with a TypeError when a segment of a path holds a comma"
UNSEEN = "Prism does not look at it"
LAST_FIELD = "Prism keeps the last of several fields of one name"
NO_JSON = "Prism reads no JSON in a field"
SPACE = "Prism looks for %20 after it has decoded it"
OWN: dict[str, str] = {
    **{f"path {how}": CRASHES for how in ("simple array", "simple exploded array", "simple object")},
    **{f"path {how}": CRASHES for how in ("simple exploded object", "label array", "label object")},
    **{f"path {how}": CRASHES for how in ("matrix array", "matrix object")},
    "path label exploded object": "Prism looks for commas where the specification has points",
    "query spaceDelimited array": SPACE,
    **{case.name: UNSEEN for case in styles.cases() if case.name.startswith("cookie ")},
    **{case.name: UNSEEN for case in styles.cases() if case.name.endswith(" application/json object")},
    **{f"{kind} array": LAST_FIELD for kind in (styles.FORM, styles.MULTIPART)},
    **{f"{kind} object": NO_JSON for kind in (styles.FORM, styles.MULTIPART)},
    f"{styles.FORM} spaceDelimited exploded array": LAST_FIELD,
    f"{styles.FORM} pipeDelimited exploded array": LAST_FIELD,
    f"{styles.FORM} spaceDelimited array": SPACE,
    f"{styles.FORM} form object": "Prism takes the comma between two items for one that should be encoded",
}

SCHEMES: dict[str, tuple[dict[str, Any], Any]] = {
    "header": ({"type": "apiKey", "in": "header", "name": "X-Key"}, "secret"),
    "query": ({"type": "apiKey", "in": "query", "name": "key"}, "secret"),
    "cookie": ({"type": "apiKey", "in": "cookie", "name": "key"}, "secret"),
    "basic": ({"type": "http", "scheme": "basic"}, ("user", "password")),
    "bearer": ({"type": "http", "scheme": "bearer"}, "secret"),
    "oauth": ({"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "/token", "scopes": {}}}}, "secret"),
    "oidc": ({"type": "openIdConnect", "openIdConnectUrl": "/.well-known/openid-configuration"}, "secret"),
}


def credential(scheme: str, context: object) -> Any:
    """One for each scheme of the real documents."""
    return ("user", "password") if scheme == "MuseumPlaceholderAuth" else "secret"


@pytest.mark.parametrize("name", REAL)
async def test_prism_takes_every_request_of_a_real_document(shared: Path, tmp_path: Path, name: str) -> None:
    """Prism takes every request to petstore, museum, httpbin and Stripe, but for its own listed faults."""
    document = shared / "openapi" / name
    async with prism(document, tmp_path / "log") as address:
        found = await refused(document, address, credential)
    assert found.keys() == REAL[name].keys(), found


async def test_prism_takes_stripes_forms_and_deep_objects(shared: Path, tmp_path: Path) -> None:
    document = tmp_path / "stripe.json"
    assert write_excerpt(shared / "openapi" / "stripe_spec3.json", document) == 26
    async with prism(document, tmp_path / "log") as address:
        found = await refused(document, address, {"bearerAuth": "secret"})
    assert found.keys() == STRIPE.keys(), found
    never_taken = [name for name in found if name.endswith(" simple")]
    assert never_taken == ["PostFiles simple"]


async def test_prism_reads_every_style_and_body_as_it_was_meant(tmp_path: Path) -> None:
    """Prism has to take one value and to refuse another: then it has read it, and read it well."""
    exact = tmp_path / "styles.json"
    exact.write_text(json.dumps(styles.document(exact=True)))
    registry, judged = OperationRegistry(), set[str]()
    async with (
        prism(exact, tmp_path / "log") as address,
        from_openapi(styles.document(exact=False), namespace="api", base_url=address) as api,
    ):
        registry.register_all(api)
        for case in styles.cases():
            if OWN.get(case.name) == CRASHES:
                continue
            right = await complaint_about(registry, f"api.{case.name}", case.input(styles.VALUES[case.kind]))
            wrong = await complaint_about(registry, f"api.{case.name}", case.input(styles.OTHERS[case.kind]))
            if right is None and wrong is not None:
                judged.add(case.name)
    everything = {case.name for case in styles.cases()}
    assert judged == everything - OWN.keys()
    assert (len(everything), len(judged)) == (84, 54)


def test_every_style_and_body_is_judged_at_least_once() -> None:
    judged = [case.name for case in styles.cases() if case.name not in OWN]
    places = [f"{location} {style}" for location, found in styles.STYLES.items() for style in found]
    unseen = [place for place in [*places, *styles.BODIES] if not any(name.startswith(place) for name in judged)]
    assert unseen == ["cookie form"]


async def test_prism_finds_the_credentials_of_every_scheme(tmp_path: Path) -> None:
    """Each is asked for alone, then four of them together."""
    ways = {name: [{name: []}] for name in SCHEMES} | {
        "together": [{name: [] for name in ("header", "query", "cookie", "basic")}]
    }
    answers = {"200": {"description": "", "content": {"application/json": {"example": "taken"}}}}
    paths = {
        f"/{way}": {"get": {"operationId": way, "security": needs, "responses": answers}} for way, needs in ways.items()
    }
    schemes = {"securitySchemes": {name: scheme for name, (scheme, _) in SCHEMES.items()}}
    info = {"title": "Doors", "version": "1"}
    document = tmp_path / "doors.json"
    document.write_text(json.dumps({"openapi": "3.1.0", "info": info, "paths": paths, "components": schemes}))
    async with prism(document, tmp_path / "log") as address:
        without = await refused(document, address)
        found = await refused(document, address, {name: given for name, (_, given) in SCHEMES.items()})
    assert {name.split()[0] for name in without} == ways.keys()
    assert found == {}
