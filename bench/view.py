"""Compare this project's terminal output with Ansible's default output: seconds and lines.

    .venv/bin/python -m bench.view [--rounds 6] [--hosts 32] [--tasks 12]

Runs a play of 12 tasks on 32 hosts (this computer, by the local connection), alternately with the
two stdout callbacks. For each callback, prints the median time and the number of lines; then the
ratio of the total times. A play takes 80 s on two cores and varies by several percent, so use many
rounds. Exits with 1 if the ratio exceeds MAX_RATIO.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_RATIO = 1.03
VIEW, DEFAULT_VIEW = "tpufleet.core.view", "ansible.builtin.default"
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


def play(folder: Path, view: str) -> tuple[float, int]:
    """Run the playbook in ``folder`` with the stdout callback ``view``.

    Returns how many seconds it took, and how many lines it printed.

    Raises CalledProcessError if the playbook fails.
    """
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": view,
        "TPUFLEET_LOG_DIR": str(folder / "logs"),
    }
    tool = str(Path(sys.executable).with_name("ansible-playbook"))
    began = time.monotonic()
    result = subprocess.run(
        [tool, "-i", str(folder / "hosts.ini"), str(folder / "play.yml")],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return time.monotonic() - began, len(result.stdout.splitlines())


def main() -> int:
    """Measure, print the results, and return 1 if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=6, help="measurements of each view (default: 6)"
    )
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--tasks", type=int, default=12)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "hosts.ini").write_text(
            f"pod-w[0:{args.hosts - 1}] ansible_connection=local "
            f"ansible_python_interpreter={sys.executable}\n"
        )
        (folder / "play.yml").write_text(
            PLAY
            + "".join(
                TASK.format(number=number, changed=str(number % 4 == 0).lower())
                for number in range(args.tasks)
            )
        )
        play(folder, DEFAULT_VIEW)
        costs: dict[str, list[tuple[float, int]]] = {VIEW: [], DEFAULT_VIEW: []}
        for number in range(args.rounds):
            for view in (VIEW, DEFAULT_VIEW) if number % 2 else (DEFAULT_VIEW, VIEW):
                costs[view].append(play(folder, view))
    seconds = {view: [seconds for seconds, _ in costs[view]] for view in costs}
    for name, view in (("view", VIEW), ("default", DEFAULT_VIEW)):
        median = statistics.median(seconds[view])
        print(f"{name:<8} {median:6.2f} s  {costs[view][0][1]} lines")
    ratio = sum(seconds[VIEW]) / sum(seconds[DEFAULT_VIEW])
    print(f"ratio    {ratio:6.3f}  (at most {MAX_RATIO})")
    return 0 if ratio <= MAX_RATIO else 1


if __name__ == "__main__":
    raise SystemExit(main())
