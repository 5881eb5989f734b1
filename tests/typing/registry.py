"""What type checkers see of the registry; these files are checked, never run."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, assert_type

from opwire import Context, OperationRegistry, OperationSpec, ResponseEnvelope, build_env

registry = OperationRegistry(namespace="shop", normalize="check", strip=False)


@dataclass
class Sum:
    total: int


# A decorated function stays what it was, with and without an id and options.
@registry.query("math.add", tags=["numbers"], timeout=1.5)
async def add(a: int, b: int) -> Sum:
    return Sum(a + b)


@registry.mutation
def forget(name: str, context: Context) -> None: ...


@registry.subscription("math.count")
async def count(to: int) -> AsyncIterator[int]:
    yield to


typed_add: Callable[[int, int], Coroutine[Any, Any, Sum]] = add
typed_forget: Callable[[str, Context], None] = forget
assert_type(count(3), AsyncIterator[int])
wrong_add: Callable[[str, int], Any] = add  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


async def calls() -> None:
    assert_type(await add(1, 2), Sum)
    assert_type(await registry.execute("math.add", {"a": 1, "b": 2}), ResponseEnvelope[Any])
    assert_type(await registry.execute("math.add", {"a": 1, "b": 2}, output_type=Sum), ResponseEnvelope[Sum])
    assert_type((await registry.execute("math.add", output_type=list[Sum])).data, list[Sum])
    assert_type(registry.subscribe("math.count", {"to": 3}), AsyncGenerator[ResponseEnvelope[Any], None])
    assert_type(
        registry.subscribe("math.count", {"to": 3}, output_type=int), AsyncGenerator[ResponseEnvelope[int], None]
    )
    async for item in registry.subscribe("math.count", {"to": 3}, output_type=int):
        assert_type(item.data, int)
    assert_type(await registry.execute("math.add", output_type=Sum | None), ResponseEnvelope[Any])
    build_env(registry, Context(request_id="1"), checked=True)


# Options are checked by name and type, for the decorators and for the registry itself.
registry.query("a.b", timeout="1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
registry.query("a.b", unknown=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
OperationRegistry(normalize="fix")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
OperationSpec("a", "b")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
assert_type(registry.get_spec("math.add"), OperationSpec | None)
