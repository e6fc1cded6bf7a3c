"""Plugins use only public names of ansible-core; code on workers needs only Python."""

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[2] / "collections/ansible_collections/tpufleet/core/plugins"
PACKAGE = "ansible_collections.tpufleet.core.plugins"
CODE = sorted(PLUGINS.rglob("*.py"))
CLASSES = sorted(
    file for kind in ("action", "callback", "inventory") for file in (PLUGINS / kind).glob("*.py")
)
WORKER = sorted((PLUGINS / "module_utils/worker").glob("*.py"))
ON_CONTROLLER = {"run_fetch", "run_schedule"}
"""Modules that never run on a worker, although they import worker code."""
ON_WORKERS = [
    file
    for file in sorted((PLUGINS / "modules").glob("*.py"))
    if file.stem not in ON_CONTROLLER and "module_utils.worker" in file.read_text()
]
SETTINGS = {"_supports_check_mode", "_supports_diff", "_supports_async", "_requires_connection"}
"""Private attributes of ActionBase that an action plugin is supposed to set."""


def label(file: Path) -> str:
    return str(file.relative_to(PLUGINS))


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.AST) -> Iterator[str]:
    """Yield private names of ansible-core that a file imports or reads from its imports."""
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ansible":
            names = [part for alias in node.names for part in (*node.module.split("."), alias.name)]
            yield from (f"{node.module}: {name}" for name in names if is_private(name))
            imported |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            parts = [alias.name for alias in node.names if alias.name.split(".")[0] == "ansible"]
            yield from (name for name in parts if any(map(is_private, name.split("."))))
            imported |= {"ansible"} if parts else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            start = node.value
            while isinstance(start, ast.Attribute):
                start = start.value
            if isinstance(start, ast.Name) and start.id in imported:
                yield ast.unparse(node)


@pytest.mark.parametrize("file", CODE, ids=label)
def test_no_private_name_of_ansible_core_is_imported(file):
    assert list(private_names(parsed(file))) == []


@pytest.mark.parametrize(
    "text",
    [
        "from ansible.executor.module_common import _BuiltModule",
        "from ansible._internal import plugins",
        "import ansible._internal._wrapt",
        "from ansible import constants\nconstants._ACTION_DEBUG",
        "from ansible.plugins.action import ActionBase\nActionBase._configure_module(1)",
    ],
)
def test_private_names_finds_every_kind_of_use(text):
    assert list(private_names(ast.parse(text)))


def own_names(cls: type) -> set[str]:
    """Return the methods that a class defines and the attributes that they set."""
    tree = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(tree, ast.ClassDef)
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    stored = [node for node in ast.walk(tree) if isinstance(getattr(node, "ctx", None), ast.Store)]
    on_self = {ast.unparse(node).removeprefix("self.") for node in stored}
    return defined | {name for name in on_self if name.isidentifier()}


@pytest.mark.parametrize("file", CLASSES, ids=label)
def test_no_private_name_of_ansible_core_is_overridden(file):
    module = importlib.import_module(f"{PACKAGE}.{file.parent.name}.{file.stem}")
    for cls in vars(module).values():
        if not (inspect.isclass(cls) and cls.__module__ == module.__name__):
            continue
        bases = [base for base in cls.__mro__ if base.__module__.split(".")[0] == "ansible"]
        ansible_names = {name for base in bases for name in own_names(base) if is_private(name)}
        assert own_names(cls) & ansible_names <= SETTINGS, cls


def imports(file: Path) -> set[tuple[int, str]]:
    """Return the number of leading dots and the module of each import in a file."""
    found = set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            found |= {(0, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.level, node.module or ""))
    return found


@pytest.mark.parametrize("file", WORKER, ids=label)
def test_worker_code_imports_only_the_standard_library_and_itself(file):
    for dots, name in imports(file):
        assert dots == 1 if dots else name.split(".")[0] in sys.stdlib_module_names, name


@pytest.mark.parametrize("file", ON_WORKERS, ids=label)
def test_a_worker_module_imports_only_worker_code_and_what_ansible_always_sends(file):
    for dots, name in imports(file):
        allowed = name.startswith("module_utils.worker") if dots else name.startswith("ansible.mod")
        assert allowed or name.split(".")[0] in sys.stdlib_module_names, name


def test_every_action_plugin_has_a_module_and_every_module_without_code_an_action():
    modules = {file.stem: file.read_text() for file in (PLUGINS / "modules").glob("*.py")}
    actions = {file.stem for file in (PLUGINS / "action").glob("*.py")}

    assert actions <= modules.keys()
    assert {name for name, text in modules.items() if "def main(" not in text} <= actions


@pytest.mark.parametrize("file", CODE, ids=label)
def test_shared_code_imports_no_plugin(file):
    plugins = {"action", "callback", "filter", "inventory", "modules"}
    imported = {name.split(".")[0] for dots, name in imports(file) if dots}
    allowed = {"action"} if file.parent.name == "action" else set()
    assert imported & plugins <= allowed
