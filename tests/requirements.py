"""What opwire promises, one sentence an entry: the statements of the specification that are built so far.

`@requirement("envelope.sources")` on a test says that the test keeps that promise. `tests/test_requirements.py`
checks both directions: each promise has a test, each mark has a promise.
"""

from collections.abc import Callable
from typing import TypeVar

import pytest

F = TypeVar("F", bound=Callable[..., object])

ERRORS: dict[str, str] = {
    "errors.extras": "A missing optional dependency is an error that names the extra which installs it.",
    "errors.system": "The message of an error of the system, of TLS or of a host name is a sentence without numbers "
    "and names of libraries, and says what to check.",
    "errors.one-root": "`except OpwireError` catches everything that opwire itself raises.",
    "errors.tree-is-drawn": "The tree of errors drawn in the docstring of the errors module is the real one.",
    "errors.codes": "The error codes are exactly the twelve of the specification, spelled on the wire as named.",
    "errors.one-table": "One table maps each code to HTTP status, JSON-RPC code, ToolEnvelope category, whether it is "
    "retryable by default, and a default message.",
    "errors.retryable": "Whether a call may be retried is the table's default unless the instance says otherwise.",
    "errors.plain-data": "A CallError carries plain data, all of which survives copying and pickling.",
    "errors.unknown-code": "A CallError cannot be made with a code that is not in the table.",
}

CONSOLE: dict[str, str] = {
    "console.off": "The console is off by default.",
    "console.page": "The page is served with a strict policy, and no path leads out of it.",
    "console.public": "Without a login the console shows and calls public operations only.",
    "console.login": "A token or a link that works once opens a session, bounded in number and time, whose cookie has "
    "no credential.",
    "console.csrf": "Pages of other origins and host names cannot use the console.",
    "console.act-as": "Calling as another identity needs a scope and never adds one.",
    "console.operations": "The console lists what a person may call, hostile names included.",
    "console.call": "A call on the page is one stream of events, checked and intercepted, and ends with the stream.",
    "console.questions": "A question of an operation is answered on the page, by the person that called it.",
    "console.snippets": "A call can be copied as curl, Python and MCP, and what is copied runs.",
    "console.tape": "Calls of all surfaces and nested ones reach the page in batches; a slow page delays no call. Of "
    "very many calls the errors and a part of the others are shown, and all are counted; the server filters.",
    "console.values": "Inputs and outputs are kept while a person with the scope watches, bounded and without secrets.",
    "console.approvals": "Calls that wait for approval are decided on the page, by persons with the scope.",
    "console.system": "The console shows servers, sources with their reports, durations and errors of operations.",
    "console.journal": "Tasks that wait, run or are buried are listed; buried ones are retried and discarded on the "
    "page, by persons with the scope.",
    "console.remote": "A console here shows the operations, calls and figures of a server elsewhere, with the "
    "permissions of its token, and says what it may not see.",
    "console.large-results": "A large result is downloaded by its owner, within limits of bytes and time.",
    "console.hostile": "Schemas without an end and values of wrong types do not break the page.",
    "console.reproducible": "The files of the console's page are what its sources build.",
    "console.size": "The page is at most 350 kB compressed, without inline scripts, styles and foreign addresses.",
    "console.browser.operations": "10,000 operations are listed, searched and described without lag.",
    "console.browser.input": "Form and JSON editor stay equal: unions, lists, files and values without a type "
    "are entered, and problems stand at their fields.",
    "console.browser.exact": "Integers of any size and fields of any name are sent as they are written: in the form, "
    "as JSON, by defaults and examples, and from the history; a number that cannot be sent is an error.",
    "console.browser.results": "Results are shown as tree, table, envelope, difference and media; large ones saved.",
    "console.browser.calls": "Calls are run, cancelled, limited, made as another identity, and copied as programs.",
    "console.browser.streams": "Streams are paused by back-pressure, filtered, and kept in a bounded buffer.",
    "console.browser.answers": "Questions of operations and approvals are answered on the page.",
    "console.browser.tape": "The tape shows nested calls, filters, exports, and keeps up with 1,000 calls per second.",
    "console.browser.system": "Servers, sources, timings, errors by code and buried tasks are shown.",
    "console.browser.states": "The page says that a session ended or a connection was lost, and loses no input.",
    "console.browser.hostile": "Hostile names, descriptions and results run nothing and load nothing.",
    "console.browser.access": "The page works by keyboard and at 390 pixels, and axe has no serious finding.",
}

LAYOUT: dict[str, str] = {
    "layout.mirrored": "Every package has tests of its own, at the same place in the tests' tree.",
    "layout.small": "A module has at most 450 lines of code, docstrings aside, and a function 60.",
    "layout.names": "No module or folder is called utils, common, core or base.",
    "layout.portable": "No file of the repository names a folder of a machine or a package index.",
    "layout.core-imports": "Importing opwire loads msgspec, jsonschema-rs and the standard library, nothing else.",
    "layout.makefile": "The Makefile has at most 60 lines.",
    "layout.manifest": "Each promise has a test, each mark has a promise.",
    "platforms.signals": "SIGINT and SIGTERM stop what is served on every platform, Windows included.",
    "layout.types": "What type checkers infer for the public API is what the tests assert, for pyright and for mypy.",
}

ENVELOPE: dict[str, str] = {
    "envelope.shape": "An envelope is `data` and `meta`; `source` tells the kind of `meta`.",
    "envelope.sources": "The sources are the closed set local, http and mcp, exported, with one meta class and one "
    "schema each.",
    "envelope.local-meta": "The meta of a function's answer is the full operation id and the time of wrapping in "
    "epoch milliseconds.",
    "envelope.http-meta": "The meta of an HTTP answer is status code, headers and content type.",
    "envelope.headers": "Header names are lower-case, and several values of one name are joined with a comma and a "
    "space.",
    "envelope.numbers": "`timestamp` and `statusCode` are JSON numbers: any finite one is read, integral ones as int, "
    "and what is not finite is refused.",
    "envelope.set-cookie": "Set-Cookie values are kept apart in a list, since they cannot be joined.",
    "envelope.mcp-meta": "The meta of an MCP answer mirrors CallToolResult: error flag, content blocks, structured "
    "content, `_meta`.",
    "envelope.mcp-error": "An MCP result with the error flag is an envelope like any other, its content readable.",
    "envelope.structured-content": 'Structured content may be any JSON value: null, 0, false and "" are there, '
    "absence is not.",
    "envelope.optional-fields": "Optional fields are left out of the JSON when absent, so that older peers still "
    "read it.",
    "envelope.wire-names": "On the wire every field has the camelCase name of the protocol.",
    "envelope.wire-bytes": "What a TypeScript peer writes is read, and written again as the same bytes.",
    "envelope.missing-data": "On the wire a missing `data` means null.",
    "envelope.extra-fields": "Fields that this version does not know are tolerated when an envelope is read.",
    "envelope.survives-transport": "An envelope is the same after a journey as JSON.",
    "envelope.unreadable": "What cannot be read as an envelope is a ConversionError, never another exception or a "
    "crash.",
    "envelope.content-blocks": "Text, image, audio, resource and resource link blocks, with annotations, are "
    "opwire's own types.",
    "envelope.no-sdk": "The core imports no MCP SDK.",
    "envelope.newer-blocks": "Fields that a newer protocol adds to a content block are kept.",
    "envelope.unknown-blocks": "A block of an unknown kind becomes a text block that holds its JSON.",
    "envelope.detection": "An envelope is detected as an instance, or as a mapping with `data` and a `meta.source` "
    "of the closed set.",
    "envelope.lookalike": "A mapping that is detected but cannot be read as its meta is refused by the reader, so "
    "that it stays data.",
    "envelope.factories": "Each source has a factory that builds its envelope, and needs no knowledge of the meta "
    "classes.",
    "envelope.plain-data": "Instances of the usual Python types become plain JSON data, nested in any mixture.",
    "envelope.plain-same-object": "Data that is plain already is never copied.",
    "envelope.not-plain": "What has no JSON form (a file, a generator, a cycle) is refused with a reason.",
    "envelope.plain-is-safe": "Looking at data ends quickly, however deep it is nested or often it is shared.",
    "envelope.none": "None gives `data: null`; the envelope is still there.",
    "envelope.binary": "Binary data is bytes in process, base64 with `encoding` on the wire, and bytes again at the "
    "receiver.",
    "envelope.nested-binary": "Bytes nested in a structure become base64 strings.",
    "envelope.nonfinite": "NaN and infinities become null on the wire, with a warning.",
    "envelope.surrogates": "Lone surrogates are replaced, in data and in meta, when they are sent and when a peer "
    "sends them.",
    "envelope.integers": "Integers keep every digit.",
    "envelope.unwrap": "`unwrap` gives the data of an envelope.",
    "envelope.unwrap-typed": "`unwrap` with a type gives the data as that type, checked.",
    "envelope.schemas": "The JSON Schemas of envelope, metas and content blocks are exported and are valid schemas.",
    "envelope.schemas-written": "Everything that the encoder writes is valid by the exported schemas.",
    "envelope.schemas-read": "Every document that is valid by the exported schema can be read, and a broken one is "
    "refused.",
    "api.pinned": "The names that `import opwire` gives are exactly the pinned ones, each importable at once.",
    "api.core-only": "Importing opwire loads no optional dependency.",
    "api.typed-options": "Every option that a public function passes on to another one is typed.",
    "api.one-word": "One thing has one name, one type, one unit and one default in the whole public API.",
    "api.wrong-arguments": "A wrong argument is a UsageError that names it and says what it has to be.",
    "api.reprs": "The repr of a public object is one line that says what it is, without secrets.",
}

SCHEMA: dict[str, str] = {
    "schema.bounded-memory": "Compiled schemas take bounded memory: the oldest are released, and compiled when used.",
    "schema.shared-definitions": "Large schemas of one document that share definitions are compiled together.",
    "schema.counted-patterns": "A counted class is checked as limits of the length, which take no memory.",
    "schema.valid": "A schema says whether a value fits, by the JSON Schema specification.",
    "schema.given-or-derived": "A schema is given as a dict or a boolean, or derived from a Python type.",
    "schema.unknown": "No schema is UNKNOWN: every value fits.",
    "schema.values-never-raise": "No value makes a check raise: what is not plain JSON data does not fit.",
    "schema.problems": "Every problem has a path, a JSON Pointer, and a message that a person can read.",
    "schema.no-echo": "Problems never echo the value.",
    "schema.suggestions": "The problem of an unknown property suggests a declared one that is similar and missing.",
    "schema.problems-capped": "Problems are capped in number and in size.",
    "schema.unions": "The problem of a union is that of the branch that came closest, where one did.",
    "schema.dialects": "Schemas of 2020-12, 2019-09, draft-07, draft-06, draft-04 and OpenAPI 3.0 are read as they "
    "are meant.",
    "schema.unknown-dialect": "A `$schema` that is not known is read as 2020-12.",
    "schema.lowering": "Older dialects are lowered to 2020-12 without changing the given schema or the data in it.",
    "schema.refs": "References are resolved inside the document: pointers, anchors and ids.",
    "schema.no-fetching": "References to the network or to files are never fetched: they are a SchemaError.",
    "schema.depth": "Values nested deeper than 200 do not fit, and do not crash the process.",
    "schema.patterns": "Patterns of foreign schemas cannot hang the process.",
    "schema.formats": "Known formats are asserted, unknown ones are ignored.",
    "schema.invalid": "A schema that is not valid is a SchemaError that says where.",
    "schema.lazy": "A schema compiles when it is first used, and once.",
    "schema.deferred": "A deferred schema is made once, when it is first asked for.",
    "schema.cost": "A schema whose definitions multiply is refused before it is compiled; no real one is.",
}

CAST: dict[str, str] = {
    "cast.parity": "In mode `cast`, the result is exactly that of TypeBox 0.34's `Value.Cast`, and it raises exactly "
    "where that throws, whether the schema is spelled as TypeBox writes it or in 2020-12.",
    "cast.valid-is-unchanged": "A value that passes the check is returned as the same object.",
    "cast.untouched-parts": "What needs no repair inside a value that does is the same object in the result.",
    "cast.never-mutates": "A cast never changes the value that it is given, nor the schema's defaults.",
    "cast.only-cast-error": "A cast raises nothing but CastError, for any schema and value.",
    "cast.create": "What is unusable is replaced by the default, unchecked, or by the empty value of its kind.",
    "cast.objects": "A failing object keeps its declared properties, each cast, and loses the others unless a schema "
    "is given for them.",
    "cast.records": "A failing record keeps every key, each value cast to the first pattern's schema.",
    "cast.arrays": "A failing array is padded, cut, cast item by item and rid of duplicates as its keywords ask.",
    "cast.tuples": "A failing tuple gets exactly its declared items.",
    "cast.unions": "A failing union gives its default, or the variant with the best score, the first among equals.",
    "cast.intersections": "A failing intersection gives the created value, holding the given values if all fit.",
    "cast.references": "References by pointer and by name are followed; recursion without a way out is a CastError.",
    "cast.javascript": "Numbers, strings and constants are compared as JavaScript does it.",
    "cast.formats": "date-time, date, uuid and email are asserted, other formats are ignored.",
    "cast.patterns": "A pattern cannot hang the process; one that is unusable matches nothing.",
    "cast.lowering": "Any JSON Schema is cast to, by the nearest kind that TypeBox has.",
    "cast.check-only": "Keywords that TypeBox has no kind for are checked and never repaired.",
    "cast.bounded": "Neither schemas that ask for endless values nor deeply nested values hang or crash a cast.",
}

FIT: dict[str, str] = {
    "fit.cases": "Declared defaults are filled, undeclared properties stripped and whole numbers converted as at least "
    "200 hand-checked cases say, for every keyword that matters.",
    "fit.never-raises": "Fitting never raises and never changes the value or the schema.",
    "fit.same-object": "A value that is valid, with nothing to strip or fill, comes back as the very same object.",
    "fit.idempotent": "Fitting a fitted value does nothing.",
    "fit.leaves": "No leaf is ever changed, except for lossless numeric conversions.",
    "fit.valid-stays-valid": "Fitting never turns a valid value into an invalid one.",
    "fit.changes": "What was filled, stripped and converted is reported, each by its path.",
    "fit.shares": "Only what needs a repair is rebuilt; all other parts are shared with the original.",
    "fit.default-is-copied": "A filled default is a copy: the schema's own object is never handed out.",
    "fit.unions": "A union's variant is chosen by discriminator, then by const or enum, then by score; where none "
    "stands out the value is left alone.",
    "fit.depth": "Values nested 200 deep are fitted, and deeper ones never crash.",
    "fit.endless": "Schemas without end, and those that cannot be analysed, leave the value alone.",
    "fit.patterns": "Regular expressions of foreign schemas cannot hang the process.",
    "fit.conforms": "One fast check tells whether a value is valid and leaves nothing to do; it is never wrong in "
    "saying yes.",
    "fit.github": "On GitHub's own response examples fitting raises on none, empties none, and returns those that "
    "conform as the same object.",
}

