"""The nodes that the cloud knows, their machines and addresses."""

import json
import secrets
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from localcloud.api.addresses import Addresses
from localcloud.api.database import Database
from localcloud.api.errors import already_exists

# What a node's machines are meant to be: running, switched off, or no more.
RUN = "run"
OFF = "off"
GONE = "gone"

_COLUMNS = (
    "uid, zone, node_id, state, wanted, trouble, create_time, queued_resource, preempt_at, "
    "condition, body"
)


class NoCapacityError(Exception):
    """Fewer addresses are free than the node has workers; the text gives both numbers."""


@dataclass(frozen=True)
class Worker:
    """One worker of a node: its index, its machine's name, its addresses inside and outside."""

    index: int
    machine: str
    address: IPv4Address
    external: IPv4Address

    def __str__(self) -> str:
        return self.machine


@dataclass(frozen=True)
class Node:
    """A node as it is stored; ``body`` holds what the caller asked for, in the API's words.

    ``queued_resource`` is the number of the request that it belongs to; ``preempt_at`` the time
    (seconds since 1970) at which it will be preempted; ``condition`` what was said of its health.
    """

    uid: int
    zone: str
    node_id: str
    state: str
    wanted: str
    trouble: str
    create_time: str
    queued_resource: int | None
    preempt_at: float | None
    condition: Mapping[str, Any]
    body: Mapping[str, Any]
    workers: tuple[Worker, ...]


class NodeTable:
    """Reads and writes nodes. A row in ``workers`` means that its machine may exist."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._addresses = Addresses(database)

    def add(
        self,
        name: str,
        zone: str,
        node_id: str,
        create_time: str,
        body: Mapping[str, Any],
        count: int,
        pool: Sequence[IPv4Address],
        queued_resource: int | None = None,
        *,
        latest_released_first: bool = False,
    ) -> Node:
        """Store a new node in CREATING with ``count`` workers, on addresses as ``Addresses.free``.

        Raises ApiError (409) if the zone has a node of this id, NoCapacityError if too few
        addresses of ``pool`` are free.
        """
        uid = new_uid()
        with self._database.transaction() as connection:
            try:
                connection.execute(
                    "INSERT INTO nodes (uid, zone, node_id, state, wanted, create_time, "
                    "queued_resource, body) VALUES (?, ?, ?, 'CREATING', ?, ?, ?, ?)",
                    (uid, zone, node_id, RUN, create_time, queued_resource, json.dumps(body)),
                )
            except sqlite3.IntegrityError:
                raise already_exists(name) from None
            free = self._addresses.free(pool, latest_first=latest_released_first)
            if len(free) < count:
                raise NoCapacityError(f"{count} machines are needed, {len(free)} are free")
            prefix = self._machine_prefix(connection)
            rows = [(uid, i, f"{prefix}-w-{i}", str(free[i])) for i in range(count)]
            connection.executemany(
                "INSERT INTO workers (uid, worker, machine, address) VALUES (?, ?, ?, ?)", rows
            )
        return self.by_uid(uid)

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

    def at(self, address: str) -> Node | None:
        """Give the node that has a worker at this inner address, None without one."""
        return self._one("uid = (SELECT uid FROM workers WHERE address = ?)", address)

    def named(self, node_id: str) -> list[Node]:
        """Give the nodes of this name in all zones."""
        return self._some("node_id = ? ORDER BY zone", node_id)

    def of_queued_resource(self, uid: int) -> list[Node]:
        """Give the nodes that a queued resource has, in the order of their names."""
        return self._some("queued_resource = ? ORDER BY length(node_id), node_id", uid)

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
        """Change the state if it is one of ``states`` now; tell whether it was.

        A preemption that was announced is called off by any change.
        """
        update = (
            "UPDATE nodes SET state = ?, wanted = coalesce(?, wanted), trouble = ?, "
            "preempt_at = NULL WHERE uid = ? AND state IN (SELECT value FROM json_each(?))"
        )
        values = (to, wanted, trouble, uid, json.dumps(list(states)))
        with self._database.transaction() as connection:
            return connection.execute(update, values).rowcount == 1

    def change_body(self, uid: int, body: Mapping[str, Any]) -> None:
        """Replace what was asked for."""
        self._set(uid, "body", json.dumps(body))

    def set_condition(self, uid: int, condition: Mapping[str, Any]) -> None:
        """Replace what is said of a node's health: ``{health, healthDescription, symptoms}``."""
        self._set(uid, "condition", json.dumps(condition))

    def announce_preemption(self, uid: int, moment: float) -> None:
        """Write down when a node will be preempted, in seconds since 1970."""
        self._set(uid, "preempt_at", moment)

    def move_outside(self, uid: int, index: int, pool: Sequence[IPv4Address]) -> None:
        """Give a worker another external address; it keeps its own if no other is free."""
        with self._database.transaction() as connection:
            if not (free := self._addresses.free(pool)):
                return
            key = (uid, index)
            query = "SELECT external FROM workers WHERE uid = ? AND worker = ?"
            self._addresses.release([row[0] for row in connection.execute(query, key)])
            update = "UPDATE workers SET external = ? WHERE uid = ? AND worker = ?"
            connection.execute(update, (str(free[0]), *key))

    def _set(self, uid: int, column: str, value: object) -> None:
        with self._database.transaction() as connection:
            query = f"UPDATE nodes SET {column} = ? WHERE uid = ?"  # noqa: S608 - ours, no input
            connection.execute(query, (value, uid))

    def release_workers(self, uid: int) -> None:
        """Forget a node's machines, which are gone, and free their addresses."""
        with self._database.transaction() as connection:
            # Worker 0's own address last, so that a node that reuses early has the same order.
            query = "SELECT external, address FROM workers WHERE uid = ? ORDER BY worker DESC"
            self._addresses.release([it for row in connection.execute(query, (uid,)) for it in row])
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
        return [
            Node(*row[:-2], json.loads(row[-2]), json.loads(row[-1]), workers.get(row[0], ()))
            for row in nodes
        ]

    def _workers(self, uids: Sequence[int]) -> dict[int, tuple[Worker, ...]]:
        rows = self._database.rows(
            "SELECT uid, worker, machine, address, external FROM workers "
            "WHERE uid IN (SELECT value FROM json_each(?)) ORDER BY uid, worker",
            json.dumps(uids),
        )
        found: dict[int, tuple[Worker, ...]] = {}
        for uid, index, machine, address, external in rows:
            worker = Worker(index, machine, IPv4Address(address), IPv4Address(external or address))
            found[uid] = (*found.get(uid, ()), worker)
        return found


def new_uid() -> int:
    """Choose a number as Google's nodes have them: 19 digits, positive as a signed integer."""
    return secrets.randbits(62) | 1 << 61
