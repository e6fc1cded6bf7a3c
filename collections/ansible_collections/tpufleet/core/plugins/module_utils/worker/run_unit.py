"""What a worker does for a run: look whether it can start, start it, stop it, say how it stands."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from . import run_checkpoints
from .certificate import read_certificate
from .contract import USER
from .devices import groups, holders
from .error_line import error_line, last_attempt
from .python_env import is_complete, network_environment
from .release import proven, summary
from .run import (
    Launch,
    Places,
    RunError,
    chip_of,
    environment,
    environment_file,
    fill,
    overlap,
    secrets_file,
)
from .run_files import (
    Exit,
    Heartbeat,
    Rendezvous,
    read_exit,
    read_heartbeat,
    read_rendezvous,
)
from .run_log import tail
from .run_state import (
    ACTIVE_STATES,
    ACTIVE_UNIT,
    KILLED_REASONS,
    RENDEZVOUS_REASONS,
    ProcessState,
    RunState,
    process_state,
)
from .safe_files import (
    is_directory,
    make_directory,
    open_file,
    read_json,
    remove_file,
    write_file,
)

UNIT = "tpufleet-run@{}.service"
UNIT_FILE = Path("/etc/systemd/system/tpufleet-run@.service")
DROP_INS = Path("/run/systemd/system")
SHOWN = (
    *("Id", "LoadState", "ActiveState", "SubState", "Result"),
    *("ExecMainCode", "ExecMainStatus", "ExecMainExitTimestampMonotonic"),
)
END_CODES = {"1": "exited", "2": "killed", "3": "dumped"}  # CLD_EXITED and so on, waitid(2)
ERROR_LINES = 200
LIBTPU_LOCKFILE = Path("/tmp/libtpu_lockfile")  # noqa: S108 - libtpu's own place


def unit_state(run: str) -> dict[str, str]:
    """Ask systemd how the run's unit stands."""
    return unit_states([run])[run]


def unit_states(runs: list[str], others: bool = False) -> dict[str, dict[str, str]]:
    """Ask systemd, once, how the units of runs stand, and those of all ``others`` that are active;
    each is a paragraph of its answer."""
    units = [UNIT.format(run) for run in [*runs, *(["*"] if others else [])]]
    if not units:
        return {}
    found = {}
    # Of what the pattern finds: else each run that has failed since the boot is told as well, and
    # takes some milliseconds. Who is named is told in any state.
    only = [f"--state={','.join(ACTIVE_UNIT)}"] if others else []
    words = ["show", f"--property={','.join(SHOWN)}", *only, *units]
    for paragraph in systemctl(*words).split("\n\n"):
        unit = dict(line.split("=", 1) for line in paragraph.splitlines() if "=" in line)
        if unit:
            found[run_of(unit.get("Id", ""))] = unit
    missing = [run for run in runs if run not in found]
    if missing:
        raise RunError(f"systemctl show: no answer for {', '.join(missing)}")
    return found


def run_of(unit: str) -> str:
    """Name the run of a unit."""
    return unit.removeprefix("tpufleet-run@").removesuffix(".service")


