"""Product code and benchmarks import nothing of the tests."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("bench", "collections", "harness", "localcloud", "roles", "train")


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
