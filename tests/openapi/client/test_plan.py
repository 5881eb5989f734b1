"""Plans are plain data."""

import pytest

from opwire.openapi.client.plan import CallPlan, RequestBody, ResponseMedia
from opwire.schema import UNKNOWN


def test_a_plan_says_what_is_usual_unless_told_otherwise() -> None:
    plan = CallPlan(operation_id="a.b", method="GET", path="/", server="https://api.test")
    assert (plan.parameters, plan.body, plan.security, plan.file_paths) == ((), None, (), ())
    assert plan.accept == "*/*"
    assert RequestBody(content_type="application/json", required=True).input_path == ("body",)
    assert ResponseMedia(content_type="text/plain").schema is UNKNOWN


def test_a_plan_does_not_change() -> None:
    plan = CallPlan(operation_id="a.b", method="GET", path="/", server="https://api.test")
    with pytest.raises(AttributeError):
        plan.path = "/other"  # pyright: ignore[reportAttributeAccessIssue]
