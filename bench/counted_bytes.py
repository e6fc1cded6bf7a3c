"""Count the bytes of network packets on this computer with nft(8)."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counted_bytes(hook: str, *rules: str) -> Iterator[Callable[[], int]]:
    """Add nft rules during a with block; yield a function that returns the bytes counted so far.

    Counts the bytes of packets that the last rule matches, including headers. Rules before the last
    one can exclude packets. ``rules`` are added to a new chain. ``hook`` says where nft calls the
    chain, and with which priority, such as ``forward priority -10``.
    """
    table = f"tpufleet-bench-{os.getpid()}"
    lines = "\n".join(rules)
    chain = f"chain counting {{ type filter hook {hook}; {lines} counter name passed\n }}"
    subprocess.run(
        ["nft", "-f", "-"],
        input=f"table ip {table} {{ counter passed {{ }}\n {chain}\n }}",
        text=True,
        check=True,
    )

    def passed() -> int:
        command = ["nft", "--json", "list", "counter", "ip", table, "passed"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        entries = json.loads(done.stdout)["nftables"]
        return next(entry["counter"]["bytes"] for entry in entries if "counter" in entry)

    try:
        yield passed
    finally:
        subprocess.run(["nft", "delete", "table", "ip", table], check=False)
