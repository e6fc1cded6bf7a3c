"""How the units of several runs stand, out of one answer of systemd's."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils import run_unit
from ansible_collections.tpufleet.core.plugins.module_utils.run import RunError

TWO = "ActiveState=active\nSubState=running\n\nActiveState=failed\nSubState=\n"


def answers(monkeypatch, text: str) -> list[tuple[str, ...]]:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(run_unit, "systemctl", lambda *words: asked.append(words) or text)
    return asked


def test_each_run_has_its_own_paragraph(monkeypatch):
    asked = answers(monkeypatch, TWO)

    found = run_unit.unit_states(["a", "b"])

    assert found["a"] == {"ActiveState": "active", "SubState": "running"}
    assert found["b"] == {"ActiveState": "failed", "SubState": ""}
    assert len(asked) == 1
    assert asked[0][-2:] == ("tpufleet-run@a.service", "tpufleet-run@b.service")


def test_no_run_asks_nothing(monkeypatch):
    asked = answers(monkeypatch, TWO)

    assert run_unit.unit_states([]) == {}
    assert asked == []


def test_an_answer_of_another_length_is_not_guessed_at(monkeypatch):
    answers(monkeypatch, TWO)

    with pytest.raises(RunError, match="2 answers for 3 units"):
        run_unit.unit_states(["a", "b", "c"])
