"""How the units of several runs stand, out of one answer of systemd's."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import units
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError

TWO = (
    "Id=tpufleet-run@a.service\nActiveState=active\nSubState=running\n\n"
    "Id=tpufleet-run@b.service\nActiveState=failed\nSubState=\n"
)


def answers(monkeypatch, text: str) -> list[tuple[str, ...]]:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(units, "systemctl", lambda *words: asked.append(words) or text)
    return asked


def test_each_run_has_its_own_paragraph(monkeypatch):
    asked = answers(monkeypatch, TWO)

    found = units.unit_states(["a", "b"])

    assert (found["a"]["ActiveState"], found["a"]["SubState"]) == ("active", "running")
    assert (found["b"]["ActiveState"], found["b"]["SubState"]) == ("failed", "")
    assert len(asked) == 1
    assert not any(word.startswith("--state") for word in asked[0])
    assert asked[0][-2:] == ("tpufleet-run@a.service", "tpufleet-run@b.service")


def test_no_run_asks_nothing(monkeypatch):
    asked = answers(monkeypatch, TWO)

    assert units.unit_states([]) == {}
    assert asked == []


def test_a_run_unknown_to_systemd_has_no_state(monkeypatch):
    answers(monkeypatch, TWO)

    with pytest.raises(RunError, match="no answer for c"):
        units.unit_states(["a", "b", "c"])


def test_those_that_are_active_are_asked_for_with_the_one_that_is_named(monkeypatch):
    asked = answers(monkeypatch, TWO)

    found = units.unit_states(["b"], others=True)

    assert "--state=active,activating,reloading,deactivating" in asked[0]
    assert asked[0][-2:] == ("tpufleet-run@b.service", "tpufleet-run@*.service")
    assert units.active(found) == ["a"]


def test_without_units_no_run_is_active(monkeypatch):
    answers(monkeypatch, "")

    assert units.active_runs() == []