TYPED: dict[str, str] = {
    "typed.schema": "A JSON Schema (2020-12) is derived from every kind of Python type, and compiles.",
    "typed.names": "Classes are described once in `$defs` under stable names, also when two share a name.",
    "typed.documentation": "Docstrings, titles, descriptions, examples and defaults are kept in derived schemas.",
    "typed.hint_error": "A hint that cannot be expressed is a HintError that says where it stands and what to do.",
    "typed.yield": "The schema of a subscription is that of its generator's yield type.",
    "typed.convert": "Plain data is converted to the annotated type: a dict becomes the dataclass that is asked for.",
    "typed.agree": "What is valid against the schema of a type can be converted to it, and the reverse.",
    "typed.strict": "Conversion never takes one JSON type for another; numbers are converted where nothing is lost.",
    "typed.path": "Data that does not fit is a ConversionError with the path and the reason, the value not echoed.",
    "typed.unions": "A union's member is chosen by discriminator, else by which member fits and keeps most.",
    "typed.constraints": "Constraints of msgspec, annotated_types and pydantic are part of the schema and checked.",
    "typed.pydantic": "pydantic models keep their own schemas and validation; pydantic is imported for them only.",
    "typed.identity": "Values that need no conversion are known beforehand and passed on as they are.",
    "typed.speed": "msgspec converts what it converts exactly as the nodes do.",
}

TOOL_ENVELOPE: dict[str, str] = {
    "tool-envelope.encode": (
        "A result is a markdown block and a block `__ENVELOPE_V1__:` + standard base64 of compact JSON, "
        "as the format's public implementation writes it."
    ),
    "tool-envelope.ts": "`ts` is UTC with milliseconds and `Z` unless it is given.",
    "tool-envelope.lenient": (
        "Reading is lenient where real producers are: missing padding, the url-safe alphabet, whitespace."
    ),
    "tool-envelope.version": "Both the prefix and `meta.version` are checked; a version above 1 is refused.",
    "tool-envelope.big-integers": "Integers keep every digit, beyond 2^53 too.",
    "tool-envelope.utf8": "A block that is not UTF-8 is an error.",
    "tool-envelope.garbage": "Reading garbage never crashes: it is a ToolEnvelopeError.",
    "tool-envelope.fallback": "`parse_or_text` falls back to the text block where no envelope can be read.",
    "tool-envelope.seed-examples": "The two examples of the specification are read, and written again as they are.",
    "tool-envelope.round-trip": "What is written is read back the same.",
    "tool-envelope.typed": "Workflow and error payloads have types, with camelCase names on the wire.",
    "tool-envelope.unknown": "Unknown fields and categories are tolerated and kept.",
    "tool-envelope.error-text": (
        "An error's first block reads `<icon> <Label> [<code>]: <message>`, then lines for details, suggestion, "
        "next tool and recoverable."
    ),
    "tool-envelope.errors-map": "A CallError maps to an McpErrorPayload and back, through the one table of errors.",
    "tool-envelope.classify": "What a tool threw is sorted into a category, and says whether a retry makes sense.",
    "tool-envelope.results-map": (
        "A two-block MCP result maps to a ResponseEnvelope whose data is the payload, and back."
    ),
}

OPERATIONS: dict[str, str] = {
    "registry.follow": "A registry that follows a source has what the source adds, changes and removes, and loses "
    "nothing of others to it.",
    "registry.prepare": "An adapter may turn objects of its callers into plain input before that is checked; input "
    "that is plain already never reaches it.",
    "operation.progress": "A handler reports its progress to the listeners of its call, and to no others.",
    "operation.spec": "An OperationSpec holds namespace, name, type, title, description, tags, version, both schemas, "
    "access control, normalisation, timeouts and examples.",
    "operation.types": "An operation is a query, a mutation or a subscription.",
    "operation.id": "The id of an operation is its namespace, a dot and its name, split at the first dot.",
    "operation.namespace": "A namespace is printable, not empty and has no dot.",
    "operation.name": "A name may hold anything printable: slashes, dots, spaces, any script.",
    "operation.real-ids": "Every operation id of GitHub's document can be registered and called.",
    "operation.unknown-schema": "An operation without a schema takes and gives anything.",
    "operation.schema-checked": "A schema given as a dict that is not valid is refused when the spec is made.",
    "registry.register": "A spec and a handler that takes input and context make a callable operation.",
    "registry.register-all": "Many operations are registered at once: all of them, or none if one cannot be.",
    "registry.unregister": "An operation that is unregistered is neither known nor callable any more.",
    "registry.lookup": "The spec and the handler of an operation can be asked for by its id.",
    "registry.list": "Operations are listed in the order of registration, filtered by namespace, type and tag.",
    "registry.search": "A search ranks the operations by a request in plain words, 20 of them unless told otherwise.",
    "search.words": "Identifiers are split, forms of a word share a stem, one wrong letter is repaired.",
    "search.ranking": "A request finds its operation by other forms, synonyms, abbreviations and misspellings of its "
    "words; plurals prefer lists, and verbs that write prefer mutations.",
    "search.visible": "A search on behalf of a caller finds only what the caller may see.",
    "search.updated": "The index is built by the first search and follows every change of the registry.",
    "search.embeddings": "A user's embedding function adds its ranking; if it fails, words alone rank.",
    "search.bounded": "A search takes bounded work for any request and any texts of operations.",
    "search.recall": "Over nine real documents the right operation is first for 60 % of the requests and among the "
    "first five for 78 %.",
    "signature.docstrings": "Parameters are described by `Annotated[str, ...]` and by docstrings of three styles; the "
    "description of the operation is the rest.",
    "signature.depends": "A parameter with Depends is hidden, filled for each call, and closed after it.",
    "signature.methods": "Methods of an object are operations; a method without its object is not one yet.",
    "signature.classes": "The decorated methods of a class are operations that share an object; it is not a parameter.",
    "view.selection": "A view selects operations by id, namespace, tag, type, scope and predicate.",
    "view.rename": "A view renames operations one by one, by pattern and by namespace, in results and errors too.",
    "view.parameters": "A view renames, hides, fixes and narrows parameters; callers cannot pass what is hidden.",
    "view.results": "A view keeps some fields of a result, and shortens long ones; the rest can be fetched by the same "
    "caller.",
    "view.problems": "A pattern that matches nothing is reported; operations with inapplicable rules are left out.",
    "view.follows": "A view follows its registry, can be followed and viewed again, and is not kept alive by it.",
    "view.interceptors": "A call through a view runs the interceptors of its registry, with the ids of the registry.",
    "view.identity": "A view can require scopes, and can be that of one identity.",
    "view.env": "A handler that is called through a view reaches all operations of its registry.",
    "view.registry": "A view is a registry: searched, previewed, with operations of its own.",
    "view.served": "Served over MCP and HTTP, a view takes values from the identity of each caller.",
    "mode.tools": "In search mode a model searches, describes and calls operations by three others, on every surface.",
    "mode.names": "Descriptions and results of search mode and code mode name only what a model can call.",
    "mode.access": "In search mode access, views and interceptors apply to what is found and called.",
    "mode.budget": "Search mode can take effect only if the definitions exceed a budget of tokens.",
    "mode.signature": "A search returns a short line for each operation: its id, parameters and summary.",
    "config.views": "Views of a file select by source too, are served by surfaces, and are checked when the file is "
    "read; sources select and rename.",
    "registry.listeners": "Listeners hear of every addition, replacement and removal; a failing one affects no other.",
    "registry.duplicate-id": "A second operation of the same id is refused unless it is to replace the first.",
    "registry.no-handler": "A spec without a handler is known, but calling it is OPERATION_NOT_FOUND, and says why.",
    "registry.rejected": "Calls without an operation to run, which no interceptor sees, are reported to listeners.",
    "registry.interceptors": "An interceptor wraps every call and each item of a subscription; the first is outermost.",
    "registry.dispatch": "One dispatcher finds an operation, checks access and calls it, for every surface.",
    "registry.not-found": "Calling an unknown id is OPERATION_NOT_FOUND, with the ids that look alike.",
    "decorators.types": "The decorators register functions as queries, mutations and subscriptions.",
    "decorators.schemas": "Input and output schemas are taken from a function's signature, or given in their place.",
    "decorators.function-unchanged": "A decorated function stays the ordinary function that it was.",
    "decorators.context": "A parameter annotated `Context` receives the context and is not part of the input.",
    "decorators.conversion": "Arguments arrive converted to their annotated types.",
    "decorators.lazy-annotations": "Lazy annotations (Python 3.14) are resolved; a missing name is a HintError.",
    "decorators.callables": "Partials, callable objects, bound and static methods, wrapped functions can be handlers.",
    "decorators.refused": "A function that cannot be an operation is refused when it is registered.",
    "execute.envelope": "`execute` returns an envelope for any result of the handler.",
    "execute.trusted": "`execute` is a trusted call: it checks no access rules.",
    "execute.call-errors-only": "Every failure of a call is a CallError for its caller.",
    "execute.output-type": "With `output_type` the data really is of that type, or the call fails.",
    "execute.cancellation": "Cancelling the caller cancels the handler, and is not swallowed.",
    "subscribe.envelopes": "Each item of a subscription is an envelope, with a timestamp of its own.",
    "subscribe.closes": "However the consumer leaves, the handler's generator is closed.",
    "subscribe.close-bounded": "A generator that does not end its `finally` in time is left behind and reported.",
    "subscribe.idle-timeout": "A subscription that pauses longer than its idle limit ends with TIMEOUT.",
    "subscribe.deadline": "A subscription ends with TIMEOUT at the deadline of its call.",
    "calls.wrong-verb": "`execute` of a subscription and `subscribe` of a query are clear CallErrors.",
    "handlers.kinds": "Handlers are async or sync, give a value or are generators.",
    "handlers.raw-or-envelope": "Handlers return raw values or envelopes; the infrastructure wraps what is raw.",
    "handlers.wrong-kind": "A generator where a value is due, and the reverse, is a clear error.",
    "handlers.threads": "Sync handlers run on threads of the package, in limited number.",
    "handlers.context-variables": "Sync handlers see the context variables of their caller.",
    "handlers.inline": "A sync handler that is declared inline runs on the event loop.",
    "handlers.abandoned": "A sync handler that outlives its deadline is abandoned and reported; its place is filled.",
    "tasks.held": "Tasks in the background are held until they end; a future that is done stays unchanged.",
    "handlers.fork": "A forked process starts threads of its own for sync handlers.",
    "handlers.all-stuck": "When as many threads are stuck as there may be, calls are refused until one returns.",
    "handlers.stuck-share": "A caller whose calls have left all threads stuck is refused, and others are served.",
    "handlers.exit": "A handler that never returns does not keep the process from ending.",
    "deadlines.per-operation": "An operation's own timeout ends its calls with TIMEOUT.",
    "deadlines.at-once": "A handler with a deadline executes its first step at once, in a task of its own; calls that "
    "it makes there start later.",
    "deadlines.loops": "Event loops in several threads have the deadlines of their own calls.",
    "deadlines.expired": "A call whose deadline has passed does not start its handler.",
    "deadlines.hold-ups": "How long the event loop was held up lately is known to what it reads afterwards.",
    "deadlines.stubborn": "An async handler that ignores its cancellation is left behind and reported; neither its "
    "caller nor the end of the loop waits for it.",
    "subscribe.stubborn": "A subscription with a deadline or an idle limit that ignores its cancellation is left "
    "behind and reported; its consumer does not wait for it.",
    "deadlines.shrink": "Deadlines only shrink through nested calls.",
    "deadlines.own-timeout-error": "A TimeoutError that the handler itself raises is not the call's TIMEOUT.",
    "env.callables": "An env has every operation as a callable, by attribute and by item, each giving an envelope.",
    "env.mapping": "An env and its namespaces have the mapping protocol: iteration, length, membership, dir().",
    "env.identity": "Nested calls carry on the identity and the metadata of the call that makes them.",
    "env.deadline": "Nested calls carry on the deadline.",
    "env.parent": "Nested calls have a request id of their own and know that of their parent.",
    "env.cancellation": "Cancelling a call cancels the calls that it makes.",
    "env.checked": "A checked env applies access control to the calls made through it.",
    "failures.call-error": "A CallError that a handler raises reaches the caller unchanged.",
    "failures.unforeseen": "Any other exception of a handler is EXECUTION_ERROR with a fixed sentence and an error id.",
    "failures.no-secrets": "Nothing of an unforeseen exception is in the CallError's message or details.",
    "failures.cause": "The unforeseen exception is kept as the `__cause__` of the CallError.",
    "failures.log": "The traceback of an unforeseen exception is in the log, under the error id.",
    "failures.base-exceptions": "A handler that raises SystemExit, CancelledError, StopIteration fails its call alone.",
    "access.required-scopes": "Every one of `required_scopes` has to be held.",
    "access.any-scope": "One of `required_scopes_any` has to be held.",
    "access.scopes": "Scopes given as a single string, and access that is not an AccessControl, are rejected at once.",
    "access.resources": "Every resource rule has to be met by an action held on that type of resource.",
    "access.public": "A public operation needs no identity.",
    "access.unauthenticated": "Without an identity an operation that is not public is UNAUTHENTICATED.",
    "examples.deploy": "The container, compose and systemd files in examples/deploy start servers that pass their "
    "health checks; the manifests are valid for Kubernetes.",
    "examples.two-processes": "Two processes find and call each other over each broker, and stop cleanly.",
    "soak.history": "Calls, subscriptions and durable mutations keep their promises while processes, brokers and "
    "connections are killed at random.",
    "examples.demo": "The demo loads three sources, calls, composes, streams, fails, and is called back through both "
    "surfaces.",
}

ORIGIN: dict[str, str] = {
    "origin.round-trip": "What MCP and OpenAPI have no words for is said beside them, and read again as it was.",
    "origin.strangers": "A field of the same name that cannot be read is not an origin; unknown fields are tolerated.",
}

PIPELINE: dict[str, str] = {
    "pipeline.own-schema": "A result that comes with a schema of its own is normalised to that one, in the "
    "operation's mode.",
    "input.strict": "Input is validated strictly before the handler runs; nothing is coerced.",
    "input.every-problem": "Invalid input is VALIDATION_ERROR with every problem as a path and a message.",
    "input.not-echoed": "The message and the details of a validation error never echo the value in full.",
    "input.foreign-schema": "An operation whose input schema does not compile is not called, unless that was allowed.",
    "pipeline.detect": "A result that is an envelope, ours or in wire form, passes through with its meta.",
    "pipeline.source-is-the-handlers": "The source of an envelope that a handler made is not questioned.",
    "pipeline.wrap": "A raw result is wrapped in a local envelope of its operation.",
    "pipeline.none": "A handler that returns nothing gives an envelope whose data is null.",
    "pipeline.lookalike": "A mapping that only looks like an envelope is wrapped as data, and a warning says so.",
    "pipeline.plain": "Instances of classes become plain JSON data, once, in the pipeline.",
    "pipeline.binary": "Binary results are bytes; bytes nested in a structure become base64 strings.",
    "pipeline.not-plain": "A result without a JSON form is EXECUTION_ERROR and says what it is.",
    "pipeline.schema-is-of-data": "The output schema describes the data of an envelope, not the envelope.",
    "pipeline.normalise-then-validate": "Results are normalised first, and what then still does not fit is reported.",
    "pipeline.warns-only": "A result that does not fit its schema is logged, never raised.",
    "pipeline.same-everywhere": "`execute` and each item of `subscribe` go through the same pipeline.",
    "pipeline.bounded": "The event loop runs on while a large result of a source is normalised.",
    "pipeline.unknown": "A result of an operation without an output schema is left alone.",
    "pipeline.mcp-error": "An MCP result with `is_error` is left alone.",
    "pipeline.mcp-content": "An MCP result whose data are its content blocks is left alone.",
    "pipeline.mcp-structured": "The structured output of an MCP result is normalised.",
    "pipeline.http": "The data of an HTTP envelope is normalised.",
    "pipeline.foreign-schema": "An output schema that does not compile when first used is reported and counts as none.",
    "normalize.resolution": "An operation's mode and strip switch count before those of the registry.",
    "normalize.default": "The default mode is `fit`, with strip on.",
    "normalize.fit": "`fit` fills defaults, strips undeclared properties, makes lossless conversions, leaves the rest.",
    "normalize.cast": "`cast` is TypeBox's Value.Cast.",
    "normalize.check": "`check` only warns.",
    "normalize.off": "`off` does nothing and says nothing.",
    "normalize.strip": "`strip=False` keeps undeclared properties, except where the schema says false.",
    "normalize.never-raises": "A cast that fails gives the original data and a warning.",
    "normalize.never-mutates": "No mode ever changes the handler's own object.",
    "normalize.same-object": "A result that conforms comes back as the very same object.",
    "normalize.conforming-default": "A default filled into a result that conforms without it is logged at DEBUG.",
    "normalize.warnings": "Warnings name what was changed and what still does not fit.",
    "normalize.capped": "Warnings are capped in number and in size.",
    "hostile.values": "Cyclic, endless, huge, deep or unserialisable values end in a clear error or a warning.",
    "hostile.schemas": "Hostile schemas fetch nothing, hang nothing and crash nothing.",
}

