"""make demo: create a local cloud and a TPU, set up its workers and train a small model.

The demo runs the same commands that a user would type, and prints each of them.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence

from localcloud.failure import CloudError
from localcloud.local_cloud import DEFAULT_NAME, PROJECT_ROOT, LocalCloud

TPU = "demo"
CONFIG = "train/configs/shakespeare.yml"
RUN = "shakespeare"
SAMPLE = f"/var/lib/tpufleet/runs/{RUN}/sample.txt"


class DemoError(Exception):
    """Error: a step of the demo failed; the message says what failed."""


def main() -> int:
    """Run all steps and return the exit code: 0, or 1 after printing an error on one line."""
    argparse.ArgumentParser(prog="python -m localcloud.demo", description=__doc__).parse_args()
    start = time.monotonic()
    try:
        cloud = LocalCloud.of(os.environ.get("TPUFLEET_LOCALCLOUD") or DEFAULT_NAME)
        step(1, "a local cloud: a Cloud TPU API on loopback, real machines behind it")
        python = [sys.executable, "-u", "-m", "localcloud", "--name", cloud.name, "up"]
        run(cloud.command("up"), [*as_root(), *python])
        step(2, f"the TPU {TPU!r}: two workers")
        playbook("playbooks/create.yml")
        step(3, "setup of the workers: packages, Python, JAX")
        playbook("setup.yml")
        step(4, f"training: {CONFIG} on both workers as one run")
        playbook("train.yml", "-e", f"config={CONFIG}", "-e", "wait=done")
        step(5, "text that the trained model has written")
        command("ansible", f"{TPU}-w0", "-i", "inventory/local", "--become", "-a", f"cat {SAMPLE}")
    except (CloudError, DemoError, KeyboardInterrupt) as error:
        print(f"\ndemo: {str(error) or 'stopped. To resume, run: make demo'}", file=sys.stderr)
        return 1
    print(next_steps(cloud, time.monotonic() - start))
    return 0


def step(number: int, title: str) -> None:
    """Print the heading of a step, ``[number/5] title``."""
    print(f"\n[{number}/5] {title}", flush=True)


def as_root() -> list[str]:
    """Return the sudo prefix for a command that needs root; empty if this process is root."""
    if os.geteuid() == 0:
        return []
    return ["sudo", "--preserve-env=TPUFLEET_LOCALCLOUD_DIR", "env", f"PYTHONPATH={PROJECT_ROOT}"]


def playbook(*arguments: str) -> None:
    """Run a playbook on the local cloud. Raises DemoError if it fails."""
    command("ansible-playbook", "-i", "inventory/local", *arguments)


def command(*words: str) -> None:
    """Run a command. Raises DemoError if it fails."""
    run(shlex.join(words), words)


def run(shown: str, words: Sequence[str]) -> None:
    """Print ``shown`` (what a user would type) and run the command ``words``.

    Raises DemoError if the command fails.
    """
    print(f"  $ {shown}", flush=True)
    done = subprocess.run(words, cwd=PROJECT_ROOT, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise DemoError(f"{shown} failed (see above). Fix it, then run: make demo")


def next_steps(cloud: LocalCloud, took_s: float) -> str:
    """Return how long the demo took, and commands to try next."""
    return f"""
The run {RUN} is done. The demo took {took_s:.0f} s (local cloud, TPU, setup and training).

Next:
  {cloud.playbook("playbooks/status.yml")}
  {cloud.playbook("playbooks/report.yml")}  # an HTML page with the loss
  {cloud.playbook("playbooks/sample.yml", "-e", f"run={RUN}", "-e", "set=sample.prompt=JULIET")}
  {cloud.playbook("train.yml", "-e", f"config={CONFIG}", "-e", "run=again")}
  {cloud.command("preempt", TPU)}  # then see what the inventory reports
  make clean  # removes the local cloud"""


if __name__ == "__main__":
    sys.exit(main())
