"""A recovery ends with the first step that the run had not finished before the fault."""

import time
from typing import Any

from bench import preemption


class ResumedFleet:
    """A fleet whose run had finished step 95; passes of the watch resume the run from step 80."""

    cloud = None

    def __init__(self) -> None:
        self.steps: list[int] = []

    def metrics(self, _run: str) -> list[dict[str, Any]]:
        return [{"step": step} for step in self.steps]

    def must_play(self, _playbook: str) -> None:
        self.steps = [max(self.steps, default=71) + 10]
        time.sleep(0.5)


def test_the_recovery_by_the_watch_ends_with_a_step_that_the_run_has_not_had():
    fleet = ResumedFleet()

    preemption.by_watch(fleet, 95)

    assert fleet.steps[-1] > 95
