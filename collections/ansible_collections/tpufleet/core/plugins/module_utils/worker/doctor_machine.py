"""The checks of playbooks/doctor.yml on a worker: disk, memory, devices, setup and recent errors.

The checks change nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .contract import ROOT
from .devices import device_files, holders, open_files, program, text_of
from .doctor_finding import Finding, ok, problem, unknown
from .run_checkpoints import on_same_disk, try_write
from .run_files import CONTROL
from .run_log import tail
from .setup_stamp import is_set_up, read_stamp
from .strays import strays

DISKS = ("/", "/tmp", "/var/lib/tpufleet", "/mnt/shared")  # noqa: S108 - only read
MIN_FREE_DISK = 0.05
MIN_FREE_MEMORY = 0.05
ERROR_LINES = 3
MAX_LINE = 300
LOG_LINES = 2000
LOG_HOURS = 24
KERNEL_ERROR = re.compile(
    r"out of memory|oom-kill|killed process|i/o error|hung task|blocked for more than"
    r"|remounting filesystem read-only|ext4-fs error|machine check|hardware error"
    r"|soft lockup|nfs: server .* not responding|general protection fault",
    re.IGNORECASE,
)
LIBTPU_ERROR = re.compile(r"^[EF]\d{4} ")
"""Start of a glog line of level E (error) or F (fatal): the level, then the month and the day."""


@dataclass(frozen=True)
class Machine:
    """A worker, and the paths to check on it.

    Args:
        name: the worker's name in the inventory.
        device_glob: the pattern of the accelerators' device files; empty if the worker has none.
        chips: the number of device files that the worker must have.
        proc: the directory of procfs.
        root: tpufleet's directory of environments and programs.
        lockfile: libtpu's lockfile.
        tpu_logs: the directory of libtpu's logs.
        disks: paths on the file systems whose free space is checked.
        fleet_state: where run records are. If it is a ``gs://`` URI, write access is checked.
        checkpoints: the default location of runs' checkpoints.
        workers: the number of workers of the TPU.
        worker_id: the number of this worker in the TPU, from 0.
        root_disk: a path on the worker's own disk; checkpoints on this disk are not shared.
    """

    name: str
    device_glob: str = ""
    chips: int = 0
    proc: Path = Path("/proc")
    root: Path = Path(ROOT)
    lockfile: Path = Path("/tmp/libtpu_lockfile")  # noqa: S108 - libtpu's default
    tpu_logs: Path = Path("/tmp/tpu_logs")  # noqa: S108 - libtpu's default
    disks: Sequence[str] = DISKS
    fleet_state: str = ""
    checkpoints: str = ""
    workers: int = 1
    worker_id: int = 0
    root_disk: str = "/"


def check_worker(machine: Machine, kernel: Sequence[str] | None) -> list[Finding]:
    """Run all checks and return their findings.

    ``kernel`` are the kernel's recent log lines (``kernel_lines``).
    """
    return [
        *disk_findings(machine),
        memory_finding(machine),
        *device_findings(machine),
        *checkpoint_findings(machine),
        lock_finding(machine),
        *setup_findings(machine),
        kernel_finding(kernel),
        libtpu_finding(machine, time.time()),
        *records_findings(machine),
    ]


def disk_findings(machine: Machine) -> Iterator[Finding]:
    """Check the free space and inodes of the file systems that contain ``machine.disks``."""
    checked_devices = set()
    passed = []
    for path in machine.disks:
        try:
            device, stats = Path(path).stat().st_dev, os.statvfs(path)
        except OSError:
            continue
        if device in checked_devices or not stats.f_blocks:
            continue
        checked_devices.add(device)
        free_share, free_bytes = stats.f_bavail / stats.f_blocks, stats.f_bavail * stats.f_frsize
        free_inodes = stats.f_favail / stats.f_files if stats.f_files else 1.0
        message = f"{path} has {_size(free_bytes)} free ({free_share:.0%})"
        if free_share < MIN_FREE_DISK or free_inodes < MIN_FREE_DISK:
            summary = (
                message
                if free_share < MIN_FREE_DISK
                else f"{path} has {free_inodes:.0%} of its inodes free"
            )
            command = f"ansible {machine.name} -b -a 'du -xhd2 --threshold=1G {path}'"
            fix = f"free space; to list the largest directories, run: {command}"
            yield problem("disk", summary, fix)
        else:
            passed.append(message)
    if passed:
        yield ok("disk", ", ".join(passed))


def memory_finding(machine: Machine) -> Finding:
    """Check the available memory; if it is low, name the process that uses the most."""
    sizes = {}
    for line in text_of(machine.proc / "meminfo").splitlines():
        key, _, value = line.partition(":")
        fields = value.split()
        if fields and fields[0].isdigit():
            sizes[key] = int(fields[0]) * 1024
    total, available = sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)
    if not total:
        return problem(
            "memory", "/proc/meminfo can't be read", f"ansible {machine.name} -a 'free -m'"
        )
    message = f"{_size(available)} of {_size(total)} available"
    if available / total >= MIN_FREE_MEMORY:
        return ok("memory", message)
    largest = max(_resident(machine.proc), default=None)
    if largest is None:
        return problem("memory", message, f"ansible {machine.name} -b -a 'ps aux --sort=-rss'")
    size, name, pid = largest
    message = f"{message}; {name} (pid {pid}) uses {_size(size)}"
    fix = f"if this process belongs to no run, end it: ansible {machine.name} -b -a 'kill {pid}'"
    return problem("memory", message, fix)


def device_findings(machine: Machine) -> Iterator[Finding]:
    """Check the number of devices, and that only processes of runs have a device open."""
    if not machine.device_glob:
        yield ok("devices", "this type of worker has none")
        return
    count = len(device_files(machine.device_glob))
    if count < machine.chips:
        message = f"found {count} devices ({machine.device_glob}), expected {machine.chips}"
        yield problem("devices", message, f"ansible {machine.name} -b -m ansible.builtin.reboot")
    processes = strays(machine.device_glob, machine.proc)
    for process in processes:
        # Show the program's name only, because its arguments may be secret.
        name = program(machine.proc / str(process.pid))
        yield problem(
            "devices",
            f"{name} (pid {process.pid}) holds {process.device}, but belongs to no run",
            f"ansible {machine.name} -b -a 'kill {process.pid}'",
        )
    if count >= machine.chips and not processes:
        message = f"found {count} ({machine.device_glob}), only processes of runs hold them"
        yield ok("devices", message)


def checkpoint_findings(machine: Machine) -> Iterator[Finding]:
    """Check that the workers of a TPU can share the checkpoint directory.

    Worker 0 is not checked: the directory may be on its own disk, because the other workers can
    mount the directory from there by NFS.
    """
    if machine.workers == 1 or machine.worker_id == 0 or not machine.checkpoints.startswith("/"):
        return
    if on_same_disk(machine.checkpoints, machine.root_disk):
        yield problem(
            "checkpoints",
            f"{machine.checkpoints} is on this worker's own disk, which the other workers of its "
            "TPU cannot read, so launches on this TPU are refused",
            "set bucket in group_vars/all/bucket.yml, or set mounts, then run: "
            "ansible-playbook setup.yml",
        )
    else:
        yield ok("checkpoints", f"{machine.checkpoints} is not on this worker's own disk")


def lock_finding(machine: Machine) -> Finding:
    """Check for a leftover lockfile of libtpu, which would block the chips."""
    check = "lockfile"
    if not machine.lockfile.exists():
        return ok(check, "none")
    holding = [
        f"{program(folder)} (pid {folder.name})"
        for folder in machine.proc.glob("[0-9]*")
        if str(machine.lockfile) in open_files(folder)
    ]
    if holding or holders(machine.device_glob, machine.proc):
        holder = ", ".join(holding) or "the process that holds the devices"
        return ok(check, f"{machine.lockfile}, held by {holder}")
    message = f"{machine.lockfile} exists and no process holds it"
    return problem(check, message, f"ansible {machine.name} -b -a 'rm {machine.lockfile}'")


def setup_findings(machine: Machine) -> Iterator[Finding]:
    """Check that setup was completed, and that the environment exists.

    Lists the versions of Python, jax, jaxlib and libtpu in the environment.
    """
    setup = f"ansible-playbook setup.yml --limit {machine.name}"
    stamp = read_stamp(machine.root)
    if stamp is None:
        yield problem("setup", "setup was not completed", setup)
        return
    if is_set_up(machine.root):
        yield ok("setup", "completed")
    else:
        message = "another version of tpufleet set up this worker, so launches are refused"
        yield problem("setup", message, setup)
    env = machine.root / "envs" / str(stamp.get("environment") or "none")
    if not env.is_dir():
        yield problem("versions", f"the Python environment {env} is missing", setup)
        return
    versions = {}
    for name in ("jax", "jaxlib", "libtpu"):
        for folder in env.glob(f"lib/python3*/site-packages/{name}-*.dist-info"):
            versions[name] = folder.name[len(name) + 1 : -len(".dist-info")]
    python = next(iter(sorted(env.glob("lib/python3*"))), None)
    labels = [f"Python {python.name[len('python') :]}"] if python else []
    labels += [f"{name} {version}" for name, version in versions.items()]
    yield ok("versions", ", ".join(labels))


def records_findings(machine: Machine) -> Iterator[Finding]:
    """Check that this worker has no write access to run records, which controllers act on."""
    check = "run records"
    if not machine.fleet_state.startswith("gs://"):
        return
    try:
        try_write(machine.fleet_state, {}, must_delete=False)
    except OSError as error:
        if getattr(error, "code", None) in (401, 403):
            yield ok(check, f"this worker cannot write to {machine.fleet_state}")
        else:
            yield unknown(check, f"{machine.fleet_state} could not be checked: {error}")
    except ValueError:
        yield unknown(check, f"{machine.fleet_state} could not be checked: malformed response")
    else:
        message = (
            f"this worker can write to {machine.fleet_state}, so its runs can change all records"
        )
        yield problem(
            check,
            message,
            "give the workers a service account that can't write there (docs/security.md)",
        )


def kernel_finding(lines: Sequence[str] | None) -> Finding:
    """Search the kernel's log lines for errors, such as out of memory or I/O errors."""
    if lines is None:
        return unknown("kernel", "neither journalctl nor dmesg could read the kernel's log")
    errors = [shown(line) for line in lines if KERNEL_ERROR.search(line)]
    if not errors:
        return ok("kernel", f"no errors in the last {LOG_HOURS} hours")
    message = " | ".join(errors[-ERROR_LINES:])
    if re.search(r"out of memory|oom-kill|killed process", message, re.IGNORECASE):
        return problem("kernel", message, "reduce batch, or the number of processes that load data")
    if "nfs: server" in message:
        return problem(
            "kernel",
            message,
            "check the NFS server; if it is a worker: "
            "ansible-playbook playbooks/doctor.yml -e tpu=NAME",
        )
    return problem(
        "kernel",
        message,
        "recreate the worker's TPU: ansible-playbook playbooks/delete.yml -e tpu=NAME && "
        "ansible-playbook playbooks/create.yml -e tpu=NAME",
    )


