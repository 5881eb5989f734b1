"""The decorators of a registry: a function as a query, mutation, subscription, resource or prompt.

They derive the spec, and leave the function as it is. Completion of arguments is here too: a completer is a function
that takes the beginning of a value, and runs as operations do.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, Unpack, cast, overload

from opwire.errors import RegistrationError
from opwire.model.completion import Completion, CompletionRequest
from opwire.model.context import Context
from opwire.model.operation import Completer, OperationSpec, OperationType
from opwire.names import similar_names, suggestion
from opwire.registry.signature import OperationOptions, Signature, check_kind, describe_function, is_method
from opwire.schema.dialect import References
from opwire.typed.plain import as_dict, as_list

F = TypeVar("F", bound=Callable[..., Any])

Bind = Callable[[OperationSpec, Signature, Callable[..., Any]], Callable[[Any, Context], Awaitable[Any]]]
"""Takes a function and its description; returns what calls it as an operation."""

_COMPLETER_PARAMETERS = ("value", "arguments")
_MARK_ATTRIBUTE = "__opwire_operation__"
_MAX_COMPLETER_VALUES = 10_000


class DescribedFunction(NamedTuple):
    """A decorated function as an operation."""

    spec: OperationSpec
    signature: Signature
    options: OperationOptions


class _MarkedMethod(NamedTuple):
    """The decoration of a method."""

    type: OperationType
    target: Any
    options: OperationOptions
    marks: Mapping[str, Any] | None
    check: Callable[[OperationSpec], None]


class Decorators(ABC):
    """The decorators; `register_function` adds what they describe."""

    _namespace: str

    def __init__(self) -> None:
        self._methods: dict[str, str] = {}  # decorated ones by id, for a hint
        self._updated: list[Callable[[str], None]] = []

    @property
    def decorated_methods(self) -> list[str]:
        """Return the qualified names of decorated methods, whether or not their objects are registered."""
        return list(self._methods.values())

    @abstractmethod
    def register_function(self, function: Callable[..., Any], operation: DescribedFunction) -> None:
        """Add a decorated function."""

    @overload
    def query(self, id: str | None = None, /, **options: Unpack[OperationOptions]) -> Callable[[F], F]: ...
    @overload
    def query(self, function: F, /) -> F: ...
    def query(self, target: Any = None, /, **options: Unpack[OperationOptions]) -> Any:
        """Register a function that reads; return the function unchanged.

            @registry.query("math.add")
            async def add(a: int, b: int) -> int: ...

        Raises:
            RegistrationError: the id is taken, or the signature is invalid.
        """
        return self._decorate(OperationType.QUERY, target, options)

    @overload
    def mutation(self, id: str | None = None, /, **options: Unpack[OperationOptions]) -> Callable[[F], F]: ...
    @overload
    def mutation(self, function: F, /) -> F: ...
    def mutation(self, target: Any = None, /, **options: Unpack[OperationOptions]) -> Any:
        """Register a function that writes; otherwise as `query`."""
        return self._decorate(OperationType.MUTATION, target, options)

    @overload
    def subscription(self, id: str | None = None, /, **options: Unpack[OperationOptions]) -> Callable[[F], F]: ...
    @overload
    def subscription(self, function: F, /) -> F: ...
    def subscription(self, target: Any = None, /, **options: Unpack[OperationOptions]) -> Any:
        """Register a generator function, sync or async, that streams items; otherwise as `query`."""
        return self._decorate(OperationType.SUBSCRIPTION, target, options)

    def resource(
        self, uri: str, /, *, id: str | None = None, mime_type: str = "", **options: Unpack[OperationOptions]
    ) -> Callable[[F], F]:
        """Register a function that returns what is at a URI; otherwise as `query`.

            @registry.resource("shop://articles/{name}", completes={"name": article_names})
            def article(name: str) -> dict[str, Any]: ...

        The variables of the URI are the parameters. Text and bytes are the content itself, other data its JSON.
        `registry.resource_updated(uri)` notifies clients that have subscribed.

        Raises:
            RegistrationError: the template is invalid, or differs from the parameters; as `query`.
        """
        from opwire.model.uri_template import URITemplate  # few programs have resources

        template = URITemplate(uri)

        def check(spec: OperationSpec) -> None:
            parameters, required = _parameters(spec)
            for name in template.names:
                if name not in parameters:
                    raise RegistrationError(f"{spec.id}: the URI has {name!r}, which the function does not take")
            for name in required.difference(template.names) | required.intersection(template.optional):
                raise RegistrationError(f"{spec.id}: the URI may lack {name!r}, which the function requires")

        marks = {"role": "resource", "uri": uri, "mime_type": mime_type}
        return self._decorate(OperationType.QUERY, id, options, marks, check)

    @overload
    def prompt(self, id: str | None = None, /, **options: Unpack[OperationOptions]) -> Callable[[F], F]: ...
    @overload
    def prompt(self, function: F, /) -> F: ...
    def prompt(self, target: Any = None, /, **options: Unpack[OperationOptions]) -> Any:
        """Register a function that returns the messages of a prompt; otherwise as `query`.

            @registry.prompt("shop.recommend")
            def recommend(article: str, tone: Literal["kind", "funny"] = "kind") -> str:
                return f"Write a {tone} recommendation of {article}."

        A message is a text of the user, `{"role": "assistant", "content": …}`, or bytes of an image or sound; the
        function returns one of them or a list.
        """
        return self._decorate(OperationType.QUERY, target, options, {"role": "prompt"})

    def register_object(self, instance: object, *, namespace: str | None = None) -> None:
        """Register the methods of an object that are decorated, in its class or one above.

            class Shop:
                def __init__(self, database: Database) -> None: ...

                @registry.query("shop.price")
                async def price(self, article: str) -> float: ...

            registry.register_object(Shop(database))

        All operations share the object, and what it holds. With `namespace`, they are in that one: so several objects
        of a class can be registered. Any registry can register the object, not only the one of the decorators.

        Raises:
            RegistrationError: the class has no decorated methods; as `query`.
        """
        marked_methods: dict[str, _MarkedMethod] = {}
        for cls in reversed(type(instance).__mro__):  # a method that overrides a decorated one is an operation as well
            marked_methods |= {
                name: mark for name, method in vars(cls).items() if (mark := getattr(method, _MARK_ATTRIBUTE, None))
            }
        if not marked_methods:
            raise RegistrationError(f"{type(instance).__name__} has no methods that are decorated as operations")
        for name, mark in marked_methods.items():
            id = mark.target if isinstance(mark.target, str) else name
            operation_id = id if namespace is None else f"{namespace}.{id.partition('.')[2] or id}"
            self._decorate(mark.type, operation_id, mark.options, mark.marks, mark.check)(getattr(instance, name))

    def resource_updated(self, uri: str) -> None:
        """Notify clients that have subscribed to a resource; from any thread."""
        for listener in tuple(self._updated):
            listener(uri)

    def on_resource_updated(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call the listener with the URI of every updated resource; the returned function removes it."""
        self._updated.append(listener)
        return lambda: self._updated.remove(listener) if listener in self._updated else None

    def _decorate(
        self,
        type: OperationType,
        target: Any,
        options: OperationOptions,
        marks: Mapping[str, Any] | None = None,
        check: Callable[[OperationSpec], None] = lambda spec: None,
    ) -> Any:
        for name in options.keys() - OperationOptions.__optional_keys__:
            if name in ("id", "name", "namespace"):
                raise RegistrationError(
                    f"unknown option {name!r}: the id is the first argument, {type.value}('shop.order')"
                )
            close = similar_names(name, OperationOptions.__optional_keys__)
            raise RegistrationError(f"unknown option {name!r}{suggestion(close)}")

        def register(function: F) -> F:
            id: str = target if isinstance(target, str) else getattr(function, "__name__", "")
            if is_method(function):  # registered with its object
                setattr(function, _MARK_ATTRIBUTE, _MarkedMethod(type, target, options, marks, check))
                self._methods[id if "." in id else f"{self._namespace}.{id}"] = function.__qualname__
                return function
            check_kind(type, function, id)
            spec, signature = describe_function(function, type, id, self._namespace, options, **(marks or {}))
            check(spec)
            self.register_function(function, DescribedFunction(spec, signature, options))
            return function

        return register(target) if callable(target) else register


