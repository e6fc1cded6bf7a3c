"""Queries to systemd for the units of runs on this worker: properties, and active runs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from .run import RunError

UNIT = "tpufleet-run@{}.service"
PROPERTIES = "Id,ActiveState,Result,ExecMainCode,ExecMainStatus,ExecMainExitTimestampMonotonic"
ACTIVE_UNIT = ("active", "activating", "reloading", "deactivating")
"""Values of systemd's ActiveState for a unit that has processes."""


def unit_states(runs: list[str], others: bool = False) -> dict[str, dict[str, str]]:
    """Return systemd's properties of the unit of each run in ``runs``; keys are the runs' names.

    With ``others``, also returns the properties of all other active runs. Raises RunError.
    """
    units = [UNIT.format(run) for run in [*runs, *(["*"] if others else [])]]
    if not units:
        return {}
    states = {}
    # The option --state limits the units that "*" matches. Otherwise systemd would also report
    # every run that has failed since the boot, which takes milliseconds for each. Units given by
    # name are reported in any state.
    state_filter = [f"--state={','.join(ACTIVE_UNIT)}"] if others else []
    for paragraph in systemctl("show", f"--property={PROPERTIES}", *state_filter, *units).split(
        "\n\n"
    ):
        unit = dict(line.split("=", 1) for line in paragraph.splitlines() if "=" in line)
        if unit:
            states[run_of(unit.get("Id", ""))] = unit
    missing = [run for run in runs if run not in states]
    if missing:
        raise RunError(
            f"systemctl show reported no state of these runs: {', '.join(missing)}. Run the "
            "playbook again"
        )
    return states


def run_of(unit: str) -> str:
    """Return the name of the run that a unit belongs to."""
    return unit.removeprefix("tpufleet-run@").removesuffix(".service")


def active(units: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the runs whose unit has a process on this worker now."""
    return [run for run, unit in units.items() if unit.get("ActiveState") in ACTIVE_UNIT]


def active_runs() -> list[str]:
    """Return the runs that have a process on this worker now. Raises RunError."""
    return active(unit_states([], others=True))


def systemctl(*arguments: str) -> str:
    """Run systemctl and return its output. Raises RunError with the first line of its error."""
    result = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        error_lines = result.stderr.strip().splitlines() or [f"exit {result.returncode}"]
        raise RunError(f"systemctl {arguments[0]}: {error_lines[0]}")
    return result.stdout