TRANSPORT: dict[str, str] = {
    "transport.contract": "One public contract runs on every transport that is shipped, each promise under its name.",
    "transport.contract-bites": "A transport that breaks a promise is caught by the check of that promise.",
    "transport.broker-connection": "A broker is one small interface; sending never waits.",
    "transport.batches": "Events for one end within a turn share a message; each counts by its own token, and fails "
    "alone.",
    "transport.batches.requests": "Requests are batched for the only server of an operation; a second one gets its "
    "share, and a batch that was not delivered is sent again, and no other.",
    "transport.link.order": "What is written to a connection arrives in order.",
    "transport.link.bound": "A peer that does not read costs memory up to a bound; above it requests and answers wait "
    "or fail, each its own call, and what ends or steers calls still passes.",
    "transport.link.fair": "A peer that sends thousands of requests at once has a hundredth of a second per turn of "
    "the event loop.",
    "transport.link.urgent": "Signs of life go past what waits to be sent.",
    "transport.link.end": "A connection ends once, in bounded time, and tells why.",
    "transport.link.protocol": "A peer that breaks the protocol loses its own connection.",
    "transport.leases.token": "Over a broker only the server that has a request can answer it, and only its caller can "
    "steer it.",
    "transport.leases.probes": "Where the broker knows that a server is gone, calls up to a minute old end within 50 "
    "ms and older ones within 0.3 s, at the cost of a bounded number of probes.",
    "transport.leases.expiry": "A server or caller that is gone without a word is noticed after three beats.",
    "transport.leases.long-calls": "A call may take as long as it likes while its server lives.",
    "transport.leases.lost-messages": "A request, answer or abort that a broker lost is noticed within four beats.",
    "transport.leases.caller-gone": "The handlers of a caller that is gone are stopped.",
    "transport.leases.abort-unknown": "An abort reaches its handler at once, even before the server was heard of.",
    "transport.leases.refused": "A call whose abort or last word found no room to be sent ends all the same, within "
    "four "
    "beats.",
    "transport.leases.farewell": "An end that leaves notifies the peers of its calls by their tokens, even servers "
    "that it has not heard of yet.",
    "transport.long-ids": "Over a broker, a request with an id of over 1,000 characters is rejected, not remembered.",
    "transport.malformed": "A message that cannot be read fails its own call, is counted, and ends neither side.",
    "transport.reconnect": "A lost connection ends its calls at once, is made again with back-off and jitter, and "
    "serves "
    "what it served.",
    "transport.memory": "Events within one process travel by reference.",
    "transport.memory-codec": "With `codec=True` every event within one process passes through the wire format.",
    "transport.addresses": "No caller sees another's answers, even where both use the same request id.",
    "transport.sharing": "Several ends that serve the same operation take turns; one that left gets no more.",
    "transport.nobody": "A request without a server is UNAVAILABLE at once where that is known.",
    "transport.closed": "A closed end sends nothing, receives nothing, and can be closed again.",
    "transport.limit": "The sender checks the size of a message; one above the limit fails its own call alone.",
    "transport.trusted": "Within one process the identity that a caller states is believed.",
}

CHAOS: dict[str, str] = {
    "chaos.faults": "A wrapper for any transport drops, duplicates, delays and reorders events, and closes at random.",
    "chaos.seeded": "The same seed gives the same run.",
    "chaos.outcomes": "Under any faults of the transport each call has one outcome, and none waits past its deadline.",
    "chaos.at-most-once": "Under any faults of the transport a handler runs at most once for a request.",
    "chaos.belongs": "Under any faults of the transport responses belong to their requests and items come in order.",
    "chaos.nothing-left": "After chaos no call, no task and no memory is left behind.",
    "chaos.counts": "A run of chaos says how many faults of each kind it injected, and fails if one kind is missing.",
}

CALL: dict[str, str] = {
    "call.events": "The events are call.requested, call.responded, call.completed, call.error, call.aborted, "
    "call.credit and call.progress: flat JSON objects, told apart by `type`.",
    "call.events.schemas": "Each event has a published JSON Schema with exactly its fields.",
    "call.events.schemas-written": "Every event that is written is valid by the published schemas.",
    "call.events.schemas-read": "Every event that is valid by the schemas can be read, and a broken one is refused.",
    "call.wire.bytes": "An event that a TypeScript peer writes is read, and written again as the same bytes.",
    "call.wire.tolerant": "Fields of a newer protocol are ignored, optional ones may be absent or null.",
    "call.wire.survives": "An event is the same after a journey as JSON.",
    "call.wire.binary": "Binary data of an answer is bytes again at the receiver; other values are sent in JSON form.",
    "call.wire.malformed": "An invalid event is a PROTOCOL_ERROR that ends neither side, and nothing else.",
    "call.respond.callback": "A callback answers requests by `respond`, without a registry; it is cancelled with them.",
    "call.foreign-code": "The error code of a peer with codes of its own is kept, and passed on to every surface.",
    "call.wire.numbers": "A count is a JSON number without a fraction, however it is written, and null is absent.",
    "call.wire.one-line": "The error of an invalid event is one line, short, and without control characters.",
    "call.wire.malformed-id": "A PROTOCOL_ERROR names the request where one can be made out.",
    "call.wire.size": "A message above the limit fails its own call, in either direction, and no other.",
    "call.wire.depth": "An event nested deeper than 200 is refused, and no nesting crashes anything.",
    "peers.containers": "A message or body with more than 65,536 objects and lists, and one more per 16 bytes, is "
    "rejected before it is decoded, and before it is sent; the error says what to do.",
    "peers.numbers": "So is one of more than 16 KiB with more than 1,024 numbers whose exponent has three digits, and "
    "one more per 128 bytes, or more than 512 blocks of 512 digits in numbers, and one more per 32 KiB: these take "
    "longest to decode.",
    "call.wire.no-json": "An event without a JSON form fails at its sender.",
    "call.wire.surrogates": "Lone surrogates anywhere in an event are replaced, when it is sent and when it arrives.",
    "call.wire.nonfinite": "NaN and infinities anywhere in an event are sent as null, with a warning.",
    "call.transport.interface": "The interface of a transport is one small file: six methods and whether peers are "
    "trusted; sending never waits.",
    "call.transport.sender-is-stamped": "The sender of an event is stamped by the transport.",
    "call.transport.fails-at-once": "Sending through a closed transport or without a receiver is UNAVAILABLE.",
    "call.envelope": "`call()` gives the one envelope that the operation answered with.",
    "call.concurrent": "Many calls at once get each its own answer.",
    "call.request-fields": "A request carries request id, parent, identity and input of its context.",
    "call.request-ids": "No request id is used twice by one caller, even if a context is.",
    "call.request-ids.refused": "A request id that is in use is rejected for others, and no caller gets the wrong "
    "answer.",
    "call.moves-on": "A request that a server refused before anything was begun is asked of another one, in the time "
    "that "
    "is left; one that may have begun is not.",
    "call.session.schemas": "Every event of a session agrees with its published schema, and survives its journey.",
    "call.session.tolerant": "Session events with unknown fields or another order of fields are read.",
    "call.session.refused": "A refusal is raised as the error that it names; an unknown code is UNAVAILABLE.",
    "call.session.malformed": "What is not a session event is a PROTOCOL_ERROR, and nothing else.",
    "call.discovery": "All servers can be found, with schemas, health and version, for any size of their registries.",
    "call.discovery.silent": "Servers that are silent, or invented, delay a discovery together as long as one of them.",
    "call.discovery.statistics": "A server counts calls, errors and time per operation; of an error it keeps the code.",
    "call.discovery.access": "Discovery shows a caller the operations that it may call.",
    "call.directed": "A call can be directed at one of several servers.",
    "call.drain": "A server that drains finishes what it has in progress, takes nothing new, and ends in time.",
    "call.one-outcome": "Every call that was opened is settled exactly once, or still pending.",
    "call.duplicates": "Late and duplicate answers are dropped and counted.",
    "call.unknown-ids": "Events for unknown requests are ignored and counted.",
    "subscribe.missed-abort": "An item without a consumer is answered with an abort, so that its producer ends.",
    "call.foreign-answers": "Only the peer that a request was routed to can answer it; what others send is dropped and "
    "counted.",
    "call.repeated-requests": "A request that arrives twice is run once; a request id that was used is an error.",
    "call.model": "In every order of losses, repetitions, drains and crashes a call has one outcome and runs at most "
    "once.",
    "call.nested": "A call that is made with the context of a served call is its child: another request id, its "
    "parent, the remaining time and the caller's identity; a connection that cannot carry that identity refuses.",
    "call.numbers": "Every number of a peer is bounded where it is read: none breaks a connection or a timer.",
    "call.error.travels": "A CallError is the same at the caller as where it was raised.",
    "call.error.unknown-code": "An error code of a newer peer is EXECUTION_ERROR, and its name is kept.",
    "call.aborted.by-server": "A call that the serving side stopped is ABORTED with its reason.",
    "call.wrong-verb": "`call()` of a subscription and `subscribe()` of a query are clear errors: neither hangs nor "
    "leaves anything running.",
    "call.respond.envelopes-only": "`respond()` raises on anything that is not a readable envelope.",
    "call.respond.public": "`respond()` is public, and takes an envelope in wire form too.",
    "call.respond.once": "A request is answered once; responses to unknown requests are ignored.",
    "call.abort": "`abort()` ends a pending call with ABORTED and has its handler stopped.",
    "call.cancellation": "A caller that gives up cancels the handler on the other side, once.",
    "call.cancellation.nested": "Cancellation reaches the innermost handler through nested calls and other buses.",
    "call.lost-peer": "Calls to a peer that is lost end at once with UNAVAILABLE.",
    "call.lost-caller": "The handlers of a caller that is gone are cancelled, and no others, some in each turn.",
    "call.close": "Closing a channel settles every pending call at once with UNAVAILABLE.",
    "call.unserved": "A call without a server fails at once with UNAVAILABLE.",
    "call.own-end": "One end may serve and call, itself too.",
    "call.questions": "A handler asks the caller over every transport; the answer or an error comes back.",
    "call.questions.opt-in": "A caller that does not accept questions gets an error with the question.",
    "call.progress": "What a handler reports reaches a caller that asked for it, over every transport: at most ten "
    "reports per second and the last one before the response, with finite numbers and a bounded message.",
    "call.progress.optional": "Progress that is late, unknown, unasked or not from the server of its call is dropped, "
    "and none ends, extends or delays a call or counts as an item.",
    "call.deadline.default": "A call has 30 seconds unless it says otherwise, a subscription has no deadline.",
    "call.deadline.on-the-wire": "Deadline in epoch milliseconds and remaining time travel with a call.",
    "call.deadline.remaining-first": "The receiver prefers the remaining time, so that wrong clocks do no harm.",
    "call.deadline.shrinks": "A call has the shorter of its own and its context's deadline.",
    "call.deadline.nested": "Deadline, parent and identity are carried on through nested calls over several buses.",
    "call.deadline.enforced": "Both sides enforce the deadline: the caller gets TIMEOUT, the handler is cancelled.",
    "call.deadline.expired": "A call whose deadline has passed is not sent, and not started where it arrives.",
    "call.observers": "Observers see every event, a cause before its effect, and can neither slow nor fail a call.",
    "subscribe.remote": "`subscribe()` over a transport gives one envelope an item.",
    "subscribe.order": "Items are numbered and arrive in order.",
    "subscribe.lost-items": "A lost item ends the stream with an error on both sides.",
    "subscribe.errors": "An error in the middle of a stream comes after the items before it.",
    "subscribe.credits": "A producer is never advanced beyond the credits that its consumer gave.",
    "subscribe.window-bytes": "A consumer grants few items in advance if they are large, and never none.",
    "call.waits-for-room": "Large requests, responses and items wait for room in the queue of a connection.",
    "subscribe.credits.repeatable": "Grants are totals: a repeated one changes nothing, a lost one is made up for, and "
    "a consumer that waits repeats its own.",
    "subscribe.bounded": "The buffer of a consumer is bounded for any producer.",
    "subscribe.without-credits": "A producer that knows neither credits nor item numbers is consumed; what it sends "
    "beyond the window is bounded in bytes, and ends with an error.",
    "subscribe.overflow": "A stream that must not be slowed down drops or ends as its policy says, counted exactly.",
    "subscribe.slow-consumers": "A slow consumer never delays others.",
    "subscribe.leaving": "However a consumer leaves, the generator on the other side is closed.",
    "resume.cursor": "An item yielded with a cursor is an envelope that has it, with the schema of its data.",
    "resume.handler": "A subscription that takes `resume_from` can be resumed; it is not part of the input.",
    "resume.from": "A subscription begins behind the item whose cursor its caller gives, at any server.",
    "resume.client": "A client that asks for it resumes a lost subscription behind the last item that it yielded, "
    "within a bounded time.",
    "resume.faults": "While connections are cut and engines are killed, no item is lost and none comes twice.",
    "resume.unsupported": "What cannot be resumed is an error with RESUME in its details, and never starts over.",
    "resume.ignored": "A server that ignores the cursor is detected by its first item, and stopped.",
    "resume.bounded": "A cursor is a printable text of at most 4,096 bytes.",
    "resume.nested": "The cursor of a call is not passed on to calls that are made inside it.",
    "resume.drain": "A server that drains ends subscriptions that can be resumed, and another continues them.",
    "resume.described": "Descriptions of operations say whether they can be resumed.",
    "streams.read": "A durable stream gives the stored items, then each new one, in order and once.",
    "streams.resume": "Any end of a durable stream continues behind any item.",
    "streams.bounded": "A durable stream is bounded; a reader that missed items gets an error, and never a gap.",
    "streams.foreign": "What other programs have written to a stream of Redis or JetStream is read, too.",
    "streams.names": "Invalid names and numbers of durable streams are rejected.",
    "streams.restarts": "A subscription to a durable stream survives restarts of the broker and of its server.",
    "subscribe.idle": "A remote subscription that pauses longer than the consumer's idle limit ends with TIMEOUT.",
    "subscribe.ten-thousand": "10,000 subscriptions on one in-process channel hold, and leave nothing behind.",
    "handler.only-publisher": "The CallHandler is the only publisher of call.responded.",
    "handler.lookup": "A request for an unknown operation, or one without a handler, is OPERATION_NOT_FOUND.",
    "handler.access": "Access is checked for every call that arrives.",
    "handler.access-first": "Access is checked before the input is validated.",
    "handler.validates": "The input of a request is validated before the handler runs.",
    "handler.serves": "What a handler does not serve cannot be called, however it is addressed.",
    "handler.identity": "On a trusted transport a caller is whom it says; without an identity it is whom the server "
    "configured, or the local identity.",
    "handler.identity.forged": "An identity that a peer states on an untrusted transport is ignored.",
    "handler.context": "Request id, parent request id, identity and deadline reach the handler's context.",
    "handler.pipeline": "A remote result, and each item, goes through the same pipeline as that of `execute`.",
    "handler.is-error": "A result with `isError` is a success on the wire.",
    "handler.errors": "Only what a handler raises is call.error; an unforeseen exception tells an error id and no "
    "secret.",
    "handler.dispatch": "The CallHandler dispatches on the operation's type.",
    "handler.max-calls": "Calls above the bound on concurrent calls are refused at once with RATE_LIMITED.",
    "handler.max-per-identity": "One identity cannot have more calls in flight than its limit.",
    "handler.max-inputs": "The large inputs of calls in flight are bounded in bytes, of which one identity gets half.",
    "handler.close": "A server that closes ends the calls in flight at once and takes no more.",
    "handler.close.stubborn": "A handler that ignores its cancellation blocks neither the close nor its caller.",
    "handler.announces": "What is announced is what the registry holds, while it changes.",
    "deadlines.never-early": "A deadline is never early, and one that was taken back never comes.",
    "deadlines.shared-timers": "Deadlines that are close share one timer.",
    "deadlines.limit": "What does not end by its deadline is cancelled and is TIMEOUT; a caller that is "
    "cancelled is not.",
}