def active(units: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Name the runs of these units that have a process on this worker now."""
    return [run for run, unit in units.items() if unit.get("ActiveState") in ACTIVE_UNIT]


def end_by_systemd(unit: Mapping[str, str], attempt: int | None) -> Exit | None:
    """Return how an attempt ended by systemd's account; None if it does not know.

    If a whole unit is killed, nothing is left to write exit.json. systemd forgets at a reboot
    (systemd.exec(5), org.freedesktop.systemd1(5)).
    """
    code = END_CODES.get(unit.get("ExecMainCode", ""))
    if unit.get("ActiveState") in ACTIVE_UNIT or code is None:
        return None
    status = unit.get("ExecMainStatus", "")
    if code != "exited":
        status = signal.Signals(int(status)).name[len("SIG") :]
    since_boot_s = int(unit.get("ExecMainExitTimestampMonotonic") or 0) / 1e6
    age_s = time.clock_gettime(time.CLOCK_MONOTONIC) - since_boot_s
    ended_at = round(time.time() - age_s, 3)
    return Exit(attempt, unit.get("Result", ""), code, status, ended_at)


def active_runs() -> list[str]:
    """Name the runs that have a process on this worker now."""
    return active(unit_states([], others=True))


def systemctl(*arguments: str) -> str:
    """Run systemctl; a failure is a RunError with its first line."""
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        complaint = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        raise RunError(f"systemctl {arguments[0]}: {complaint[0]}")
    return done.stdout


def observe(run: str, places: Places, lines: int = 0, unit: dict[str, str] | None = None) -> dict:
    """Return the state of a run on this worker, with the last lines of its log.

    ``unit`` is what systemd reports of it, if it was asked already. A controller reads the answer
    by plugin_utils/runs/process.py.
    """
    unit = unit_state(run) if unit is None else unit
    folder = places.run_dir(run)
    launched = read_json(places.unit_dir(run) / "launch.json") or {}
    heartbeat = read_heartbeat(read_json(folder / "heartbeat.json"))
    rendezvous = read_rendezvous(read_json(folder / "meeting.json"))
    ended = read_exit(read_json(folder / "exit.json"))
    ended = ended or end_by_systemd(unit, launched.get("attempt"))
    found = process_state(unit, heartbeat, ended, rendezvous, launched.get("command") or ())
    is_active = found.state in ACTIVE_STATES
    met = rendezvous
    if ended and met and met.attempt != ended.attempt:
        met = None
    return {
        "run": run,
        "state": found.state.value,
        "reason_code": found.reason_code.value,
        "exit_code": found.exit_code,
        "signal": found.signal,
        "ended_at": ended.time if ended and not is_active else None,
        "waiting_for": list(met.waiting_for or ()) if met and is_active else [],
        "peer": met.peer if met and not is_active else "",
        "peer_exit_code": met.peer_exit_code if met and not is_active else None,
        "error": "" if is_active else error_of(found, met, folder / "log"),
        "active": is_active,
        "attempt": launched.get("attempt"),
        "release": launched.get("release"),
        "has_environment": is_complete(places.python_env(str(launched.get("python_env") or ""))),
        "launched": launched,
        "heartbeat": heartbeat._asdict() if heartbeat else None,
        "heartbeat_age": age(heartbeat),
        "output_age": output_age(folder / "log") if is_active else None,
        "log": tail(folder / "log", lines),
    }


def error_of(found: ProcessState, rendezvous: Rendezvous | None, log: Path) -> str:
    """Return the error message of an attempt that failed, empty if there is none."""
    if found.state is not RunState.FAILED:
        return ""
    if found.reason_code in RENDEZVOUS_REASONS:
        return rendezvous.error if rendezvous else ""
    if found.reason_code in KILLED_REASONS:
        return ""
    return error_line(last_attempt(tail(log, ERROR_LINES)))


def age(heartbeat: Heartbeat | None) -> float | None:
    """Return the seconds since the heartbeat, by this worker's clock, which also wrote it."""
    if heartbeat is None or heartbeat.time is None:
        return None
    return round(max(0.0, time.time() - heartbeat.time), 1)


def output_age(log: Path) -> float | None:
    """Return the seconds since something was written to a log; None if there is none."""
    try:
        with open_file(log) as stream:
            return round(max(0.0, time.time() - os.fstat(stream.fileno()).st_mtime), 1)
    except OSError:
        return None


def known_runs(places: Places) -> list[str]:
    """Name the runs that were ever launched here."""
    return sorted(path.parent.name for path in (places.etc / "runs").glob("*/launch.json"))


def standing(launch: Launch, seen: dict) -> str:
    """Return how a launch relates to the observed run (``observe``).

    ``running``, ``done``, ``absent``, or ``other`` if the run is active, but not as this launch.
    """
    same = seen["launched"].get("identity") == launch.identity()
    if seen["active"]:
        return "running" if same and seen["state"] != RunState.STOPPING else "other"
    return "done" if same and seen["state"] == RunState.DONE else "absent"


def obstacles(
    launch: Launch,
    places: Places,
    device_glob: str = "",
    units: Mapping[str, dict[str, str]] | None = None,
) -> list[str]:
    """Tell what keeps a launch from starting here: each line what was seen, and what mends it.

    ``units`` is what systemd says of all runs, for who has asked already. A release that is missing
    is no obstacle: it comes by itself (``release_trouble``).
    """
    found, running = [], active_runs() if units is None else active(units)
    for other in running:
        seen = observe(other, places, unit=(units or {}).get(other))
        if other != launch.run and not overlap(launch.chip, chip_of(seen["launched"])):
            continue
        if other != launch.run:
            found.append(
                f"run {other} is {seen['state']} here: "
                f"ansible-playbook playbooks/kill.yml -e run={other} frees the worker"
            )
        elif seen["launched"].get("identity") != launch.identity():
            found.append(
                f"run {other} is {seen['state']} with {other_launch(seen['launched'], launch)}: "
                f"ansible-playbook playbooks/kill.yml -e run={other} first"
            )
    if read_certificate(places.root) is None:
        found.append("this worker is not set up: ansible-playbook setup.yml")
    if not is_complete(places.python_env(launch.python_env)):
        found.append(
            f"there is no Python environment {launch.python_env}: "
            "ansible-playbook setup.yml makes it"
        )
    if device_glob and launch.run not in running:
        found += [f"{held}: end it first" for held in holders(device_glob, chip=launch.chip)]
    if launch.secrets and not takes_secrets():
        found.append(
            "the unit of runs is of an older tpufleet, which takes secrets another way: "
            "ansible-playbook setup.yml"
        )
    trouble = run_checkpoints.trouble(launch.checkpoints, launch.variables())
    if trouble:
        found.append(trouble)
    return found


def takes_secrets(template: Path = UNIT_FILE) -> bool:
    """Tell whether the unit of runs on this worker takes secrets as a credential."""
    try:
        return "LoadCredential=secrets:" in template.read_text(encoding="utf-8")
    except OSError:
        return False


def release_trouble(launch: Launch, places: Places) -> str:
    """Say what the worker's copy of the launch's release lacks; nothing if it is whole."""
    release = places.release(launch.release)
    problems = proven(release, launch.release) if release.exists() else ["it is not there"]
    if not problems:
        return ""
    return f"release {launch.release}: {summary(problems)}: ansible-playbook playbooks/push.yml"


def other_launch(launched: dict, launch: Launch) -> str:
    """Say in which way what is running differs from what is asked for."""
    if launched.get("release") != launch.release:
        return f"release {launched.get('release')} (asked for: {launch.release})"
    return "another config, command or set of workers"


def start(launch: Launch, places: Places, device_glob: str = "") -> None:
    """Write what the unit needs and start it. Raises RunError, OSError."""
    account = pwd.getpwnam(USER)
    run_dir, unit_dir = places.run_dir(launch.run), places.unit_dir(launch.run)
    for owned in (places.home, run_dir):
        if not is_directory(owned, account.pw_uid):
            make_directory(owned, account.pw_uid, 0o755)
    unit_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    for stale in ("heartbeat.json", "exit.json", "meeting.json"):
        remove_file(run_dir / stale)
    # None of this need outlive a power cut: the run has ended then, and its record is elsewhere.
    if launch.config is not None:
        write_file(run_dir / "config.yml", launch.config, 0o644, durable=False)
    command = {
        "argv": fill(launch.command, launch, places),
        "cwd": str(places.release(launch.release)),
        "run_dir": str(run_dir),
    }
    cache = usable_cache(launch.compile_cache, account)
    variables = environment(launch._replace(compile_cache=cache), places, network_environment({}))
    write_file(unit_dir / "environment", environment_file(variables), 0o600, durable=False)
    write_file(unit_dir / "secrets", secrets_file(launch), 0o600, durable=False)
    write_file(unit_dir / "command", json.dumps(command, indent=1) + "\n", 0o644, durable=False)
    before = (unit_dir / "launch.json").exists()
    told = json.dumps(summary_of(launch), indent=1) + "\n"
    write_file(unit_dir / "launch.json", told, 0o644, durable=False)
    unit = UNIT.format(launch.run)
    allow(groups(device_glob), unit)
    if before:  # or how the last attempt ended would be this one's end, if systemd can't start it
        subprocess.run(["systemctl", "reset-failed", unit], capture_output=True, check=False)
    systemctl("start", unit)


def usable_cache(wanted: str, account: pwd.struct_passwd) -> str:
    """Create the shared compilation cache, for the trainer's user alone; return its path or URI.

    Returns an empty string where it cannot be created: a run needs no cache. A directory that is
    somebody else's stays so, since whoever launches a run chooses the path.
    """
    if not wanted or "://" in wanted:
        return wanted
    place = Path(wanted)
    try:
        if not is_directory(place, account.pw_uid):
            if place.exists():
                return ""
            make_directory(place, account.pw_uid, 0o700)
    except OSError:
        return ""
    return wanted


def allow(gids: list[int], unit: str, folder: Path = DROP_INS) -> None:
    """Let the unit's user have the groups of the devices, as they are on this worker now."""
    place = folder / f"{unit}.d" / "device-groups.conf"
    text = f"[Service]\nSupplementaryGroups={' '.join(map(str, gids))}\n" if gids else ""
    before = place.read_text(encoding="utf-8") if place.exists() else ""
    if text == before:
        return
    if text:
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_file(place, text, 0o644)
    else:
        place.unlink()
    systemctl("daemon-reload")


def summary_of(launch: Launch) -> dict:
    """Give what is kept of a launch: nothing of its environment, which may hold secrets."""
    return {
        "identity": launch.identity(),
        "attempt": launch.attempt,
        "release": launch.release,
        "python_env": launch.python_env,
        "command": list(launch.command),
        "num_processes": launch.num_processes,
        "process_id": launch.process_id,
        "coordinator": launch.coordinator,
        "checkpoints": launch.checkpoints,
        "chip": launch.chip,
    }


def stop(run: str, device_glob: str = "", chip: int = -1) -> list[str]:
    """Stop a run: TERM to all of it, time to save, KILL (the unit's own times); then free the
    device.

    Returns who holds the device, or its ``chip``, still; libtpu's lockfile goes only when nobody
    holds any.
    """
    systemctl("stop", UNIT.format(run))
    return free_device(device_glob, chip=chip)[0]


def free_device(
    device_glob: str, lockfile: Path = LIBTPU_LOCKFILE, check: bool = False, chip: int = -1
) -> tuple[list[str], bool]:
    """Take libtpu's lockfile away if no process holds a device and no run is active.

    Returns who holds a device (of a ``chip``, that one) still, and whether the file was there to be
    taken.
    """
    if not device_glob:
        return [], False
    others, left = active_runs(), holders(device_glob)
    taken = not left and not others and lockfile.exists()
    if taken and not check:
        lockfile.unlink(missing_ok=True)
    if chip >= 0:
        return holders(device_glob, chip=chip), taken
    return ([] if others else left), taken
