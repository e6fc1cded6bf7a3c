"""Compare push.yml with tar and scp to all workers in parallel, for 2,000 files, 50 MB in total.

    python -m bench.push [--workers 8] [--rounds 3] [--uplink MBIT] [--cloud NAME]
                                                                       (as root; takes minutes)

Both send a directory tree once, and again after one file has changed; scp always sends the whole
tree. The bytes that this computer sends to the workers' ssh ports are counted. Each round has a new
tree, and push and scp go first in alternate rounds. The best round of each counts. ``--uplink``
limits the bandwidth, as a real network would. ``--cloud`` uses an existing cloud with workers set
up. Exits with 1 if a target is missed.
"""

import argparse
import os
import random
import sys
import tarfile
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

from bench.counted_bytes import counted_bytes
from bench.verbs_cloud import (
    WORKERS,
    VerbsCloud,
    seconds,
    verbs_cloud,
    verdict,
)
from harness.bandwidth import limited_bandwidth
from localcloud.local_cloud import LocalCloud

FILES, SIZE = 2000, 25_000
FIRST_TIME, FIRST_BYTES = 0.8, 1.2
AGAIN_TIME, AGAIN_BYTES = 0.6, 0.01
SIDES = (("scp first", "scp again"), ("push first", "push again"))


def main() -> int:
    """Measure push and scp; print the result and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, choices=WORKERS, default=8)
    parser.add_argument("--rounds", type=int, choices=range(1, 21), default=3, metavar="1-20")
    parser.add_argument(
        "--cloud",
        default="",
        help="an existing cloud with workers set up, whose first TPU is used; replaces --workers",
    )
    uplinks = range(1, 10_001)
    parser.add_argument(
        "--uplink",
        type=int,
        choices=uplinks,
        metavar="MBIT",
        help="limit of the bandwidth to the workers, in Mbit/s (default: none)",
    )
    args = parser.parse_args()
    rounds = []
    with verbs_cloud(args.workers, args.cloud) as cloud:
        bridge = LocalCloud.of(cloud.name).bridge
        uplink = limited_bandwidth([bridge], args.uplink) if args.uplink else nullcontext()
        ssh = f"ip daddr {{ {', '.join(cloud.addresses)} }} tcp dport 22"
        with counted_bytes("output priority 0", ssh) as sent, uplink:
            for number in range(args.rounds):
                rounds.append(one_round(cloud, sent, number))
                compressed = (cloud.scratch / "code.tgz").stat().st_size
    scp, push = ([best(costs[side] for costs in rounds) for side in pair] for pair in SIDES)
    line = f", an uplink of {args.uplink} Mbit/s" if args.uplink else ""
    print(
        f"{len(cloud.workers)} workers, {FILES} files, {compressed / 1e6:.1f} MB compressed{line}"
    )
    for tree, scp_cost, push_cost in zip(("first", "one file changed"), scp, push, strict=True):
        print(f"  {tree:<18} push {push_cost[0]:6.2f} s {push_cost[1] / 1e6:7.2f} MB", end="")
        print(f"   tar and scp {scp_cost[0]:6.2f} s {scp_cost[1] / 1e6:7.2f} MB")
    reached = [
        verdict("first push, time", push[0][0] / scp[0][0], FIRST_TIME),
        verdict("first push, bytes per TPU", push[0][1] / compressed, FIRST_BYTES),
        verdict("one file changed, time", push[1][0] / scp[1][0], AGAIN_TIME),
        verdict("one file changed, bytes", push[1][1] / scp[1][1], AGAIN_BYTES),
    ]
    print(f"targets: {'reached' if all(reached) else 'missed'}")
    return 0 if all(reached) else 1


def one_round(cloud: VerbsCloud, sent, number: int) -> dict[str, tuple[float, int]]:
    """Send a new tree by push and by scp, then again with one file changed.

    ``sent`` returns how many bytes were sent so far, ``number`` is the round's number. Returns
    (seconds, bytes) under the keys ``push first``, ``push again``, ``scp first``, ``scp again``.
    """
    code = cloud.scratch / f"tree{os.getpid()}-{number}"
    write_tree(code)
    methods = {
        "scp": lambda: by_scp(cloud, code),
        "push": lambda: cloud.play_on_tpu("playbooks/push.yml", "-e", f"code={code}"),
    }
    order = list(methods) if number % 2 else list(methods)[::-1]
    cost = {f"{method} first": measured(sent, methods[method]) for method in order}
    (code / "d7/f7.txt").write_text("changed\n" * 3000)
    return cost | {f"{method} again": measured(sent, methods[method]) for method in order}


def best(costs: Iterable[tuple[float, int]]) -> tuple[float, int]:
    """Return the least seconds and the least bytes of all rounds."""
    times, sizes = zip(*costs, strict=True)
    return min(times), min(sizes)


def write_tree(code: Path) -> None:
    """Write a tree of FILES files; half of each file is random and thus incompressible.

    Every tree has new random content, so that push.yml must send it even if an existing cloud has
    the releases of earlier trees.
    """
    chance = random.Random()  # noqa: S311 - not for secrets
    for number in range(FILES):
        file = code / f"d{number % 50}" / f"f{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = b"".join(b"line %d of file %d\n" % (line, number) for line in range(700))
        file.write_bytes(chance.randbytes(SIZE // 2) + text[: SIZE // 2])


def by_scp(cloud: VerbsCloud, code: Path) -> None:
    """Pack the directory ``code``, copy it to each worker by scp and unpack it there."""
    directory = f"bench-{code.name}"
    packed = cloud.scratch / "code.tgz"
    with tarfile.open(packed, "w:gz", compresslevel=6) as pack:
        pack.add(code, arcname="code")
    cloud.on_all("scp", ["-q", str(packed), "@:bench-code.tgz"])
    cloud.on_all("ssh", ["@", f"mkdir -p {directory} && tar xzf bench-code.tgz -C {directory}"])


def measured(sent, action) -> tuple[float, int]:
    """Return how many seconds ``action()`` takes, and how many bytes are sent meanwhile.

    ``sent()`` returns the bytes sent so far. Flushes earlier writes to disk before the measurement,
    so that they do not slow the action down. Flushes twice, because the disk may be an image file,
    which the first flush writes to.
    """
    os.sync()
    os.sync()
    before = sent()
    return seconds(action), sent() - before


if __name__ == "__main__":
    sys.exit(main())