# --- completion -------------------------------------------------------------------------------------------------------


def _parameters(spec: OperationSpec) -> tuple[dict[str, Any], set[str]]:
    """Return the schemas of an operation's parameters, and the names of the required ones."""
    schema = as_dict(spec.input_schema.json)
    return as_dict(schema.get("properties")), {name for name in as_list(schema.get("required")) if type(name) is str}


def completer_of(owner: OperationSpec, completes: Mapping[str, Callable[..., Any]], bind: Bind) -> Completer:
    """Return the completer of an operation, made of a function for each argument; `bind` returns how one is called.

    Raises:
        RegistrationError: the operation has no such parameter, or a function takes something else.
    """
    completers: dict[str, tuple[dict[str, Any], Callable[[Any, Context], Awaitable[Any]]]] = {}
    for argument, function in completes.items():
        if argument not in _parameters(owner)[0]:
            raise RegistrationError(f"{owner.id}: completes has {argument!r}, which is not a parameter")
        id = f"{owner.id}/complete/{argument}"
        spec, signature = describe_function(function, OperationType.QUERY, id, "", {"timeout": owner.timeout})
        parameters, required = _parameters(spec)
        if not parameters.keys() <= {*_COMPLETER_PARAMETERS} or "value" not in required:
            raise RegistrationError(f"{id}: a completer takes `value`, and optionally `arguments` and a Context")
        completers[argument] = parameters, bind(spec, signature, function)

    async def complete(request: CompletionRequest, context: Context) -> Completion:
        completer = completers.get(request.argument)
        if completer is None:
            return Completion()
        parameters, call = completer
        arguments = {"value": request.value, "arguments": dict(request.arguments)}
        envelope = await call({name: value for name, value in arguments.items() if name in parameters}, context)
        return Completion.of([str(value) for value in as_list(envelope.data)[:_MAX_COMPLETER_VALUES]])

    return complete


def declared_completion(spec: OperationSpec, request: CompletionRequest) -> Completion:
    """Return the values that the schema of a parameter lists, as far as they begin as asked for."""
    parameter = References(spec.input_schema.json).follow(_parameters(spec)[0].get(request.argument, True))
    values = cast("Iterable[Any]", as_list(as_dict(parameter).get("enum")))
    begins = request.value.lower()
    return Completion.of(value for value in values if isinstance(value, str) and value.lower().startswith(begins))