NATS: dict[str, str] = {
    "transport.nats.protocol": "However NATS' bytes are cut, the events are the same.",
    "transport.nats.garbage": "Bytes that are not NATS are a PROTOCOL_ERROR, never a crash, a hang or unbounded "
    "memory.",
    "transport.nats.subjects": "Every operation id has a legal NATS subject of its own, readable where it can be.",
    "transport.nats.barrier": "Over NATS, serving and withdrawing are done when they return.",
    "transport.nats.order": "Over NATS an abort never overtakes its request.",
    "transport.nats.nobody": "Over NATS a call without a server fails within a round trip.",
    "transport.nats.gone": "The NATS server's word that a receiver is gone names that receiver, plain clients "
    "included.",
    "transport.nats.plain-clients": "A plain NATS client can call an operation, and answer one, with JSON alone.",
    "transport.nats.no-deputy": "Answers go to inboxes alone, and only the NATS server can say that a peer is gone.",
    "transport.nats.permissions": "What the NATS server forbids fails alone, at once where it names the operation; the "
    "connection lives.",
    "transport.nats.payload": "A message above the server's max_payload fails its own call; the connection lives.",
    "transport.nats.credentials": "Password, token, NKEY and .creds file authenticate at a NATS server.",
    "transport.nats.secrets": "No message, log line or repr shows a password, token or seed.",
    "transport.nats.tls": "TLS is used where either side wants it, is checked, and is never given up for plain text.",
    "transport.nats.unreachable": "A NATS server that is absent, full, too old or something else is named, with the "
    "reason.",
    "transport.nats.cluster": "All known servers of a NATS cluster are tried in random order, those it tells of "
    "included.",
    "transport.nats.accounts": "Ends at a NATS leaf node and at its hub reach each other, and those of another account "
    "do not.",
    "transport.nats.lame-duck": "A NATS server about to shut down is used until it ends, then another one.",
    "transport.nats.frozen": "A silent NATS server is given up at the third beat.",
    "transport.nats.pings": "The NATS server's own pings are answered.",
    "transport.nats.last-word": "If a connection ends after a complaint of the NATS server, that is the reason given.",
    "transport.nats.closing": "What was sent before closing arrives, and closing never waits long.",
    "transport.nats.outage": "Nothing is lost silently or kept for later while the NATS server is gone: one outcome a "
    "call.",
    "transport.nats.at-once": "Handlers of one operation run at the same time, and may call back.",
    "transport.nats.drain": "A NATS end that withdraws answers everything that arrived before.",
    "transport.nats.no-leak": "What an exception says does not reach the caller over NATS.",
    "transport.nats.spread": "The servers of an operation over NATS share its requests.",
    "transport.nats.discovery": "The tools of NATS see what is served, where an end describes itself.",
}

REDIS: dict[str, str] = {
    "transport.redis": "Calls run over a Redis server, 6.2 or newer, under the whole contract.",
    "transport.redis.servers": "The suites of Redis pass over each Redis and Valkey server that is installed.",
    "transport.redis.framing": "However the bytes of Redis are split, each reply reaches its request, in order.",
    "transport.redis.garbage": "Foreign messages on our channels are ignored and counted.",
    "transport.redis.secrets": "A password appears in no message, name or repr.",
    "transport.redis.refusals": "What Redis refuses is UNAVAILABLE, fails alone, and says what to do about it.",
    "transport.redis.leases": "A server that does not beat gets no more requests, and serves again with its next beat.",
    "transport.redis.dead-servers": "A server that crashed fails no call, and its entries are removed when met.",
    "transport.redis.lost-data": "What Redis loses about servers comes back with the next heartbeats.",
    "transport.redis.scripts": "Flushing the scripts of Redis fails no call.",
    "transport.redis.no-memory": "Calls, leases and announcements go on while Redis has no memory left.",
    "transport.redis.once": "A message whose reply is lost is not sent again.",
    "transport.redis.one-connection": "A thousand calls in flight need one connection an end.",
    "transport.redis.frozen": "A Redis server that is silent for two beats is given up, and found again.",
    "transport.redis.replica": "A server that has become a read-only replica is left until it is primary again.",
    "transport.redis.sentinel": "Over Sentinels, ends find the primary of the latest election, follow it when it is "
    "replaced or killed, and each call has one outcome.",
    "transport.redis.cluster": "In a cluster, ends find the server of their prefix, follow it when it is replaced or "
    "killed, and each call has one outcome.",
    "transport.redis.backlog": "What Redis does not take waits above a bound, until the deadline; what ends or steers "
    "calls has room of its own.",
    "transport.redis.pace": "Large messages are paced: a broker disconnects an end for which it has buffered too much.",
    "transport.redis.slow-reader": "An end that Redis closes for reading too slowly comes back; each call has one "
    "outcome.",
    "transport.redis.prefix": "Ends with another prefix or database do not meet.",
    "transport.redis.tls": "Calls pass through TLS, and a server without proof of its identity is rejected.",
    "transport.redis.sticky": "Over Redis, requests with one sticky key go to one server while it is there.",
}

WEBSOCKET: dict[str, str] = {
    "transport.no-secrets": "Neither messages nor logs show passwords, tokens or payloads.",
    "transport.directed": "A request can be directed at one server; if it is gone, the caller learns it in its name.",
    "transport.sticky": "Requests with one sticky key go to one server until it leaves.",
    "transport.strangers": "Only the peer that has a request can answer it, and only its caller can steer it.",
    "transport.reconnects": "After a loss an end comes back, serves what it served, and its calls have ended; it "
    "backs off.",
    "transport.websocket.probes": "A hub answers /healthz and /readyz over HTTP until it drains.",
    "transport.websocket": "A WebSocket server and its clients are ends of one medium; the server relays.",
    "transport.websocket.frames": "Messages arrive whole, however frames and bytes are cut.",
    "transport.websocket.frames.refused": "What breaks the rules of WebSocket ends that connection with its code.",
    "transport.websocket.stamps": "The sender of an event is written by the server and cannot be forged.",
    "transport.websocket.opaque": "A relay passes payloads on unread and unchanged.",
    "transport.websocket.routes": "A relay keeps a call exactly until it ends.",
    "transport.websocket.duplicates": "A request that comes again while it is open goes nowhere.",
    "transport.websocket.plain": "A client with hand-written JSON and no `peer` can call and serve.",
    "transport.websocket.hello": "Hello comes first, in time and in our version, or the connection is closed.",
    "protocol.schemas": "Every envelope and event has its JSON Schema in opwire.protocol.schemas and as a file.",
    "peers.page-alone": "A peer in plain JavaScript, written from the page alone, keeps every promise of the protocol.",
    "conformance.own": "The conformance kit finds that our hub, spoke, client and ends on brokers keep every promise.",
    "conformance.broken": "The conformance kit finds every peer that breaks one promise.",
    "conformance.bounded": "The conformance kit ends in bounded time for any behaviour of a peer.",
    "peers.typescript": "The TypeScript package calls and serves over a hub, by the page of the protocol alone.",
    "protocol.transcripts": "A hub and a server on a broker send what the transcripts of the protocol's page show.",
    "transport.websocket.subprotocol": "Both sides speak opwire.v1 or do not connect.",
    "transport.websocket.origin": "A web page connects only from an allowed origin.",
    "transport.websocket.http": "What is not a WebSocket handshake is rejected or closed.",
    "transport.websocket.tls": "Connections can be encrypted, and certificates are checked.",
    "transport.websocket.unreachable": "A server that cannot be used is UNAVAILABLE in time, with the reason.",
    "transport.websocket.unconfirmed": "What a server does not confirm is UNAVAILABLE.",
    "transport.websocket.malformed": "A message that cannot be read fails its own call alone; too many close the "
    "connection.",
    "transport.websocket.heartbeat": "A silent peer is given up after two or three beats; one that sends is not.",
    "transport.websocket.streams": "A relay passes subscriptions whole, with or without credits and numbers.",
    "transport.websocket.token": "A token function that raises, or any other fault, does not end the reconnection.",
    "transport.websocket.unmatched": "Events that no call needs count against their sender, and fill no buffer.",
    "transport.websocket.unread": "Messages that an application does not take kill no connection.",
    "transport.websocket.loss": "Both sides of a call learn at once that the other is gone.",
    "transport.websocket.slow-peer": "A peer that does not read costs bounded memory and delays no other.",
    "transport.websocket.goaway": "An end that goes away gets no new requests and finishes what it has.",
    "transport.websocket.max-connections": "The connections of a server are limited.",
    "transport.websocket.max-calls": "The open calls of a connection are limited, those to the server itself included.",
    "transport.websocket.max-operations": "The operations of a connection are limited.",
}

HUB: dict[str, str] = {
    "transport.websocket.gate": "A gate admits peers and their announcements; each peer's requests keep their "
    "order, and others do not wait.",
    "hub.relays": "Spokes call each other's operations through the hub.",
    "hub.serves": "A hub serves its own registry; what was never there is OPERATION_NOT_FOUND.",
    "hub.shows": "The operations of spokes are in the hub's registry, with their schemas, as long as they are served.",
    "hub.many-operations": "A registry of 1,500 operations is announced and shown.",
    "hub.payload": "A request's payload is passed on byte by byte.",
    "hub.shares": "Spokes that serve the same operation take turns while they are equally busy.",
    "hub.least-busy": "The spoke with the fewest calls in flight gets the next.",
    "hub.sticky": "Calls with one key go to one spoke while it serves.",
    "hub.spoke-lost": "The calls of a spoke that is killed end at once with UNAVAILABLE.",
    "hub.linger": "Operations of a lost spoke stay shown for a while, and are UNAVAILABLE.",
    "hub.keep-alive": "A spoke that is frozen is dropped after two to three beats.",
    "hub.loss-cost": "The loss of a spoke costs the hub what that spoke has announced.",
    "hub.caller-lost": "A handler is cancelled when its caller is gone or gives up.",
    "hub.drain-spoke": "A spoke that drains finishes what it has; a rolling restart fails no call.",
    "hub.drain-hub": "A hub that drains sends spokes away, lets calls finish in the time given, and closes.",
    "hub.restart": "When a hub goes, every call has one outcome, and its spokes come back to the next one.",
    "hub.reconnected": "A log that shows the loss of a hub or broker shows the reconnection, too.",
    "hub.uncallable": "A spoke on a broker whose operations no caller has access to says so at its start.",
    "hub.failover": "A spoke with several URLs goes to the next hub.",
    "hub.tls": "A hub may be encrypted.",
    "hub.cluster": "Hubs with one broker are one: calls cross with items, credits, progress, questions, cancellation "
    "and discovery, an operation is unknown only when every hub has said so, and a hub that is gone fails its own "
    "calls only.",
    "hub.cluster.drain": "A hub that drains moves its spokes and callers to another without a failed call.",
    "hub.versions": "Versions of an operation are served side by side: a caller may ask for one, and otherwise gets "
    "the lowest, or any with its schemas.",
    "hub.cluster.soak": "Hubs are killed and drained at random: each call has one outcome, and none runs twice.",
    "hub.cluster.authority": "The identity of a caller crosses; delegation needs a grant at the hub of the server.",
    "hub.cluster.shares": "Callers share the calls between two hubs: one takes no more than it leaves to others.",
    "hub.cluster.secret": "With a secret, hubs believe only those that know it, and each request once.",
    "hub.cluster.options": "`opwire hub --cluster` and `[hub] cluster` make hubs one.",
    "hub.broker": "Over a broker a node shows what others serve there, and polls for changes.",
    "hub.repr": "The repr of a hub, a spoke and a transport says where it is connected, without credentials.",
    "hub.same-api": "A spoke is used in the same way over a hub and over a broker.",
    "hub.connect": "The scheme of a URL tells the engine; a missing package is named.",
    "hub.token": "A spoke without a good token is refused with UNAUTHENTICATED, and does not hammer.",
    "hub.expiry": "A connection ends when its token expires, and the same token opens no other.",
    "hub.identity": "The hub writes the caller on every request; no claim of a spoke counts.",
    "hub.nobody": "Without auth, peers are anonymous: they call what is public, and announce nothing.",
    "hub.short-descriptions": "A foreign spoke describes an operation by id and type alone, the type in either case.",
    "hub.carried-descriptions": "An announcement may carry descriptions; they are bounded like requested ones.",
    "hub.undescribed": "What a peer does not describe is served only if its grant says so, with unknown schemas.",
    "hub.own-requests": "The hub's own requests carry no authority that a peer can act with.",
    "hub.digests": "What the hub knows of an operation is not described to it again.",
    "hub.room": "Without room, a connection of the identity with the most makes place, first one without a token.",
    "hub.delegation": "A call made for a live call that the hub routed to its sender is made as that call's caller.",
    "hub.replies": "Only the spoke that has a call can answer it.",
    "hub.announce-rights": "A spoke announces only in the namespaces of its grant. It does not start if some are "
    "refused; one that is refused later does not keep the others away.",
    "hub.schemas": "Spokes that serve the same operation agree on its schemas; the hub's own cannot be taken over.",
    "hub.rate": "A connection calls so often and no more: RATE_LIMITED, with when to try again.",
    "hub.limits": "Open calls, announcements and the time for a handshake are bounded per connection.",
    "hub.just-started": "For a while after its start a hub says UNAVAILABLE, not OPERATION_NOT_FOUND, of what "
    "was not announced.",
}

