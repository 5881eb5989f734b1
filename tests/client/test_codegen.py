"""Generated modules: pyright accepts them in strict mode, and they call what they say."""

import ast
import asyncio
import importlib.util
import inspect
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opwire import OperationRegistry, OperationSpec, OperationType, Schema
from opwire.client import Client
from opwire.client.codegen import generate_client
from opwire.errors import UsageError
from opwire.openapi.client import from_openapi
from tests.properties import examples


class Colour(Enum):
    RED = "red"
    BLUE = 'bl"ue'


@dataclass
class Cat:
    kind: Literal["cat"] = "cat"
    lives: int = 9


@dataclass
class Dog:
    name: str
    kind: Literal["dog"] = "dog"


@dataclass
class Tree:
    value: int
    children: "list[Tree]" = field(default_factory=list)


def add_functions(registry: OperationRegistry) -> None:
    @registry.query("zoo.list", title="List animals")
    async def list_animals(colour: Colour | None = None, limit: int = 2) -> list[Cat | Dog]:
        r'''Of a colour.

        Ends in a quote: """x""" and \n "so"
        '''
        return [Cat(), Dog(str(colour and colour.value))][:limit]

    @registry.mutation("zoo.adopt")
    async def adopt(animal: Cat | Dog, names: dict[str, int] | None = None) -> str:
        return animal.kind

    @registry.query("zoo.grow")
    async def grow(tree: Tree) -> Tree:
        return Tree(tree.value + 1, [tree])

    @registry.query("zoo.prune")
    async def prune(tree: Tree) -> Tree | None:
        return tree.children[0] if tree.children else None

    @registry.subscription("zoo.watch")
    async def watch(count: int = 2) -> AsyncIterator[Tree]:
        for number in range(count):
            yield Tree(number)

    @registry.query("zoo.picture")
    async def picture() -> bytes:
        return b"\xff"


def add_odd_ones(registry: OperationRegistry) -> None:
    odd = {"self": {"type": "string"}, "timeout": {"type": "number"}, "class": {"type": "boolean"}}
    odd |= {"per-page": {"type": "integer"}, "per_page": {"type": "integer"}, "list": {"type": "array"}}
    names = {"type": "object", "properties": odd, "required": ["self", "class"]}
    keys = {"type": "object", "properties": {"list": {"type": "array", "items": {"type": "string"}}, "a-b": True}}
    nested = {
        "$defs": {"Value": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/Value"}}]}}
    }
    specs = [
        OperationSpec(namespace="odd", name="a/b ~é..", input_schema=Schema(names), output_schema=Schema(keys)),
        OperationSpec(namespace="odd", name="a.b-é", output_schema=Schema(nested | {"$ref": "#/$defs/Value"})),
        OperationSpec(
            namespace="odd", name="9 lives", input_schema=Schema({"type": "array", "items": {"type": "integer"}})
        ),
        OperationSpec(namespace="odd", name="one of", input_schema=Schema({"anyOf": [{"type": "object"}, keys]})),
        OperationSpec(namespace="class", name="import", input_schema=Schema({"type": "object"})),
        OperationSpec(namespace="日本", name="!", type=OperationType.MUTATION),
    ]
    for spec in specs:
        registry.register(spec, lambda input, context: input, inline=True)


@pytest.fixture(scope="module")
def registry() -> OperationRegistry:
    registry = OperationRegistry(normalize="off")
    add_functions(registry)
    add_odd_ones(registry)
    return registry


@pytest.fixture(scope="module")
def folder(registry: OperationRegistry, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    (folder / "zoo.py").write_text(generate_client(registry.list(), class_name="Zoo"), encoding="utf-8")
    return folder


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # as an import does: type hints are looked up there
    spec.loader.exec_module(module)
    return module


RIGHT = """
from typing import Any, assert_type
from collections.abc import AsyncGenerator
from opwire.client import Client
from zoo import Cat, Dog, Tree, Value, Zoo

async def use(client: Client) -> None:
    zoo = Zoo(client)
    assert_type(await zoo.zoo.list(), list[Cat | Dog])
    assert_type(await zoo.zoo.list(colour="red", limit=1, timeout=5), list[Cat | Dog])
    assert_type(await zoo.zoo.adopt({"kind": "dog", "name": "Rex"}, names={"Rex": 1}), str)
    tree: Tree = {"value": 1, "children": [{"value": 2}]}
    assert_type(await zoo.zoo.grow(tree), Tree)
    assert_type(await zoo.zoo.prune(tree), Tree | None)
    assert_type(zoo.zoo.watch(count=3), AsyncGenerator[Tree, None])
    assert_type(await zoo.zoo.picture(), bytes)
    answer = await zoo.odd.a_b_é_2(self_2="x", class_=True, timeout_2=1.5, per_page=1, per_page_2=2, list=[])
    assert_type(answer.get("list"), list[str] | None)
    assert_type(await zoo.odd.a_b_é(), Value)
    assert_type(await zoo.odd.operation_9_lives([1, 2]), Any)
    await zoo.odd.one_of({"list": ["x"]})
    await zoo.class_.import_({"any": "thing"})
    await zoo.日本.operation(None)
"""

WRONG = """
from opwire.client import Client
from zoo import Zoo

async def use(client: Client) -> None:
    zoo = Zoo(client)
    await zoo.zoo.list(colour="green")  # error
    await zoo.zoo.adopt()  # error
    await zoo.zoo.grow({"value": "one"})  # error
    await zoo.zoo.prune({"children": []})  # error
    await zoo.zoo.none()  # error
    await zoo.odd.operation_9_lives(["x"])  # error
"""


def test_pyright_accepts_the_module_and_what_uses_it_rightly_and_nothing_else(folder: Path) -> None:
    (folder / "right.py").write_text(RIGHT, encoding="utf-8")
    (folder / "wrong.py").write_text(WRONG, encoding="utf-8")
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}', encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    found = [
        (Path(each["file"]).name, each["range"]["start"]["line"], each["message"])
        for each in json.loads(result.stdout)["generalDiagnostics"]
    ]
    expected = [number for number, line in enumerate(WRONG.splitlines()) if line.endswith("# error")]
    assert [each for each in found if each[0] != "wrong.py"] == []
    assert sorted({line for name, line, _ in found if name == "wrong.py"}) == expected


