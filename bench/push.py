"""Compare push of 2,000 files, 50 MB, with tar and one parallel scp per worker, in one run.

    python bench/push.py [--workers 8] [--rounds 3] [--uplink MBIT] [--cloud NAME]
                                                                       (as root; takes minutes)

Both sides send the tree once, and again after one file changed; the baseline always sends all of
it. Bytes are those that leave this controller for the workers' ssh. Each round has a new tree, and
the sides alternate in going first; the best round of each side counts. ``--uplink`` limits this
controller's bandwidth to that of a real uplink. ``--cloud`` uses an existing cloud with workers set
up. Exits with 0 if the bars are reached, else with 1.
"""

import argparse
import os
import random
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).parents[1]
sys.path.insert(0, str(PROJECT))

from bench.verbs_cloud import (  # noqa: E402
    WORKERS,
    VerbsCloud,
    bytes_out,
    seconds,
    uplink,
    verbs_cloud,
    verdict,
)

FILES, SIZE = 2000, 25_000
FIRST_TIME, FIRST_BYTES = 0.8, 1.2
AGAIN_TIME, AGAIN_BYTES = 0.6, 0.01
SIDES = (("usual first", "usual again"), ("ours first", "ours again"))


def main() -> int:
    """Measure both sides and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, choices=sorted(WORKERS), default=8)
    parser.add_argument("--rounds", type=int, choices=range(1, 21), default=3, metavar="1-20")
    parser.add_argument("--cloud", help="an existing cloud with workers set up")
    uplinks = range(1, 10_001)
    parser.add_argument("--uplink", type=int, choices=uplinks, metavar="MBIT", help="megabits/s")
    words = parser.parse_args()
    rounds = []
    with (
        verbs_cloud(words.workers, words.cloud) as cloud,
        bytes_out(cloud.addresses) as sent,
        uplink(cloud, words.uplink),
    ):
        for number in range(words.rounds):
            rounds.append(one_round(cloud, sent, number))
            compressed = (cloud.scratch / "code.tgz").stat().st_size
    usual, ours = ([best(each[side] for each in rounds) for side in pair] for pair in SIDES)
    line = f", an uplink of {words.uplink} Mbit/s" if words.uplink else ""
    print(
        f"{len(cloud.workers)} workers, {FILES} files, {compressed / 1e6:.1f} MB compressed{line}"
    )
    for what, theirs, mine in zip(("first", "one file changed"), usual, ours, strict=True):
        print(f"  {what:<18} ours {mine[0]:6.2f} s {mine[1] / 1e6:7.2f} MB", end="")
        print(f"   tar and scp {theirs[0]:6.2f} s {theirs[1] / 1e6:7.2f} MB")
    reached = [
        verdict("first push, time", ours[0][0] / usual[0][0], FIRST_TIME),
        verdict("first push, bytes a TPU", ours[0][1] / compressed, FIRST_BYTES),
        verdict("one file changed, time", ours[1][0] / usual[1][0], AGAIN_TIME),
        verdict("one file changed, bytes", ours[1][1] / usual[1][1], AGAIN_BYTES),
    ]
    print(f"bars: {'reached' if all(reached) else 'missed'}")
    return 0 if all(reached) else 1


def one_round(cloud: VerbsCloud, sent, number: int) -> dict[str, tuple[float, int]]:
    """Send a new tree on both sides, then again with one file changed; return the costs."""
    code = cloud.scratch / f"tree{os.getpid()}-{number}"
    write_tree(code)
    ways = {
        "usual": lambda: by_scp(cloud, code),
        "ours": lambda: cloud.verb("playbooks/push.yml", "-e", f"code={code}"),
    }
    order = list(ways) if number % 2 else list(ways)[::-1]
    cost = {f"{way} first": measured(sent, ways[way]) for way in order}
    (code / "d7/f7.txt").write_text("changed\n" * 3000)
    return cost | {f"{way} again": measured(sent, ways[way]) for way in order}


def best(costs: Iterable[tuple[float, int]]) -> tuple[float, int]:
    """Return the minimum of the seconds and the minimum of the bytes."""
    times, sizes = zip(*costs, strict=True)
    return min(times), min(sizes)


def write_tree(code: Path) -> None:
    """Write a tree of files whose first half is incompressible.

    The content is random each time, as workers of an existing cloud keep earlier releases.
    """
    chance = random.Random()  # noqa: S311 - no secret
    for number in range(FILES):
        file = code / f"d{number % 50}" / f"f{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        words = b"".join(b"line %d of file %d\n" % (line, number) for line in range(700))
        file.write_bytes(chance.randbytes(SIZE // 2) + words[: SIZE // 2])


def by_scp(cloud: VerbsCloud, code: Path) -> None:
    """Pack the tree, copy it to each worker and unpack it there."""
    there = f"bench-{code.name}"
    packed = cloud.scratch / "code.tgz"
    with tarfile.open(packed, "w:gz", compresslevel=6) as pack:
        pack.add(code, arcname="code")
    cloud.on_all("scp", ["-q", str(packed), "@:bench-code.tgz"])
    cloud.on_all("ssh", ["@", f"mkdir -p {there} && tar xzf bench-code.tgz -C {there}"])


def measured(sent, do) -> tuple[float, int]:
    """Return the seconds and sent bytes of an action.

    Earlier writes are flushed first; twice, as the disk may be a file on another disk.
    """
    os.sync()
    os.sync()
    before = sent()
    return seconds(do), sent() - before


if __name__ == "__main__":
    sys.exit(main())
