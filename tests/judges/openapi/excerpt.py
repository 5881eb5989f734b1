"""An excerpt of Stripe's document: some operations with their whole requests."""

import json
from pathlib import Path
from typing import Any

PATHS = """
    /v1/account/persons /v1/balance_transactions /v1/charges /v1/checkout/sessions /v1/credit_notes/preview
    /v1/customers /v1/events /v1/files /v1/invoices/upcoming /v1/orders /v1/payment_intents /v1/prices /v1/skus
    /v1/subscriptions /v1/topups
""".split()

_ANSWERS = {"200": {"description": "", "content": {"application/json": {"schema": {"type": "object"}}}}}


def write_excerpt(document: Path, excerpt: Path) -> int:
    """Write the excerpt, and return how many operations it has.

    Of the answers it holds nothing: they refer to nearly all of Stripe, and it is the requests that are judged.
    """
    whole: dict[str, Any] = json.loads(document.read_bytes())
    paths = {
        path: {method: {**operation, "responses": _ANSWERS} for method, operation in whole["paths"][path].items()}
        for path in PATHS
    }
    components = {"securitySchemes": whole["components"]["securitySchemes"]}
    kept = {key: whole[key] for key in ("openapi", "info", "servers", "security")}
    excerpt.write_text(json.dumps({**kept, "paths": paths, "components": components}))
    return sum(map(len, paths.values()))
