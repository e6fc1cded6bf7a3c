"""What the terminal view costs, beside Ansible's default output in the same run.

    .venv/bin/python -m bench.view [--rounds 5] [--hosts 32] [--tasks 12]

Plays a dozen tasks on 32 hosts (this computer, by the local connection), in turn with each view,
and prints the seconds of both, the median of the pairs' ratios, and the lines of output. Exits
with 1 where the bar is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AT_MOST_RATIO = 1.03
OURS, DEFAULT = "tpufleet.core.view", "ansible.builtin.default"
PLAY = """\
- name: Cost little
  hosts: all
  gather_facts: false
  tasks:
"""
TASK = """\
    - name: Step {number}
      ansible.builtin.command: "true"
      changed_when: {changed}
"""


@dataclass(frozen=True)
class Cost:
    """One playbook's run: wall seconds and lines printed."""

    seconds: float
    lines: int


def play(folder: Path, view: str) -> Cost:
    """Play once under a view. Raises CalledProcessError where the playbook fails."""
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": view,
        "TPUFLEET_LOG_DIR": str(folder / "logs"),
    }
    tool = str(Path(sys.executable).with_name("ansible-playbook"))
    began = time.monotonic()
    done = subprocess.run(
        [tool, "-i", str(folder / "hosts.ini"), str(folder / "play.yml")],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return Cost(time.monotonic() - began, len(done.stdout.splitlines()))


def main() -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs (default: 5)")
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--tasks", type=int, default=12)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "hosts.ini").write_text(
            f"pod-w[0:{words.hosts - 1}] ansible_connection=local "
            f"ansible_python_interpreter={sys.executable}\n"
        )
        (folder / "play.yml").write_text(
            PLAY
            + "".join(
                TASK.format(number=number, changed=str(number % 4 == 0).lower())
                for number in range(words.tasks)
            )
        )
        play(folder, DEFAULT)
        pairs = [(play(folder, OURS), play(folder, DEFAULT)) for _ in range(words.rounds)]
    ratio = statistics.median(ours.seconds / default.seconds for ours, default in pairs)
    for name, costs in (("view", [o for o, _ in pairs]), ("default", [d for _, d in pairs])):
        median = statistics.median(cost.seconds for cost in costs)
        print(f"{name:<8} {median:6.2f} s  {costs[0].lines} lines")
    print(f"ratio    {ratio:6.3f}  (at most {AT_MOST_RATIO})")
    return 0 if ratio <= AT_MOST_RATIO else 1


if __name__ == "__main__":
    raise SystemExit(main())
