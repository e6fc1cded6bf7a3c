"""Measure how long third-party trainers take to end after a kill, and whether they resume.

Runs Levanter and a PyTorch DDP script with two processes per attempt on this machine, without a
cloud. Each process is started as on a worker: by roles/run/files/attempt, with the environment
variables of a launch. A kill sends the same signals as systemd: SIGTERM to every process, and
later SIGKILL.

    python -m bench.foreign_trainers [--environments DIRECTORY] [--only levanter|ddp]

The packages are installed into virtual environments in DIRECTORY (several GB, as PyTorch's wheel
includes CUDA), by default a temporary one. They are in no lock file of this project.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "collections"))

from ansible_collections.tpufleet.core.plugins.module_utils.worker.error_line import (  # noqa: E402
    last_attempt,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.launch_spec import (  # noqa: E402
    LaunchSpec,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.process import (  # noqa: E402
    Process,
    environment,
    launch_file,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import WorkerPaths  # noqa: E402

from harness.process_tree import kill_all, tree_of  # noqa: E402

FILES = PROJECT / "examples"
PROCESSES = 2
STEPS_BEFORE_KILL = 10
START_SECONDS, KILL_SECONDS = 600, 120


@dataclass(frozen=True)
class Trainer:
    """A trainer: its packages, its command, and patterns of log lines.

    The pattern ``step`` captures the number of a step, and ``resumed`` captures the step from which
    the trainer resumes. ``saves`` is whether the trainer saves on SIGTERM, ``limit`` is how many
    seconds a kill may take.
    """

    name: str
    packages: tuple[str, ...]
    command: tuple[str, ...]
    step: re.Pattern[str]
    resumed: re.Pattern[str]
    saves: bool
    limit: float


LEVANTER = Trainer(
    "levanter",
    ("--prerelease", "allow", "marin-levanter"),
    (
        *("python", "-m", "levanter.main.train_lm", "--config_path", "levanter.yml"),
        *("--trainer.id", "{run}", "--trainer.log_dir", "{run_dir}/logs"),
        *("--trainer.checkpointer.base_path", "{checkpoints}"),
        *("--trainer.distributed.coordinator_address", "{coordinator}"),
        *("--trainer.distributed.num_processes", "{num_processes}"),
        *("--trainer.distributed.process_id", "{process_id}"),
    ),
    re.compile(r"Saved checkpoint to \S+ for step (\d+)"),
    re.compile(r"Resuming training from step (\d+)"),
    saves=False,
    limit=3,
)
DDP = Trainer(
    "ddp",
    ("torch", "numpy"),
    ("tpufleet_launch", "torch", "--processes", "2", "--", "python", "ddp.py", "{checkpoints}"),
    re.compile(r"^step (\d+)", re.MULTILINE),
    re.compile(r"resumed from step (\d+)"),
    saves=True,
    limit=10,
)


class Attempt:
    """One attempt of a trainer: PROCESSES processes, each started by roles/run/files/attempt."""

    def __init__(self, trainer: Trainer, number: int, folder: Path, env: Path) -> None:
        self.trainer, self.folder = trainer, folder
        self.processes = []
        for process in range(PROCESSES):
            own = folder / str(process)
            paths = WorkerPaths(own / "opt", own / "state", own / "etc")
            spec = LaunchSpec(
                run=trainer.name,
                release="0" * 16,
                requirements="0" * 64,
                command=tuple(trainer.command),
                checkpoints=str(folder / f"checkpoints/{trainer.name}"),
                tpu="bench",
                attempt=number,
                workers=PROCESSES,
                env={"JAX_PLATFORMS": "cpu"},
                volatile_checkpoints=True,
                coordinator_host="127.0.0.1",
                placement=tuple(f"worker-{n}" for n in range(PROCESSES)),
            )
            launch = Process(spec, process, "env", token="bench")  # noqa: S106 - not a secret
            for directory in (paths.run_dir(spec.run), paths.unit_dir(spec.run), paths.home):
                directory.mkdir(parents=True, exist_ok=True)
            code = paths.release(spec.release)
            code.parent.mkdir(parents=True, exist_ok=True)
            for link, target in (
                (paths.programs, PROJECT / "roles/run/files"),
                (code, folder / "code"),
            ):
                with contextlib.suppress(FileExistsError):
                    link.symlink_to(target)
            (paths.unit_dir(spec.run) / "launch.json").write_text(launch_file(launch))
            variables = environment(launch, paths, {})
            variables["PATH"] = f"{env}/bin:{paths.programs}:{os.environ['PATH']}"
            variables["VIRTUAL_ENV"] = str(env)
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-I", paths.programs / "attempt", "begin", spec.run],
                    env=variables | {"TPUFLEET_ETC": str(paths.etc)},
                    stdin=subprocess.DEVNULL,
                )
            )
        self.log = folder / "0/state/runs" / trainer.name / "log"

    def text(self) -> str:
        """Return the log of process 0 in this attempt."""
        if not self.log.exists():
            return ""
        return "\n".join(last_attempt(self.log.read_text(errors="replace").split("\n")))

    def wait_for(self, pattern: re.Pattern[str], least: int = 0) -> int:
        """Wait until ``pattern`` matches a number >= ``least`` in the log; return the number.

        Exits with an error after START_SECONDS, or if a process ends before.
        """
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            numbers = [
                int(next(filter(None, match.groups()))) for match in pattern.finditer(self.text())
            ]
            if numbers and max(numbers) >= least:
                return max(numbers)
            if any(process.poll() is not None for process in self.processes):
                break
            time.sleep(0.2)
        log = self.text()[-4000:]
        raise SystemExit(f"{self.trainer.name}: no {pattern.pattern!r} in the log:\n{log}")

    def kill(self) -> tuple[float, list[int]]:
        """Send SIGTERM to all processes, and SIGKILL to those still alive after KILL_SECONDS.

        Returns how many seconds it took until all had ended, and the exit codes.
        """
        everything = [pid for process in self.processes for pid in tree_of(process.pid)]
        began = time.monotonic()
        for pid in everything:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        while any(is_alive(pid) for pid in everything):
            for process in self.processes:
                process.poll()
            if time.monotonic() - began > KILL_SECONDS:
                kill_all(everything)
            time.sleep(0.02)
        return time.monotonic() - began, [process.wait() for process in self.processes]


def is_alive(pid: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def install(trainer: Trainer, folder: Path) -> Path:
    """Return the trainer's virtual environment; create it if it is missing."""
    env = folder / f"{trainer.name}-env"
    if not (env / "complete").exists():
        shutil.rmtree(env, ignore_errors=True)
        subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, env], check=True)
        python = ("--python", env / "bin/python")
        subprocess.run(["uv", "pip", "install", "--quiet", *python, *trainer.packages], check=True)
        (env / "complete").touch()
    return env


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer with a few tokens: Levanter's Llama loads one, but does not use it."""
    folder.mkdir()
    model = {"type": "WordLevel", "vocab": {str(n): n for n in range(64)}, "unk_token": "0"}
    files = {
        "tokenizer.json": {"version": "1.0", "added_tokens": [], "model": model},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        "config.json": {"model_type": "llama"},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def measure(trainer: Trainer, folder: Path, env: Path) -> bool:
    """Start and kill the trainer twice in ``folder``, with the packages of ``env``.

    Prints the figures. Returns whether both kills took at most ``trainer.limit`` seconds and ended
    as expected: every process exits with 75 (saved) if and only if ``trainer.saves`` is true.
    """
    shutil.copytree(FILES, folder / "code")
    write_tokenizer(folder / "code/tokenizer")
    # A document has 32 tokens, the max_seq_len in levanter.yml.
    tokens = json.dumps({"input_ids": list(range(32))}) + "\n"
    (folder / "code/tokens.jsonl").write_text(tokens * 1000)
    first = Attempt(trainer, 1, folder, env)
    first.wait_for(trainer.step, STEPS_BEFORE_KILL)
    seconds, codes = first.kill()
    print(f"{trainer.name}: kill {seconds:.1f} s, exit codes {codes}", flush=True)
    second = Attempt(trainer, 2, folder, env)
    step = second.wait_for(trainer.resumed, 1)
    second.wait_for(trainer.step, step + 1)
    again, codes_again = second.kill()
    print(
        f"{trainer.name}: resumed from step {step}; kill {again:.1f} s, {codes_again}", flush=True
    )
    kills = ((seconds, codes), (again, codes_again))
    return all(
        seconds <= trainer.limit and (codes == [75, 75]) == trainer.saves
        for seconds, codes in kills
    )


def main() -> int:
    """Measure each trainer; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--environments",
        type=Path,
        metavar="DIRECTORY",
        help="where the trainers' packages are installed and kept (default: a temporary directory)",
    )
    parser.add_argument(
        "--only", choices=("levanter", "ddp"), help="measure this trainer (default: both)"
    )
    options = parser.parse_args()
    reached = True
    with tempfile.TemporaryDirectory(prefix="foreign-trainers-") as scratch:
        for trainer in (DDP, LEVANTER):
            if options.only in (None, trainer.name):
                env = install(trainer, options.environments or Path(scratch))
                folder = Path(scratch) / trainer.name
                folder.mkdir()
                reached = measure(trainer, folder, env) and reached
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
