"""What a test of operations needs, built on the public interface of a registry."""

import hashlib
import json
from collections.abc import Callable, Mapping
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import Any

from opwire.model.operation import OperationType
from opwire.registry import OperationRegistry


def with_stand_ins(registry: OperationRegistry, stand_ins: Mapping[str, Callable[..., Any]]) -> OperationRegistry:
    """Return a registry with the operations of another one, some of which are replaced by functions of a test.

        registry = with_stand_ins(program.registry, {"rates.get": lambda currency: {"rate": 2.0}})
        await registry.execute("shop.offer", {"article": "tea"})  # calls the stand-in

    The registry of the program does not change. An id that it lacks is added, since the source that provides it
    may not be connected in a test: as a subscription if the function is a generator, and as a query otherwise.

    Raises:
        RegistrationError: the signature of a function is invalid.
    """
    replaced = OperationRegistry()
    replaced.follow(registry)
    for operation_id, function in stand_ins.items():
        spec = registry.get_spec(operation_id)
        if spec is not None:
            replaced.unregister(operation_id)
            operation_type = spec.type
        elif isgeneratorfunction(function) or isasyncgenfunction(function):
            operation_type = OperationType.SUBSCRIPTION
        else:
            operation_type = OperationType.QUERY
        register = getattr(replaced, operation_type.value)
        register(operation_id)(function)
    return replaced


def interface_digests(registry: OperationRegistry) -> dict[str, str]:
    """Return a short digest of each operation's type and schemas, by id, to compare with a stored one.

    It changes when clients may have to change; titles and descriptions of operations are not part of it.
    """
    return {spec.id: _digest([spec.type, spec.input_schema.json, spec.output_schema.json]) for spec in registry.list()}


def _digest(interface: list[Any]) -> str:
    return hashlib.sha256(json.dumps(interface, sort_keys=True).encode()).hexdigest()[:12]
