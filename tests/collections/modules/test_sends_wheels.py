"""The controller sends wheels to workers without internet access."""

import subprocess
import sys
from types import SimpleNamespace

from ansible_collections.tpufleet.core.plugins.action import python_env

NEEDS = {"minor": 12, "machine": "x86_64", "glibc": 36}


class Action(python_env.ActionModule):
    """The action python_env. Its module calls return ``answers``; ``done`` lists its steps."""

    def __init__(self, *answers: dict) -> None:
        self._task = SimpleNamespace(args={"lock": "a==1", "cache": "~/wheels"})
        shell = SimpleNamespace(join_path=lambda *parts: "/".join(parts))
        self._connection = SimpleNamespace(_shell=shell)
        self.answers, self.done = list(answers), []

    def answer(self, monkeypatch) -> dict:
        monkeypatch.setattr(python_env.ActionBase, "run", lambda *_: {})
        monkeypatch.setattr(
            python_env, "wheels_archive", lambda lock, target, *_: f"{lock} {target.minor}"
        )
        worker = {
            "_execute_module": lambda **options: (
                self.done.append(options.get("module_args")) or self.answers.pop(0)
            ),
            "_make_tmp_path": lambda: "/remote",
            "_transfer_file": lambda *paths: self.done.append(paths),
            "_fixup_perms2": lambda _: None,
            "_remove_tmp_path": lambda path: self.done.append(f"removed {path}"),
        }
        for name, does in worker.items():
            setattr(self, name, does)
        return self.run()


def test_wheels_are_sent_only_if_the_module_needs_them(monkeypatch):
    action = Action({"changed": False})

    assert action.answer(monkeypatch) == {"changed": False}
    assert action.done == [None]


def test_missing_wheels_are_sent_and_the_module_runs_again(monkeypatch):
    action = Action({"changed": False, "needs": NEEDS}, {"changed": True})

    assert action.answer(monkeypatch) == {"changed": True}
    assert action.done == [
        None,
        ("a==1 12", "/remote/wheels.tar"),
        {"lock": "a==1", "cache": "~/wheels", "pack": "/remote/wheels.tar"},
        "removed /remote",
    ]


HANDLER = """
from ansible.plugins.loader import init_plugin_loader, module_loader
init_plugin_loader()
print(module_loader.find_plugin_with_context("tpufleet.core.python_toolchain").action_plugin)
"""


def test_python_toolchain_uses_the_action_plugin_of_python_env():
    result = subprocess.run([sys.executable, "-c", HANDLER], capture_output=True, check=True)

    assert result.stdout == b"tpufleet.core.python_env\n"
