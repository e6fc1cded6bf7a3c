"""Compare launch, kill and status of a run with ``gcloud … ssh --worker=all``.

    python -m bench.launch [--workers 8] [--rounds 3] [--cloud NAME]     (as root; takes minutes)

train.yml and kill.yml are compared with ``gcloud compute tpus tpu-vm ssh --worker=all``, which
starts and stops a systemd unit that only sleeps. status.yml is compared with new ssh connections to
all workers in parallel. Without gcloud, all three are compared with ssh. A launch is measured from
the start of the command to the start of the last process (each process records its start); kill and
status are measured until the command ends. The code is pushed beforehand, and the ssh connections
of this push are reused. Everything is measured again with 40 ms added to every round trip. The best
round of each side counts. ``--cloud`` uses an existing cloud with workers set up. Exits with 1 if a
target is missed.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from bench.gcloud_ssh import Gcloud
from bench.verbs_cloud import WORKERS, VerbsCloud, proxy, seconds, verbs_cloud, verdict
from localcloud.local_cloud import LocalCloud

LAUNCH_TARGET, KILL_TARGET, STATUS_TARGET = 1.2, 1.2, 2.5
COMMAND = "sh -c 'date +%s.%N >{run_dir}/began; exec sleep 3600'"
UNIT = "bench-noop"


def main() -> int:
    """Measure launch, kill and status, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, choices=WORKERS, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--cloud",
        default="",
        help="an existing cloud with workers set up, whose first TPU is used; replaces --workers",
    )
    args = parser.parse_args()
    reached = True
    with verbs_cloud(args.workers, args.cloud) as cloud:
        code = cloud.scratch / "code"
        code.mkdir()
        (code / "noop.txt").write_text("nothing\n")
        gcloud = None
        if Gcloud.is_installed():
            gcloud = Gcloud(cloud.name, cloud.tpu, cloud.scratch / "gcloud-home", proxy())
        usual = "gcloud" if gcloud else "ssh"
        print(f"{len(cloud.workers)} workers, the best of {args.rounds} rounds")
        for delayed in (False, True):
            cloud.play_on_tpu("playbooks/push.yml", "-e", f"code={code}", delayed=delayed)
            rounds = [
                one_round(
                    cloud, gcloud, code, f"bench-{os.getpid()}-{int(delayed)}-{number}", delayed
                )
                for number in range(args.rounds)
            ]
            best = {key: min(costs[key] for costs in rounds) for key in rounds[0]}
            suffix = ", 40 ms more per round trip" if delayed else ""
            for key, value in best.items():
                print(f"  {key + suffix:<44} {value:6.2f} s")
            reached &= verdict(
                "launch" + suffix, best["launch"] / best[f"{usual} start"], LAUNCH_TARGET
            )
            if not delayed:
                reached &= verdict("kill", best["kill"] / best[f"{usual} stop"], KILL_TARGET)
                reached &= verdict("status", best["status"] / best["ssh read"], STATUS_TARGET)
    print(f"targets: {'reached' if reached else 'missed'}")
    return 0 if reached else 1


def one_round(
    cloud: VerbsCloud, gcloud: Gcloud | None, code: Path, run: str, delayed: bool
) -> dict[str, float]:
    """Measure launch, status, kill and their ssh and gcloud equivalents.

    Returns the seconds of each, by names such as ``ssh start`` and ``launch``. ``gcloud`` is None
    if it is not installed, ``code`` the directory to push, ``run`` the name of the run. With
    ``delayed``, each round trip takes 40 ms longer.
    """
    start, stop = (
        f"sudo systemd-run --quiet --unit={UNIT} sleep 3600",
        f"sudo systemctl stop {UNIT}",
    )
    costs = {
        "ssh start": seconds(lambda: cloud.on_all("ssh", ["@", start], delayed)),
        "ssh read": seconds(lambda: cloud.on_all("ssh", ["@", "cat /etc/hostname"], delayed)),
        "ssh stop": seconds(lambda: cloud.on_all("ssh", ["@", stop], delayed)),
    }
    if gcloud:
        costs["gcloud start"] = seconds(lambda: gcloud.on_all(start, delayed))
        costs["gcloud stop"] = seconds(lambda: gcloud.on_all(stop, delayed))
    began = time.time()
    launch = ("-e", f"code={code}", "-e", f"command={COMMAND!r}", "-e", f"run={run}")
    costs["launch command"] = seconds(
        lambda: cloud.play_on_tpu("train.yml", *launch, "-e", "wait=started", delayed=delayed)
    )
    costs["launch"] = last_start(cloud, run) - began
    costs["status"] = seconds(
        lambda: cloud.play_on_tpu("playbooks/status.yml", "-e", f"run={run}", delayed=delayed)
    )
    costs["kill"] = seconds(
        lambda: cloud.play_on_tpu("playbooks/kill.yml", "-e", f"run={run}", delayed=delayed)
    )
    return costs


def last_start(cloud: VerbsCloud, run: str) -> float:
    """Return the Unix time at which the last process of the run began.

    Each worker records the time of its process in the run's file ``began``, which is read without a
    connection to the worker.
    """
    files = f"*/root/var/lib/tpufleet/runs/{run}/began"
    deadline = time.monotonic() + 60
    while True:
        times = [file.read_text() for file in LocalCloud.of(cloud.name).machines.glob(files)]
        if len(times) == len(cloud.workers) and all(times):
            return max(map(float, times))
        if time.monotonic() > deadline:
            raise SystemExit(f"launch: {len(times)} of {len(cloud.workers)} processes began")
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
