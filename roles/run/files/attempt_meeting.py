"""Rendezvous of the workers of one attempt, before any trainer starts.

Worker 0 listens at the attempt's own port, the others connect. Both sides prove that they know the
attempt's token before anything they send is parsed, and compare run, attempt, release and
environment. Then the others show that they see the checkpoint directory of worker 0. The
connections stay open: over them each worker hears how the others end (`attempt`, beside this file).

Worker 0 greets with a nonce. Every later line is a message sealed with HMAC-SHA256:
`<64 hex digits> <JSON object>`. Python 3.9, standard library.
"""

import contextlib
import errno
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

LOST_SECONDS = 30  # a peer of whom nothing has come for so long is gone (tcp(7), TCP_USER_TIMEOUT)
MAX_LINE_BYTES = 4096
MAX_STRANGERS = 64  # connections that have not proved anything yet
STRANGER_SECONDS = 5  # how long one of them may take
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


def mac(key, *parts):
    """Return the HMAC-SHA256 of several byte strings, in hexadecimal digits."""
    text = b"".join(b"%d:%s" % (len(part), part) for part in parts)
    return hmac.new(key, text, hashlib.sha256).hexdigest().encode()


def parse(text):
    """Parse a JSON object; None for anything else, and for one that is nested too deeply."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class Connection:
    """One connection to another worker. ``name`` is that worker, once it is known."""

    def __init__(self, connection):
        self.connection = connection
        self.name = ""
        self.left = None  # the exit code that the other worker has reported
        self.early = []  # messages that came right behind the one to begin
        self._rest = b""
        self._key, self._sent, self._received, self._side = b"", 0, 0, b""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", 10),
            ("TCP_KEEPINTVL", 5),
            ("TCP_KEEPCNT", 4),
            ("TCP_USER_TIMEOUT", LOST_SECONDS * 1000),
        ):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        connection.settimeout(5)

    def fileno(self):
        """Return the descriptor, for select."""
        return self.connection.fileno()

    def seal_with(self, key, is_server):
        """Seal and check all further messages with ``key``; each counts only once, in order."""
        self._key, self._side = key, b"server" if is_server else b"client"

    def send(self, message):
        """Send an object; False if the other end is gone."""
        text = json.dumps(message).encode()
        number, self._sent = b"%d" % self._sent, self._sent + 1
        return self.send_line(mac(self._key, self._side, number, text) + b" " + text)

    def send_line(self, line):
        """Send a line as it is; False if the other end is gone."""
        try:
            self.connection.sendall(line + b"\n")
        except OSError:
            return False
        return True

    def receive(self):
        """Return the objects that have come; None if the other end is gone or not what it says."""
        lines = self.receive_lines()
        found = [] if lines is None else [self._open(line) for line in lines]
        return None if lines is None or None in found else found

    def receive_lines(self):
        """Return the whole lines that have come, unchecked; None if the other end is gone."""
        try:
            data = self.connection.recv(MAX_LINE_BYTES)
        except OSError as error:
            return [] if error.errno in (errno.EAGAIN, errno.EINTR) else None
        *lines, self._rest = (self._rest + data).split(b"\n")
        too_long = any(len(line) > MAX_LINE_BYTES for line in [*lines, self._rest])
        return None if not data or too_long else lines

    def _open(self, line):
        """Check the seal of a line, and only then parse it; None if either fails."""
        seal, _, text = line.partition(b" ")
        side = b"client" if self._side == b"server" else b"server"
        number, self._received = b"%d" % self._received, self._received + 1
        if not hmac.compare_digest(seal, mac(self._key, side, number, text)):
            return None
        return parse(text)

    def close(self):
        """Close it."""
        self.connection.close()


class Rendezvous:
    """The rendezvous of one attempt, as its environment variables describe it.

    ``report`` is called with the names of the workers that are waited for.
    """

    def __init__(self, environ, report):
        host, _, port = environ["TPUFLEET_MEET_AT"].rpartition(":")
        self.address = (host.strip("[]"), int(port))
        self.key = environ["TPUFLEET_MEET_TOKEN"].encode()
        self.names = environ["TPUFLEET_MEET_AS"].split()
        self.me = int(environ["TPUFLEET_PROCESS_ID"])
        self.until = time.monotonic() + float(environ.get("TPUFLEET_MEET_SECONDS", "120"))
        self.same = {
            "run": environ["TPUFLEET_RUN"],
            "attempt": environ["TPUFLEET_ATTEMPT"],
            "release": environ["TPUFLEET_MEET_RELEASE"],
            "environment": environ["TPUFLEET_MEET_ENVIRONMENT"],
        }
        self.checkpoints = environ.get("TPUFLEET_MEET_CHECKPOINTS", "")
        # NFS may repeat for 30 s that a name is missing (nfs(5), acdirmin).
        self.shared_seconds = float(environ.get("TPUFLEET_MEET_SHARED_SECONDS", "35"))
        self.report = report

    def meet(self):
        """Return the connections to the other workers. Raises RendezvousError."""
        return self.gather() if self.me == 0 else self.join()

    # Worker 0

    def gather(self):
        """Wait for the other workers, and tell all of them to begin, or that none does."""
        family = socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                door.bind(self.address)
            except OSError as error:
                raise RendezvousError(
                    "can't listen on {}:{}: {}".format(*self.address, error.strerror)
                ) from error
            door.listen(len(self.names) + MAX_STRANGERS)
            arrived, strangers = {}, {}
            try:
                self.let_in(door, arrived, strangers)
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
                for stranger in strangers:
                    stranger.close()
        return list(arrived.values())

    def let_in(self, door, arrived, strangers):
        """Wait until all have arrived; ``arrived`` is by process, ``strangers`` are not known."""
        reported = None
        with selectors.DefaultSelector() as selector:
            selector.register(door, selectors.EVENT_READ)
            while True:
                missing = [n for n in range(1, len(self.names)) if n not in arrived]
                if missing != reported:
                    self.report([self.names[n] for n in missing])
                    reported = missing
                if not missing:
                    return
                left = self.until - time.monotonic()
                if left <= 0:
                    names = ", ".join(self.names[n] for n in missing)
                    raise RendezvousError(f"{names} did not come")
                ready = [key.fileobj for key, _ in selector.select(min(left, 1))]
                for peer in [peer for peer in ready if peer is not door]:
                    if not self.hear(peer, arrived, strangers):
                        selector.unregister(peer)
                        peer.close()
                for stranger in self.too_many_or_late(strangers):
                    del strangers[stranger]
                    selector.unregister(stranger)
                    stranger.close()
                if door in ready:
                    self.greet(door, selector, strangers)

    @staticmethod
    def too_many_or_late(strangers):
        """Return the strangers to close, so that there is always room for one more."""
        now, surplus = time.monotonic(), len(strangers) + 1 - MAX_STRANGERS
        return [
            stranger
            for place, (stranger, (_, since)) in enumerate(strangers.items())
            if place < surplus or now - since > STRANGER_SECONDS
        ]

    @staticmethod
    def greet(door, selector, strangers):
        """Accept a connection and send it a nonce."""
        try:
            stranger = Connection(door.accept()[0])
        except OSError:  # it is gone already
            return
        nonce = secrets.token_hex(16).encode()
        if stranger.send_line(nonce):
            strangers[stranger] = (nonce, time.monotonic())
            selector.register(stranger, selectors.EVENT_READ)
        else:
            stranger.close()

    def hear(self, peer, arrived, strangers):
        """Read from a connection; False if it is to be closed."""
        if peer in strangers:
            lines = peer.receive_lines()
            if lines == []:
                return True
            nonce, _ = strangers.pop(peer)
            return (
                lines is not None and len(lines) == 1 and self.know(peer, lines[0], nonce, arrived)
            )
        if peer.receive() is None or peer not in arrived.values():
            for number in [n for n, known in arrived.items() if known is peer]:
                del arrived[number]
            return False
        return True

    def know(self, stranger, line, nonce, arrived):
        """Check a stranger's first line; False if it does not know the token.

        Raises RendezvousError for a worker that has come with something else.
        """
        seal, _, text = line.partition(b" ")
        if not hmac.compare_digest(seal, mac(self.key, b"hello", nonce, text)):
            return False
        hello = parse(text) or {}
        number, same, theirs = hello.get("number"), hello.get("same"), hello.get("nonce")
        sound = type(number) is int and 0 < number < len(self.names) and isinstance(same, dict)
        if not sound or not isinstance(theirs, str) or not NONCE.fullmatch(theirs.encode()):
            return False
        stranger.name = self.names[number]
        stranger.seal_with(mac(self.key, b"session", nonce, theirs.encode()), is_server=True)
        arrived[number] = stranger  # one that was there before is closed when it is heard next
        stranger.send({"welcome": True})
        for what in COMPARED:
            if same.get(what) != self.same[what]:
                theirs = str(same.get(what))[:100]
                raise RendezvousError(
                    f"{stranger.name} has come with {what} {theirs}, "
                    f"{self.names[0]} has {self.same[what]}"
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
                f"{self.names[0]} can't write to {directory}: {error.strerror}"
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
        apart = [self.names[n] for n in sorted(arrived) if answers.get(n) is not True]
        if apart:
            more = f" and {len(apart) - 3} more" if len(apart) > 3 else ""
            raise NotSharedError(
                f"{self.checkpoints} is not the same directory on {', '.join(apart[:3])}{more} "
                f"as on {self.names[0]}, so a resumed run would lose its checkpoints. Use a bucket "
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
        self.report([self.names[0]])
        why = "no answer"
        while time.monotonic() < self.until:
            try:
                leader = Connection(socket.create_connection(self.address, timeout=5))
            except OSError as error:
                why = error.strerror or "no answer"
                time.sleep(0.2)
                continue
            leader.name = self.names[0]
            if self.introduce(leader):
                return [leader]
            leader.close()
            why = "it closed the connection"
            time.sleep(0.2)
        raise RendezvousError(
            "{} ({}:{}) did not come: {}".format(self.names[0], *self.address, why)
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
