"""The promises and the tests that keep them, checked in both directions without running anything."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.requirements import REQUIREMENTS, SECTIONS, requirement

TESTS = Path(__file__).parent


def marks_of(source: str) -> Iterator[str]:
    """The ids in `@requirement("…")` decorators of test functions and test classes."""
    yield from marks_in(ast.parse(source).body)


def marks_in(body: list[ast.stmt]) -> Iterator[str]:
    """The ids of a module's or a class's own statements: looking inside functions takes three times as long."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and is_test(node.name):
            for decorator in node.decorator_list:
                match decorator:
                    case ast.Call(func=ast.Name(id="requirement"), args=args):
                        yield from (ast.literal_eval(argument) for argument in args)
        if isinstance(node, ast.ClassDef | ast.If):
            yield from marks_in(node.body)


def is_test(name: str) -> bool:
    return name.startswith(("test", "Test"))


@cache
def marks() -> dict[str, set[str]]:
    """Every id that a test is marked with, and the files that do so."""
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for promise in marks_of(path.read_text(encoding="utf-8")):
            found.setdefault(promise, set()).add(path.relative_to(TESTS).as_posix())
    return found


@requirement("layout.manifest")
def test_each_promise_has_a_test() -> None:
    assert sorted(REQUIREMENTS.keys() - marks().keys()) == []


@requirement("layout.manifest")
def test_each_mark_has_a_promise() -> None:
    assert {promise: files for promise, files in marks().items() if promise not in REQUIREMENTS} == {}


def test_no_promise_is_made_twice() -> None:
    assert sum(len(section) for section in SECTIONS) == len(REQUIREMENTS)
    assert len(set(REQUIREMENTS.values())) == len(REQUIREMENTS)


def test_a_promise_is_a_sentence_under_an_id_of_its_area() -> None:
    assert [id for id in REQUIREMENTS if not all(id.partition("."))] == []
    assert [id for id, text in REQUIREMENTS.items() if not text.rstrip().endswith(".")] == []


def test_marks_are_found_on_functions_coroutines_and_classes_and_nowhere_else() -> None:
    source = """
@requirement("a", "b")
def test_one(): ...

@pytest.mark.parametrize("x", [1])
@requirement("c")
async def test_two(): ...

@requirement("d")
class TestThree:
    @requirement("e")
    def test_method(self): ...

@requirement("f")
def helper(): ...

@other("g")
def test_four(): ...

text = '@requirement("h")'
"""
    assert sorted(marks_of(source)) == ["a", "b", "c", "d", "e"]


def test_a_mark_reaches_the_test_that_pytest_collects() -> None:
    @requirement("layout.manifest", "layout.types")
    def sample() -> None: ...

    assert {mark.args for mark in sample.pytestmark} == {("layout.manifest",), ("layout.types",)}
