"""Database tables of the nodes, their machines and their addresses."""

import json
import secrets
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from localcloud.api.catalog import name_of
from localcloud.api.clock import timestamp
from localcloud.api.errors import already_exists
from localcloud.api.table import ZonalTable

# Desired states of a node's machines.
RUN = "running"
OFF = "off"
DELETED = "deleted"
# States in which a node can be deleted.
DELETABLE = (
    *("CREATING", "READY", "RESTARTING", "REPAIRING", "STARTING", "STOPPING", "STOPPED"),
    *("PREEMPTED", "TERMINATED"),
)


class NoCapacityError(Exception):
    """Error: a node needs more addresses than are free; the message gives both numbers."""


@dataclass(frozen=True)
class Worker:
    """One worker of a node: its index, machine name, internal and external address."""

    index: int
    machine: str
    address: IPv4Address
    external: IPv4Address

    def __str__(self) -> str:
        return self.machine


@dataclass(frozen=True)
class Node:
    """A stored node.

    ``body`` contains the requested fields of the Node message. ``desired_state`` is the desired
    state of the node's machines: RUN, OFF or DELETED. ``queued_resource`` is the uid of the queued
    resource that created the node. ``preempt_at`` is the time of an announced preemption (seconds
    since 1970). ``condition`` is the node's health, ``last_error`` the message of the last failure.
    """

    uid: int
    zone: str
    node_id: str
    state: str
    desired_state: str
    last_error: str
    create_time: str
    queued_resource: int | None
    preempt_at: float | None
    condition: Mapping[str, Any]
    body: Mapping[str, Any]
    workers: tuple[Worker, ...]

    @property
    def name(self) -> str:
        """The node's full name."""
        return name_of("nodes", self.zone, self.node_id)


