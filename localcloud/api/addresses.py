"""Free addresses, in the order in which machines get them.

Google reuses an address some time after its TPU is deleted. A client that still trusts it (a
firewall rule, an NFS export, a known host) then trusts another machine. Here addresses are reused
as late as possible, unless a test asks for early reuse.
"""

from collections.abc import Collection, Sequence
from ipaddress import IPv4Address

from localcloud.api.database import Database


class Addresses:
    """Records when addresses were released; call it inside the transaction that assigns them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def free(self, pool: Sequence[IPv4Address], *, latest_first: bool = False) -> list[IPv4Address]:
        """Return the free addresses of ``pool``: unused ones first, then the least recently used.

        ``latest_first`` reverses that: the most recently released address comes first.
        """
        rows = self._database.rows("SELECT address, external FROM workers")
        taken = {text for row in rows for text in row}
        turns = dict(self._database.rows("SELECT address, turn FROM released_addresses"))
        free = [address for address in pool if str(address) not in taken]
        sign = -1 if latest_first else 1
        return sorted(free, key=lambda address: sign * turns.get(str(address), 0))

    def release(self, addresses: Collection[str]) -> None:
        """Record addresses as released, in this order."""
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO released_addresses (address) VALUES (?)",
                [(address,) for address in addresses if address],
            )
