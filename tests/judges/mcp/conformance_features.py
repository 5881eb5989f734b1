"""The resources, prompts and questions that the public MCP conformance suite asks of a server."""

import asyncio
import json
from base64 import b64decode, b64encode
from typing import Any

from opwire import CallError, Context, ErrorCode, OperationRegistry
from opwire.mcp.messages import RPCCode, RPCError

TASK_AFTER = 0.2
"""Seconds after which a call becomes a task."""

PIXEL = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==")
IMAGE = {"type": "image", "data": b64encode(PIXEL).decode(), "mimeType": "image/png"}


def form(**properties: Any) -> dict[str, Any]:
    """The schema of a form with required fields only."""
    return {"type": "object", "properties": properties, "required": [*properties]}


NAME = form(name={"type": "string"})
DEFAULTS = form(
    name={"type": "string", "default": "John Doe"},
    age={"type": "integer", "default": 30},
    score={"type": "number", "default": 95.5},
    status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    verified={"type": "boolean", "default": True},
)
_THREE = ["option1", "option2", "option3"]
_TITLED = [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]
ENUMS = form(
    untitledSingle={"type": "string", "enum": _THREE},
    titledSingle={"type": "string", "oneOf": _TITLED},
    legacyEnum={"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
    untitledMulti={"type": "array", "items": {"type": "string", "enum": _THREE}},
    titledMulti={"type": "array", "items": {"anyOf": _TITLED}},
)


def add_features(registry: OperationRegistry) -> None:
    """Register all of them."""
    add_resources(registry)
    add_prompts(registry)
    add_questions(registry)
    add_input_requests(registry)
    add_tasks(registry)

    @registry.query("test.tool_with_logging")
    async def tool_with_logging(context: Context) -> str:
        """Logs to the client, three times."""
        for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            context.log("info", message)
            await asyncio.sleep(0.05)  # the suite asks for it
        return "logged"

    @registry.query("test.logging_tool")
    async def logging_tool(context: Context) -> str:
        """Logs, but not to a client that has not asked for it."""
        context.log("info", "a message")
        return "logged"


def add_resources(registry: OperationRegistry) -> None:
    @registry.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        """Text."""
        return "This is the content of the static text resource."

    @registry.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        """A picture."""
        return PIXEL

    @registry.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> dict[str, Any]:
        """Data by id."""
        return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}

    @registry.resource("test://watched-resource", mime_type="text/plain")
    def watched() -> str:
        """A resource to subscribe to."""
        return "watched"


