"""What the documentation says of a module's options is what the module takes."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

PLUGINS = "ansible_collections.tpufleet.core.plugins"
FOLDER = Path(__file__).parents[2] / "collections/ansible_collections/tpufleet/core/plugins"
MODULES = sorted(
    file.stem for file in (FOLDER / "modules").glob("*.py") if "def main(" in file.read_text()
)
ACTIONS = ("tpu_fleet", "tpu_plan")


def plugin(kind: str, name: str) -> ModuleType:
    return importlib.import_module(f"{PLUGINS}.{kind}.{name}")


def documented(name: str) -> dict[str, Any]:
    """The options of a module with those of its fragments."""
    told = yaml.safe_load(plugin("modules", name).DOCUMENTATION)
    options = dict(told["options"])
    fragments = told.get("extends_documentation_fragment", [])
    for fragment in [fragments] if isinstance(fragments, str) else fragments:
        part = plugin("doc_fragments", fragment.rsplit(".", 1)[1]).ModuleDocFragment
        options = {**yaml.safe_load(part.DOCUMENTATION).get("options", {}), **options}
    return options


def same(spec: dict[str, Any], told: dict[str, Any], where: str) -> None:
    """Hold an argument spec against its documentation, with all below it."""
    assert sorted(spec) == sorted(told), where
    for key, option in spec.items():
        said, here = told[key], f"{where}.{key}"
        assert said.get("description"), here
        assert said["type"] == option.get("type", "str"), here
        assert said.get("required", False) == option.get("required", False), here
        assert said.get("default") == option.get("default"), here
        assert said.get("choices") == option.get("choices"), here
        assert said.get("elements") == option.get("elements"), here
        if "options" in option:
            same(option["options"], said["suboptions"], here)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_accepts_the_documented_options(monkeypatch, name):
    taken: dict[str, Any] = {}

    class Stop(Exception):  # noqa: N818  it ends the module, and is no error
        pass

    def module(*, argument_spec: dict[str, Any], **_: Any) -> None:
        taken.update(argument_spec)
        raise Stop

    own = plugin("modules", name)
    for each in (own, plugin("module_utils.cloud", "module")):
        monkeypatch.setattr(each, "AnsibleModule", module, raising=False)
    with pytest.raises(Stop):
        own.main()
    same(taken, documented(name), name)


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_accepts_the_documented_options(name):
    spec = dict(plugin("action", name)._SPEC)
    told = documented(name)
    spec["api"], told["api"] = ({"type": "dict", "required": True}, dict(told["api"]))
    same(spec, told, name)