class NodeTable(ZonalTable[Node]):
    """The database tables ``nodes`` and ``workers``.

    A machine can exist only if ``workers`` has a row for it.

    Google reuses the addresses of deleted TPUs after some time. A client that still trusts such an
    address (in a firewall rule, an NFS export, ``known_hosts``) then trusts another machine. The
    local cloud reuses addresses as late as possible, unless a test requests early reuse.
    """

    _name = "nodes"
    _columns = (
        "uid, zone, node_id, state, desired_state, last_error, create_time, queued_resource, "
        "preempt_at, condition, body"
    )
    _id = "node_id"

    def add(
        self,
        zone: str,
        node_id: str,
        body: Mapping[str, Any],
        count: int,
        pool: Sequence[IPv4Address],
        queued_resource: int | None = None,
        *,
        latest_released_first: bool = False,
    ) -> Node:
        """Store a new node in state CREATING, with ``count`` workers on free addresses of ``pool``.

        ``queued_resource`` is the uid of the queued resource that creates the node. With
        ``latest_released_first``, the node gets the most recently released addresses. Raises
        ApiError (409) if the zone already has a node with this id, NoCapacityError if ``pool`` has
        too few free addresses.
        """
        uid = new_uid()
        with self._database.transaction() as connection:
            try:
                connection.execute(
                    "INSERT INTO nodes (uid, zone, node_id, state, desired_state, create_time, "
                    "queued_resource, body) VALUES (?, ?, ?, 'CREATING', ?, ?, ?, ?)",
                    (uid, zone, node_id, RUN, timestamp(), queued_resource, json.dumps(body)),
                )
            except sqlite3.IntegrityError:
                raise already_exists(name_of("nodes", zone, node_id)) from None
            free = self._free(pool, latest_first=latest_released_first)
            if len(free) < count:
                raise NoCapacityError(f"needs {count} addresses, but only {len(free)} are free")
            prefix = f"t1v-n-{secrets.token_hex(4)}"
            rows = [(uid, i, f"{prefix}-w-{i}", str(free[i])) for i in range(count)]
            connection.executemany(
                "INSERT INTO workers (uid, worker, machine, address) VALUES (?, ?, ?, ?)", rows
            )
        return self.by_uid(uid)

    def by_uid(self, uid: int) -> Node:
        """Return the node with this uid; raise KeyError if it does not exist."""
        node = self.find(uid)
        if node is None:
            raise KeyError(uid)
        return node

    def at(self, address: str) -> Node | None:
        """Return the node that has a worker with this internal address, or None."""
        return self._one("uid = (SELECT uid FROM workers WHERE address = ?)", address)

    def named(self, node_id: str) -> list[Node]:
        """Return the nodes with this id: at most one per zone."""
        return self._some("node_id = ? ORDER BY zone", node_id)

    def of_queued_resource(self, uid: int) -> list[Node]:
        """Return the nodes of a queued resource; nodes of a multislice in the order of slice ids.

        Shorter ids come first, so that ``PREFIX-10`` follows ``PREFIX-9``.
        """
        return self._some("queued_resource = ? ORDER BY length(node_id), node_id", uid)

    def all(self) -> list[Node]:
        """Return all nodes, sorted by zone and name."""
        return self._some("TRUE ORDER BY zone, node_id")

    def move(
        self,
        uid: int,
        states: Collection[str],
        new_state: str,
        *,
        desired_state: str | None = None,
        last_error: str = "",
    ) -> bool:
        """Change a node's state to ``new_state`` if its current state is one of ``states``.

        Returns whether the state changed. ``desired_state`` is the new desired state of the
        machines; None keeps the old one. ``last_error`` replaces the error message of the last
        failure. A change of state cancels an announced preemption.
        """
        update = (
            "UPDATE nodes SET state = ?, desired_state = coalesce(?, desired_state), "
            "last_error = ?, preempt_at = NULL "
            "WHERE uid = ? AND state IN (SELECT value FROM json_each(?))"
        )
        values = (new_state, desired_state, last_error, uid, json.dumps(list(states)))
        return self._database.execute(update, *values) == 1

    def change_body(self, uid: int, body: Mapping[str, Any]) -> None:
        """Replace a node's body."""
        self._set(uid, "body", json.dumps(body))

    def set_condition(self, uid: int, condition: Mapping[str, Any]) -> None:
        """Replace a node's health: ``{health, healthDescription, symptoms}``."""
        self._set(uid, "condition", json.dumps(condition))

    def announce_preemption(self, uid: int, moment: float) -> None:
        """Record the time at which a node will be preempted (seconds since 1970)."""
        self._set(uid, "preempt_at", moment)

    def assign_external(self, uid: int, index: int, pool: Sequence[IPv4Address]) -> None:
        """Assign another external address to worker ``index``, if ``pool`` has a free one."""
        with self._database.transaction():
            if not (free := self._free(pool)):
                return
            query = "SELECT external FROM workers WHERE uid = ? AND worker = ?"
            self._release([row[0] for row in self._database.rows(query, uid, index)])
            update = "UPDATE workers SET external = ? WHERE uid = ? AND worker = ?"
            self._database.execute(update, str(free[0]), uid, index)

    def _free(
        self, pool: Sequence[IPv4Address], *, latest_first: bool = False
    ) -> list[IPv4Address]:
        """Return the free addresses in ``pool``, never used ones first, then by time of release.

        ``latest_first`` reverses the order: the most recently released address comes first.
        """
        rows = self._database.rows("SELECT address, external FROM workers")
        used = {text for row in rows for text in row}
        release_order = dict(self._database.rows("SELECT address, turn FROM released_addresses"))
        free = [address for address in pool if str(address) not in used]
        sign = -1 if latest_first else 1
        return sorted(free, key=lambda address: sign * release_order.get(str(address), 0))

    def _release(self, addresses: Collection[str]) -> None:
        """Record that addresses were released in the given order; ``_free`` sorts by this order."""
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO released_addresses (address) VALUES (?)",
                [(address,) for address in addresses if address],
            )

    def _set(self, uid: int, column: str, value: object) -> None:
        query = f"UPDATE nodes SET {column} = ? WHERE uid = ?"  # noqa: S608 - a column name, no user input
        self._database.execute(query, value, uid)

    def release_workers(self, uid: int) -> None:
        """Delete a node's rows in ``workers`` and release their addresses.

        Call it after the node's machines are deleted.
        """
        with self._database.transaction():
            # Release worker 0's internal address last: if a test requests early reuse of addresses,
            # the next node's worker 0 then gets this address.
            query = "SELECT external, address FROM workers WHERE uid = ? ORDER BY worker DESC"
            self._release([address for row in self._database.rows(query, uid) for address in row])
            self._database.execute("DELETE FROM workers WHERE uid = ?", uid)

    def remove(self, uid: int) -> None:
        """Delete a node and release its addresses; call it after its machines are deleted."""
        with self._database.transaction():
            self.release_workers(uid)
            self._database.execute("DELETE FROM nodes WHERE uid = ?", uid)

    def machines(self) -> list[str]:
        """Return the machine names of all workers, including machines that do not exist yet."""
        rows = self._database.rows("SELECT machine FROM workers ORDER BY machine")
        return [machine for (machine,) in rows]

    def _some(self, where: str, *values: object) -> list[Node]:
        # Use one transaction, so that nothing changes between the queries for nodes and workers.
        with self._database.transaction():
            return super()._some(where, *values)

    def _read(self, rows: Sequence[tuple]) -> list[Node]:
        workers = self._workers([row[0] for row in rows])
        return [
            Node(*row[:-2], json.loads(row[-2]), json.loads(row[-1]), workers.get(row[0], ()))
            for row in rows
        ]

    def _workers(self, uids: Sequence[int]) -> dict[int, tuple[Worker, ...]]:
        rows = self._database.rows(
            "SELECT uid, worker, machine, address, external FROM workers "
            "WHERE uid IN (SELECT value FROM json_each(?)) ORDER BY uid, worker",
            json.dumps(uids),
        )
        workers_by_uid: dict[int, tuple[Worker, ...]] = {}
        for uid, index, machine, address, external in rows:
            worker = Worker(index, machine, IPv4Address(address), IPv4Address(external or address))
            workers_by_uid[uid] = (*workers_by_uid.get(uid, ()), worker)
        return workers_by_uid


def new_uid() -> int:
    """Return a random uid in Google's format: 19 digits, positive as a signed 64-bit integer."""
    return secrets.randbits(62) | 1 << 61
