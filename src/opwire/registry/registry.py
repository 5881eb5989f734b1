"""The registry: register operations, look them up, call them in process."""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload
from weakref import WeakSet

import msgspec
from msgspec import structs

from opwire.errors import CallError, ErrorCode, RegistrationError, check_choice, check_counts, check_instance
from opwire.model.completion import Completion, CompletionRequest
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.operation import (
    Change,
    Handler,
    Interceptor,
    NormalizeMode,
    Operation,
    OperationSpec,
    OperationType,
    PreparedRequest,
)
from opwire.names import MAX_COMPARED_NAME, counted, similar_names, suggestion
from opwire.registry.bound import BoundOperation, ReshapedOperation, SourceOperation
from opwire.registry.decorators import Decorators, DescribedFunction, completer_of, declared_completion
from opwire.registry.env import Env
from opwire.registry.following import FollowedSources, RegistryOperations
from opwire.registry.interceptors import InterceptedCall, Interceptors
from opwire.registry.invoke import FAILURES, Run, fail, run_within, runner
from opwire.registry.pipeline import ResultPipeline, typed_envelope
from opwire.registry.reshape import MORE, Reshaping
from opwire.registry.signature import Signature, check_kind
from opwire.registry.source import Source
from opwire.registry.streams import END, Open, isolated, next_item, opener
from opwire.registry.view import ViewOptions, ViewRules, operation_through
from opwire.runtime.deadlines import Deadlines
from opwire.runtime.text import get_logger, shorten
from opwire.runtime.workers import WorkerPool
from opwire.typed.plain import html_table, to_plain

if TYPE_CHECKING:
    from opwire.registry.search import Embed, SearchIndex

logger = get_logger("opwire.registry")

T = TypeVar("T")

_MAX_NOTEBOOK_ROWS = 200


