"""The token of a caller in the context of a call."""

import pytest
from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode
from opwire.model.caller import caller_metadata, caller_token, find_caller_token, with_caller_token
from opwire.model.context import Context
from opwire.model.identity import Identity

ANN, EVE = Identity(id="ann"), Identity(id="eve")


def test_calls_on_behalf_of_a_call_have_the_token_of_its_caller() -> None:
    context = with_caller_token(Context(identity=ANN, metadata={"tenant": 1}), "t-ann")
    assert caller_token(context) == caller_token(context.child().within(5)) == "t-ann"
    assert context.metadata["tenant"] == 1


def test_a_token_counts_only_for_the_identity_that_it_proved() -> None:
    context = with_caller_token(Context(identity=ANN), "t-ann")
    for other in (EVE, Identity(id="ann", scopes=("*",)), None):
        assert find_caller_token(replace(context, identity=other)) is None
    for without in (Context(), Context(identity=ANN), context.detached()):
        with pytest.raises(CallError) as failure:
            caller_token(without)
        assert failure.value.code is ErrorCode.UNAUTHENTICATED
    assert caller_metadata(ANN, None) == {}


def test_a_token_is_not_in_a_repr() -> None:
    assert "t-ann" not in repr(with_caller_token(Context(identity=ANN), "t-ann"))
