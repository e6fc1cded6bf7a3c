"""Modules and action plugins accept exactly the options that their documentation describes."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.plugins.action import ActionBase

PLUGINS = "ansible_collections.tpufleet.core.plugins"
FOLDER = Path(__file__).parents[2] / "collections/ansible_collections/tpufleet/core/plugins"
MODULES = sorted(
    file.stem for file in (FOLDER / "modules").glob("*.py") if "def main(" in file.read_text()
)
ACTIONS = sorted({file.stem for file in (FOLDER / "modules").glob("*.py")} - {*MODULES})


class Stop(Exception):  # noqa: N818  it ends the plugin, and is not an error
    pass


def plugin(kind: str, name: str) -> ModuleType:
    return importlib.import_module(f"{PLUGINS}.{kind}.{name}")


def documented(name: str) -> dict[str, Any]:
    """Return the documented options of a module, including those of its fragments."""
    documentation = yaml.safe_load(plugin("modules", name).DOCUMENTATION)
    options = dict(documentation.get("options", {}))
    fragments = documentation.get("extends_documentation_fragment", [])
    for fragment in [fragments] if isinstance(fragments, str) else fragments:
        doc_fragment = plugin("doc_fragments", fragment.rsplit(".", 1)[1]).ModuleDocFragment
        options = {**yaml.safe_load(doc_fragment.DOCUMENTATION).get("options", {}), **options}
    return options


def check_documented(spec: dict[str, Any], documentation: dict[str, Any], path: str) -> None:
    """Check that an argument spec and its documentation agree, including suboptions."""
    assert sorted(spec) == sorted(documentation), path
    for key, option in spec.items():
        described, option_path = documentation[key], f"{path}.{key}"
        assert described.get("description"), option_path
        assert described["type"] == option.get("type", "str"), option_path
        assert described.get("required", False) == option.get("required", False), option_path
        assert described.get("default") == option.get("default"), option_path
        assert described.get("choices") == option.get("choices"), option_path
        assert described.get("elements") == option.get("elements"), option_path
        if "options" in option:
            check_documented(option["options"], described["suboptions"], option_path)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_accepts_the_documented_options(monkeypatch, name):
    accepted: dict[str, Any] = {}

    def module(*, argument_spec: dict[str, Any], **_: Any) -> None:
        accepted.update(argument_spec)
        raise Stop

    own = plugin("modules", name)
    for module_under_test in (own, plugin("module_utils.cloud", "module")):
        monkeypatch.setattr(module_under_test, "AnsibleModule", module, raising=False)
    with pytest.raises(Stop):
        own.main()
    check_documented(accepted, documented(name), name)


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_accepts_the_documented_options(monkeypatch, name):
    accepted: dict[str, Any] = {}

    def validate(_: ActionBase, argument_spec: dict[str, Any]) -> None:
        accepted.update(argument_spec)
        raise Stop

    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    monkeypatch.setattr(ActionBase, "validate_argument_spec", validate)
    action = plugin("action", name).ActionModule
    with pytest.raises(Stop):
        action.run(action.__new__(action))
    check_documented(accepted, documented(name), name)