def add_prompts(registry: OperationRegistry) -> None:
    def beginnings(value: str) -> list[str]:
        return [word for word in ("paris", "park", "party") if word.startswith(value)]

    @registry.prompt("test.simple_prompt")
    def simple() -> str:
        """A prompt without arguments."""
        return "This is a simple prompt for testing."

    @registry.prompt("test.prompt_with_arguments", completes={"arg1": beginnings})
    def with_arguments(arg1: str, arg2: str) -> str:
        """A prompt with two."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @registry.prompt("test.prompt_with_embedded_resource")
    def embedded(resourceUri: str) -> list[Any]:
        """A prompt with a resource."""
        resource = {"uri": resourceUri, "mimeType": "text/plain", "text": "Embedded resource content for testing."}
        return [
            {"role": "user", "content": {"type": "resource", "resource": resource}},
            {"role": "user", "content": {"type": "text", "text": "Please process the embedded resource above."}},
        ]

    @registry.prompt("test.prompt_with_image")
    def with_image() -> list[Any]:
        """A prompt with a picture."""
        text = {"type": "text", "text": "Please analyze the image above."}
        return [{"role": "user", "content": IMAGE}, {"role": "user", "content": text}]

    @registry.prompt("test.input_required_result_prompt")
    async def asking(context: Context) -> str:
        """A prompt that asks."""
        wanted = form(context={"type": "string"})
        answer = await context.elicit(wanted, "What context should the prompt use?", key="user_context")
        return f"Use {answer.unwrap()['context']}."

    @registry.mutation("test.trigger_prompt_change")
    async def trigger_prompt_change() -> bool:
        """Adds a prompt, or removes it again. Returns whether it is there."""
        if registry.get_spec("test.new_prompt") is not None:
            registry.unregister("test.new_prompt")
            return False
        registry.prompt("test.new_prompt", description="A new prompt.")(lambda: "new")
        return True


def add_questions(registry: OperationRegistry) -> None:
    async def elicited(context: Context, wanted: dict[str, Any], message: str) -> str:
        answer = await context.elicit(wanted, message)
        return f"Elicitation completed: action={answer.action}, content={json.dumps(answer.data)}"

    @registry.query("test.elicitation")
    async def elicitation(message: str, context: Context) -> str:
        """Asks for a name and an address."""
        wanted = form(username={"type": "string"}, email={"type": "string"})
        answer = await context.elicit(wanted, message)
        return f"User response: action={answer.action}, content={json.dumps(answer.data)}"

    @registry.query("test.elicitation_sep1034_defaults")
    async def defaults(context: Context) -> str:
        """Asks with defaults."""
        return await elicited(context, DEFAULTS, "Please check")

    @registry.query("test.elicitation_sep1330_enums")
    async def enums(context: Context) -> str:
        """Asks for choices."""
        return await elicited(context, ENUMS, "Please choose")

    @registry.query("test.sampling")
    async def sampling(prompt: str, context: Context) -> str:
        """Asks the model of the client."""
        return f"LLM response: {(await context.sample(prompt, max_tokens=100)).text}"

    @registry.query("test.missing_capability")
    async def missing_capability(context: Context) -> str:
        """Needs a client with a model."""
        return (await context.sample("Hello", max_tokens=10)).text


def add_input_requests(registry: OperationRegistry) -> None:
    """The questions of 2026-07-28: as a result of the call."""

    async def ask_name(context: Context, key: str = "user_name", message: str = "What is your name?") -> str:
        return (await context.elicit(NAME, message, key=key)).unwrap()["name"]

    @registry.query("test.input_required_result_elicitation")
    async def elicit(context: Context) -> str:
        """Asks for a name."""
        return f"Hello, {await ask_name(context)}!"

    @registry.query("test.input_required_result_tampered_state")
    async def tampered(context: Context) -> str:
        """Asks, with a state that cannot be forged."""
        return f"Hello, {await ask_name(context)}!"

    @registry.query("test.input_required_result_sampling")
    async def sample(context: Context) -> str:
        """Asks the model of the client."""
        return (await context.sample("What is the capital of France?", max_tokens=100)).text

    @registry.query("test.input_required_result_list_roots")
    async def roots(context: Context) -> str:
        """Asks for the roots of the client."""
        return ", ".join(root.uri for root in await context.roots())

    @registry.query("test.input_required_result_request_state")
    async def request_state(context: Context) -> str:
        """Asks, and checks the state."""
        await context.elicit(form(ok={"type": "boolean"}), "Please confirm", key="confirm")
        return "state-ok"

    @registry.query("test.input_required_result_multiple_inputs")
    async def multiple(context: Context) -> str:
        """Asks everything at once."""
        name, greeting, found = await asyncio.gather(
            ask_name(context), context.sample("Generate a greeting", max_tokens=50), context.roots()
        )
        return f"{greeting.text} {name}, {len(found)} roots"

    @registry.query("test.input_required_result_multi_round")
    async def multi_round(context: Context) -> str:
        """Asks twice."""
        name = await ask_name(context, "step1", "Step 1: What is your name?")
        color = form(color={"type": "string"})
        answer = await context.elicit(color, "Step 2: What is your favorite color?", key="step2")
        return f"{name} likes {answer.unwrap()['color']}"

    @registry.query("test.input_required_result_capabilities")
    async def capabilities(context: Context) -> str:
        """Asks only what the client can answer."""
        return (await context.sample("Hello", max_tokens=10)).text


def add_tasks(registry: OperationRegistry) -> None:
    """Calls that become tasks of the extension: they take longer than the surface waits."""

    async def become_task() -> None:
        await asyncio.sleep(2 * TASK_AFTER)

    async def confirm(context: Context, message: str) -> bool:
        return bool(await context.elicit(form(confirm={"type": "boolean"}), message))

    @registry.query("tasks.greet")
    async def greet(name: str) -> str:
        """Greets at once."""
        return f"Hello, {name}!"

    @registry.mutation("slow.compute")
    async def slow_compute(seconds: float = 1, label: str = "") -> str:
        """Takes its time."""
        await asyncio.sleep(seconds)
        return f"{label} took {seconds} seconds"

    @registry.mutation("failing.job")
    async def failing_job() -> str:
        """Fails as a tool does."""
        await become_task()
        raise CallError(ErrorCode.EXECUTION_ERROR, "This job fails")

    @registry.mutation("protocol.error_job")
    async def protocol_error_job(context: Context) -> str:
        """Fails as a request does."""
        await become_task()
        error = RPCError(RPCCode.INTERNAL_ERROR, "This request fails")
        error.request_id = context.request_id
        raise error

    @registry.mutation("confirm.delete")
    async def confirm_delete(filename: str, context: Context) -> str:
        """Asks as a task."""
        await become_task()
        return "deleted" if await confirm(context, f"Delete {filename}?") else "kept"

    @registry.mutation("multi.input")
    async def multi_input(context: Context) -> list[bool]:
        """Asks twice at once, as a task."""
        await become_task()
        return [*await asyncio.gather(confirm(context, "First?"), confirm(context, "Second?"))]

    @registry.mutation("test.tool_with_task")
    async def tool_with_task(context: Context) -> str:
        """Asks, and then becomes a task."""
        answer = await context.elicit(NAME, "What is your name?", key="user_name")
        await become_task()
        return f"Hello, {answer.unwrap()['name']}!"