class OperationRegistry(Decorators):
    """A set of operations from any source, called by id.

        registry = OperationRegistry()

        @registry.query("math.add")
        async def add(a: int, b: int) -> int:
            return a + b

        envelope = await registry.execute("math.add", {"a": 1, "b": 2})

    `namespace` is the default for decorated functions. `normalize` and `strip` are the defaults for results that do
    not match their schema; an operation may override them. `max_workers` limits the threads of sync handlers.
    """

    def __init__(
        self, *, namespace: str = "local", normalize: NormalizeMode = "fit", strip: bool = True, max_workers: int = 32
    ) -> None:
        super().__init__()
        check_choice(NormalizeMode, normalize=normalize)
        check_counts(max_workers=max_workers)
        self._namespace = namespace
        self._normalize: NormalizeMode = normalize
        self._strip = strip
        self._workers = WorkerPool(max_workers)
        self._deadlines = Deadlines()
        self._operations: dict[str, BoundOperation] = {}
        # Returns an operation with its handler, or None. Not a method: surfaces look up each call.
        self.get_bound: Callable[[str], BoundOperation | None] = self._operations.get
        self.changes = 0
        """The number of changes so far: what was derived from the operations is current while it stays the same."""
        self._listeners: list[Callable[[Change], None]] = []
        self.followed = FollowedSources()
        self._interceptors = Interceptors()
        self._rejected: list[Callable[[str, Context, CallError], None]] = []
        self._context = Context(bind_env=self.bind_env)  # the default
        self._index: SearchIndex | None = None  # built by the first search
        self._embed: Embed | None = None
        self._views: WeakSet[RegistryView] = WeakSet()

    # --- registration -----------------------------------------------------------------------------------------------

    def register(
        self, spec: OperationSpec, handler: Handler | None = None, *, inline: bool = False, replace: bool = False
    ) -> None:
        """Add an operation. Without a handler it is listed but cannot be called.

        Raises:
            RegistrationError: the id is taken, or the handler has the wrong kind.
            UsageError: the spec is not an `OperationSpec`; the decorators take an id and a function.
        """
        check_instance(OperationSpec, spec=spec)
        bound = self._bind(spec, handler, handler, inline=inline)
        self._add(bound, replace=replace)

    def register_all(self, operations: Iterable[Operation], *, replace: bool = False) -> None:
        """Add the operations of an adapter: all of them, or nothing if one is invalid.

        Raises:
            RegistrationError: as `register`.
        """
        bound_operations: list[BoundOperation] = []
        for operation in operations:
            bound = self._bind(operation.spec, operation.handler, operation.handler, inline=operation.inline)
            bound.prepare, bound.preview, bound.complete = operation.prepare, operation.preview, operation.complete
            bound_operations.append(bound if bound.pipeline.mode == "off" else SourceOperation(bound))
        duplicate_ids: set[str] = set()
        ids: set[str] = set() if replace else set(self._operations)
        for bound in bound_operations:
            (duplicate_ids if bound.spec.id in ids else ids).add(bound.spec.id)
        if duplicate_ids:
            raise RegistrationError(f"already registered: {', '.join(sorted(duplicate_ids))}")
        for bound in bound_operations:
            self._add(bound, replace=replace)

    def follow(self, source: "Source | OperationRegistry", *, replace: bool = False) -> Callable[[], None]:
        """Add the operations of a source and follow its changes; the returned function stops that.

            async with from_mcp("https://tools.example/mcp") as tools:
                registry.follow(tools)

        A source may also be another registry, or a view of one.

        An operation that the source adds later is ignored, with a warning, if its id is taken by another owner.

        Raises:
            RegistrationError: as `register_all`.
        """
        if isinstance(source, OperationRegistry):
            source = RegistryOperations(source)
        return self.followed.follow(self, source, overrides=replace)

    @property
    def instructions(self) -> dict[str, str]:
        """The instructions for models of the MCP servers that are followed, by namespace."""
        return self.followed.instructions

    def unregister(self, operation_id: str) -> None:
        """Remove an operation.

        Raises:
            CallError: OPERATION_NOT_FOUND.
        """
        removed = self._operations.pop(operation_id, None)
        if removed is None:
            raise self.not_found(operation_id)
        self._tell(Change("removed", removed.spec))

    def register_function(self, function: Callable[..., Any], operation: DescribedFunction) -> None:
        """Add a decorated function; the decorators call it.

        Raises:
            RegistrationError: the id is taken, or the function has the wrong kind.
        """
        spec, signature, options = operation
        bound = self._bind(spec, signature.handler, function, inline=options.get("inline", False), signature=signature)
        if completes := options.get("completes"):
            bound.complete = completer_of(spec, completes, self._bind_completer)
        self._add(bound, replace=options.get("replace", False))

    def _bind_completer(self, spec: OperationSpec, signature: Signature, function: Callable[..., Any]) -> Run:
        bound = self._bind(spec, signature.handler, function, inline=False, signature=signature)
        return partial(self._call, bound)

    def _bind(
        self,
        spec: OperationSpec,
        handler: Handler | None,
        function: Callable[..., Any] | None,
        *,
        inline: bool,
        signature: Signature | None = None,
    ) -> BoundOperation:
        bound = BoundOperation(spec, handler, ResultPipeline(spec, normalize=self._normalize, strip=self._strip))
        if signature is not None:
            bound.convert, bound.exact, bound.flat = signature.convert, signature.exact, signature.flat
        if handler is None or function is None:
            return bound
        check_kind(spec.type, function, spec.id)
        if spec.type is OperationType.SUBSCRIPTION:
            bound.open = opener(handler, self._workers, spec.id)
        else:
            bound.run = runner(handler, function, self._workers, spec.id, inline=inline)
        if signature is not None and signature.dependencies:
            bound.inject(signature.dependencies)
        return bound

    def _add(self, bound: BoundOperation, *, replace: bool) -> None:
        spec = bound.spec
        is_replaced = spec.id in self._operations
        self._intercept(bound)
        if is_replaced and not replace:
            raise RegistrationError(f"{spec.id} is already registered; replace=True puts the new one in its place")
        self._operations[spec.id] = bound
        self._tell(Change("replaced" if is_replaced else "added", spec))

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor around every call, inside those already installed; the returned function removes it.

            def audit(spec: OperationSpec, handler: Handler) -> Handler:
                async def call(input: Any, context: Context) -> ResponseEnvelope[Any]:
                    log.info("%s by %s", spec.id, context.identity)
                    return await handler(input, context)

                return handler if spec.type is OperationType.SUBSCRIPTION else call

            registry.use(audit)

        It runs once per operation, not once per call. The handler that it wraps validates the input, runs the
        operation and returns its envelope; that of a subscription returns an async iterator of envelopes.
        """
        remove = self._interceptors.use(interceptor)
        self._rebind()

        def remove_and_rebind() -> None:
            remove()
            self._rebind()

        return remove_and_rebind

    def on_rejected(self, listener: Callable[[str, Context, CallError], None]) -> Callable[[], None]:
        """Call the listener for each call without an operation to run, which interceptors do not see.

        It gets the id, the context and the error; the returned function removes it.
        """
        self._rejected.append(listener)
        return lambda: self._rejected.remove(listener) if listener in self._rejected else None

    def _rebind(self) -> None:
        for bound in self._operations.values():
            self._intercept(bound)
        for view in self._views:
            view._rebind()

    def _intercept(self, bound: BoundOperation) -> None:
        if bound.handler is not None:
            call = self._stream if bound.open is not None else self._call
            bound.intercepted = self._interceptors.around(bound.spec, partial(call, bound))

    def view(self, **options: Unpack[ViewOptions]) -> "RegistryView":
        """Return some of the operations, under other names, with other inputs and results.

            support = registry.view(
                include=["shop", "github.issues/*"],
                exclude=["*.delete*"],
                rename={"github": "code"},
                reshape={"shop.order": Reshape(from_context={"customer": "identity.id"}, keep=["total"])},
            )
            serve_mcp(support)

        See `ViewOptions`. The view follows the changes of this registry, and its calls run the interceptors of both.
        Its `problems` are patterns that match nothing, and operations left out because a rule cannot be applied.

        Raises:
            UsageError: an option is invalid.
        """
        return RegistryView(self, ViewRules(options))

    # --- looking up -------------------------------------------------------------------------------------------------

    def get_spec(self, operation_id: str) -> OperationSpec | None:
        """Return the spec of an operation, or None."""
        bound = self._operations.get(operation_id)
        return bound.spec if bound else None

    def get_handler(self, operation_id: str) -> Handler | None:
        """Return the handler of an operation, or None."""
        bound = self._operations.get(operation_id)
        return bound.handler if bound else None

    def __contains__(self, operation_id: object) -> bool:
        return operation_id in self._operations

    def __len__(self) -> int:
        return len(self._operations)

    def __repr__(self) -> str:
        return f"<OperationRegistry of {counted(len(self), 'operation')}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        first_specs = [bound.spec for bound in islice(self._operations.values(), _MAX_NOTEBOOK_ROWS)]
        more = f", of which {len(first_specs)} are shown" if len(first_specs) < len(self) else ""
        rows = ((spec.id, spec.type, (spec.title or spec.description).partition("\n")[0]) for spec in first_specs)
        return html_table(f"OperationRegistry: {len(self):,} operations{more}", rows)

    def list(
        self, *, namespace: str | None = None, type: OperationType | str | None = None, tag: str | None = None
    ) -> tuple[OperationSpec, ...]:
        """Return specs in the order of registration, optionally filtered.

        Raises:
            UsageError: the type is unknown.
        """
        operation_type = None if type is None else OperationType(type)
        return tuple(
            bound.spec
            for bound in self._operations.values()
            if (namespace is None or bound.spec.namespace == namespace)
            and (operation_type is None or bound.spec.type is operation_type)
            and (tag is None or tag in bound.spec.tags)
        )

    def search(
        self, text: str, *, limit: int = 20, visible: Callable[[OperationSpec], bool] | None = None
    ) -> tuple[OperationSpec, ...]:
        """Return the specs that match a request in plain words, best first.

            registry.search("who starred this repository?", limit=5)

        Identifiers are split into words; other forms of a word, synonyms, common abbreviations and misspellings match
        too. The index is built by the first search (0.06 ms per operation) and updated with the registry. Pass
        `visible` for requests from outside, so that only operations the caller may see are found.
        """
        if self._index is None:
            from opwire.registry.search import SearchIndex  # many programs search for nothing

            self._index = SearchIndex(self.list(), embed=self._embed)
        return self._index.find(text, limit, visible=visible)

    def use_embeddings(self, embed: "Embed | None") -> None:
        """Rank searches by the similarity of vectors as well as by words.

            model = SentenceTransformer("all-MiniLM-L6-v2")
            registry.use_embeddings(model.encode)

        `embed` takes texts and returns a vector for each. The first search passes it every operation, later ones the
        new operations and the request. If it raises, the search uses words only and logs the error.
        """
        self._embed, self._index = embed, None

    def on_change(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call the listener on every change; the returned function removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def _tell(self, change: Change) -> None:
        if self._index is not None:
            self._index.drop(change.spec.id) if change.kind == "removed" else self._index.put(change.spec)
        self.changes += 1
        for view in tuple(self._views):
            view.refresh(change.spec.id)
        for listener in tuple(self._listeners):
            try:
                listener(change)
            except Exception:
                logger.exception("a listener failed on %s of %s", change.kind, change.spec.id)

    # --- calling ----------------------------------------------------------------------------------------------------

    @overload
    async def execute(
        self, operation_id: str, input: Any = None, context: Context | None = None, *, output_type: type[T]
    ) -> ResponseEnvelope[T]: ...
    @overload
    async def execute(
        self, operation_id: str, input: Any = None, context: Context | None = None, output_type: Any = None
    ) -> ResponseEnvelope[Any]: ...
    async def execute(
        self, operation_id: str, input: Any = None, context: Context | None = None, output_type: Any = None
    ) -> ResponseEnvelope[Any]:
        """Call a query or mutation. Access is not checked: this is a trusted call.

        With `output_type` the data is converted to that type.

        Raises:
            CallError: no other exception is raised.
        """
        bound = self._operations.get(operation_id)
        if bound is None or bound.run is None:
            raise self._uncallable(operation_id, bound, context, "execute")
        try:
            if bound.intercepted is not None:
                envelope = await bound.intercepted.execute(input, self._context if context is None else context)
            else:
                envelope = await self._call(bound, input, context)
        except FAILURES as error:
            check_instance(Context, context=context)  # here, where it costs a call nothing
            fail(error, operation_id)
        return envelope if output_type is None else typed_envelope(envelope, output_type, operation_id)

    async def _call(self, bound: BoundOperation, input: Any, context: Context | None) -> ResponseEnvelope[Any]:
        run: Any = bound.run  # a cast takes 0.1 µs
        try:
            arguments = bound.arguments(input, self._context if context is None else context)
            inside = self._inside(bound, context)
            deadline = inside.deadline
            if deadline is None or inside.watched:  # a handler that is cancelled twice could not clean up
                result = await run(arguments, inside)
            else:
                result = await run_within(partial(run, arguments, inside), self._deadlines, deadline, bound.spec.id)
            return bound.pipeline.envelope(result)
        except FAILURES as error:
            fail(error, bound.spec.id)

    async def complete(
        self, operation_id: str, request: CompletionRequest, context: Context | None = None
    ) -> Completion:
        """Return values for an argument of an operation; interceptors do not run.

        Without a completer of its own, they are those that the schema lists.

        Raises:
            CallError: no other exception is raised.
        """
        bound = self._operations.get(operation_id)
        if bound is None:
            raise self.not_found(operation_id)
        try:
            completion = Completion()
            if bound.complete is not None:
                completion = await bound.complete(request, self._context if context is None else context)
            return completion if completion.values else declared_completion(bound.spec, request)
        except FAILURES as error:
            fail(error, operation_id)

    def check_input(self, operation_id: str, input: Any = None, context: Context | None = None) -> Any:
        """Validate the input of a call that is not made here; return the arguments of its handler.

        Raises:
            CallError: VALIDATION_ERROR, with the problems in its details; OPERATION_NOT_FOUND.
        """
        bound = self._operations.get(operation_id)
        if bound is None:
            raise self.not_found(operation_id)
        return bound.arguments(input, self._context if context is None else context)

    async def preview(
        self, operation_id: str, input: Any = None, context: Context | None = None, *, reveal: bool = False
    ) -> PreparedRequest:
        """Return what a call would send, without sending it. The input is validated; interceptors do not run.

        Credentials are shown as `***`, unless `reveal` is true.

        Raises:
            CallError: no other exception is raised.
        """
        try:
            arguments = self.check_input(operation_id, input, context)
            if (preview := self._operations[operation_id].preview) is None:
                return PreparedRequest(protocol="local", body=msgspec.json.encode(to_plain(arguments)))
            return await preview(arguments, self._context if context is None else context, reveal)
        except FAILURES as error:
            fail(error, operation_id)

    @overload
    def subscribe(
        self, operation_id: str, input: Any = None, context: Context | None = None, *, output_type: type[T]
    ) -> AsyncGenerator[ResponseEnvelope[T]]: ...
    @overload
    def subscribe(
        self, operation_id: str, input: Any = None, context: Context | None = None, output_type: Any = None
    ) -> AsyncGenerator[ResponseEnvelope[Any]]: ...
    async def subscribe(
        self, operation_id: str, input: Any = None, context: Context | None = None, output_type: Any = None
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Stream the envelopes of a subscription, one per item. Closing the stream closes the handler's generator.

        Raises:
            CallError: no other exception is raised.
        """
        bound = self._operations.get(operation_id)
        if bound is None or bound.open is None:
            raise self._uncallable(operation_id, bound, context, "subscribe")
        if context is not None and context.resume_from is not None:
            bound.check_cursor(context.resume_from)
        if bound.intercepted is None:
            envelopes = self._stream(bound, input, context)
        else:
            envelopes = bound.intercepted.subscribe(input, self._context if context is None else context)
        async with aclosing(envelopes):
            async for envelope in envelopes:
                yield envelope if output_type is None else typed_envelope(envelope, output_type, operation_id)

    async def _stream(
        self, bound: BoundOperation, input: Any, context: Context | None
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        inside = self._inside(bound, context)
        try:
            stream = cast("Open", bound.open)(bound.arguments(input, inside), inside)
        except FAILURES as error:
            fail(error, bound.spec.id)
        if bound.spec.idle_timeout is not None or (inside.deadline is not None and not inside.watched):
            stream = isolated(stream, bound.spec.id)
        try:
            while True:
                try:
                    item = await next_item(stream, self._deadlines, inside, bound.spec.idle_timeout, bound.spec.id)
                    if item is END:
                        return
                    envelope = bound.pipeline.envelope(item)
                except FAILURES as error:
                    fail(error, bound.spec.id)
                yield envelope
        finally:
            await stream.aclose()

    def _inside(self, bound: BoundOperation, context: Context | None) -> Context:
        if context is None:
            context = self._context
        elif context.bind_env is None:
            context = structs.replace(context, bind_env=self.bind_env)
        return context if bound.timeout is None else context.within(bound.timeout)

    def bind_env(self, context: Context) -> Env:
        """Return the env of a call's context; the default of `Context.bind_env`."""
        return Env(self, None if context is self._context else context)

    def _uncallable(
        self, operation_id: str, bound: BoundOperation | None, context: Context | None, verb: str
    ) -> CallError:
        if bound is None:
            error = self.not_found(operation_id)
        elif bound.handler is None:
            error = CallError(ErrorCode.OPERATION_NOT_FOUND, f"No handler registered for operation: {operation_id}")
        else:
            right_verb = "subscribe" if verb == "execute" else "execute"
            message = f"{operation_id} is a {bound.spec.type.value}: use {right_verb}(), not {verb}()"
            error = CallError(ErrorCode.VALIDATION_ERROR, message)
        for listener in tuple(self._rejected):
            listener(operation_id, self._context if context is None else context, error)
        return error

    def not_found(self, operation_id: str, *, visible: Callable[[OperationSpec], bool] | None = None) -> CallError:
        """Return the error for an unknown id; its message suggests similar ones."""
        check_instance(str, operation_id=operation_id)
        hint = suggestion(self.suggestions(operation_id, visible=visible))
        if visible is None and operation_id in self._methods:
            hint = f"; it is {self._methods[operation_id]}: call register_object with an object of the class"
        short_id = shorten(operation_id, MAX_COMPARED_NAME)
        return CallError(ErrorCode.OPERATION_NOT_FOUND, f"Operation not found: {short_id}{hint}")

    def suggestions(self, operation_id: str, *, visible: Callable[[OperationSpec], bool] | None = None) -> "list[str]":
        """Return up to three ids similar to an unknown one.

        Pass `visible` for ids from outside, so that only operations the caller may see are suggested. The work is
        bounded, independent of the length of the id and the number of operations.
        """

        def is_visible(id: str) -> bool:
            return visible is None or visible(self._operations[id].spec)

        return similar_names(operation_id, self._operations, visible=is_visible)


class RegistryView(OperationRegistry):
    """Operations of another registry, selected, renamed and reshaped; `OperationRegistry.view` returns one.

    It is a registry: it can be served, searched, followed and viewed again, and have operations of its own. Handlers
    are not copied, and call other operations by `context.env` in the registry that is viewed.
    """

    def __init__(self, source: OperationRegistry, rules: ViewRules) -> None:
        super().__init__(namespace=source._namespace, normalize=source._normalize, strip=source._strip)
        rules.share_results(source._rules if isinstance(source, RegistryView) else None)
        self.source, self._rules = source, rules  # the registry that is viewed
        self._workers, self._deadlines = source._workers, source._deadlines
        self._context = rules.context(source._context)
        self._ids: dict[str, str] = {}  # of the source, and of the view
        self._origins: dict[str, tuple[BoundOperation, Reshaping]] = {}  # by the id of the view
        for spec in source.list():
            self.refresh(spec.id)
        if rules.shortens and MORE not in self:
            self.query(MORE, inline=True)(rules.store.more)
        source._views.add(self)
        rules.log_unmatched(source._operations)

    @property
    def problems(self) -> tuple[str, ...]:
        """Patterns that match nothing, and operations that are left out because a rule cannot be applied."""
        return self._rules.problems(self.source._operations)

    def bind_env(self, context: Context) -> Env:
        """Return the env of a call's context: operations of the registry that is viewed."""
        return self.source.bind_env(context)

    @property
    def instructions(self) -> dict[str, str]:
        """The instructions for models of the MCP servers that the view has operations of, by namespace."""
        names = {old.partition(".")[0]: new.partition(".")[0] for old, new in self._ids.items()}
        viewed_instructions = {names[name]: text for name, text in self.source.instructions.items() if name in names}
        return {**viewed_instructions, **super().instructions}

    def resource_updated(self, uri: str) -> None:
        """Notify clients that have subscribed to a resource, of the registry that is viewed and of all its views."""
        self.source.resource_updated(uri)

    def on_resource_updated(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call the listener with the URI of every updated resource; the returned function removes it."""
        return self.source.on_resource_updated(listener)

    def refresh(self, source_id: str) -> None:
        """Add, replace or remove an operation that was changed in the registry that is viewed."""
        old, source = self._ids.pop(source_id, None), self.source._operations.get(source_id)
        derived = self._rules.derive(source_id, None if source is None else source.spec)
        if derived is not None and derived.spec.id != old and derived.spec.id in self._operations:
            self._rules.leave_out(source_id, f"the view has another {derived.spec.id}")
            derived = None
        if old is not None and (derived is None or derived.spec.id != old):
            del self._origins[old]
            self.unregister(old)
        if derived is not None and source is not None:
            self._ids[source_id] = derived.spec.id
            self._origins[derived.spec.id] = source, derived.reshaping
            spec, reshaping = derived
            pipeline = ResultPipeline(spec, normalize=self._normalize, strip=self._strip)
            if reshaping.is_trivial or source.handler is None:  # it runs the handler itself: 0 µs more
                bound = source.under(spec, pipeline)
            else:
                bound = ReshapedOperation(source, spec, reshaping, pipeline)
            self._add(bound, replace=True)

    def _intercept(self, bound: BoundOperation) -> None:
        source, reshaping = self._origins.get(bound.spec.id, (None, None))
        if source is None or source.intercepted is None:
            super()._intercept(bound)
        else:
            handler = operation_through(self.source, source.spec, bound.spec, reshaping).handler
            bound.intercepted = InterceptedCall(bound.spec, cast("Handler", handler), self._interceptors.installed)


def build_env(registry: OperationRegistry, context: Context | None = None, *, checked: bool = False) -> Env:
    """Return operations as callables: `await build_env(registry).math.add(a=1, b=2)` returns an envelope.

    Calls inherit the context's identity, deadline and request id. `checked` enables access control.
    """
    return Env(registry, context, checked=checked)
