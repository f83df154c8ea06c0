"""Data flows one way: a room imports only from rooms above it."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import slb_autotune

PACKAGE = Path(slb_autotune.__file__).parent

# From the first to the last.
ROOMS = [
    "version",
    "errors",
    "config",
    "quant",
    "nets",
    "data",
    "cost",
    "pareto",
    "training",
    "export",
    "search",
    "analysis",
    "tracking",
    "report",
    "bench",
    "api",
    "cli",
    "__main__",
]


def module_name(path: Path) -> str:
    """`quant/slb.py` is quant.slb, `quant/__init__.py` is quant."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


FILES = {
    module_name(path): path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE
} | {path.stem: path for path in sorted(PACKAGE.glob("*.py")) if path.stem != "__init__"}


def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            # `from package import module` imports the module, `from module import name` itself.
            names = [n if is_module(n) else str(node.module) for n in inner]
        else:
            continue
        found |= {name for name in names if name.split(".")[0] == "slb_autotune"}
    return {name.removeprefix("slb_autotune").removeprefix(".") for name in found}


def is_module(name: str) -> bool:
    return name.removeprefix("slb_autotune.") in FILES


def room(module: str) -> str:
    return module.split(".")[0]


def test_every_room_is_on_the_list():
    assert {room(module) for module in FILES} - set(ROOMS) == set()


@pytest.mark.parametrize("module", FILES)
def test_a_room_imports_only_from_rooms_above_it(module):
    above = ROOMS[: ROOMS.index(room(module))]
    others = {name for name in imports(FILES[module]) if room(name) != room(module)}
    assert {room(name) for name in others} <= set(above)


def test_no_module_imports_the_package_itself():
    assert [module for module, path in FILES.items() if "" in imports(path)] == []


def test_modules_of_a_room_do_not_import_each_other_in_a_circle():
    graph = {module: imports(path) for module, path in FILES.items()}
    order = list(TopologicalSorter(graph).static_order())
    assert set(order) == set(FILES)


def test_the_reader_of_imports_sees_all_forms(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "import torch\n"
        "import slb_autotune.cost\n"
        "from slb_autotune import data\n"
        "from slb_autotune.quant import slb, quantize\n"
        "def late():\n"
        "    from slb_autotune.errors import SlbError\n"
    )
    assert imports(path) == {"cost", "data", "quant.slb", "quant", "errors"}


def test_no_lazy_name_is_the_name_of_a_module():
    # Importing slb_autotune.train, were it a module, would hide the function of that name.
    assert not set(slb_autotune._LAZY) & {room(module) for module in FILES}
    for name, module in slb_autotune._LAZY.items():
        assert name != module.split(".")[-1]


@pytest.mark.parametrize("package", ["quant", "nets", "data"])
def test_no_public_name_of_a_room_is_the_name_of_its_module(package):
    exported = __import__(f"slb_autotune.{package}", fromlist=["__all__"]).__all__
    inside = {m.split(".")[-1] for m in FILES if room(m) == package and m != package}
    assert exported
    assert not set(exported) & inside
