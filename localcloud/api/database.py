"""SQLite database with the cloud's state.

Committed transactions survive a kill of the server at any moment (WAL, synchronous=FULL).
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_TABLES = """
CREATE TABLE nodes (
    uid INTEGER PRIMARY KEY,
    zone TEXT NOT NULL,
    node_id TEXT NOT NULL,
    state TEXT NOT NULL,
    desired_state TEXT NOT NULL,
    last_error TEXT NOT NULL DEFAULT '',
    create_time TEXT NOT NULL,
    body TEXT NOT NULL,
    queued_resource INTEGER,
    condition TEXT NOT NULL DEFAULT '{}',
    preempt_at REAL,
    UNIQUE (zone, node_id)
);
CREATE INDEX nodes_of_queued_resources ON nodes (queued_resource);
CREATE TABLE workers (
    uid INTEGER NOT NULL REFERENCES nodes (uid),
    worker INTEGER NOT NULL,
    machine TEXT NOT NULL UNIQUE,
    address TEXT NOT NULL UNIQUE,
    external TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (uid, worker)
);
CREATE TABLE released_addresses (
    turn INTEGER PRIMARY KEY AUTOINCREMENT,
    address TEXT NOT NULL UNIQUE
);
CREATE TABLE operations (
    zone TEXT NOT NULL,
    operation_id TEXT NOT NULL,
    uid INTEGER NOT NULL,
    verb TEXT NOT NULL,
    target TEXT NOT NULL,
    create_time TEXT NOT NULL,
    end_time TEXT NOT NULL DEFAULT '',
    response TEXT,
    error TEXT,
    detail TEXT NOT NULL DEFAULT '{}',
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    api_version TEXT NOT NULL DEFAULT 'v2',
    PRIMARY KEY (zone, operation_id)
);
CREATE INDEX operations_under_way ON operations (end_time) WHERE end_time = '';
CREATE INDEX operations_of_subjects ON operations (uid);
CREATE TABLE request_ids (
    method TEXT NOT NULL,
    zone TEXT NOT NULL,
    request_id TEXT NOT NULL,
    operation_id TEXT NOT NULL,
    PRIMARY KEY (method, zone, request_id)
);
CREATE TABLE tokens (hash TEXT PRIMARY KEY, expires INTEGER NOT NULL);
CREATE TABLE service_accounts (
    email TEXT PRIMARY KEY,
    key_id TEXT NOT NULL,
    public_key TEXT NOT NULL
);
CREATE TABLE queued_resources (
    uid INTEGER PRIMARY KEY,
    zone TEXT NOT NULL,
    request_name TEXT NOT NULL,
    state TEXT NOT NULL,
    initiator TEXT NOT NULL,
    error TEXT,
    create_time TEXT NOT NULL,
    valid_from REAL,
    valid_until REAL,
    body TEXT NOT NULL,
    UNIQUE (zone, request_name)
);
CREATE TABLE compute_resources (
    uid INTEGER PRIMARY KEY,
    collection TEXT NOT NULL,
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    create_time TEXT NOT NULL,
    ready_at REAL NOT NULL,
    body TEXT NOT NULL,
    UNIQUE (collection, scope, name)
);
CREATE TABLE compute_operations (
    uid INTEGER PRIMARY KEY,
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    method TEXT NOT NULL,
    verb TEXT NOT NULL,
    target TEXT NOT NULL,
    target_uid INTEGER NOT NULL,
    begins REAL NOT NULL,
    ends REAL NOT NULL,
    request_id TEXT NOT NULL,
    error TEXT NOT NULL DEFAULT '',
    UNIQUE (scope, name)
);
CREATE INDEX compute_requests ON compute_operations (request_id) WHERE request_id != '';
"""


class Database:
    """Database connection that threads share, one transaction at a time.

    ``changed`` is called after every transaction that changed the database.
    """

    def __init__(self, path: Path) -> None:
        """Open the file; create it if it does not exist."""
        self.changed: Callable[[], None] = lambda: None
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        path.chmod(0o600)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            self._connection.execute(f"PRAGMA {pragma}")
        if not self.rows("SELECT 1 FROM sqlite_master"):
            self._connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit the statements in the ``with`` block, or roll them back after an exception.

        Inside another transaction, this sets a savepoint instead of starting a new transaction.
        """
        with self._lock:
            begin, end, undo = "BEGIN IMMEDIATE", "COMMIT", "ROLLBACK"
            before = self._connection.total_changes
            if inner := self._connection.in_transaction:
                begin, end = "SAVEPOINT inner_part", "RELEASE inner_part"
                undo = f"ROLLBACK TO inner_part; {end}"
            self._connection.execute(begin)
            try:
                yield self._connection
            except BaseException:
                for statement in undo.split("; "):
                    self._connection.execute(statement)
                raise
            self._connection.execute(end)
            if not inner and self._connection.total_changes != before:
                self.changed()

    def rows(self, query: str, *values: object) -> list[tuple]:
        """Return all rows of a query's result."""
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def execute(self, statement: str, *values: object) -> int:
        """Execute a statement in a transaction; return the number of rows that it changed."""
        with self.transaction() as connection:
            return connection.execute(statement, values).rowcount

    def close(self) -> None:
        """Close the database file."""
        with self._lock:
            self._connection.close()
