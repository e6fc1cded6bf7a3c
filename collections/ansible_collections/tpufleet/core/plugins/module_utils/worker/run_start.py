"""Start and stop of a run's process on this worker, and the checks before a start."""

from __future__ import annotations

import pwd
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import run_checkpoints
from .contract import USER
from .devices import groups, holders
from .image import Image, image_folder, unit_settings
from .launch_spec import LaunchSpec
from .process import (
    Process,
    environment,
    environment_file,
    launch_file,
    secrets_file,
)
from .python_env import env_id, is_complete, network_environment, python_minor
from .release import release_problems, summary
from .run import RunError, WorkerPaths, chip_of, overlap
from .run_state import RunState
from .run_unit import launched_here, observe, read_launch
from .safe_files import is_directory, make_directory, remove_file, write_file
from .setup_stamp import is_set_up
from .units import UNIT, active, active_runs, systemctl

DROP_INS = Path("/run/systemd/system")
LIBTPU_LOCKFILE = Path("/tmp/libtpu_lockfile")  # noqa: S108 - libtpu's own path
END_STRAYS = "End it: ansible-playbook playbooks/kill.yml -e strays=true"
"""Advice for errors about a process that holds a device but belongs to no run."""
SETUP = (
    "ansible-playbook setup.yml (with the -e tpu=, -e requirements= and -e jax_lock= of this "
    "launch, if it has them)"
)


def process_of(params: Mapping[str, Any], paths: WorkerPaths) -> Process:
    """Return the process that a launch starts on this worker.

    ``params`` are the options of the module run or run_command. Raises InvalidLaunchError,
    RunError, EnvError.
    """
    spec = LaunchSpec.from_json(params["launch"])
    run = params.get("run", spec.run)
    if spec.run != run:
        raise RunError(f"run {run}: received a launch of another run ({spec.run})")
    if not 0 <= params["process_id"] < spec.workers:
        raise RunError(
            f"run {spec.run}: process {params['process_id']} does not exist. The launch has "
            f"{spec.workers} processes, numbered from 0"
        )
    return Process(
        spec=spec,
        process_id=params["process_id"],
        python_env=env_id(spec.requirements, minor_of(paths.root / "bin/python")),
        worker_env={name: str(value) for name, value in params["env"].items()},
        secrets={name: str(value) for name, value in params["secrets"].items()},
        token=params.get("token") or "",
    )


def minor_of(python: Path) -> int:
    """Return the minor version of the worker's Python.

    Takes the version from the interpreter's file name if possible, which is faster than starting
    Python. Raises EnvError.
    """
    match = re.fullmatch(r"python3\.(\d+)", python.resolve().name)
    return int(match[1]) if match and python.exists() else python_minor(python)


def status(process: Process, observed: Mapping, paths: WorkerPaths) -> str:
    """Compare a launch with the observed state of its run on this worker (``observe``).

    Returns ``running`` or ``done`` if this launch is running or done. Returns ``other`` if the run
    is stopping or another launch of the run is active. Otherwise returns ``absent``.
    """
    is_same = is_same_launch(process, paths)
    if observed["active"]:
        return "running" if is_same and observed["state"] != RunState.STOPPING else "other"
    return "done" if is_same and observed["state"] == RunState.DONE else "absent"


def is_same_launch(process: Process, paths: WorkerPaths) -> bool:
    """Return whether this worker's last launch of the run equals the given one."""
    return read_launch(process.spec.run, paths).get("identity") == process.identity()


def blockers(
    process: Process,
    paths: WorkerPaths,
    device_glob: str = "",
    units: Mapping[str, dict[str, str]] | None = None,
    is_preemptible: bool = False,
) -> list[str]:
    """Return what blocks the start of a launch on this worker: one line each, with the fix.

    A missing release is not a blocker, because it can be pushed (``release_problem``).

    Args:
        process: the process to start.
        paths: the worker's directories.
        device_glob: the pattern of the accelerators' device files; empty for none.
        units: systemd's properties of all runs' units (``unit_states``); None to query them.
        is_preemptible: whether the TPU is preemptible, so that checkpoints on its own disks block
            the start.
    """
    spec, variables = process.spec, {**process.variables(), **process.secrets}
    problems, running = [], active_runs() if units is None else active(units)
    for other in running:
        observed = observe(other, paths, unit=(units or {}).get(other))
        if other != spec.run and not overlap(spec.chip, chip_of(observed["launched"])):
            continue
        if other != spec.run:
            problems.append(
                f"run {other} is {observed['state']} here. Free the worker: "
                f"ansible-playbook playbooks/kill.yml -e run={other}"
            )
        elif not is_same_launch(process, paths):
            problems.append(
                f"run {other} is {observed['state']} with "
                f"{other_launch(observed['launched'], process)}. "
                f"Stop it first: ansible-playbook playbooks/kill.yml -e run={other}"
            )
    if not is_set_up(paths.root):
        problems.append(
            f"this worker is not set up for this version of tpufleet. Set it up: {SETUP}"
        )
    if not spec.image and not is_complete(paths.python_env(process.python_env)):
        problems.append(
            f"the Python environment {process.python_env} is missing. Create it: {SETUP}"
        )
    if device_glob and spec.run not in running:
        problems += [
            f"{holder}, but belongs to no run. {END_STRAYS}"
            for holder in holders(device_glob, chip=spec.chip)
        ]
    checkpoint_problem = run_checkpoints.unwritable_reason(spec.checkpoints, variables)
    if checkpoint_problem:
        problems.append(checkpoint_problem)
    if outputs_problem := run_checkpoints.unwritable_outputs_reason(
        spec.outputs, spec.checkpoints, variables
    ):
        problems.append(outputs_problem)
    # Do not call lost_with_tpu for a location that is not writable: the call would hang on a file
    # system that does not respond.
    if is_preemptible and not spec.volatile_checkpoints and not checkpoint_problem:
        problems += lost_with_tpu(process)
    return problems


