"""The options of calls and subscriptions are those that `PendingRequestMap` takes."""

import inspect

from opwire.protocol import PendingRequestMap
from opwire.protocol.call_table import RemoteStreamOptions
from opwire.protocol.transport import CallRoute, RemoteCallOptions

THE_CALL = {"self", "operation_id", "input", "output_type"}


def test_the_options_are_the_parameters_of_the_methods() -> None:
    for options, method in (
        (RemoteCallOptions, PendingRequestMap.call),
        (RemoteStreamOptions, PendingRequestMap.subscribe),
    ):
        accepted = inspect.signature(method).parameters.keys() - THE_CALL - {"route"} | CallRoute.__optional_keys__
        assert options.__optional_keys__ == accepted
