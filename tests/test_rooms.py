"""Rules for imports: nothing imports tests, and chains of imports in the collection are short."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from harness.playbooks import ROOT

FOLDERS = ("bench", "collections", "examples", "harness", "localcloud", "roles", "train")
PLUGINS = ROOT / "collections/ansible_collections/tpufleet/core/plugins"
MOST_FILES = 6
"""The maximum number of files in a chain in which each file imports the next."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_outside_of_tests_imports_a_test(folder):
    importing = [
        file
        for file in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and "tests" in (getattr(node, "module", None) or node.names[0].name).split(".")
    ]
    assert importing == []


@pytest.mark.parametrize(
    ("part", "others"),
    [
        ("core", ("run", "hf", "compile")),
        ("data", ("core", "hf", "compile")),
        ("storage.py", ("core", "data", "run", "hf", "compile")),
    ],
)
def test_the_trainers_core_and_data_do_not_import_their_users(part: str, others: tuple[str]):
    place = ROOT / "train" / part
    importing = [
        (file.name, node.module)
        for file in ([place] if place.is_file() else place.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(tuple(f"train.{other}" for other in others))
    ]
    assert importing == []


def imported(file: Path) -> Iterator[Path]:
    """Yield the collection's files that a file imports, except under ``if TYPE_CHECKING``."""
    statements: list[ast.AST] = [ast.parse(file.read_text())]
    while statements:
        node = statements.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        statements += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for path in (folder, *(folder / name.name for name in node.names)):
                if path.with_suffix(".py").exists():
                    yield path.with_suffix(".py")


def test_no_chain_of_imports_is_a_cycle_or_longer_than_six_files():
    imports = {file: set(imported(file)) for file in PLUGINS.rglob("*.py")}
    chains: dict[Path, list[Path]] = {}
    for file in TopologicalSorter(imports).static_order():
        longest = max((chains[each] for each in imports[file]), key=len, default=[])
        chains[file] = [file, *longest]
    assert len(chains) > 100
    assert [chain for chain in chains.values() if len(chain) > MOST_FILES] == []
