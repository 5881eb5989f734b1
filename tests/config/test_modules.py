"""Modules of a project."""

import gc
import sys
from itertools import count
from pathlib import Path

import pytest

from opwire.config.settings import PythonSource
from opwire.config.sources import ProjectModules, create_source
from opwire.errors import ConfigError
from tests.config.projects import shop, write


async def price(modules: ProjectModules, target: str = "shop:registry") -> int:
    """What the operation of the module answers."""
    (registry,) = await modules.registries(target, "key")
    return (await registry.execute("shop.price", {"article": "tea"})).data


async def failure(modules: ProjectModules, target: str) -> str:
    with pytest.raises(ConfigError) as caught:
        await modules.registries(target, "sources.x.python")
    return str(caught.value)


async def test_a_registry_of_a_module_beside_the_file_is_found_and_the_path_is_left_as_it_was(tmp_path: Path) -> None:
    write(tmp_path, shop_py=shop(3))
    before = list(sys.path)
    modules = ProjectModules(tmp_path)
    assert await price(modules) == 3
    assert sys.path == before
    assert modules.files == {tmp_path / "shop.py"}


async def test_other_modules_may_be_imported_meanwhile(tmp_path: Path) -> None:
    """As by another thread: here at each garbage collection, which may happen wherever an object is created."""
    write(tmp_path, shop_py=shop(3))
    numbers, threshold = count(), gc.get_threshold()

    def imports(phase: str, _: object) -> None:
        sys.modules[f"late{next(numbers)}"] = sys

    gc.collect()  # which empties the lists of unused tuples, so that new ones are created
    gc.callbacks.append(imports)
    gc.set_threshold(50)
    try:
        assert await price(ProjectModules(tmp_path)) == 3
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(imports)
        for number in range(next(numbers)):
            del sys.modules[f"late{number}"]


async def test_a_registry_may_be_an_attribute_of_something(tmp_path: Path) -> None:
    write(tmp_path, shop_py=f"{shop(3)}\nclass Shop:\n    inner = registry\n")
    assert await price(ProjectModules(tmp_path), "shop:Shop.inner") == 3


async def test_a_module_alone_stands_for_all_its_registries_each_once(tmp_path: Path) -> None:
    write(tmp_path, shop_py=f"{shop()}\nagain = registry\nother = OperationRegistry()\n")
    assert len(await ProjectModules(tmp_path).registries("shop", "key")) == 2


async def test_a_registry_with_methods_whose_object_is_not_registered_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["from opwire import OperationRegistry", "registry = OperationRegistry()", "class Shop:"]
    lines += ["    @registry.query('shop.price')", "    def price(self) -> int:", "        return 3", ""]
    for registered in ("", "registry.register_object(Shop())"):
        write(tmp_path, methods_py="\n".join([*lines, registered]))
        caplog.clear()
        modules = ProjectModules(tmp_path)
        await create_source("shop", PythonSource(python="methods.py"), tmp_path, modules)
        modules.forget()
        told = "methods.py: no operations: Shop.price needs register_object with an object of its class"
        assert (told in caplog.text) == (registered == "")


async def test_modules_of_installed_packages_are_found_too_and_are_not_the_projects(tmp_path: Path) -> None:
    modules = ProjectModules(tmp_path)
    assert "has no OperationRegistry" in await failure(modules, "json")
    assert modules.files == set()


async def test_projects_with_modules_of_the_same_name_do_not_meet_one_after_the_other(tmp_path: Path) -> None:
    for number, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        write(tmp_path / name, shop_py=shop(number))
    first, second = ProjectModules(tmp_path / "one"), ProjectModules(tmp_path / "two")
    assert await price(first) == 0
    compiled = list((tmp_path / "one").rglob("*.pyc"))
    first.forget()
    assert await price(second) == 1
    assert list((tmp_path / "one").rglob("*.pyc")) == compiled  # the next start need not compile it


async def test_what_the_process_has_loaded_for_itself_is_never_forgotten(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent.parent  # where the library and these tests are
    before = dict(sys.modules)
    modules = ProjectModules(root)
    modules.forget()
    assert {name for name in before if name not in sys.modules} == set()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("absent:registry", "sources.x.python: unknown module absent: it is neither in"),
        ("broken:registry", "broken cannot be imported: ZeroDivisionError: division by zero (broken.py, line 2)"),
        ("unwell:registry", "unwell cannot be imported: SyntaxError: "),
        ("leaves:registry", "leaves cannot be imported: SystemExit: 3 (leaves.py, line 2)"),
        (
            "needy:registry",
            "needy cannot be imported: ModuleNotFoundError: No module named 'absent' (needy.py, line 1)",
        ),
        ("shop:regstry", "the module shop has no regstry; did you mean `registry`?"),
        ("shop:xyz", "the module shop has no xyz; it has registry"),
        ("plain:xyz", "the module plain has no xyz"),
        ("plain:number", "number of plain is not an OperationRegistry, but of type int"),
        ("shop:", 'sources.x.python: write "module:registry", "module" or "file.py"'),
        (":registry", 'sources.x.python: write "module:registry", "module" or "file.py"'),
    ],
)
async def test_what_cannot_be_used_is_reported_with_its_place(tmp_path: Path, target: str, message: str) -> None:
    write(
        tmp_path,
        broken_py="\n1 / 0",
        unwell_py="def",
        leaves_py="import sys\nsys.exit(3)",
        needy_py="import absent",
        shop_py=shop(),
        plain_py="number = 3",
    )
    modules = ProjectModules(tmp_path)
    assert message in await failure(modules, target)
    name = target.partition(":")[0]
    assert not name or (name == "shop" and target == "shop:") or tmp_path / f"{name}.py" in modules.files


async def test_a_file_is_imported_from_its_folder_and_a_part_of_a_package_as_such(tmp_path: Path) -> None:
    write(tmp_path, shop_py=shop(3))
    inner = tmp_path / "far" / "pack"
    inner.mkdir(parents=True)
    (inner / "__init__.py").touch()
    (inner / "prices.py").write_text("PRICE = 5\n")
    (inner / "store.py").write_text(f"from .prices import PRICE\n{shop(5)}\n")
    before, modules = list(sys.path), ProjectModules(tmp_path)
    assert await price(modules, "shop.py") == 3
    assert await price(modules, "./far/pack/store.py:registry") == 5
    assert sys.path == before
    assert {tmp_path / "shop.py", inner / "store.py", inner / "prices.py"} <= modules.files
    modules.forget()
    assert "pack.store" not in sys.modules


async def test_a_file_that_cannot_be_imported_is_explained(tmp_path: Path) -> None:
    write(tmp_path, shop_py="number = 3", json_py="")
    modules = ProjectModules(tmp_path)
    assert "sources.x.python: away.py: no such file" in await failure(modules, "away.py")
    assert "rename the file" in await failure(modules, "json.py")
    assert "has no OperationRegistry" in await failure(modules, "shop.py")
    assert 'write "module:registry", "module" or "file.py"' in await failure(modules, "shop.py:")
