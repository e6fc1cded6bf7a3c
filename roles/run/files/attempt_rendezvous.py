"""Rendezvous of the workers of one attempt, before any trainer starts.

Worker 0 listens at a port that depends on the attempt, and the others connect to it. A worker must
prove that it knows the attempt's token before worker 0 parses its messages. Worker 0 compares run,
attempt, release and environment. Then the other workers must find a file that worker 0 writes to
the checkpoint directory. The connections stay open, so that the program `attempt` of each worker
learns how the trainers on other workers end.
"""

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import selectors
import socket
import time
from pathlib import Path

from attempt_connection import Connection, mac, parse

MAX_UNVERIFIED = 64  # largest number of connections that have not yet proved to know the token
UNVERIFIED_SECONDS = 5  # how long a connection may take to prove that it knows the token
SHARED_SECONDS = 35  # NFS may cache for 30 s that a file does not exist (nfs(5), acdirmin)
TOKEN_FILE = re.compile(r"\.tpufleet-shared-[0-9a-f]{32}")
NONCE = re.compile(rb"[0-9a-f]{32}")
COMPARED = ("run", "attempt", "release", "environment")


class RendezvousError(Exception):
    """The rendezvous failed, so the attempt does not start; the message says why."""

    reason = "rendezvous_failed"


class NotSharedError(RendezvousError):
    """Not all workers see the checkpoint directory of worker 0."""

    reason = "checkpoints_not_shared"


ERRORS = {error.reason: error for error in (RendezvousError, NotSharedError)}


