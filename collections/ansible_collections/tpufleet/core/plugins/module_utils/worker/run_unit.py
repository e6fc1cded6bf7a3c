"""The observed state of this worker's runs, from systemd and the runs' files."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from .end_state import KILLED_REASONS, ProcessState, end_state
from .error_line import error_line, last_attempt
from .process import MAX_LAUNCH_BYTES, launch_summary
from .python_env import is_complete
from .run import WorkerPaths, runs_trainer
from .run_files import (
    Exit,
    Heartbeat,
    Rendezvous,
    read_exit,
    read_heartbeat,
    read_rendezvous,
)
from .run_log import tail
from .run_state import ACTIVE_STATES, ReasonCode, RunState
from .safe_files import open_file, read_json
from .setup_stamp import is_set_up
from .units import ACTIVE_UNIT, unit_states

# Values of systemd's ExecMainCode (si_code in waitid(2)), each with the matching $EXIT_CODE.
END_CODES = {"1": "exited", "2": "killed", "3": "dumped"}
ERROR_LINES = 200
RENDEZVOUS_REASONS = frozenset({ReasonCode.RENDEZVOUS_FAILED, ReasonCode.CHECKPOINTS_NOT_SHARED})
"""Failures before the trainer started. Their error message is in rendezvous.json."""


def end_by_systemd(unit: Mapping[str, str], attempt: int | None) -> Exit | None:
    """Return how an attempt ended according to systemd; None if systemd does not know.

    Use it if exit.json is missing: all processes of the unit may have been killed before one could
    write the file. A reboot erases what systemd knows (systemd.exec(5),
    org.freedesktop.systemd1(5)).
    """
    code = END_CODES.get(unit.get("ExecMainCode", ""))
    if unit.get("ActiveState") in ACTIVE_UNIT or code is None:
        return None
    status = unit.get("ExecMainStatus", "")
    if code != "exited" and int(status) in {*signal.Signals}:  # real-time signals have no name
        status = signal.Signals(int(status)).name[len("SIG") :]
    since_boot_s = int(unit.get("ExecMainExitTimestampMonotonic") or 0) / 1e6
    age_s = time.clock_gettime(time.CLOCK_MONOTONIC) - since_boot_s
    ended_at = round(time.time() - age_s, 3)
    return Exit(attempt, unit.get("Result", ""), code, status, ended_at)


def observe(
    run: str, paths: WorkerPaths, lines: int = 0, unit: dict[str, str] | None = None
) -> dict:
    """Return the observed state of a run on this worker.

    ``lines`` is the number of lines of the log to include. ``unit`` has systemd's properties of the
    run's unit; None to query them. The controller parses the result with
    plugin_utils/runs/observation.py.
    """
    unit = unit_states([run])[run] if unit is None else unit
    folder = paths.run_dir(run)
    launched = launched_here(run, paths)
    heartbeat = read_heartbeat(read_json(folder / "heartbeat.json"))
    rendezvous = read_rendezvous(read_json(folder / "rendezvous.json"))
    ended = read_exit(read_json(folder / "exit.json"))
    if ended and launched.get("attempt") not in (None, ended.attempt):
        # This exit.json is from an earlier attempt: a launch first writes launch.json, then removes
        # exit.json.
        ended = None
    ended = ended or end_by_systemd(unit, launched.get("attempt"))
    is_own_trainer = runs_trainer(launched.get("command") or ())
    observed = process_state(unit, heartbeat, ended, rendezvous, is_own_trainer)
    is_active = observed.state in ACTIVE_STATES
    reported = rendezvous
    if ended and reported and reported.attempt != ended.attempt:
        reported = None
    return {
        "run": run,
        "state": observed.state.value,
        "reason_code": observed.reason_code.value,
        "exit_code": observed.exit_code,
        "signal": observed.signal,
        "ended_at": ended.time if ended and not is_active else None,
        "waiting_for": list(reported.waiting_for or ()) if reported and is_active else [],
        "peer": reported.peer if reported and not is_active else "",
        "peer_exit_code": reported.peer_exit_code if reported and not is_active else None,
        "error": "" if is_active else error_message(observed, reported, folder / "log"),
        "active": is_active,
        "attempt": launched.get("attempt"),
        "release": launched.get("release"),
        "is_set_up": is_set_up(paths.root),
        "has_environment": is_complete(paths.python_env(str(launched.get("python_env") or ""))),
        "launched": launched,
        "heartbeat": heartbeat._asdict() if heartbeat else None,
        "heartbeat_age": age(heartbeat),
        "output_age": output_age(folder / "log") if is_active else None,
        "log": tail(folder / "log", lines),
    }


def launched_here(run: str, paths: WorkerPaths) -> dict:
    """Return the main fields of a run's last launch on this worker; empty if there is none."""
    return launch_summary(read_launch(run, paths))


def read_launch(run: str, paths: WorkerPaths) -> dict:
    """Return the content of a run's ``launch.json`` on this worker; empty if there is none."""
    return read_json(paths.unit_dir(run) / "launch.json", MAX_LAUNCH_BYTES) or {}


def error_message(observed: ProcessState, rendezvous: Rendezvous | None, log: Path) -> str:
    """Return the error message of a failed attempt; empty if there is none.

    ``observed`` is how the attempt ended, and ``log`` the path of the run's log.
    """
    if observed.state is not RunState.FAILED:
        return ""
    if observed.reason_code in RENDEZVOUS_REASONS:
        return rendezvous.error if rendezvous else ""
    if observed.reason_code in KILLED_REASONS:
        return ""
    return error_line(last_attempt(tail(log, ERROR_LINES)))


def age(heartbeat: Heartbeat | None) -> float | None:
    """Return the seconds since the heartbeat; None if there is none.

    The heartbeat's time is from this worker's clock, so the clocks of other machines do not matter.
    """
    if heartbeat is None or heartbeat.time is None:
        return None
    return round(max(0.0, time.time() - heartbeat.time), 1)


def output_age(log: Path) -> float | None:
    """Return the seconds since something was written to a log; None if there is no log."""
    try:
        with open_file(log) as stream:
            return round(max(0.0, time.time() - os.fstat(stream.fileno()).st_mtime), 1)
    except OSError:
        return None


def known_runs(paths: WorkerPaths) -> list[str]:
    """Return the names of the runs that were ever launched on this worker."""
    return sorted(path.parent.name for path in (paths.etc / "runs").glob("*/launch.json"))


def process_state(
    unit: Mapping[str, str],
    heartbeat: Heartbeat | None,
    ended: Exit | None,
    rendezvous: Rendezvous | None = None,
    has_heartbeat: bool = True,
) -> ProcessState:
    """Return the state of a run on this worker.

    Args:
        unit: systemd's properties of the run's unit.
        heartbeat: the trainer's last heartbeat.
        ended: how the last attempt ended; None if the attempt is active or its end is unknown.
        rendezvous: the progress of the rendezvous.
        has_heartbeat: whether the trainer is known to write heartbeats.
    """
    active = unit.get("ActiveState", "inactive")
    if active == "deactivating":
        return ProcessState(RunState.STOPPING)
    if active in ACTIVE_UNIT:
        if heartbeat:
            return ProcessState(RunState.TRAINING)
        if rendezvous and rendezvous.waiting_for is not None:
            return ProcessState(RunState.WAITING)
        return ProcessState(RunState.STARTING if has_heartbeat else RunState.RUNNING)
    return ProcessState(RunState.LOST) if ended is None else end_state(ended)