def libtpu_finding(machine: Machine, now: float) -> Finding:
    """Search libtpu's logs of the last day for errors. ``now`` is in seconds since 1970."""
    errors, logs = [], []
    for path in {path.resolve() for path in machine.tpu_logs.glob("tpu_driver*")}:
        with contextlib.suppress(OSError):  # libtpu may have just removed the log
            logs.append((path.stat().st_mtime, path))
    recent = [path for time, path in sorted(logs) if now - time < LOG_HOURS * 3600]
    for path in recent:
        errors += [line for line in tail(path, LOG_LINES) if LIBTPU_ERROR.match(line)]
    if not errors:
        return ok("libtpu", "no errors in its log" if recent else "no log in the last day")
    last = list(dict.fromkeys(map(shown, errors)))[-ERROR_LINES:]
    return problem(
        "libtpu", " | ".join(last), f"ansible {machine.name} -b -m ansible.builtin.reboot"
    )


def kernel_lines() -> list[str] | None:
    """Return the kernel's recent log lines at level notice or more severe; None if unreadable."""
    for command in (
        ["journalctl", "--dmesg", "--priority=notice", "--no-pager", f"--since=-{LOG_HOURS}h"],
        ["dmesg", "--level=emerg,alert,crit,err,warn,notice", "--ctime"],
    ):
        try:
            result = subprocess.run(command, capture_output=True, check=False, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if result.returncode == 0:
            return result.stdout.decode("utf-8", errors="replace").splitlines()
    return None


def shown(line: str) -> str:
    """Return a line of a log without control characters, cut to MAX_LINE characters."""
    return CONTROL.sub(" ", line).strip()[:MAX_LINE]


def _resident(proc: Path) -> Iterator[tuple[int, str, str]]:
    for folder in proc.glob("[0-9]*"):
        pages = text_of(folder / "statm").split()
        if len(pages) > 1:
            yield int(pages[1]) * os.sysconf("SC_PAGE_SIZE"), program(folder), folder.name


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
