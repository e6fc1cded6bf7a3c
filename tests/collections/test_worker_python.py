"""Worker code is valid for Python 3.9 of Debian 11, on which journey/test_other_debians runs it."""

import ast
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[2] / "collections/ansible_collections/tpufleet/core/plugins"
WORKERS = [*PLUGINS.glob("module_utils/**/*.py"), *PLUGINS.glob("modules/*.py")]


def evaluated(tree: ast.Module) -> list[str]:
    """Return the annotations that Python evaluates when it loads a file."""
    later = any(
        isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body
    )
    nodes = [] if later else ast.walk(tree)
    expressions = [
        getattr(node, field, None) for node in nodes for field in ("annotation", "returns")
    ]
    return [
        ast.unparse(node) for node in expressions if node and not isinstance(node, ast.Constant)
    ]


@pytest.mark.parametrize("file", WORKERS, ids=lambda file: file.name)
def test_worker_code_is_valid_for_python_3_9_and_evaluates_no_type_union(file):
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    assert [annotation for annotation in evaluated(tree) if "|" in annotation] == []
