"""Product code and benchmarks import nothing of the tests."""

import ast

import pytest

from harness.playbooks import ROOT

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