async def test_a_generated_client_calls_the_operations(registry: OperationRegistry, folder: Path) -> None:
    module = load(folder / "zoo.py")
    async with Client(registry) as client:
        zoo: Any = module.Zoo(client)
        assert await zoo.zoo.list(colour='bl"ue') == [{"kind": "cat", "lives": 9}, {"kind": "dog", "name": 'bl"ue'}]
        assert await zoo.zoo.list(limit=1) == [{"kind": "cat", "lives": 9}]
        assert await zoo.zoo.adopt({"kind": "dog", "name": "Rex"}) == "dog"
        grown = await zoo.zoo.grow({"value": 1})
        assert grown == {"value": 2, "children": [{"value": 1, "children": []}]}
        assert await client.call("zoo.grow", {"tree": {"value": 1}}, output_type=module.Tree) == grown
        assert await zoo.zoo.prune(tree={"value": 1}, timeout=5) is None
        assert [tree["value"] async for tree in zoo.zoo.watch(count=3)] == [0, 1, 2]
        assert await zoo.zoo.picture() == b"\xff"
        odd = await zoo.odd.a_b_é_2("x", True, timeout_2=1.5, per_page=1, per_page_2=2)
        assert odd == {"self": "x", "class": True, "timeout": 1.5, "per-page": 1, "per_page": 2}
        assert await zoo.odd.operation_9_lives([1]) == [1]
        assert await zoo.odd.one_of({"any": "thing"}) == {"any": "thing"}
        assert await zoo.class_.import_({"a": 1}) == {"a": 1}
        assert await zoo.日本.operation("x") == "x"


def test_what_operations_share_is_one_type(folder: Path) -> None:
    text = (folder / "zoo.py").read_text(encoding="utf-8")
    assert [text.count(f"class {name}(TypedDict)") for name in ("Cat", "Dog", "Tree")] == [1, 1, 1]
    assert "Tree_2" not in text


def test_docstrings_are_those_of_the_operations(folder: Path) -> None:
    module: Any = load(folder / "zoo.py")
    assert (inspect.getdoc(module.ZooOperations.list) or "").startswith("List animals\n\nOf a colour.")
    assert '"""x""" and \\n' in module.ZooOperations.list.__doc__
    assert module.ZooOperations.watch.__doc__ == "zoo.watch"


def test_the_same_operations_give_the_same_text(registry: OperationRegistry) -> None:
    specs = registry.list()
    assert generate_client(specs) == generate_client(reversed(specs)) == generate_client([*specs, *specs])


async def test_a_client_of_what_is_served_gives_the_same_text(registry: OperationRegistry) -> None:
    async with Client(registry) as client:
        assert generate_client(await client.operations()) == generate_client(registry.list())


# --- hostile documents ------------------------------------------------------------------------------------------------

PAYLOADS = (
    '"""',
    'x"""',
    'x\\"""',
    "x\\",
    '"',
    '""',
    '"""\n        canary()\n        """',
    "'] = canary()  # ",
    '"): canary()',
    "{canary()}",
    "\ncanary()\n",
    "\r\x0c\x0bcanary()",
    "\u2028canary()",
    "\ud800",
    "\0",
    "\x1b[2J",
    "canary()",
    "class",
    "None",
    "__init__",
    "self",
    "timeout",
    "input",
    "list",
    "str",
    "Any",
    "Client",
    "UNSET",
    "_given",
    "ß",
    "ŉ",
    "İ",
    "ｓｅｌｆ",
    "²",
    "",
    "   ",
    "9",
)
hostile_texts = st.one_of(
    st.sampled_from(PAYLOADS),
    st.text(max_size=20),
    st.lists(st.sampled_from(PAYLOADS), min_size=2, max_size=4).map("".join),
)
scalars = st.one_of(hostile_texts, st.integers(), st.floats(allow_nan=False), st.booleans(), st.none())