MONITOR: dict[str, str] = {
    "monitor.records": "A call that ends is recorded with its caller, outcome, duration and sizes; input, output and "
    "error message are not.",
    "monitor.filters": "Records are filtered by request id, operation, outcome and caller at the server.",
    "monitor.bounded": "A slow watcher loses the oldest records, which are counted; watchers are bounded.",
    "monitor.timings": "A server can keep how long calls take, by operation, in few counters.",
    "monitor.free": "Without a watcher no record is created.",
    "monitor.access": "Observing requires the scope opwire:observe; the operations for it are not listed.",
    "monitor.statistics": "A server reports its health, version, operations, calls, errors and open calls.",
    "monitor.hub": "A hub counts and shows the calls between its spokes.",
    "monitor.broker": "Every server on a broker is observed, also one that joins later.",
    "monitor.http": "A server over HTTP is observed in the same way.",
    "monitor.drain": "A watcher does not hold up a server that drains.",
}

DURABLE: dict[str, str] = {
    "durable.contract": "One public contract runs on every journal that is shipped, each promise under its name.",
    "durable.contract-bites": "A journal that breaks a promise is caught by the check of that promise.",
    "durable.memory": "The journal in memory keeps the whole contract, in virtual time too.",
    "durable.redis": "The journal in Redis Streams keeps the whole contract on a real server.",
    "durable.large": "Many large inputs and outcomes at once wait for room, and end no connection.",
    "durable.call": "A durable call gives the envelope that its handler answered with.",
    "durable.shared-tasks": "Concurrent calls without keys share a task, and each has its own key, attempts, deadline "
    "and outcome.",
    "durable.submit": "A submission does not wait, and its outcome can be asked for later.",
    "durable.duplicates": "A second call with the same key runs nothing and gets the recorded outcome.",
    "durable.one-call-a-key": "A key stands for one operation, one input and one caller.",
    "durable.timeout": "TIMEOUT limits the waiting alone: the mutation goes on, and the same key asks again.",
    "durable.unavailable": "A journal that cannot be reached is UNAVAILABLE, and asking again with the same key is "
    "safe.",
    "durable.cancel": "A mutation that no worker has begun can be cancelled, in every journal; one that runs goes on.",
    "durable.inspection": "What was given up can be listed, replayed and purged, and everything is counted.",
    "durable.keep": "Outcomes are forgotten after a set time, buried ones are not.",
    "durable.at-least-once": "A submitted mutation is run at least once, across crashes of any process.",
    "durable.one-outcome": "A task has one recorded outcome, the first.",
    "durable.outcome": "An envelope, or an error that is not retryable, is an outcome.",
    "durable.retries": "What the error says is retryable is tried again.",
    "durable.back-off": "Each retry comes later than the one before, up to a limit, and no earlier than the error "
    "asks.",
    "durable.buried": "After the last allowed attempt a task is buried with its error.",
    "durable.poison": "A task that kills its worker is buried after exactly the allowed runs, of which all but the "
    "first were alone.",
    "durable.innocent": "A task that was lost only together with others is never buried: it is run alone, and done.",
    "durable.isolation": "A task whose last attempt was lost is run with nothing else in progress, and delays others "
    "for half of the time at most.",
    "durable.numbers": "No number that a handler, a caller or an entry of a journal gives ends or delays a worker for "
    "good.",
    "durable.unreadable": "A task that cannot be read is buried at once.",
    "durable.context": "A handler knows its key and its attempt.",
    "durable.access": "Access is checked, with an identity that can be believed.",
    "durable.mutations-only": "A worker claims the mutations of its registry, or those named, and nothing else.",
    "durable.concurrency": "A worker never has more tasks in progress than allowed.",
    "durable.lease": "A task has one owner at a time.",
    "durable.lease.renewed": "A long job is run once while its worker lives.",
    "durable.lease.lost": "A handler is stopped when its lease is lost, or before it could be.",
    "durable.worker.outage": "A worker outlasts an outage of its journal, and its results are not lost.",
    "durable.drain": "Draining finishes what is in progress and takes nothing new.",
    "durable.close": "Closing stops what is in progress and gives it back at once.",
    "durable.crash.worker": "A worker may be killed at any step.",
    "durable.crash.caller": "A caller may be killed at any step and ask again.",
    "durable.crash.redis": "With appendfsync always, nothing that Redis acknowledged is lost when it is killed.",
    "durable.crash.redis-service": "What the replica of a Redis service had is not lost when Sentinels replace its "
    "primary, and durable calls go on.",
    "durable.nats": "The journal in NATS JetStream keeps the whole contract on a real server.",
    "durable.crash.nats": "What JetStream acknowledged survives kill -9 of its server, and of any one of a cluster "
    "with replicas.",
    "durable.nats.lost-request": "What is asked of a JetStream leader that dies is asked again, not waited for.",
    "durable.nats.reconnects": "A journal in NATS comes back when its server does.",
    "durable.nats.refusals": "A NATS server that cannot keep a journal is named, with what to do about it.",
    "durable.nats.permissions": "The permissions that are named are enough; what is forbidden is known at once.",
    "durable.nats.no-growth": "Outcomes in NATS expire, and nothing else of a task that has ended is left.",
    "durable.nats.lost-news": "An outcome in NATS whose news got lost is found by asking again.",
    "durable.nats.leftovers": "An unfinished step in NATS blocks no other, and runs nothing again.",
    "durable.nats.size": "What a NATS server does not let through is refused alone, and the connection lives.",
    "durable.nats.log": "Of many concurrent writers about a task in NATS, one succeeds.",
    "durable.nats.names": "Every key and operation has a legal name of its own in NATS.",
    "durable.nats.fair": "Operations take turns in NATS.",
    "durable.nats.room": "What an end in NATS has no room for is soon given to others, and costs no attempt.",
    "durable.nats.lost-on-the-way": "A task that NATS loses on its way to an end is handed out again.",
    "durable.nats.forgotten": "What JetStream forgets of tasks that it handed out is in the log; one owner keeps each.",
    "durable.nats.foreign": "What is not a task is removed from the stream in NATS.",
    "durable.redis.no-growth": "A task that has ended leaves its outcome, which expires, and nothing in its stream.",
    "durable.redis.consumers": "Consumers that are gone are removed, and never with a task.",
    "durable.redis.fair": "Operations take turns.",
    "durable.redis.foreign": "What is not a task is removed from a stream.",
    "durable.redis.lost-news": "An outcome whose news got lost is found by asking again.",
    "durable.redis.memory": "Without memory nothing is submitted by halves, and outcomes are still recorded.",
    "durable.redis.reconnects": "A journal comes back when its server does.",
    "durable.redis.settings": "Settings of Redis that endanger tasks are logged.",
    "durable.batches": "What is submitted or recorded in one batch has its own result, and a batch is bounded.",
    "durable.too-large": "A result that is too large for the journal is recorded as the error that says so, and not "
    "run again.",
}

FAULTS: dict[str, str] = {
    "transport.faults.engine-killed": "When the server of an engine is killed and started again, each call has one "
    "outcome, and calls succeed again by themselves.",
    "transport.faults.engine-frozen": "While the server of an engine is frozen, calls fail within a few beats; when "
    "it wakes, they succeed again.",
    "transport.faults.back-off": "While an engine is away, ends try to reach it ever more rarely.",
    "transport.faults.server-killed": "Calls in the hands of a serving process that is killed fail with UNAVAILABLE; "
    "all others, and all later ones, are answered by another.",
    "transport.faults.server-frozen": "A frozen serving process fails its calls, gets no more, and serves again when "
    "it wakes; its late answers do no harm.",
    "transport.faults.caller-gone": "Handlers are stopped when the process that called is killed or frozen.",
    "transport.faults.network": "However a connection breaks, stalls or delivers in pieces, each call has one "
    "outcome, streams have no gap and no repetition, and later calls succeed.",
    "transport.faults.mute": "A server whose answers do not get through gets no more calls.",
    "transport.faults.payload": "A message above the engine's own limit fails its own call alone, with "
    "PAYLOAD_TOO_LARGE.",
    "transport.faults.redis-memory": "Calls go on while Redis has no memory left.",
    "transport.faults.flapping": "Connections that break again and again lose no call, repeat none and leave nothing "
    "behind.",
}

AUTH: dict[str, str] = {
    "auth.extra": "Signed tokens need the extra `auth`; without it the error names it, and nothing else loads PyJWT.",
    "auth.announce": "A grant allows announcements in its own namespaces alone, by default in none.",
    "auth.huge": "A token or credential above its limit of size is refused unread.",
    "auth.quiet": "Peers learn a category, the log the reason; no token, key or secret is in a message, log or repr.",
    "auth.log": "Made-up tokens do not flood the log, even while none can be checked.",
    "auth.concurrent": "Authenticators and verifiers may be used by many tasks and threads at once.",
    "auth.static": "Static tokens give their own grants, and nothing else passes.",
    "auth.static.constant-time": "A static token is compared by digest with every known one, in constant time.",
    "auth.static.weak": "A short, empty or padded static token is refused when it is configured.",
    "auth.anonymous": "Connections are anonymous only where `allow_anonymous` says so.",
    "auth.callback": "A user's function, sync or async, can say what a token gives; a sync one does not block the "
    "loop.",
    "auth.callback.fails-closed": "A user's function that fails or returns something else admits no caller.",
    "auth.claims": "Subject, scopes, resources and namespaces of a grant come from claims that can be named.",
    "auth.claims.strict": "A claim of the wrong kind is refused.",
    "auth.jwt": "JSON Web Tokens of every listed algorithm are taken with their own key and no other.",
    "auth.jwt.claims": "Expiry is required; times, audience and issuer of a token are checked.",
    "auth.jwt.attacks": "Unsigned, confused, altered, oversized and malformed JSON Web Tokens are refused.",
    "auth.jwt.keys": "A key that is weak, private or not made for every algorithm is refused before any token is seen.",
    "auth.jwt.published": "Published keys are fetched when needed, renewed hourly, and never more often than once a "
    "minute.",
    "auth.keys": "Signing keys survive as PEM; what is not such a key is refused.",
    "auth.certificate": "An authority's certificate names the holder of a key, its expiry, and what it grants.",
    "auth.certificate.strict": "What is not quite a certificate is refused; only `true` lets a holder delegate.",
    "auth.certificate.cached": "A verified certificate is not verified again, and the cache is bounded.",
    "auth.credential": "A signed request is its holder's; without a credential one is asked for.",
    "auth.credential.bound": "A credential is good for the request id, operation and body that were signed, and no "
    "other.",
    "auth.credential.forged": "A credential that is altered, mixed or signed by another key or authority is refused.",
    "auth.credential.expiry": "A credential ends with its call, its lifetime or its certificate, whichever is first.",
    "auth.replay": "The same request of the same holder passes once within its credential's time.",
    "auth.replay.bounded": "The memory for replays is bounded: what does not fit is refused, none is forgotten early.",
    "auth.delegation": "A server whose certificate delegates calls on as its caller, for children of that request "
    "alone; any other is refused.",
    "auth.signed-requests": "Over a broker a request carries a credential and no identity; the server gives it the "
    "identity that the credential proves, or none.",
    "auth.rate": "No more calls pass than burst and rate allow, and a caller that waits for retry_after passes.",
}

OAUTH: dict[str, str] = {
    "oauth.code": "A person signs in with a browser: authorization code, PKCE with S256, one redirect to 127.0.0.1.",
    "oauth.redirect": "Only the exact redirect with the state of the login is accepted; everything else is ignored.",
    "oauth.issuer": "A response of another issuer than the one that was asked ends the login.",
    "oauth.code-injection": "A code of another login gives no tokens.",
    "oauth.device": "A person signs in with a code on another device; the server's pace, expiry and refusal are kept.",
    "oauth.refresh": "A token is refreshed in time and after a 401, once however many calls and processes need it.",
    "oauth.rotation": "A rotated refresh token is stored before it is used, even if its callers have left.",
    "oauth.store": "Logins are in files for their user alone, replaced atomically, or in the keyring if that works.",
    "oauth.bound": "The token of a login goes to the API or MCP server that it is for, and nowhere else.",
    "oauth.discovery": "Endpoints come from the document, OpenID Connect, RFC 8414 and RFC 9728, and are checked.",
    "oauth.registration": "A client without an id is registered where the server allows it.",
    "oauth.bounded": "Requests to authorization servers follow no redirect, end in time, and read 1 MiB at most.",
    "oauth.hidden": "No code, token or secret of a login is in a repr, a message or a log.",
    "oauth.sign-out": "Signing out deletes the login and revokes it where the server can.",
    "oauth.resource-server": "A surface accepts tokens that an authorization server issued for it, and no others.",
    "oauth.introspection": "Opaque tokens are introspected by the issuer, and the result is cached for a minute.",
    "oauth.resource-metadata": "A surface publishes where clients get tokens, also if mounted, and a 401 says so.",
    "oauth.insufficient-scope": "A 403 for a missing scope names the scopes that are needed.",
    "oauth.resource-clients": "The SDK's client and from_mcp sign in to a served registry, and call it.",
    "oauth.mcp": "from_mcp signs in as MCP demands, and sends its token to that server alone.",
}