def held_device(process: Process, device_glob: str, paths: WorkerPaths) -> str:
    """Return an error if a process holds a device that a command needs, else an empty string.

    ``process`` describes the command, and ``device_glob`` is the pattern of the accelerators'
    device files.
    """
    spec = process.spec
    if "tpu" not in (process.variables().get("JAX_PLATFORMS") or "tpu").split(","):
        return ""
    device_holders = holders(device_glob, chip=spec.chip) if device_glob else []
    if not device_holders:
        return ""
    on_cpu = "or use the CPU: -e env=JAX_PLATFORMS=cpu"
    for other in active_runs():
        if overlap(spec.chip, chip_of(launched_here(other, paths))):
            return (
                f"run {other} holds the devices ({device_holders[0]}). Stop it: "
                f"ansible-playbook playbooks/kill.yml -e run={other}, {on_cpu}"
            )
    return f"{device_holders[0]}, but belongs to no run. {END_STRAYS}, {on_cpu}"


def lost_with_tpu(process: Process) -> list[str]:
    """Return why a preemption would destroy the checkpoints; empty if they would survive."""
    leader = process.spec.rendezvous_address[0]
    reason = run_checkpoints.loss_reason(process.spec.checkpoints, leader)
    if not reason:
        return []
    return [
        f"{reason}, and this TPU can be preempted. Use a bucket: "
        "ansible-playbook train.yml -e checkpoints=gs://BUCKET/PREFIX, "
        "or accept the loss: -e volatile_checkpoints=true"
    ]


def release_problem(process: Process, paths: WorkerPaths) -> str:
    """Return what is wrong with this worker's copy of the release; empty if it is intact.

    The playbook that starts the process replaces a missing or damaged copy first. push.yml is no
    fix: it pushes the current code, which may be another release.
    """
    name = process.spec.release
    release = paths.release(name)
    problems = release_problems(release, name) if release.exists() else ["it is missing"]
    if not problems:
        return ""
    return (
        f"release {name}: {summary(problems)}. Run the playbook with the same options again, which "
        f"pushes the release. For a launch: ansible-playbook train.yml -e run={process.spec.run}"
    )


def image_problem(process: Process, paths: WorkerPaths, reported: str = "") -> str:
    """Return an error if the launch's image is missing on this worker, else an empty string.

    ``reported`` is the error with which the image's installation failed; empty if it did not fail.
    """
    image = process.spec.image
    if not image or Image.read(image_folder(paths, image)):
        return ""
    return reported or (
        f"image {image}: it is missing. Run the playbook with the same options again, which "
        f"installs it. For a launch: ansible-playbook train.yml -e run={process.spec.run} "
        f"-e image={image} -e command='\"PROGRAM ARGUMENT …\"'"
    )


def other_launch(launched: Mapping, process: Process) -> str:
    """Describe how the active launch ``launched`` differs from the requested one."""
    if launched.get("release") != process.spec.release:
        return f"release {launched.get('release')} (requested: {process.spec.release})"
    return "another config, command or set of workers"


