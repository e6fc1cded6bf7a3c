"""Rendezvous of the workers of one attempt, before any trainer starts.

Worker 0 listens at the attempt's own port, the others connect. Both sides prove that they know the
attempt's token before anything they send is parsed, and compare run, attempt, release and
environment. Then the others show that they see the checkpoint directory of worker 0. The
connections stay open: over them each worker learns how the others end (`attempt`, beside this
file). Python 3.9, standard library.
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

MAX_UNVERIFIED = 64  # connections that have not proved the token yet
UNVERIFIED_SECONDS = 5  # how long one of them may take
SHARED_SECONDS = 35  # NFS may repeat for 30 s that a name is missing (nfs(5), acdirmin)
TOKEN_FILE = re.compile(r"\.tpufleet-shared-[0-9a-f]{32}")
NONCE = re.compile(rb"[0-9a-f]{32}")
COMPARED = ("run", "attempt", "release", "environment")


class RendezvousError(Exception):
    """The attempt does not start. The text, one line, names who is missing or what differs."""

    reason = "rendezvous_failed"


class NotSharedError(RendezvousError):
    """Not all workers see the checkpoint directory of worker 0."""

    reason = "checkpoints_not_shared"


ERRORS = {error.reason: error for error in (RendezvousError, NotSharedError)}


class Rendezvous:
    """The rendezvous of one attempt, of which this worker runs the process ``process_id``.

    ``environment`` is the name of its Python environment, ``report`` is called with the names of
    the workers that it waits for.
    """

    def __init__(self, spec, process_id, environment, token, report, shared_seconds=SHARED_SECONDS):
        self.address = spec.rendezvous_address
        self.key = token.encode()
        self.name, self.count, self.me = spec.worker_name, spec.workers, process_id
        self.until = time.monotonic() + spec.rendezvous_seconds
        self.same = {
            "run": spec.run,
            "attempt": spec.attempt,
            "release": spec.release,
            "environment": environment,
        }
        # A bucket is one location for all workers; a directory has to be proven to be.
        is_local = "://" not in spec.checkpoints and not spec.volatile_checkpoints
        self.checkpoints = spec.checkpoints if is_local else ""
        self.shared_seconds = shared_seconds
        self.report = report

    def connect(self):
        """Wait for the other workers; return the connections to them. Raises RendezvousError."""
        return self.gather() if self.me == 0 else self.join()

    # Worker 0

    def gather(self):
        """Wait for the other workers, and tell all of them to begin, or that none does."""
        family = socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(self.address)
            except OSError as error:
                raise RendezvousError(
                    "cannot listen on {}:{}: {}".format(*self.address, error.strerror)
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
                for stranger in unverified:
                    stranger.close()
        return list(arrived.values())

    def admit(self, listener, arrived, unverified):
        """Wait until all have arrived; ``arrived`` is by process, ``unverified`` are not known."""
        reported = None
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while True:
                missing = [n for n in range(1, self.count) if n not in arrived]
                if missing != reported:
                    self.report([self.name(n) for n in missing])
                    reported = missing
                if not missing:
                    return
                left = self.until - time.monotonic()
                if left <= 0:
                    names = ", ".join(self.name(n) for n in missing)
                    raise RendezvousError(f"{names} did not arrive")
                ready = [key.fileobj for key, _ in selector.select(min(left, 1))]
                for peer in [peer for peer in ready if peer is not listener]:
                    if not self.read_from(peer, arrived, unverified):
                        selector.unregister(peer)
                        peer.close()
                for stranger in self.surplus_or_late(unverified):
                    del unverified[stranger]
                    selector.unregister(stranger)
                    stranger.close()
                if listener in ready:
                    self.greet(listener, selector, unverified)

    @staticmethod
    def surplus_or_late(unverified):
        """Return the unverified to close, so that there is always room for one more."""
        now, surplus = time.monotonic(), len(unverified) + 1 - MAX_UNVERIFIED
        return [
            stranger
            for place, (stranger, (_, since)) in enumerate(unverified.items())
            if place < surplus or now - since > UNVERIFIED_SECONDS
        ]

    @staticmethod
    def greet(listener, selector, unverified):
        """Accept a connection and send it a nonce."""
        try:
            stranger = Connection(listener.accept()[0])
        except OSError:  # it is gone already
            return
        nonce = secrets.token_hex(16).encode()
        if stranger.send_line(nonce):
            unverified[stranger] = (nonce, time.monotonic())
            selector.register(stranger, selectors.EVENT_READ)
        else:
            stranger.close()

    def read_from(self, peer, arrived, unverified):
        """Read from a connection; False if it is to be closed."""
        if peer in unverified:
            lines = peer.receive_lines()
            if lines == []:
                return True
            nonce, _ = unverified.pop(peer)
            is_hello = lines is not None and len(lines) == 1
            return is_hello and self.verify(peer, lines[0], nonce, arrived)
        if peer.receive() is None or peer not in arrived.values():
            for number in [n for n, known in arrived.items() if known is peer]:
                del arrived[number]
            return False
        return True

    def verify(self, stranger, line, nonce, arrived):
        """Check a stranger's first line; False if it does not know the token.

        Raises RendezvousError for a worker that has come with something else.
        """
        seal, _, text = line.partition(b" ")
        if not hmac.compare_digest(seal, mac(self.key, b"hello", nonce, text)):
            return False
        hello = parse(text) or {}
        number, same, theirs = hello.get("number"), hello.get("same"), hello.get("nonce")
        sound = type(number) is int and 0 < number < self.count and isinstance(same, dict)
        if not sound or not isinstance(theirs, str) or not NONCE.fullmatch(theirs.encode()):
            return False
        stranger.name = self.name(number)
        stranger.seal_with(mac(self.key, b"session", nonce, theirs.encode()), is_server=True)
        arrived[number] = stranger  # one that was there before is closed when it is heard next
        stranger.send({"welcome": True})
        for what in COMPARED:
            if same.get(what) != self.same[what]:
                theirs = str(same.get(what))[:100]
                raise RendezvousError(
                    f"{stranger.name} arrived with {what} {theirs}, "
                    f"{self.name(0)} has {self.same[what]}"
                )
        return True

    def check_shared(self, arrived):
        """Let the others read a file beside the checkpoints. Raises RendezvousError."""
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
            # A little longer than the others try.
            answers = self.collect(arrived, time.monotonic() + self.shared_seconds + 10)
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
        apart = [self.name(n) for n in sorted(arrived) if answers.get(n) is not True]
        if apart:
            more = f" and {len(apart) - 3} more" if len(apart) > 3 else ""
            raise NotSharedError(
                f"{self.checkpoints} is not the same directory on {', '.join(apart[:3])}{more} "
                f"as on {self.name(0)}, so a resumed run would lose its checkpoints. Use a bucket "
                "(-e bucket=gs://BUCKET), NFS (nfs_server) or a TPU of one worker; "
                "-e volatile_checkpoints=true if losing them is fine"
            )

    def collect(self, arrived, until):
        """Return what the others have found, by process. Raises RendezvousError if one is gone."""
        answers = {}
        with selectors.DefaultSelector() as selector:
            for number, peer in arrived.items():
                selector.register(peer, selectors.EVENT_READ, number)
            while len(answers) < len(arrived) and time.monotonic() < until:
                for key, _ in selector.select(1):
                    messages = key.fileobj.receive()
                    if messages is None:
                        raise RendezvousError(f"{key.fileobj.name} is gone")
                    answers.update((key.data, m["shared"]) for m in messages if "shared" in m)
        return answers

    # The other workers

    def join(self):
        """Connect to worker 0, again until the time is up, and wait until it says to begin."""
        self.report([self.name(0)])
        why = "no answer"
        while time.monotonic() < self.until:
            try:
                leader = Connection(socket.create_connection(self.address, timeout=5))
            except OSError as error:
                why = error.strerror or "no answer"
                time.sleep(0.2)
                continue
            leader.name = self.name(0)
            if self.introduce(leader):
                return [leader]
            leader.close()
            why = "it closed the connection"
            time.sleep(0.2)
        raise RendezvousError(
            "{} ({}:{}) did not arrive: {}".format(self.name(0), *self.address, why)
        )

    def introduce(self, leader):
        """Prove the token to worker 0, do as it says; False if it is gone or lacks the token."""
        # Longer than worker 0 waits itself, to hear from it who is missing.
        until = self.until + self.shared_seconds + 20
        if not self.wait_for(leader, until):
            return False
        greeting = leader.receive_lines()
        if not greeting or len(greeting) != 1 or not NONCE.fullmatch(greeting[0]):
            return False
        mine = secrets.token_hex(16)
        hello = {"number": self.me, "same": self.same, "nonce": mine}
        text = json.dumps(hello).encode()
        if not leader.send_line(mac(self.key, b"hello", greeting[0], text) + b" " + text):
            return False
        leader.seal_with(mac(self.key, b"session", greeting[0], mine.encode()), is_server=False)
        while self.wait_for(leader, until):
            messages = leader.receive()
            if messages is None:
                return False
            for number, message in enumerate(messages, 1):
                if "welcome" in message:
                    self.report([])  # worker 0 alone knows who is missing
                elif "read" in message:
                    found = self.finds(leader, str(message["read"]), message.get("digest"))
                    leader.send({"shared": found})
                elif "no" in message:
                    error = ERRORS.get(message.get("reason"), RendezvousError)
                    raise error(str(message["no"]))
                elif "begin" in message:
                    leader.early = messages[number:]
                    return True
        return False

    @staticmethod
    def wait_for(leader, until):
        """Wait until something has come from worker 0; False if the time is up before."""
        with selectors.DefaultSelector() as selector:
            selector.register(leader, selectors.EVENT_READ)
            return bool(selector.select(max(0, until - time.monotonic())))

    def finds(self, leader, path, digest):
        """Tell whether this worker sees the file that worker 0 wrote for the check.

        Waits for it, as long as worker 0 waits for the answer.
        """
        place, checkpoints = Path(path), Path(self.checkpoints)
        is_above = place.parent in (checkpoints, *checkpoints.parents)
        if not is_above or not TOKEN_FILE.fullmatch(place.name):
            return False
        until = time.monotonic() + self.shared_seconds
        while True:
            try:
                with place.open("rb") as stream:
                    content = stream.read(64)
            except OSError:
                content = b""
            if hashlib.sha256(content).hexdigest() == digest:
                return True
            now = time.monotonic()
            if now >= until or self.wait_for(leader, now + 0.2):
                return False


def nearest_directory(path):
    """Return the directory itself, or the nearest one above it that exists."""
    place = Path(path)
    return next(each for each in (place, *place.parents) if each.is_dir())
