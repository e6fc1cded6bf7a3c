"""make demo: create a local cloud and a TPU, set up its workers and train a small model.

The demo runs and prints the same commands that a user would type, and shows the run's progress.
"""

import argparse
import json
import os
import queue
import shlex
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from localcloud.failure import CloudError
from localcloud.local_cloud import DEFAULT_NAME, PROJECT_ROOT, LocalCloud

TPU = "demo"
CONFIG = "train/configs/shakespeare.yml"
RUN = "shakespeare"
QUIET_S = 5.0  # interval for printing what a silent command is waiting for
RUN_DIRECTORY = f"/var/lib/tpufleet/runs/{RUN}"


class DemoError(Exception):
    """Error: a step of the demo failed; the message says what failed."""


class CommandError(Exception):
    """A command failed; the message has its exit code."""


@dataclass(frozen=True)
class Progress:
    """The run's progress, from the heartbeat of worker 0."""

    step: int | None
    steps: int
    loss: float | None
    tokens_per_second: float | None


@dataclass
class Activity:
    """What a running command is waiting for, updated from the command's output."""

    description: str


def main() -> int:
    """Run all steps and return the exit code: 0, or 1 after printing an error on one line."""
    argparse.ArgumentParser(prog="python -m localcloud.demo", description=__doc__).parse_args()
    start = time.monotonic()
    try:
        cloud = LocalCloud.of(os.environ.get("TPUFLEET_LOCALCLOUD") or DEFAULT_NAME)
        step(1, "a local cloud: a Cloud TPU API on loopback, real machines behind it")
        python = [sys.executable, "-u", "-m", "localcloud", "--name", cloud.name, "up"]
        stream(cloud.command("up"), [*as_root(), *python])
        step(2, f"the TPU {TPU!r}: two workers")
        playbook("playbooks/create.yml")
        step(3, "setup of the workers: packages, Python, JAX")
        playbook("setup.yml")
        step(4, f"training: {CONFIG} on both workers as one run")
        playbook("train.yml", "-e", f"config={CONFIG}")
        leader, workers = find_workers()
        follow(cloud, leader)
        summary(cloud, leader, workers, time.monotonic() - start)
    except (CloudError, DemoError, KeyboardInterrupt) as error:
        print(f"\ndemo: {str(error) or 'stopped. To resume, run: make demo'}", file=sys.stderr)
        return 1
    return 0


def step(number: int, title: str) -> None:
    """Print a step's title."""
    print(f"\n[{number}/4] {title}", flush=True)


def as_root() -> list[str]:
    """Return the sudo prefix for a command that needs root; empty if this process is root."""
    if os.geteuid() == 0:
        return []
    return ["sudo", "--preserve-env=TPUFLEET_LOCALCLOUD_DIR", "env", f"PYTHONPATH={PROJECT_ROOT}"]


def playbook(name: str, *arguments: str) -> None:
    """Run a playbook, which shows its own progress. Raises DemoError if it fails."""
    command = ["ansible-playbook", "-i", "inventory/local", name, *arguments]
    print(f"  $ {shlex.join(command)}", flush=True)
    result = subprocess.run(command, cwd=PROJECT_ROOT, stdin=subprocess.DEVNULL, check=False)
    if result.returncode:
        raise DemoError(f"{name} failed (see above). Fix it, then run: make demo")


def stream(title: str, command: Sequence[str]) -> None:
    """Print ``title``, run a command and print its output; raise DemoError if it fails."""
    print(f"  $ {title}", flush=True)
    activity = Activity("python to start")
    try:
        for line in output_lines(command, activity):
            print(f"    {line}", flush=True)
            activity.description = line.strip()
    except CommandError as error:
        raise DemoError(
            f"{title} failed ({error}): {activity.description}. Fix it, then run: make demo"
        ) from None