MCP_IN: dict[str, str] = {
    "mcp.engine.lossless": "Messages are decoded as they were encoded, with unknown fields.",
    "mcp.engine.unambiguous": "The keys of a request are unique, and its numbers are those of JSON.",
    "mcp.engine.once": "Every request has at most one outcome, over any network.",
    "mcp.engine.bounded": "The other end has a bounded number of open requests, and each id once.",
    "mcp.engine.headers": "Arguments that are sent as headers are declared, written and checked as by the SDK.",
    "mcp.engine.envelope": "A stateless request is accepted or rejected as by the SDK.",
    "mcp.in.config": "An `mcpServers` file is read unchanged; errors name their key.",
    "mcp.in.secrets": "Servers are shown without arguments, header values, environment, user info and query.",
    "mcp.in.transports": "stdio, streamable HTTP and the SSE transport of 2024 give the same results.",
    "mcp.in.revisions": "Every revision is spoken; a server that does not know discovery is greeted as before.",
    "mcp.in.raw": "Results arrive as the server sent them: nothing validated, nothing lost.",
    "mcp.in.errors": "JSON-RPC errors become CallErrors that keep code and data, up to a limit.",
    "mcp.in.cancel": "A caller may leave at any moment: the server is notified, others notice nothing.",
    "mcp.in.deadline": "A deadline ends the call with TIMEOUT and tells the server; one that passed sends nothing.",
    "mcp.in.progress": "Progress arrives in order, and before the result.",
    "mcp.in.crash": "When a server dies, pending calls end at once with UNAVAILABLE; the next call connects again.",
    "mcp.in.loops": "A session connects again in a new event loop; in one beside its own a call fails and says why.",
    "mcp.in.back-off": "After repeated failures there are growing pauses, in which calls fail at once and say how "
    "long.",
    "mcp.in.hang-at-start": "A server that does not get ready is given up in time, and nothing of it stays.",
    "mcp.in.garbage": "Invalid messages are ignored; an invalid response is an error at once, never a wait.",
    "mcp.in.limits": "A message may be megabytes long; one above the limit of bytes, JSON values or content blocks is "
    "a clear error, and lists, schemas, names and progress are bounded.",
    "mcp.in.stderr": "What a server writes to stderr is in the log, line by line, capped.",
    "mcp.in.log": "Log messages go to the callback, or to the log.",
    "mcp.in.environment": "A server gets the environment that it is given and what proxies and certificates need, not "
    "the rest of ours, which can be listed.",
    "mcp.in.last-lines": "The last lines on stderr of a server that fails are in the error if it cannot start, and in "
    "the log if it crashes later; its callers do not get them.",
    "mcp.in.stop": "A server is stopped with its children, even a stubborn one, even if we are cancelled.",
    "mcp.in.questions.caller": "Questions of a server reach the caller of the operation, and its callbacks otherwise.",
    "mcp.in.questions.owner": "A question that could belong to callers of several identities reaches no one of them.",
    "mcp.in.callbacks": "What a server asks is answered by callbacks; what they do not answer is refused.",
    "mcp.in.questions": "A result that asks back is answered in at most ten rounds, or the call fails clearly.",
    "mcp.in.question-limits": "A server has a bounded number of questions open, and for each request of ours; others "
    "are refused, and a server that does not read the refusals is disconnected.",
    "mcp.in.changes": "Changes are reported alike in every revision, also after a subscription or a connection broke.",
    "mcp.in.http": "An HTTP failure costs one call, says what happened, and is never passed on as our own refusal.",
    "mcp.in.session-lost": "A session that the server has forgotten is restarted, once, and the call repeated.",
    "mcp.in.resumption": "A stream that is cut before the answer is resumed where the server supports that, a bounded "
    "number of times.",
    "mcp.in.redirect": "Headers never follow a redirect, or an endpoint, to another origin.",
    "mcp.in.source": "`from_mcp` gives a source that is awaited or entered, iterates over operations once "
    "connected, and leaves nothing behind when it is closed or given up.",
    "mcp.in.files": "An `mcpServers` file gives the operations of all its servers, a namespace each; one that fails "
    "is reported and costs the others nothing, unless it is required.",
    "mcp.in.namespaces": "The namespace is what is given, else the server's key or own name, made usable and unique.",
    "mcp.in.real-servers": "The public time and git servers are called through a registry.",
    "mcp.in.every-page": "Every page of a list is read, and lists that never end are ended with a warning.",
    "mcp.in.one-bad-tool": "A tool or prompt that cannot be an operation is left out, and costs no other.",
    "mcp.in.odd-names": "Any printable name works: spaces, dots, slashes, other scripts, two hundred letters.",
    "mcp.in.capabilities": "Resources and prompts are operations only where the server announces them; tools are "
    "asked for in any case.",
    "mcp.in.broken-schemas": "An input or output schema that cannot be used is UNKNOWN, with a warning.",
    "mcp.in.report": "The report says what was left out or changed and why; the log says it once.",
    "mcp.in.list-changed": "A change of tools or prompts, and every new connection, reads the lists again and tells "
    "what was added, changed and removed.",
    "mcp.in.tool-specs": "A tool is a mutation, or a query by `readOnlyHint` of a trusted server, with the server's "
    "title, description and schemas.",
    "mcp.in.origin": "An operation of another opwire is unwrapped, and restored with its id, type, tags and "
    "timeouts where the server is trusted.",
    "mcp.in.result-origin": "A result of another opwire is unwrapped, and its bytes are bytes again.",
    "mcp.in.subscriptions": "A trusted subscription of another opwire is one again: each item once, in order, as it "
    "comes, and then its end or its error.",
    "mcp.in.input": "The server judges the arguments, with a warning of ours; strict input is checked before. It is an "
    "object in any case.",
    "mcp.in.pinned": "A source can be limited to one revision of the protocol.",
    "mcp.in.complete": "Arguments of prompts and templates are completed by their server.",
    "mcp.in.instructions": "The instructions of servers are those of the registry, and of what serves it.",
    "mcp.in.structured-first": "Structured content of any kind, null included, is the data.",
    "mcp.in.blocks-else": "Without structured content the content blocks are the data.",
    "mcp.in.blocks-kept": "Blocks of an unknown kind, and unknown fields of known ones, are kept.",
    "mcp.in.batches": "The messages of a batch of a server are handled in order, over any transport.",
    "mcp.in.meta-kept": "The `_meta` of a result is kept.",
    "mcp.in.is-error": "A result with `isError` is an envelope, never raised and never normalised.",
    "mcp.in.json-text": "Where a tool declares an output schema and only text came, a single JSON text is the data.",
    "mcp.in.tool-envelope": "The payload of a ToolEnvelope V1 is the data; other versions and broken ones stay "
    "blocks, with a warning.",
    "mcp.in.violating-output": "Output that violates or lacks its declared schema is normalised, warned of and kept.",
    "mcp.in.nothing-lost": "Any JSON object as a result is an envelope, without loss of content.",
    "mcp.in.protocol-failures": "Failures of the protocol are raised at once as CallErrors.",
    "mcp.in.resources": "Resources are listed whole, and read as content blocks.",
    "mcp.in.watch": "A watch of a resource gives an item for each update, survives a new connection, and ends with "
    "an error when there is none.",
    "mcp.in.prompts": "Each prompt is a query that takes its arguments; all of them are listed.",
}

POLICIES: dict[str, str] = {
    "callers.token": "A surface hands the token of a caller on; it counts only for the identity that it proved, and a "
    "caller without one does not reach a source that needs it.",
    "callers.exchange": "The token of a caller is exchanged for one of the source (RFC 8693), once until it expires.",
    "callers.identity": "Calls over a hub or a broker, and durable calls, reach a source with a credential of their "
    "caller's identity; without one, the error names what to do. Tokens of callers are never carried.",
    "callers.lookup": "A function returns the credential of each caller for an API or an MCP server.",
    "callers.mixed": "Neither a credential, a session, a cookie nor a cached response of one caller reaches another.",
    "callers.sessions": "Each caller has its own session with an MCP server; all are bounded, and closed if idle.",
    "policies.audit": "An audit log has one line of JSON per call, with caller, outcome, duration and sizes; inputs "
    "only if asked for, without secrets.",
    "policies.approval": "A call that needs approval runs only if a person approves it in time.",
    "policies.queue": "Calls wait in a queue for approval, bounded in number and time; what a person reads has no "
    "secrets, and says what is left out.",
    "policies.caller": "The person that makes a call can be asked for approval, over MCP by elicitation.",
    "policies.rate": "No more calls pass than a rate allows, for each identity or operation; the error says when to "
    "retry.",
    "policies.concurrency": "No more calls run at the same time than a limit allows; others wait or are rejected.",
    "policies.breaker": "What keeps failing is not called for a while; then one call tries it.",
    "policies.budget": "A request makes a bounded number of calls, with all calls that are made for it.",
    "policies.config": "Policies are installed by [policies] of opwire.toml.",
}

CODE_MODE: dict[str, str] = {
    "code-mode.run": "A program of a model calls operations as functions; only its result and what it prints are "
    "returned.",
    "code-mode.access": "A program finds and calls what its caller may, and nothing else.",
    "code-mode.sandbox": "A program reaches no file, network, environment, process, or other program.",
    "code-mode.limits": "Computing, waiting, memory, calls, output and the number of programs are bounded.",
}

LLM: dict[str, str] = {
    "llm.definitions": "Every operation is a tool of OpenAI, Anthropic and Gemini with a name that they accept, its "
    "description and its input schema; the list follows the registry.",
    "llm.handle": "A tool call is answered by the message of its provider, also if it fails: the model reads why.",
    "llm.media": "Images are shown to a model where its API shows images, and described where it does not.",
    "llm.bounded": "What a model reads of one call is bounded.",
    "llm.access": "With an identity, a model sees and calls only what that identity may.",
    "llm.strict": "A strict schema keeps the published rules of its provider; the nulls that it asks for are dropped.",
    "llm.packages": "The packages of the providers, pydantic-ai, LangChain and the OpenAI Agents SDK accept the tools.",
}

RESOURCES: dict[str, str] = {
    "resources.operations": "Resources and prompts are operations of the registry, with a role; the URI of a resource "
    "fits its parameters.",
    "resources.templates": "URI templates of RFC 6570 are matched as the SDK expands them; others are rejected.",
    "resources.templates-hostile": "Matching a URI takes linear time, and a path in it cannot leave its directory.",
    "resources.completion": "Arguments are completed by functions that run as operations do, also through views.",
    "resources.updates": "Listeners of a registry and of every view are notified of updated resources.",
    "operations.annotations": "Every operation has annotations, icons and `_meta`; a query is read-only by default.",
    "operations.log": "A handler logs to its caller, if that listens, at a known level.",
    "operations.lenient-input": "Lenient input that does not match its schema is passed on with a warning.",
}

SERVE_MCP: dict[str, str] = {
    "serve-mcp.tools": "An operation is served as an MCP tool with title, description, hints, schemas and its origin.",
    "serve-mcp.names": "Tool names are readable: letters, digits, _ and -, at most 50 by default, different for "
    "different ids also without their digests, and kept while the operation is served.",
    "serve-mcp.wrapped-schemas": "Values other than objects are wrapped if the protocol asks; references stay right.",
    "serve-mcp.one-bad-tool": "A schema or operation that cannot be shown costs no other tool.",
    "serve-mcp.pages": "tools/list gives every tool once, in pages of up to 512 kB, also when operations come and go; "
    "output schemas above 4 kB are left out.",
    "serve-mcp.access": "A client sees only the tools that it may call, and can call no others.",
    "serve-mcp.local-identity": "Over stdio the caller is a configurable identity, by default trusted with everything.",
    "serve-mcp.revisions": "Every protocol revision from 2024-11-05 to 2026-07-28 is served.",
    "serve-mcp.structured": "A result is structured content, wrapped for revisions that take only objects, and text.",
    "serve-mcp.passes-on": "What another MCP server answered is passed on with all its blocks, fields and _meta, "
    "except for what would make it a question, or public.",
    "serve-mcp.http-meta": "A result of an HTTP API carries its status and headers, without credentials.",
    "serve-mcp.errors": "A failed call is a result with isError that says what to do, and the error in _meta.",
    "serve-mcp.unknown-tool": "An unknown tool, cursor or malformed request is a JSON-RPC error -32602; that of a tool "
    "names those that look alike and may be called.",
    "serve-mcp.tool-envelopes": "Results and errors can be written as ToolEnvelope V1.",
    "serve-mcp.context": "A served call has a request id of its own, its identity, trace and deadline.",
    "serve-mcp.cancellation": "A client that cancels, ends its session, or leaves stdio or 2026-07-28 HTTP stops "
    "its calls.",
    "serve-mcp.questions": "A handler asks MCP clients of both eras, over streams and over HTTP.",
    "serve-mcp.questions.capability": "A client is asked only what it has declared; another gets an error that says "
    "what was asked, in the stateless era that of the protocol.",
    "serve-mcp.questions.cancel": "A cancelled call cancels its question.",
    "serve-mcp.questions.state": "An answer is valid for the same caller, call and question only, for a limited time.",
    "serve-mcp.tasks": "A long call of a client that supports tasks becomes one: polled, answered, cancelled, and "
    "independent of its connection.",
    "serve-mcp.tasks.owner": "A task belongs to its caller, and is known to clients that declare the extension; their "
    "number and the bytes of their results are bounded.",
    "serve-mcp.durable": "A call of a durable mutation is stored in a journal: quick ones are one round trip, others a "
    "task that any replica answers for, with the result of a direct call.",
    "serve-mcp.durable.id": "The id of a durable task is signed, bounded, bound to its caller, and expires; any "
    "other is unknown.",
    "serve-mcp.durable.key": "An idempotency key stands for one call of one caller, and asks for its outcome again.",
    "serve-mcp.durable.identity": "A worker acts with the identity of the caller; what that may not call, or is "
    "invalid, is not submitted.",
    "serve-mcp.durable.interceptors": "Interceptors of the surface run around the submission of a durable call.",
    "serve-mcp.durable.bounded": "A surface keeps few durable calls, and says that its journal is not available.",
    "serve-mcp.durable.crash": "Durable tasks survive kill -9 of server and worker; one that kills its worker fails.",
    "serve-mcp.timeout": "A call ends after a time without progress; questions stop that clock.",
    "serve-mcp.progress": "What a handler reports reaches a client that asked for it, before the result.",
    "serve-mcp.subscriptions": "A subscription is collected up to a limit and a time, each item also told as it comes.",
    "serve-mcp.list-changed": "Clients of both eras are notified of changes of the registry, once for many.",
    "serve-mcp.resources": "Operations with a URI are resources or templates: listed, read and selected as every "
    "operation, with access control.",
    "serve-mcp.resource-owners": "A resource is read at the first server that has listed it, in the order of the "
    "registry; what servers list is remembered within limits.",
    "serve-mcp.resource-errors": "An unknown resource has the error code of the client's era; a failed one says why.",
    "serve-mcp.resource-updates": "Clients of both eras are notified of updated resources that they may read, until "
    "they leave.",
    "serve-mcp.prompts": "Prompts are listed with their arguments, take text for values of any type, and return "
    "messages.",
    "serve-mcp.completion": "Arguments of prompts and templates are completed by functions, or by what their schema "
    "lists.",
    "serve-mcp.annotations": "Annotations, icons and `_meta` of operations are those of their tools; queries are "
    "read-only.",
    "serve-mcp.logging": "Handlers log to clients at the level that these have set, bounded.",
    "serve-mcp.list-pages": "Lists of resources and prompts have pages of bytes, and survive changes between pages.",
    "serve-mcp.large-results": "A result of any size is plain JSON over HTTP where nothing was notified before.",
    "serve-mcp.all-tools": "Resources and prompts are tools as well if that is wanted.",
    "serve-mcp.http-errors": "Requests that contradict themselves or come out of turn get the status of the protocol.",
    "serve-mcp.stream": "Any pair of streams is a connection: `serve_stream` takes messages and a function for others.",
    "serve-mcp.stdio": "stdio serves any client, keeps prints out of the protocol, and stops when told to.",
    "serve-mcp.http": "Streamable HTTP is served at /mcp until the server is stopped.",
    "serve-mcp.unauthenticated": "A bad token, or none where nothing is public, is a 401 with WWW-Authenticate.",
    "serve-mcp.one-path": "The server has one path; other spellings of it are redirected or not found.",
    "serve-mcp.rebinding": "Requests for other hosts, and from pages of other origins, are refused by default.",
    "serve-mcp.http-limits": "Bodies and sessions are limited, those of clients without identity apart; idle ones end. "
    "So are the calls of all sessions of an identity, also after their clients have disconnected.",
    "serve-mcp.sessions": "A session is open only to the identity that opened it; a stream ends with its token.",
    "serve-mcp.batches": "In revision 2025-03-26 batches are served, of bounded length, and with responses of bounded "
    "size; in others they are rejected.",
    "serve-mcp.resumption": "A client whose stream breaks or is ended by the server gets what it has missed, once, of "
    "its own session.",
    "serve-mcp.resumption.bounds": "Events for resumption are bounded in count, bytes and time.",
    "serve-mcp.drains": "At the end, running calls are answered and open streams do not hold it up.",
    "serve-mcp.mounted": "The MCP server can be mounted into another ASGI app, with or without its lifespan.",
    "serve-mcp.round-trip": "A registry served over MCP and read back gives the same operations and data.",
    "serve-mcp.proxy": "A proxy loses nothing of the server behind it but what the documentation says, in both eras.",
    "serve-mcp.unpromised": "A result that breaks its output schema is content marked as an error: clients would "
    "throw it away.",
}