def described(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    words = {"title": hostile_texts, "description": hostile_texts, "default": scalars}
    return st.fixed_dictionaries({}, optional=words).map(lambda said: {**schema, **said})


hostile_schemas = st.recursive(
    st.one_of(
        st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean", "null", "object")]),
        st.lists(scalars, min_size=1, max_size=4).map(lambda values: {"enum": values}),
        scalars.map(lambda value: {"const": value}),
    ).flatmap(described),
    lambda inner: st.one_of(
        st.dictionaries(hostile_texts, inner, max_size=4).map(lambda each: {"type": "object", "properties": each}),
        inner.map(lambda each: {"type": "array", "items": each}),
        inner.map(lambda each: {"type": "object", "additionalProperties": each}),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: {"anyOf": each}),
        st.tuples(hostile_texts, inner).map(lambda each: {"$ref": f"#/$defs/{each[0]}", "$defs": {each[0]: each[1]}}),
    ).flatmap(described),
    max_leaves=8,
)


@st.composite
def hostile_specs(draw: st.DrawFn) -> OperationSpec:
    printable = hostile_texts.filter(lambda text: bool(text) and text.isprintable())
    return OperationSpec(
        namespace=draw(printable).replace(".", "_"),
        name=draw(printable),
        type=draw(st.sampled_from(OperationType)),
        title=draw(hostile_texts),
        description=draw(hostile_texts),
        input_schema=Schema(draw(hostile_schemas)),
        output_schema=Schema(draw(hostile_schemas)),
    )


def calls_in(tree: ast.AST) -> set[str]:
    """What a module calls, by the source of the function's name."""
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.lists(hostile_specs(), min_size=1, max_size=4))
def test_a_module_parses_and_runs_nothing_of_the_document(specs: list[OperationSpec]) -> None:
    text = generate_client(specs)
    text.encode()
    tree = ast.parse(text)
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    own = {"TypedDict", "_given", "input.items", "self._client.call", "self._client.subscribe"}
    assert calls_in(tree) <= own | classes
    ran: list[str] = []
    module = {"__name__": "generated", "canary": lambda: ran.append("canary")}
    exec(compile(tree, "generated", "exec"), module)
    assert not ran
    wanted = {spec.id for spec in specs}
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert wanted <= constants


@pytest.mark.parametrize(
    "description", ['Say """', '"', "ends in \\", "\0\x1b", "\ud800", " ", "x" * 100_000, "a\n" * 50_000]
)
def test_any_description_becomes_a_docstring(description: str) -> None:
    text = generate_client([OperationSpec(namespace="a", name="b", description=description)])
    assert len(text) < 100_000
    operation = next(
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.AsyncFunctionDef) and node.name == "b"
    )
    said = ast.get_docstring(operation)
    assert said
    plain = description.replace("\0\x1b", "").replace("\ud800", "").strip()
    assert said == (plain or "a.b") or len(description) > 10_000


def test_unions_of_unions_do_not_multiply() -> None:
    levels = {
        f"level{number}": {"anyOf": [{"$ref": f"#/$defs/level{number + 1}"}] * 40, "properties": {f"p{number}": {}}}
        for number in range(20)
    }
    schema = Schema({"$ref": "#/$defs/level0", "$defs": {**levels, "level20": {"type": "string"}}})
    spent = time.process_time()
    text = generate_client([OperationSpec(namespace="a", name="b", output_schema=schema)])
    assert time.process_time() - spent < 10  # of CPU; 40 to the power of 8 schemas would take years
    ast.parse(text)


def test_an_integer_of_more_digits_than_python_writes_is_only_a_type() -> None:
    schema = Schema.deferred(lambda: {"enum": [10**5_000, 1]})
    assert "-> int:" in generate_client([OperationSpec(namespace="a", name="b", output_schema=schema)])


def test_no_operations_are_a_module_too() -> None:
    exec(generate_client([]), {"__name__": "empty"})


@pytest.mark.parametrize("name", ["", "a b", "class", "9"])
def test_a_name_that_is_not_an_identifier_is_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="name of a class"):
        generate_client([], class_name=name)


async def test_a_large_api_becomes_a_module(shared: Path) -> None:
    specs = [operation.spec for operation in from_openapi(shared / "openapi" / "github_api.json", namespace="github")]
    text = await asyncio.wait_for(asyncio.to_thread(generate_client, specs, class_name="GitHub"), 60)
    namespace: dict[str, Any] = {"__name__": "github"}
    exec(compile(text, "github.py", "exec"), namespace)
    operations = vars(namespace["GithubOperations"])
    assert sum(inspect.iscoroutinefunction(each) for each in operations.values()) == len(specs) == 1223
    assert operations["repos_get"].__annotations__ == {
        "owner": "str",
        "repo": "str",
        "timeout": "float | None",
        "return": "FullRepository",
    }
