"""Which addresses are free, in the order in which machines get them.

Google hands an address out again some time after its TPU is gone. A client that still trusts it
(a firewall rule, an NFS export, a known host) then trusts somebody else. Here addresses come round
as late as possible, so that a test meets early reuse only where it asks for it.
"""

from collections.abc import Collection, Sequence
from ipaddress import IPv4Address

from localcloud.api.database import Database


class Addresses:
    """Remembers when each address was released; call it inside the transaction that assigns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def free(self, pool: Sequence[IPv4Address], *, latest_first: bool = False) -> list[IPv4Address]:
        """Return the free addresses of ``pool``: those never used, then the longest released.

        With ``latest_first`` the one released last comes first, and those never used last.
        """
        rows = self._database.rows("SELECT address, external FROM workers")
        taken = {text for row in rows for text in row}
        turns = dict(self._database.rows("SELECT address, turn FROM released_addresses"))
        free = [address for address in pool if str(address) not in taken]
        sign = -1 if latest_first else 1
        return sorted(free, key=lambda address: sign * turns.get(str(address), 0))

    def release(self, addresses: Collection[str]) -> None:
        """Put addresses at the end of the round, in this order."""
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO released_addresses (address) VALUES (?)",
                [(address,) for address in addresses if address],
            )