OPENAPI: dict[str, str] = {
    "openapi.styles": "Every style and explode writes every kind of value as the specification's tables say.",
    "openapi.values": "Numbers and booleans are written as JSON without loss; nulls within a value are left out.",
    "openapi.deep-objects": "Deep objects nest as deep as the value, `a[b][c]`, and arrays go by index, `a[b][0]`.",
    "openapi.reserved": "allowReserved keeps reserved characters, but for those that would end or change the value.",
    "openapi.content-parameters": "Parameters with a content type, and whole query strings, are written as that type.",
    "openapi.path-values": "No path value leaves its segment, or makes one that servers take for another path.",
    "openapi.no-injection": "No input adds a parameter, a header, a cookie, a form field or a line.",
    "openapi.left-out": "Optional nulls are left out; a required one is written as an undefined value.",
    "openapi.request": "Every parameter goes to its place; what is missing or cannot be written is named.",
    "openapi.address": "Server path and query are kept, IPv6 and IDN too; variables are filled by name.",
    "openapi.query-template": "Variables in the query of a path are filled, in whichever location they are declared.",
    "openapi.base-url": "Under a base URL neither requests nor secrets go where the document alone says.",
    "openapi.bodies": "Bodies are written by content type: JSON, text, bytes, ranges, sequences, or none.",
    "openapi.forms": "Forms repeat arrays and write objects as JSON, unless `encoding` says otherwise.",
    "openapi.multipart": "Multipart bodies carry fields, files, JSON and headers that other parsers read back.",
    "openapi.files": "Files are given as bytes, paths, open files or tuples, by callers in this process only.",
    "openapi.schemes": "Every security scheme puts its credential in its place, marked as secret.",
    "openapi.alternatives": "The first security alternative whose credentials are all given is used.",
    "openapi.one-secret": "A request has one secret per place: schemes that share it are met by either, and a declared "
    "parameter that a credential fills is optional.",
    "openapi.credential-functions": "Credentials may come from a function, sync or async, asked at each call.",
    "openapi.oauth": "A token is asked for once however many calls need it, renewed in time and after a 401.",
    "openapi.login": "An OAuth client with `login` signs in by the flows, the metadata or the client's own endpoints, "
    "and calls are made with its stored login.",
    "openapi.unrequested": "Data that a server sends after its response end the connection, and are no other response.",
    "openapi.charsets": "The event loop runs while a large response is decoded, whatever its charset, valid or not.",
    "openapi.secrets-hidden": "No credential is shown in an error, a repr or a log.",
    "adapters.preview": "A preview shows the request that a call sends, without sending it and without credentials.",
    "openapi.call": "A call gives the envelope of what the API answered.",
    "openapi.bounded-values": "JSON with more than one object or list per 16 bytes, beyond 65,536, is not decoded.",
    "openapi.flood": "Invalid items of a stream cannot flood the log.",
    "openapi.answers": "An answer is JSON, text, bytes or None, as its content type says; broken JSON is text with "
    "a warning.",
    "openapi.schema-of-answer": "The schema of an answer is that of its actual status and content type.",
    "openapi.errors": 'A non-2xx is EXECUTION_ERROR "HTTP <status>: <reason>", told without cookies, capped; never '
    "our own 401 or 429.",
    "openapi.explained": "The text in which the body of an error explains it is in the message: short, without control "
    "characters and without credentials.",
    "openapi.retryable": "An error is retryable where a retry may help; Retry-After is read as seconds or date.",
    "openapi.timeout": "The deadline holds for the whole call or stream; the message names the host.",
    "openapi.cancel": "A caller that gives up closes its connection.",
    "openapi.mutual-tls": "A client certificate is presented to the API and not beyond its origin; an unusable file is "
    "named at once.",
    "openapi.retries": "Idempotent calls are repeated if that is asked for, after the API's delay, in time.",
    "openapi.idempotency-key": "A declared idempotency key has its own value in each call, that of a durable call is "
    "its key, and makes a mutation repeatable.",
    "openapi.digest": "HTTP Digest proves a password to the API's origin, challenged once.",
    "openapi.sigv4": "Requests are signed by AWS Signature Version 4 as AWS's own signatures are.",
    "openapi.pooled": "Connections are reused and limited.",
    "openapi.stale-connection": "An idempotent request survives a connection that the server had closed.",
    "openapi.max-response": "An answer stops at the limit, decompressed bytes counted, in little memory.",
    "openapi.broken-answers": "Broken HTTP is a CallError without secrets.",
    "openapi.unreachable": "Refused, unknown and untrusted hosts are UNAVAILABLE.",
    "openapi.proxy": "Proxies are used as given, the environment's only if trusted, never ~/.netrc.",
    "openapi.redirect-credentials": "Credentials never cross origins.",
    "openapi.redirect-method": "Method and body of a redirected request change as fetch says.",
    "openapi.redirect-refused": "No redirect leads from https to http or to another scheme.",
    "openapi.client-close": "Closing ends calls and streams under way at once.",
    "openapi.unclosed": "A source that is never closed closes its connections with its event loop, or as garbage.",
    "openapi.client-loops": "A client works in one event loop after another, and in those of several threads.",
    "openapi.token-refresh": "A rejected OAuth token is renewed once.",
    "openapi.sse-whatwg": "Event streams are parsed as the WHATWG says, in any chunking.",
    "openapi.sse-bounded": "An event that is too large is an error, not a growing buffer.",
    "openapi.sse-envelopes": "Each event is an envelope with its type and id.",
    "openapi.sse-data": "JSON data of an event is parsed, text is kept.",
    "openapi.ndjson": "Each line of an NDJSON stream is an item.",
    "openapi.json-seq": "Each record of a JSON text sequence is an item.",
    "openapi.stream-done": "`[DONE]` ends a stream cleanly.",
    "openapi.stream-malformed": "Malformed items are left out with a warning.",
    "openapi.stream-errors": "An HTTP error comes before the first item, a problem event after those before it.",
    "openapi.stream-whole": "JSON instead of a stream is its only item; anything else is an error.",
    "openapi.stream-loss": "A stream that breaks off is UNAVAILABLE.",
    "openapi.stream-close": "A consumer that leaves closes the connection at once.",
    "openapi.stream-back-pressure": "The API is read only as fast as items are taken.",
    "openapi.reconnect": "A lost event stream is resumed with Last-Event-ID and the API's retry, where asked for.",
    "openapi.sources": "A document is a mapping, text, a file or an address; its operations can be called.",
    "openapi.not-a-document": "What is not an OpenAPI document is a VALIDATION_ERROR that says why.",
    "openapi.later-versions": "OpenAPI 3.3 and later 3.x are read as 3.2, with a warning in the report.",
    "openapi.yaml": "YAML is read with JSON's types: dates, yes/no and octal stay text, keys are text.",
    "openapi.yaml-repaired": "YAML that js-yaml reads loads, also where libyaml rejects it: tabs, C1 controls, U+2028.",
    "openapi.yaml-safe": "YAML that is too deep, endless, or stands for too much is refused.",
    "openapi.refs": "References lead anywhere in the loaded documents, through others; circles are reported.",
    "openapi.refs-safe": "Files and hosts outside the document's own place are read only when allowed.",
    "openapi.document-limits": "Referenced files are limited by bytes, other documents also by number; as options say.",
    "openapi.broken": "A broken part costs no more than its own operation; the report says why.",
    "openapi.shared-parts": "What operations and schemas share by references costs in proportion to the document.",
    "openapi.nameless": "An optional parameter without a name costs itself, not its operation; the report says so.",
    "openapi.short-namespace": "A namespace from a title has at most 20 characters, without versions and filler words.",
    "openapi.names": "Names are readable and do not depend on the order of the document.",
    "openapi.types": "GET and HEAD are queries, other methods mutations.",
    "openapi.methods": "3.2's `query` and additionalOperations are operations.",
    "openapi.parameters": "Parameters have their place, style and defaults; those of the path can be overridden.",
    "openapi.servers": "The closest server counts, its variables filled, read against the document's address.",
    "openapi.security-read": "Security schemes and requirements are read as alternatives of needs.",
    "openapi.input-flat": "Parameters and the properties of a plain body stand side by side in the input.",
    "openapi.input-groups": "Names that clash put the input into groups by where it is sent.",
    "openapi.relaxed-input": "`format`, overlapping `oneOf` and misplaced restrictions reject an input only if strict.",
    "openapi.xml": "XML bodies are written, and answers read, by the `xml` hints; without a root's name, as text.",
    "openapi.xml-safe": "Answers in XML that declare entities, attributes or an unknown encoding, or are nested too "
    "deeply, stay text; no value breaks out of XML.",
    "openapi.media-missing": "A body of an array or object without a content type, or with a range, is JSON.",
    "openapi.none": "An optional parameter or form field may be None.",
    "openapi.read-only": "readOnly is left out of inputs, writeOnly out of outputs.",
    "openapi.output": "The schema of the successful answer is the output schema; each status keeps its own.",
    "openapi.defs": "Schemas carry the definitions that they need and no others; recursion is kept.",
    "openapi.dialects": "The dialects of 2.0 and 3.0 are lowered to 2020-12.",
    "openapi.discriminator": "A discriminator, with or without mapping, chooses the variant.",
    "openapi.schema-repair": "A keyword or reference that cannot be used is left out with a warning.",
    "openapi.subscriptions": "A stream of events or JSON items is a subscription with the schema of one item.",
    "openapi.twins": "What offers plain answers and streams is two operations; each sets `stream` itself.",
    "openapi.origin": "Operations of another opwire keep their ids, types and inputs, where the document is trusted.",
    "openapi.lazy": "Plans and schemas are read when an operation is first used.",
    "openapi.real-documents": "Every operation of ten real documents is registered, and none is skipped.",
    "openapi.hostile-schemas": "Long chains of schemas are read to their end; one that is too deep takes anything.",
}

SERVE: dict[str, str] = {
    "serve.token": "A token gives its identity; a missing one is anonymous, an invalid one rejected; none is logged.",
    "serve.revoked": "A stream ends within 15 s after its token was revoked or grants less, and goes on while that "
    "cannot be checked.",
    "serve.hosts": "A server answers to the host names that it is given, by default to loopback names alone.",
    "serve.hosts.hint": "The answer to a host name that is refused names the options that allow it.",
    "serve.access-log": "Every call on every surface is one line of the access log: identity, operation, outcome, "
    "duration and bytes; nothing is measured while it is disabled.",
    "serve.access-log.bounded": "Text from callers is bounded and escaped in the access log, and is one line.",
    "log.peer-text": "Text of peers in log records is escaped, and cannot look like a record of its own.",
    "serve.tracebacks": "The traceback of a failed handler is in the log of its server under the error id that the "
    "caller gets, on every surface and transport.",
    "serve.origins": "Pages of other hosts may not call unless they are named.",
    "serve.sites": "No page of another site gets a request in, with or without an Origin header.",
    "serve.connections": "Connections without a request give way to new ones; slow readers are disconnected.",
    "serve.limits": "Bodies, all bodies together, headers, open requests and the time for a body are bounded.",
    "serve.drain": "A server that stops lets what runs end, for so long.",
    "serve.filter": "Patterns of ids and tags select the operations that a surface serves; others are unknown to it.",
    "serve.interceptors": "Interceptors of a surface run around each of its calls, after access was checked.",
    "serve.address": "An address that cannot be listened on is named.",
    "serve.content-encoding": "A compressed body is rejected with 415 and the encoding that is accepted.",
    "serve.smuggling": (
        "A request with two lengths for its body, or whose body an Upgrade hides, is refused, and nothing after it is "
        "read; trailers are not headers."
    ),
}

SERVE_HTTP: dict[str, str] = {
    "http.questions": "An operation that asks its caller fails over HTTP, with the question and how to answer it.",
    "http.post": "Every operation is called by POST.",
    "http.get": "A query or subscription with flat input is called by GET too, its values typed by the schema.",
    "http.paths": "Every id has a path that survives servers and proxies.",
    "http.sites": "Pages of other sites cannot make a browser call anything.",
    "http.one-path": "An operation has one path; other spellings of it are redirected or not found.",
    "http.methods": "A path says which methods it has.",
    "http.not-found": "What is not there is 404, with what comes close and may be called.",
    "http.strict": "Input that two readers would read differently is refused.",
    "http.hostile-values": "A value that a typed parameter cannot hold, however large, is the caller's error.",
    "http.data": "Data is JSON, bytes are an octet stream, None is null.",
    "http.envelope": "The whole envelope is sent where it is asked for.",
    "http.problems": "Errors are RFC 9457 problems, from the one table.",
    "http.upstream": "Results that came over HTTP keep useful headers, prefixed.",
    "http.is-error": "An MCP result that is an error is a problem with its data, or, if chosen, an answer with a mark.",
    "http.request-id": "A request id is kept or made, reaches the handler and comes back.",
    "http.trace": "A trace reaches the handler.",
    "http.deadline": "A call ends at the deadline that its client gives.",
    "http.events": "A subscription is a stream of events; a client that does not read slows its own alone.",
    "http.events.resume": "Events have ids where a subscription can be resumed, and it goes on behind Last-Event-ID.",
    "http.events.errors": "An error before the first item is a response, afterwards an event.",
    "http.events.heartbeat": "A quiet stream is kept open with comments.",
    "http.gone": "When the client leaves, the handler is stopped.",
    "http.drain": "Draining ends readiness, tells streams and lets calls finish.",
    "http.health": "Probes need neither name nor token.",
    "http.cors": "CORS is off unless pages are named.",
    "http.access": "Access is checked on calls and on the document.",
    "http.changes": "Changes of the registry are served at once.",
    "http.mounted": "It can be mounted.",
    "http.run": "It runs until it is stopped.",
    "http.document": "The OpenAPI document describes every operation.",
    "http.document.schemas": "Definitions are shared components, and mean what they meant.",
    "http.document.streams": "Streams are described as each version of OpenAPI can.",
    "http.document.security": "The document says where tokens are taken.",
    "http.document.access": "A caller sees what it may call; without a token it also learns how many operations need "
    "one, or is refused if all do.",
    "http.document.summaries": "Every operation in the document has a summary: its title, else the start of its "
    "description.",
    "http.document.cached": "A document is built once for all callers that see the same, until the registry changes.",
    "http.round-trip": "Served over HTTP and read back, a registry gives the same operations and data.",
    "http.chain": "Chains of HTTP and MCP keep data equal.",
}

WEBHOOKS: dict[str, str] = {
    "webhooks.operations": "With a receiver, the webhooks and callbacks of a document are subscriptions: one for all, "
    "and one for each, with the schema of its body.",
    "webhooks.signed": "A webhook with a signature of Stripe, GitHub or Standard Webhooks reaches its subscribers.",
    "webhooks.forged": "A missing or wrong signature is 403, before anything of the body is parsed.",
    "webhooks.replayed": "A webhook with an old timestamp is rejected, and a repeated one is not delivered again.",
    "webhooks.unsigned": "Nothing is accepted without verification unless that is said.",
    "webhooks.verify": "Any function can verify webhooks; only True or an id accepts one.",
    "webhooks.checked": "The body of a webhook is checked by the schema of the document.",
    "webhooks.limits": "Size, type, method and path of a webhook are checked.",
    "webhooks.names": "A webhook is found by the name of its event in the body or in a header, or by its path.",
    "webhooks.subscribers": "Each subscriber has a queue and data of its own, on any event loop.",
    "webhooks.unavailable": "What no subscriber can take is 503, so that the sender repeats it; a slow one ends alone.",
    "webhooks.config": "The webhooks of a source are configured in `opwire.toml`.",
}