def output_lines(command: Sequence[str], activity: Activity) -> Iterator[str]:
    """Run a command and yield its output lines. Raises CommandError at the end if it fails.

    While the command is silent, prints ``activity.description`` and the time since the last line.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "ANSIBLE_FORCE_COLOR": "0"}
    process = subprocess.Popen(
        command,
        cwd=PROJECT_ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None  # noqa: S101  (a pipe was asked for)
        for line in process.stdout:
            lines.put(line.rstrip("\n"))
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    last_output_at = time.monotonic()
    try:
        while True:
            try:
                line = lines.get(timeout=QUIET_S)
            except queue.Empty:
                print(
                    f"    … {time.monotonic() - last_output_at:3.0f} s  {activity.description}",
                    flush=True,
                )
                continue
            if line is None:
                break
            last_output_at = time.monotonic()
            yield line
    finally:
        if process.poll() is None and sys.exc_info()[0] is not None:
            process.terminate()
        code = process.wait()
    if code:
        raise CommandError(f"exit code {code}")


def find_workers() -> tuple[list[str], dict[str, str]]:
    """Return the ssh command for worker 0, and all workers' addresses by name.

    Both come from the inventory.
    """
    listing = subprocess.run(
        ["ansible-inventory", "-i", "inventory/local", "--list"],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode:
        raise DemoError(listing.stderr.strip().splitlines()[-1])
    hosts = json.loads(listing.stdout)["_meta"]["hostvars"]
    workers = {name: v["ansible_host"] for name, v in hosts.items() if v.get("tpu_name") == TPU}
    leader = hosts[f"{TPU}-w0"]
    ssh = [
        "ssh",
        *shlex.split(leader["ansible_ssh_common_args"]),
        "-i",
        leader["ansible_ssh_private_key_file"],
        f"{leader['ansible_user']}@{leader['ansible_host']}",
    ]
    return ssh, workers


def follow(cloud: LocalCloud, ssh: Sequence[str]) -> None:
    """Print the run's progress until the run ends; raise DemoError if it did not succeed."""
    poll = (
        f"cd {RUN_DIRECTORY} && while :; do "
        "cat heartbeat.json 2>/dev/null; echo; "
        "[ ! -e exit.json ] || break; sleep 3; done"
    )
    progress = Progress(0, 0, None, None)
    last_step = -1
    try:
        for line in output_lines(
            [*ssh, f"sudo sh -c {shlex.quote(poll)}"], Activity("the next step")
        ):
            progress = parse_heartbeat(line) or progress
            if progress.loss is not None and progress.step != last_step:
                last_step = progress.step
                print(
                    f"    step {progress.step}/{progress.steps}  loss {progress.loss:.3f}  "
                    f"{progress.tokens_per_second or 0:,.0f} tokens/s",
                    flush=True,
                )
    except CommandError as error:
        raise DemoError(
            f"the connection to worker 0 failed ({error}). To try again, run: make demo"
        ) from None
    exited = json.loads(remote(ssh, f"sudo cat {RUN_DIRECTORY}/exit.json"))
    if (exited["code"], exited["status"]) != ("exited", "0"):
        raise DemoError(
            f"the run failed ({exited['code']}, status {exited['status']}). To see why, run: "
            f"{cloud.playbook('playbooks/logs.yml', '-e', f'run={RUN}')}"
        )


def parse_heartbeat(line: str) -> Progress | None:
    """Parse a line with a heartbeat's JSON; return None for any other line."""
    try:
        beat = json.loads(line)
        return Progress(beat["step"], beat["steps"], beat["loss"], beat["tokens_per_second"])
    except (ValueError, LookupError, TypeError):
        return None


def remote(ssh: Sequence[str], command: str) -> str:
    """Run a command on worker 0 and return its output; raise DemoError if it fails."""
    result = subprocess.run([*ssh, command], capture_output=True, text=True, check=False)
    if result.returncode:
        raise DemoError(
            f"worker 0: {command} failed ({result.stderr.strip()}). To try again, run: make demo"
        )
    return result.stdout


def summary(cloud: LocalCloud, ssh: Sequence[str], workers: dict[str, str], took_s: float) -> None:
    """Print the run's results and the next commands to try; ``took_s`` is for all four steps."""
    metrics = [
        json.loads(line)
        for line in remote(ssh, f"sudo cat {RUN_DIRECTORY}/metrics.jsonl").splitlines()
    ]
    sample = remote(ssh, f"sudo cat {RUN_DIRECTORY}/sample.txt").strip()
    rates = sorted(m["tokens_per_second"] for m in metrics if m.get("tokens_per_second"))
    rate = rates[len(rates) // 2] if rates else 0.0
    print(
        f"""
== {RUN} is done ==
workers      {", ".join(f"{name} ({address})" for name, address in sorted(workers.items()))}
steps        {metrics[-1]["step"]:,}
loss         {metrics[0]["loss"]:.2f} → {metrics[-1]["loss"]:.2f} nats per byte
speed        {rate:,.0f} tokens/s (median)
whole demo   {took_s:.0f} s (local cloud, TPU, setup and training)
logs         {RUN_DIRECTORY}/log on each worker; logs of playbooks: .tpufleet/logs

Sample of the model's text:
{textwrap.indent(sample, "  | ", lambda _line: True)}

Next:
  {cloud.playbook("playbooks/status.yml")}
  {cloud.playbook("playbooks/logs.yml")}
  {cloud.playbook("train.yml", "-e", f"config={CONFIG}", "-e", "run=again")}
  {cloud.command("preempt", TPU)}  # then see what the inventory reports
  make clean  # removes everything"""
    )


if __name__ == "__main__":
    sys.exit(main())
