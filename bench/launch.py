"""Launch, kill and status of a run, against ``gcloud … ssh --worker=all``, in one run.

    python bench/launch.py [--workers 8] [--rounds 3] [--cloud NAME]     (as root; takes minutes)

The baseline of launch and kill is ``gcloud compute tpus tpu-vm ssh --worker=all`` that starts and
stops a no-op unit there; where gcloud is missing, and for status in any case, a new ssh connection
to each worker at once, whose figures are always printed. Ours is the playbook, from the command to
the last process started (each process writes down when), or to the command's end for kill and
status; the code is in place and the connections are as a push has left them. Then both once more
with 40 ms added to every round trip. The best of the rounds counts on both sides. ``--cloud`` takes
a cloud whose workers are set up. Ends with 0 if the bars are reached, 1 if not.
"""

import argparse
import os
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).parents[1]
sys.path.insert(0, str(PROJECT))

from bench.gcloud_ssh import Gcloud  # noqa: E402
from bench.verbs_cloud import WORKERS, VerbsCloud, proxy, seconds, verbs_cloud, verdict  # noqa: E402

LAUNCH_BAR, KILL_BAR, STATUS_BAR = 1.2, 1.2, 2.5
COMMAND = "sh -c 'date +%s.%N >{run_dir}/began; exec sleep 3600'"
UNIT = "bench-noop"


def main() -> int:
    """Measure all of it and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, choices=sorted(WORKERS), default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cloud", help="a cloud whose workers are set up, left as it is")
    words = parser.parse_args()
    reached = True
    with verbs_cloud(words.workers, words.cloud) as cloud:
        code = cloud.scratch / "code"
        code.mkdir()
        (code / "noop.txt").write_text("nothing\n")
        gcloud = None
        if Gcloud.is_there():
            gcloud = Gcloud(cloud.name, cloud.tpu, cloud.scratch / "gcloud-home", proxy())
        usual = "gcloud" if gcloud else "ssh"
        print(f"{len(cloud.workers)} workers, the best of {words.rounds} rounds")
        for delayed in (False, True):
            cloud.verb("playbooks/push.yml", "-e", f"code={code}", delayed=delayed)
            rounds = [
                one_round(
                    cloud, gcloud, code, f"bench-{os.getpid()}-{int(delayed)}-{number}", delayed
                )
                for number in range(words.rounds)
            ]
            best = {key: min(each[key] for each in rounds) for key in rounds[0]}
            where = ", 40 ms more a round trip" if delayed else ""
            for key, value in best.items():
                print(f"  {key + where:<44} {value:6.2f} s")
            reached &= verdict(
                "launch" + where, best["launch"] / best[f"{usual} start"], LAUNCH_BAR
            )
            if not delayed:
                reached &= verdict("kill", best["kill"] / best[f"{usual} stop"], KILL_BAR)
                reached &= verdict("status", best["status"] / best["ssh read"], STATUS_BAR)
    print(f"bars: {'reached' if reached else 'missed'}")
    return 0 if reached else 1


def one_round(
    cloud: VerbsCloud, gcloud: Gcloud | None, code: Path, run: str, delayed: bool
) -> dict[str, float]:
    """Do everything once; give seconds by what was done."""
    start, stop = (
        f"sudo systemd-run --quiet --unit={UNIT} sleep 3600",
        f"sudo systemctl stop {UNIT}",
    )
    found = {
        "ssh start": seconds(lambda: cloud.on_all("ssh", ["@", start], delayed)),
        "ssh read": seconds(lambda: cloud.on_all("ssh", ["@", "cat /etc/hostname"], delayed)),
        "ssh stop": seconds(lambda: cloud.on_all("ssh", ["@", stop], delayed)),
    }
    if gcloud:
        found["gcloud start"] = seconds(lambda: gcloud.on_all(start, delayed))
        found["gcloud stop"] = seconds(lambda: gcloud.on_all(stop, delayed))
    began = time.time()
    launch = ("-e", f"code={code}", "-e", f"command={COMMAND!r}", "-e", f"run={run}")
    found["launch command"] = seconds(
        lambda: cloud.verb("train.yml", *launch, "-e", "wait=started", delayed=delayed)
    )
    found["launch"] = last_start(cloud, run) - began
    found["status"] = seconds(
        lambda: cloud.verb("playbooks/status.yml", "-e", f"run={run}", delayed=delayed)
    )
    found["kill"] = seconds(
        lambda: cloud.verb("playbooks/kill.yml", "-e", f"run={run}", delayed=delayed)
    )
    return found


def last_start(cloud: VerbsCloud, run: str) -> float:
    """Read from the workers when their process began, and give the last time."""
    command = [
        "ansible",
        ":".join(cloud.workers),
        "-b",
        "-o",
        "-m",
        "ansible.builtin.command",
        "-a",
    ]
    deadline = time.monotonic() + 60
    while True:
        said = cloud.must(
            [*command, f"sh -c 'cat /var/lib/tpufleet/runs/{run}/began || echo none'"]
        )
        times = [line.rsplit(None, 1)[-1] for line in said.splitlines() if "(stdout)" in line]
        if len(times) == len(cloud.workers) and all(each[0].isdigit() for each in times):
            return max(map(float, times))
        if time.monotonic() > deadline:
            raise SystemExit(f"launch: not every worker's process began: {said}")
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