MCP_JUDGES: dict[str, str] = {
    "mcp.conformance.server": "A served registry passes the public MCP conformance suite for 2025-11-25 and "
    "2026-07-28, but for the checks that are listed with their reasons; the list can neither grow nor be too long "
    "unnoticed.",
    "mcp.conformance.client": "`from_mcp` passes the suite's client scenarios, OAuth with the SDK's provider among "
    "them.",
    "mcp.judges.everything": "The reference server that has everything works over stdio, streamable HTTP and SSE: "
    "tools, blocks, progress, cancellation, resources, prompts, elicitation, sampling, roots.",
    "mcp.judges.filesystem": "The reference server for files writes, reads and lists; a path outside is an error "
    "result.",
    "mcp.judges.memory": "The reference server for memory keeps what it was told, also for the next process.",
    "mcp.judges.servers-file": "A file of MCP servers is read unchanged; a broken one costs the others nothing.",
    "mcp.judges.inspector": "The MCP Inspector lists and calls the tools of a served registry over stdio and HTTP.",
    "mcp.judges.typescript": "The official TypeScript client finds results of every shape to match their schemas, "
    "cancels handlers, and hears of changes.",
    "mcp.judges.clients": "The clients of the SDKs 1 and 2, FastMCP, pydantic-ai, the OpenAI Agents SDK and LangChain "
    "list and call what is served.",
    "mcp.judges.servers": "Servers that others wrote for thinking, databases, spreadsheets, documents and browsers "
    "are read and called.",
    "mcp.judges.gateway": "A server read with `from_mcp` and served with `serve_mcp` gives clients the same tools "
    "and results.",
}

OPENAPI_JUDGES: dict[str, str] = {
    "openapi.judges.directory": "Every document of the public directory that is YAML loads completely, and an "
    "independent decoder finds no wrong request.",
    "openapi.judges.real": "Prism takes every request to petstore, museum, httpbin and Stripe, but for its own "
    "listed faults.",
    "openapi.judges.styles": "Prism reads every style and body that it can read as it was meant, counted.",
    "openapi.judges.security": "Prism finds the credentials of every security scheme.",
    "openapi.judges.templates": "Paths and queries are what another implementation of RFC 6570 writes.",
    "openapi.judges.every-operation": "Every operation of ten real documents can be called.",
    "http.judges.document": "Validators find nothing wrong with the served document, in 3.1 and in 3.2.",
    "http.judges.round-trip": "Real documents, served and read back, have the same parameters and schemas of results.",
    "http.judges.linters": "Redocly's recommended rules and Spectral's `oas` rules find no error in what is served, "
    "functions and real APIs alike.",
    "http.judges.schemathesis": "Schemathesis, with all of its checks, finds no failure in a served registry.",
    "http.judges.python-client": "A client made by openapi-python-client calls the served registry.",
    "http.judges.typescript-client": "A client made by hey-api passes the type checker and calls the served registry.",
}

CACHING: dict[str, str] = {
    "cache.fresh": "A cached result is returned, as a copy, as long as the rules of the API call it fresh.",
    "cache.identity": "Results are cached for each identity and input.",
    "cache.revalidated": "An old result is revalidated with its ETag or date; a 304 makes it fresh again.",
    "cache.invalidated": "A mutation invalidates its namespace, also for what is being read.",
    "cache.bounded": "A cache is bounded in bytes and entries.",
    "bounded.collections": "Dicts, numbers by key and bytes by owner stay within limits, and forget what is gone.",
}

TELEMETRY: dict[str, str] = {
    "trace.carried": "A caller's W3C trace reaches the handler over every transport, MCP and HTTP, and goes on.",
    "trace.malformed": "A trace that cannot be read is neither sent nor believed.",
    "trace.optional": "Without a trace requests are written as before; without OpenTelemetry a trace still passes.",
    "telemetry.spans": "`instrument` makes a span of every call, below what caused it.",
    "telemetry.prometheus": "Calls, those that a hub relays included, are counted and timed for Prometheus.",
    "telemetry.prometheus-bounded": "Connections to the metrics hold a bounded number of threads, and fill no log.",
    "telemetry.across": "A call that crosses a transport, MCP or HTTP stays one trace.",
    "telemetry.lineage": "The nearest span is the parent: a handler's own before its context's, a peer's before a "
    "stranger's.",
    "telemetry.trust": "Instrumenting does not change access control.",
    "telemetry.undo": "What is instrumented twice is recorded once, and the end leaves nothing behind.",
    "telemetry.absent": "OpenTelemetry is loaded only when it is asked for.",
    "telemetry.attributes": "A span says operation, type, source and outcome.",
    "telemetry.errors": "Errors are reported by code; a server's span is an error only if it was its fault.",
    "telemetry.privacy": "Neither data nor messages are recorded; the caller's id only if asked for.",
    "telemetry.metrics": "Durations, calls under way and errors by code; names that callers invent do not count.",
    "logging.library": "Logs go below `opwire`; no handler is added, and the root logger is left alone.",
}

CONFIG: dict[str, str] = {
    "config.tls": "Certificates of sources behind a URL are files relative to the configuration.",
    "config.every-mistake": "Every mistake of a configuration file is reported at once, with its line and its key.",
    "config.suggestions": "A mistake says what was expected and, where something comes close, what was meant.",
    "config.signed": "Signed requests over a broker are configured by files or variables, for hub and spoke.",
    "config.announces": "A spoke shows others only the namespaces and patterns that its file announces.",
    "config.durable": "A journal in the file serves mutations to durable calls.",
    "config.durable-tasks": "`durable_tasks` of a file are stored in its journal, and `opwire serve` runs them.",
    "config.secrets": "A secret in the file is an error; secrets come from the environment.",
    "config.oauth": "`[auth.oauth]` accepts the tokens of an authorization server, beside those of identities.",
    "config.missing-variable": "A variable that is not set is named, with the key that asks for it.",
    "config.no-secret-is-shown": "No repr and no message shows a text that may be secret.",
    "config.template": "The file that `opwire init` writes is valid, unchanged and with every example in use.",
    "config.sources": "Python modules, MCP servers, mcpServers files and OpenAPI documents can be sources.",
    "config.open": "All sources are in one registry, in the order of the file, until it is closed.",
    "config.concurrent": "Sources are loaded at the same time.",
    "config.failing-source": "A source that fails or hangs is reported with its reason; the others are there.",
    "config.required": "A required source that fails stops the start, and the others are closed.",
    "config.hot-reload": "`serve --reload` restarts after edits of the configuration, Python modules or documents.",
    "config.broken-reload": "An invalid configuration file is reported, and the running process goes on.",
    "config.identities": "A token gives the name, scopes, resources and namespaces of its identity.",
    "config.surfaces": "Surfaces, hub and spoke are created as configured, and admit the callers that the file names.",
}

QUESTIONS: dict[str, str] = {
    "questions.elicit": "A handler asks its caller by a typed form, and accept, decline and cancel are distinguished.",
    "questions.unanswerable": "A caller that cannot be asked gets an error that says what was asked and how to answer.",
    "questions.deadline": "An unanswered question ends with its timeout, or with the deadline of the call.",
    "questions.nested": "A nested call asks the caller of the outer one.",
    "questions.blocking": "A plain function that answers questions may block.",
}

CLIENT: dict[str, str] = {
    "client.contract": "The same calls give the same over a registry, a transport, a hub, a broker and served HTTP.",
    "client.data": "`call` gives the data; with `output_type` it really is of that type.",
    "client.errors": "Errors arrive with equal code, message, details, retryable and retry_after on every way.",
    "client.deadline": "One deadline spans all attempts of a call, travels with it, and ends it on both sides.",
    "client.cancel": "Cancelling a call stops its handler.",
    "client.subscribe": "Subscriptions give data or envelopes in order; leaving the loop stops the producer.",
    "client.version": "A call asks for a version of an operation by `version=`; one that is not served is an error.",
    "client.is-error": "A tool's isError raises or is returned, by policy; an envelope is always returned unchanged.",
    "client.retries": "Only QUERYs are repeated, after retryable errors, with jitter and one budget, before the "
    "deadline, honouring retry_after.",
    "client.pages": "Pages are found by Link header or by a named cursor, and end by themselves; endless and repeated "
    "ones are errors.",
    "client.operations": "`operations` shows what the caller can call, over every backend.",
    "client.identity": "Over a registry the caller is trusted unless an identity is given; then access is checked.",
    "client.targets": "A target that cannot be used, or lacks its package, is an error that says what to do.",
    "client.options": "Type checkers know the options of a client; its repr names the target without credentials.",
    "client.closed": "A client that is not open refuses; closing ends what is under way on its own connection.",
    "client.http": "Over HTTP, envelopes and problems are read back whole; foreign answers are errors by status.",
    "client.sync": "SyncClient works in scripts, threads and beside a running loop, and leaves no thread.",
    "calls.interceptors": "Interceptors of a PendingRequestMap are around every outgoing call and each item, with its "
    "options; errors of received requests are reported to listeners.",
    "client.sync_fork": "In a forked process SyncClient connects by itself; the connection of its parent stays.",
    "client.sync_lazy": "SyncClient connects with the first call; it closes at exit, or when it is garbage-collected.",
    "client.sync_config": "SyncClient takes a configuration file, and calls the operations of its sources.",
    "client.sync_generated": "A generated class with methods that block works with SyncClient.",
    "notebooks.html": "Notebooks show registries, specs and envelopes as tables in which no text becomes markup.",
    "client.interceptors": "An interceptor of a client is around every call with its retries, and around each item.",
    "client.codegen": "`generate_client` writes a deterministic typed module that pyright strict accepts and that "
    "runs.",
}

DOCS: dict[str, str] = {
    "docs.snippets": "Every snippet in the documentation is a file that runs and prints what the page says.",
    "docs.types": "Every snippet and example, and the code of the README, type-checks under pyright's strict mode.",
    "docs.messages": "Every error message that the page of problems quotes is one of opwire's.",
    "docs.prose": "Pages name callers, peers, servers and workers, and do not speak of programs as persons.",
    "docs.links": "Every link within the documentation leads somewhere, and every page is in the navigation once.",
    "docs.made": "Tables and schemas in the documentation are made from the code, and every public name is in the "
    "reference.",
    "docs.clients": "Client configurations in the documentation start or reach opwire as they are.",
    "docs.numbers": "Numbers in the tables of the comparison and of the README are those of the benchmarks' last run.",
}

CLI: dict[str, str] = {
    "cli.questions": "Questions of an operation are asked at the terminal; elsewhere the error says what was asked.",
    "cli.call": "A call parses words, files and standard input, and prints, saves or pipes its result.",
    "cli.callers": "Without configured callers, serving requires a token, generated for the run if none is set; "
    "--open must be explicit.",
    "cli.completion-is-text": "A completed operation id is inserted as text, even if it looks like shell code.",
    "cli.completion": "Shells complete commands, operation ids, namespaces, fields and values; no server is started.",
    "cli.broker": "Options of `hub` and `spoke` secure a broker: prefix, keys, authorities, announcements, a journal.",
    "cli.conformance": "`conformance` lists the promises that a peer keeps; the exit code is 1 if one is broken.",
    "cli.ps": "`ps` lists the servers behind a URL with their figures: a hub with its spokes, a broker, an HTTP API.",
    "cli.top": "`top` shows servers and busiest operations live, and restores the terminal.",
    "cli.tap": "`tap` prints the calls that pass, filtered, for people or as lines of JSON, until ^C.",
    "cli.describe": "An operation is described in words, with an example command that runs.",
    "cli.doctor": "All problems are reported at once, with what to do about them, and set the exit code.",
    "cli.dry-run": "A dry run prints the request with redacted credentials, or a curl command that sends it.",
    "cli.errors": "An error is one line on standard error, which a terminal shows broken between words; details and "
    "tracebacks are optional.",
    "cli.help": "The help of every command fits into 80 columns, and names of other programs lead to a command.",
    "cli.exit-codes": "Each class of errors has its exit code.",
    "cli.files": "Python files are sources, as modules and as MCP servers; a URL needs no scheme on this machine.",
    "cli.forms": "A result is readable, JSON, the envelope or raw; binary data is described, saved or piped.",
    "cli.keys": "`opwire keys` writes keys and certificates, and calls over a broker are signed by them.",
    "cli.full-disk": "A full disk is reported as such, for output and files, and leaves no new file that is not whole; "
    "servers whose log is there go on.",
    "cli.gen": "A typed client of the operations is written as a module that compiles.",
    "cli.harmless": "Foreign text cannot send control sequences to the terminal.",
    "cli.hub": "A hub, a spoke and a caller are three commands that find each other.",
    "cli.init": "A commented configuration is written, and an existing file is never overwritten.",
    "cli.install": "The operations are added to the configuration of an MCP client, which starts them: nothing else in "
    "the file changes, it is backed up, and a file that would lose something is not written.",
    "cli.interrupt": "^C ends a command at once, quietly, with code 130.",
    "cli.json": "With --json all output is JSON, including errors.",
    "cli.lazy": "Listing a Python registry imports no optional package but click.",
    "cli.ls": "Operations are listed by namespace, searched and filtered; ids are printed whole at any width.",
    "cli.ls-tokens": "`ls` lists views, and shows what operations, namespaces and views cost in tokens.",
    "cli.markup": "Descriptions in Markdown and HTML are shown as text, in linear time.",
    "cli.pipes": "A closed pipe ends a command without an error message.",
    "cli.plain": "Tables and colour are for terminals, and NO_COLOR is respected.",
    "cli.prompts": "Missing required fields are prompted for on a terminal only.",
    "cli.serve": "Operations are served as MCP and HTTP, called back through them, and reloaded when edited.",
    "cli.log": "A server prints where it listens, what it serves, one line per call, and the tracebacks of failures; "
    "with --log-format json as JSON.",
    "cli.sources": "Operations come from the nearest configuration or from sources that options name.",
    "cli.uvloop": "Servers of the command line run on uvloop if it is installed, and other commands do not import it.",
    "cli.spoke": "Operations are served over a broker by one command.",
    "cli.typed-input": "Words are typed by the schema: a number only if the schema accepts numbers.",
    "cli.login": "`opwire login` signs in to a source, with a browser, a pasted address or a device; `opwire logout` "
    "signs out.",
    "cli.console": "`opwire console` serves the console on this machine, and prints a link that signs in once.",
    "cli.watch": "The items of a subscription are printed as they come.",
}

SECTIONS = (
    ERRORS,
    CONSOLE,
    LAYOUT,
    ENVELOPE,
    SCHEMA,
    CAST,
    FIT,
    TYPED,
    TOOL_ENVELOPE,
    OPERATIONS,
    ORIGIN,
    PIPELINE,
    CALL,
    TRANSPORT,
    CHAOS,
    NATS,
    REDIS,
    WEBSOCKET,
    FAULTS,
    AUTH,
    OAUTH,
    HUB,
    MONITOR,
    DURABLE,
    MCP_IN,
    POLICIES,
    CODE_MODE,
    LLM,
    RESOURCES,
    SERVE_MCP,
    OPENAPI,
    SERVE,
    SERVE_HTTP,
    WEBHOOKS,
    MCP_JUDGES,
    OPENAPI_JUDGES,
    CACHING,
    TELEMETRY,
    CONFIG,
    QUESTIONS,
    CLIENT,
    DOCS,
    CLI,
)
REQUIREMENTS: dict[str, str] = {key: text for section in SECTIONS for key, text in section.items()}


def requirement(*ids: str) -> Callable[[F], F]:
    """Mark a test as the keeper of one or more promises."""

    def mark(test: F) -> F:
        for promise in ids:
            test = pytest.mark.requirement(promise)(test)
        return test

    return mark
