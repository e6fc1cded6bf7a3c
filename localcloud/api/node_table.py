"""The nodes that the cloud knows, their machines and addresses."""

import json
import secrets
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from localcloud.api.database import Database
from localcloud.api.errors import already_exists

# What a node's machines are meant to be: running, or no more.
RUN = "run"
GONE = "gone"

_COLUMNS = "uid, zone, node_id, state, wanted, trouble, create_time, body"


class NoCapacityError(Exception):
    """Fewer addresses are free than the node has workers; the text gives both numbers."""


@dataclass(frozen=True)
class Worker:
    """One worker of a node: its index, its machine's name, its address."""

    index: int
    machine: str
    address: IPv4Address


@dataclass(frozen=True)
class Node:
    """A node as it is stored; ``body`` holds what the caller asked for, in the API's words."""

    uid: int
    zone: str
    node_id: str
    state: str
    wanted: str
    trouble: str
    create_time: str
    body: Mapping[str, Any]
    workers: tuple[Worker, ...]


class NodeTable:
    """Reads and writes nodes. A row in ``workers`` means that its machine may exist."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self,
        name: str,
        zone: str,
        node_id: str,
        create_time: str,
        body: Mapping[str, Any],
        count: int,
        pool: Sequence[IPv4Address],
    ) -> Node:
        """Store a new node in CREATING with ``count`` workers on the lowest free addresses.

        Raises ApiError (409) if the zone has a node of this id, NoCapacityError if too few
        addresses of ``pool`` are free.
        """
        uid = secrets.randbits(62) | 1 << 61
        with self._database.transaction() as connection:
            try:
                connection.execute(
                    f"INSERT INTO nodes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, '', ?, ?)",  # noqa: S608 - a constant
                    (uid, zone, node_id, "CREATING", RUN, create_time, json.dumps(body)),
                )
            except sqlite3.IntegrityError:
                raise already_exists(name) from None
            free = self._free(pool)
            if len(free) < count:
                raise NoCapacityError(f"{count} machines are needed, {len(free)} are free")
            prefix = self._machine_prefix(connection)
            rows = [(uid, i, f"{prefix}-w-{i}", str(free[i])) for i in range(count)]
            connection.executemany("INSERT INTO workers VALUES (?, ?, ?, ?)", rows)
        return self.by_uid(uid)

    def _free(self, pool: Sequence[IPv4Address]) -> list[IPv4Address]:
        taken = {text for (text,) in self._database.rows("SELECT address FROM workers")}
        return [address for address in pool if str(address) not in taken]

    @staticmethod
    def _machine_prefix(connection: sqlite3.Connection) -> str:
        """Choose a name as Google's TPU VMs have them, which no node of this cloud has yet."""
        while True:
            prefix = f"t1v-n-{secrets.token_hex(4)}"
            query = "SELECT 1 FROM workers WHERE machine = ?"
            if connection.execute(query, (f"{prefix}-w-0",)).fetchone() is None:
                return prefix

    def get(self, zone: str, node_id: str) -> Node | None:
        """Give the node of this name, None without one."""
        return self._one("zone = ? AND node_id = ?", zone, node_id)

    def by_uid(self, uid: int) -> Node:
        """Give the node with this id; raises KeyError when it is gone."""
        node = self.find(uid)
        if node is None:
            raise KeyError(uid)
        return node

    def find(self, uid: int) -> Node | None:
        """Give the node with this id, None when it is gone."""
        return self._one("uid = ?", uid)

    def named(self, node_id: str) -> list[Node]:
        """Give the nodes of this name in all zones."""
        return self._some("node_id = ? ORDER BY zone", node_id)

    def everything(self) -> list[Node]:
        """Give all nodes, by zone and name."""
        return self._some("TRUE ORDER BY zone, node_id")

    def page(self, zones: Collection[str], after: tuple[str, str] | None, size: int) -> list[Node]:
        """Give up to ``size`` nodes of these zones behind the key ``(zone, node_id)``."""
        marks = ", ".join("?" * len(zones))
        where = f"zone IN ({marks}) AND (zone, node_id) > (?, ?) ORDER BY zone, node_id LIMIT ?"
        return self._some(where, *zones, *(after or ("", "")), size)

    def move(
        self,
        uid: int,
        states: Collection[str],
        to: str,
        *,
        wanted: str | None = None,
        trouble: str = "",
    ) -> bool:
        """Change the state if it is one of ``states`` now; tell whether it was."""
        update = (
            "UPDATE nodes SET state = ?, wanted = coalesce(?, wanted), trouble = ? "
            "WHERE uid = ? AND state IN (SELECT value FROM json_each(?))"
        )
        values = (to, wanted, trouble, uid, json.dumps(list(states)))
        with self._database.transaction() as connection:
            return connection.execute(update, values).rowcount == 1

    def release_workers(self, uid: int) -> None:
        """Forget a node's machines, which are gone, and free their addresses."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM workers WHERE uid = ?", (uid,))

    def remove(self, uid: int) -> None:
        """Forget a node whose machines are gone."""
        with self._database.transaction() as connection:
            self.release_workers(uid)
            connection.execute("DELETE FROM nodes WHERE uid = ?", (uid,))

    def machines(self) -> list[str]:
        """Name every machine that may exist."""
        rows = self._database.rows("SELECT machine FROM workers ORDER BY machine")
        return [machine for (machine,) in rows]

    def _one(self, where: str, *values: object) -> Node | None:
        found = self._some(where, *values)
        return found[0] if found else None

    def _some(self, where: str, *values: object) -> list[Node]:
        with self._database.transaction():
            nodes = self._database.rows(
                f"SELECT {_COLUMNS} FROM nodes WHERE {where}",  # noqa: S608 - ours, no input
                *values,
            )
            workers = self._workers([row[0] for row in nodes])
        return [Node(*row[:-1], json.loads(row[-1]), workers.get(row[0], ())) for row in nodes]

    def _workers(self, uids: Sequence[int]) -> dict[int, tuple[Worker, ...]]:
        rows = self._database.rows(
            "SELECT uid, worker, machine, address FROM workers "
            "WHERE uid IN (SELECT value FROM json_each(?)) ORDER BY uid, worker",
            json.dumps(uids),
        )
        found: dict[int, tuple[Worker, ...]] = {}
        for uid, index, machine, address in rows:
            worker = Worker(index, machine, IPv4Address(address))
            found[uid] = (*found.get(uid, ()), worker)
        return found