class Rendezvous:
    """The rendezvous of one attempt; this worker runs the process ``process_id``.

    ``spec`` is the ``LaunchSpec``, ``environment`` the id of this worker's Python environment,
    ``token`` the secret of the attempt. ``report`` is called with the names of missing workers.
    ``shared_seconds`` is how long to look for the file that worker 0 writes to the checkpoint
    directory.
    """

    def __init__(self, spec, process_id, environment, token, report, shared_seconds=SHARED_SECONDS):
        self.address = spec.rendezvous_address
        self.key = token.encode()
        self.name, self.count, self.process_id = spec.worker_name, spec.workers, process_id
        self.deadline = time.monotonic() + spec.rendezvous_seconds
        self.identity = {
            "run": spec.run,
            "attempt": spec.attempt,
            "release": spec.release,
            "environment": environment,
        }
        # Workers check that a local path is the same directory on all of them. A bucket needs no
        # check: its address names the same bucket on every worker.
        is_local = "://" not in spec.checkpoints and not spec.volatile_checkpoints
        self.checkpoints = spec.checkpoints if is_local else ""
        self.shared_seconds = shared_seconds
        self.report = report

    def connect(self):
        """Wait until all workers may begin; return the connections. Raises RendezvousError.

        Worker 0 gets a connection to each other worker, any other worker only one to worker 0.
        """
        return self.gather() if self.process_id == 0 else self.join()

    # Methods that only worker 0 calls.

    def gather(self):
        """Wait for the other workers, then tell all of them to begin; return their connections.

        If a worker is missing, has another run, attempt, release or environment, or does not share
        the checkpoint directory, tells the connected workers that the attempt fails, and raises
        RendezvousError.
        """
        family = socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(self.address)
            except OSError as error:
                raise RendezvousError(
                    "{} cannot listen on {}:{}: {}. The next attempt uses another port".format(
                        self.name(0), *self.address, error.strerror
                    )
                ) from error
            listener.listen(self.count + MAX_UNVERIFIED)
            arrived, unverified = {}, {}
            try:
                self.admit(listener, arrived, unverified)
                if self.checkpoints:
                    self.check_shared(arrived)
                for peer in arrived.values():
                    peer.send({"begin": True})
            except RendezvousError as error:
                for peer in arrived.values():
                    peer.send({"no": str(error), "reason": error.reason})
                    peer.close()
                raise
            finally:
                for connection in unverified:
                    connection.close()
        return list(arrived.values())

    def admit(self, listener, arrived, unverified):
        """Wait until all other workers have connected and proved that they know the token.

        Adds their connections to ``arrived``, by process id. ``unverified`` has the connections
        without this proof, each with its nonce and the time at which it was accepted.
        """
        reported = None
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while True:
                missing = [number for number in range(1, self.count) if number not in arrived]
                if missing != reported:
                    self.report([self.name(number) for number in missing])
                    reported = missing
                if not missing:
                    return
                remaining_s = self.deadline - time.monotonic()
                if remaining_s <= 0:
                    names = ", ".join(self.name(number) for number in missing)
                    raise RendezvousError(f"{names} did not arrive")
                ready = [key.fileobj for key, _ in selector.select(min(remaining_s, 1))]
                for peer in [peer for peer in ready if peer is not listener]:
                    if not self.read_from(peer, arrived, unverified):
                        selector.unregister(peer)
                        peer.close()
                for connection in self.connections_to_close(unverified):
                    del unverified[connection]
                    selector.unregister(connection)
                    connection.close()
                if listener in ready:
                    self.accept(listener, selector, unverified)

    @staticmethod
    def connections_to_close(unverified):
        """Return the unverified connections to close: too old, or too many (the oldest first)."""
        now, surplus = time.monotonic(), len(unverified) + 1 - MAX_UNVERIFIED
        return [
            connection
            for index, (connection, (_, since)) in enumerate(unverified.items())
            if index < surplus or now - since > UNVERIFIED_SECONDS
        ]

    @staticmethod
    def accept(listener, selector, unverified):
        """Accept a connection, send a nonce over it, and add it to ``unverified``."""
        try:
            connection = Connection(listener.accept()[0])
        except OSError:  # the other side has closed the connection
            return
        nonce = secrets.token_hex(16).encode()
        if connection.send_line(nonce):
            unverified[connection] = (nonce, time.monotonic())
            selector.register(connection, selectors.EVENT_READ)
        else:
            connection.close()

    def read_from(self, peer, arrived, unverified):
        """Read from a connection; return False if the caller must close it.

        ``arrived`` has the verified connections by process id. ``unverified`` has the nonce of each
        connection that is not verified yet.
        """
        if peer in unverified:
            lines = peer.receive_lines()
            if lines == []:
                return True
            nonce, _ = unverified.pop(peer)
            is_hello = lines is not None and len(lines) == 1
            return is_hello and self.verify(peer, lines[0], nonce, arrived)
        if peer.receive() is None or peer not in arrived.values():
            for number in [
                process_id for process_id, connection in arrived.items() if connection is peer
            ]:
                del arrived[number]
            return False
        return True

    def verify(self, peer, line, nonce, arrived):
        """Check the first line of an unverified connection; return False if it is invalid.

        The line must be sealed with the token and the nonce. Raises RendezvousError if the worker
        that sent it has another run, attempt, release or environment.
        """
        seal, _, text = line.partition(b" ")
        if not hmac.compare_digest(seal, mac(self.key, b"hello", nonce, text)):
            return False
        hello = parse(text) or {}
        number, identity, peer_nonce = hello.get("number"), hello.get("same"), hello.get("nonce")
        is_valid = type(number) is int and 0 < number < self.count and isinstance(identity, dict)
        if (
            not is_valid
            or not isinstance(peer_nonce, str)
            or not NONCE.fullmatch(peer_nonce.encode())
        ):
            return False
        peer.name = self.name(number)
        peer.seal_with(mac(self.key, b"session", nonce, peer_nonce.encode()), is_server=True)
        arrived[number] = peer  # a new connection of the same worker replaces the old one
        peer.send({"welcome": True})
        for field in COMPARED:
            if identity.get(field) != self.identity[field]:
                peer_value = str(identity.get(field))[:100]
                raise RendezvousError(
                    f"the workers differ in {field}: {peer.name} has {peer_value}, "
                    f"{self.name(0)} has {self.identity[field]}"
                )
        return True

    def check_shared(self, arrived):
        """Check that all processes see the same checkpoint directory.

        Writes a temporary file there, which each other process must read. ``arrived`` has the
        connections to the other processes, by process id. Raises NotSharedError if a process does
        not find the file, RendezvousError if the file can't be written or a worker is gone.
        """
        directory = nearest_directory(self.checkpoints)
        name, content = f".tpufleet-shared-{secrets.token_hex(16)}", secrets.token_hex(16)
        path = directory / name
        try:
            with path.open("x", encoding="ascii") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise RendezvousError(
                f"{self.name(0)} cannot write to {directory}: {error.strerror}"
            ) from error
        try:
            digest = hashlib.sha256(content.encode()).hexdigest()
            for peer in arrived.values():
                peer.send({"read": str(path), "digest": digest})
            # The other workers look for the file for ``shared_seconds``; wait longer for answers.
            answers = self.collect(arrived, time.monotonic() + self.shared_seconds + 10)
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
        not_shared = [
            self.name(number) for number in sorted(arrived) if answers.get(number) is not True
        ]
        if not_shared:
            more = f" and {len(not_shared) - 3} more" if len(not_shared) > 3 else ""
            raise NotSharedError(
                f"{self.checkpoints} is not the same directory on {', '.join(not_shared[:3])}"
                f"{more} as on {self.name(0)}, so a resumed run would lose its checkpoints. Use a "
                "bucket (-e bucket=gs://BUCKET), NFS (mounts) or a TPU of one worker. If the "
                "checkpoints may be lost, set -e volatile_checkpoints=true"
            )

    def collect(self, arrived, deadline):
        """Return, by process id, whether each other process has found the file of worker 0.

        ``arrived`` has the connection to each process. The result has no entry for a process that
        has not answered at ``deadline`` (monotonic time). Raises RendezvousError if a connection
        is closed.
        """
        answers = {}
        with selectors.DefaultSelector() as selector:
            for number, peer in arrived.items():
                selector.register(peer, selectors.EVENT_READ, number)
            while len(answers) < len(arrived) and time.monotonic() < deadline:
                for key, _ in selector.select(1):
                    messages = key.fileobj.receive()
                    if messages is None:
                        raise RendezvousError(f"lost the connection to {key.fileobj.name}")
                    answers.update(
                        (key.data, message["shared"]) for message in messages if "shared" in message
                    )
        return answers

    # Methods that all workers except worker 0 call.

    def join(self):
        """Connect to worker 0 and wait until worker 0 says to begin.

        Connects again after a failure, until the time limit of the rendezvous. Returns a list with
        the connection to worker 0. Raises RendezvousError.
        """
        self.report([self.name(0)])
        reason = "no answer"
        while time.monotonic() < self.deadline:
            try:
                leader = Connection(socket.create_connection(self.address, timeout=5))
            except OSError as error:
                reason = error.strerror or "no answer"
                time.sleep(0.2)
                continue
            leader.name = self.name(0)
            if self.authenticate(leader):
                return [leader]
            leader.close()
            reason = "connection closed"
            time.sleep(0.2)
        raise RendezvousError(
            "cannot connect to {} ({}:{}): {}".format(self.name(0), *self.address, reason)
        )

    def authenticate(self, leader):
        """Prove to worker 0 that this worker knows the token; return True when it says to begin.

        ``leader`` is the connection to worker 0. Returns False if worker 0 is gone or does not know
        the token. Raises RendezvousError if worker 0 says that the attempt fails.
        """
        # Worker 0 sends the names of missing workers when its own wait ends, so wait longer.
        deadline = self.deadline + self.shared_seconds + 20
        if not self.wait_for(leader, deadline):
            return False
        greeting = leader.receive_lines()
        if not greeting or len(greeting) != 1 or not NONCE.fullmatch(greeting[0]):
            return False
        own_nonce = secrets.token_hex(16)
        hello = {"number": self.process_id, "same": self.identity, "nonce": own_nonce}
        text = json.dumps(hello).encode()
        if not leader.send_line(mac(self.key, b"hello", greeting[0], text) + b" " + text):
            return False
        leader.seal_with(
            mac(self.key, b"session", greeting[0], own_nonce.encode()), is_server=False
        )
        while self.wait_for(leader, deadline):
            messages = leader.receive()
            if messages is None:
                return False
            for number, message in enumerate(messages, 1):
                if "welcome" in message:
                    self.report([])  # only worker 0 knows whether other workers are missing
                elif "read" in message:
                    is_shared = self.sees_file(leader, str(message["read"]), message.get("digest"))
                    leader.send({"shared": is_shared})
                elif "no" in message:
                    error_class = ERRORS.get(message.get("reason"), RendezvousError)
                    raise error_class(str(message["no"]))
                elif "begin" in message:
                    leader.early_messages = messages[number:]
                    return True
        return False

    @staticmethod
    def wait_for(leader, deadline):
        """Wait until worker 0 has sent data; return False if there is none at ``deadline``."""
        with selectors.DefaultSelector() as selector:
            selector.register(leader, selectors.EVENT_READ)
            return bool(selector.select(max(0, deadline - time.monotonic())))

    def sees_file(self, leader, path, digest):
        """Return whether this worker sees the file that worker 0 wrote to the checkpoint directory.

        Retries for ``shared_seconds``, because a network file system may show the file late.
        Returns False early if worker 0 (``leader``) sends a message or is gone, because the attempt
        then fails. ``path`` is the file, ``digest`` the SHA-256 digest of its content.
        """
        file, checkpoints = Path(path), Path(self.checkpoints)
        is_above = file.parent in (checkpoints, *checkpoints.parents)
        if not is_above or not TOKEN_FILE.fullmatch(file.name):
            return False
        deadline = time.monotonic() + self.shared_seconds
        while True:
            try:
                with file.open("rb") as stream:
                    content = stream.read(64)
            except OSError:
                content = b""
            if hashlib.sha256(content).hexdigest() == digest:
                return True
            now = time.monotonic()
            if now >= deadline or self.wait_for(leader, now + 0.2):
                return False


def nearest_directory(path):
    """Return ``path`` if it is a directory, or else the nearest directory above it that exists."""
    directory = Path(path)
    return next(candidate for candidate in (directory, *directory.parents) if candidate.is_dir())
