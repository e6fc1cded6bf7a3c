"""The controller sends wheels to workers without internet access."""

from types import SimpleNamespace

from ansible_collections.tpufleet.core.plugins.plugin_utils.setup import sends_wheels

NEEDS = {"minor": 12, "machine": "x86_64", "glibc": 36}


class Action(sends_wheels.SendsWheels):
    """Action with given answers of the worker; ``done`` records module runs and transfers."""

    def __init__(self, *answers: dict) -> None:
        args = {"lock": "a==1", "cache": "~/wheels", "pack": "/tmp/own.tar"}  # noqa: S108
        self._task = SimpleNamespace(action="tpufleet.core.python_env", args=args)
        shell = SimpleNamespace(join_path=lambda *parts: "/".join(parts))
        self._connection = SimpleNamespace(_shell=shell)
        self.answers, self.done = list(answers), []

    def answer(self, monkeypatch) -> dict:
        monkeypatch.setattr(sends_wheels.ActionBase, "run", lambda *_: {})
        monkeypatch.setattr(
            sends_wheels, "wheels_archive", lambda lock, target, *_: f"{lock} {target.minor}"
        )
        worker = {
            "_execute_module": lambda **options: (
                self.done.append(options["module_args"]) or self.answers.pop(0)
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
    assert action.done == [{"lock": "a==1"}]  # without cache, which only the controller uses


def test_missing_wheels_are_sent_and_the_module_runs_again(monkeypatch):
    action = Action({"changed": False, "needs": NEEDS}, {"changed": True})

    assert action.answer(monkeypatch) == {"changed": True}
    assert action.done == [
        {"lock": "a==1"},
        ("a==1 12", "/remote/wheels.tar"),
        {"lock": "a==1", "pack": "/remote/wheels.tar"},
        "removed /remote",
    ]