def start(process: Process, paths: WorkerPaths, device_glob: str = "") -> None:
    """Write the files that the unit needs, then start the unit. Raises RunError, OSError.

    ``device_glob`` is the pattern of the device files that the process may open.
    """
    account, spec = pwd.getpwnam(USER), process.spec
    run_dir, unit_dir = paths.run_dir(spec.run), paths.unit_dir(spec.run)
    for owned in (paths.home, run_dir):
        if not is_directory(owned, account.pw_uid):
            make_directory(owned, account.pw_uid, 0o755)
    unit_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    cache = usable_cache(spec.compile_cache, account)
    image = Image.read(image_folder(paths, spec.image)) if spec.image else None
    if spec.image and not image:
        raise RunError(image_problem(process, paths))
    path = image.path(paths) if image else ""
    variables = environment(process, paths, network_environment({}), cache, path)
    environment_text, secrets_text = environment_file(variables), secrets_file(process)
    launch_text = launch_file(process, image.for_attempt(variables) if image else None)
    is_known = (unit_dir / "launch.json").exists()
    # durable=False: a power cut ends the attempt, so these files need not survive a power cut.
    if spec.config is not None:
        write_file(run_dir / "config.yml", spec.config, 0o644, durable=False)
    write_file(unit_dir / "environment", environment_text, 0o600, durable=False)
    write_file(unit_dir / "secrets", secrets_text, 0o600, durable=False)
    unit = UNIT.format(spec.run)
    local_paths = [location for location in (spec.checkpoints, cache) if location.startswith("/")]
    drop_ins = {
        "device-groups.conf": device_access(groups(device_glob)),
        "image.conf": unit_settings(image, paths, local_paths) if image else "",
        "mounts.conf": required_mounts(spec.checkpoints),
    }
    configure(unit, drop_ins)
    write_file(unit_dir / "launch.json", launch_text, 0o640, durable=False, group=account.pw_gid)
    # Remove these files last. If an earlier step fails, they still say how the previous attempt
    # ended.
    for name in ("heartbeat.json", "exit.json", "rendezvous.json"):
        remove_file(run_dir / name)
    # Make systemd forget how the previous attempt ended. Otherwise it would report that end if this
    # start fails.
    if is_known:
        subprocess.run(["systemctl", "reset-failed", unit], capture_output=True, check=False)
    systemctl("start", unit)


def usable_cache(cache: str, account: pwd.struct_passwd) -> str:
    """Return the compilation cache (a path or URI) if it is usable, else an empty string.

    A missing directory is created as the trainer's user (``account``), not as root, because the
    path may come from a record that somebody has changed. A directory is not usable if it cannot be
    created or has another owner. A run also works without a shared cache.
    """
    if not cache or "://" in cache:
        return cache
    mkdir_command = ["mkdir", "--parents", "--mode=0700", "--", cache]
    credentials = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    try:
        if not Path(cache).exists():
            subprocess.run(
                mkdir_command, capture_output=True, check=False, timeout=10, **credentials
            )
        return cache if is_directory(Path(cache), account.pw_uid) else ""
    except (OSError, subprocess.TimeoutExpired):
        return ""


def device_access(gids: list[int]) -> str:
    """Return a systemd drop-in that allows a unit to open accelerator devices.

    ``gids`` are the ids of the groups that own the devices. The drop-in adds the unit's user to
    these groups.
    """
    return f"[Service]\nSupplementaryGroups={' '.join(map(str, gids))}\n" if gids else ""


def required_mounts(checkpoints: str) -> str:
    """Return a systemd drop-in that keeps the checkpoint location mounted until the unit stops.

    The unit file itself requires only the mount of the shared directory. Returns an empty string
    for a bucket.
    """
    is_local = checkpoints.startswith("/")
    return f'[Unit]\nRequiresMountsFor="{checkpoints}"\n' if is_local else ""


def configure(unit: str, drop_ins: Mapping[str, str]) -> None:
    """Write a unit's drop-ins, and make systemd read them if one has changed.

    ``drop_ins`` maps file names to texts; a file with an empty text is removed.
    """
    is_changed = False
    for name, text in drop_ins.items():
        drop_in = DROP_INS / f"{unit}.d" / name
        before = drop_in.read_text(encoding="utf-8") if drop_in.exists() else ""
        if text == before:
            continue
        is_changed = True
        if text:
            drop_in.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_file(drop_in, text, 0o644)
        else:
            drop_in.unlink()
    if is_changed:
        systemctl("daemon-reload")


def free_device(device_glob: str, check: bool = False, chip: int = -1) -> tuple[list[str], bool]:
    """Remove libtpu's lock file, unless a run is active or a process holds the file or a device.

    Returns the processes that hold a device, and whether the lock file was removed. With ``check``,
    nothing is removed, and the second value says whether it would be.

    If ``chip`` is not negative, the list has only the processes that hold the device of the chip
    with this index. If ``chip`` is negative, the list is empty while a run is active, because that
    run may hold the devices.
    """
    if not device_glob:
        return [], False
    lockfile, others, device_holders = LIBTPU_LOCKFILE, active_runs(), holders(device_glob)
    is_removable = not (device_holders or others or holders(str(lockfile))) and lockfile.exists()
    if is_removable and not check:
        lockfile.unlink(missing_ok=True)
    if chip >= 0:
        return holders(device_glob, chip=chip), is_removable
    return ([] if others else device_holders), is_removable
