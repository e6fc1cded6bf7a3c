"""How the workers of one attempt come together before any trainer starts, worker 0 in the middle.

Worker 0 listens at the attempt's own port, the others come to it; both sides prove that they have
the attempt's token, and compare run, attempt, release and environment. The connections stay: over
them each hears how the others end (attempt, beside this file). Python 3.9, standard library.
"""

import errno
import hashlib
import hmac
import json
import secrets
import select
import socket
import time

LOST_SECONDS = 30  # a peer of whom nothing has come for so long is gone (tcp(7), TCP_USER_TIMEOUT)
LONGEST_LINE = 4096


class NotTogetherError(Exception):
    """The attempt does not begin; the text, one line, names who is missing or what differs."""


class Line:
    """One connection of JSON lines. ``name`` is the worker at its other end, once it is known."""

    def __init__(self, connection):
        self.connection = connection
        self.name = ""
        self.left = None
        self.early = []  # what has come behind the word to begin
        self._rest = b""
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
        """Be watched by select."""
        return self.connection.fileno()

    def send(self, message):
        """Send an object; False if the other end is gone."""
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self):
        """Give the objects that have come; None if the other end is gone or makes no sense."""
        try:
            data = self.connection.recv(LONGEST_LINE)
        except OSError as error:
            return [] if error.errno in (errno.EAGAIN, errno.EINTR) else None
        self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        if not data or len(self._rest) > LONGEST_LINE:
            return None
        try:
            found = [json.loads(line) for line in lines]
        except ValueError:
            return None
        return found if all(isinstance(each, dict) for each in found) else None

    def close(self):
        """End it."""
        self.connection.close()


class Meeting:
    """How the workers of one attempt come together, worker 0 in the middle."""

    def __init__(self, environ, say):
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
        self.say = say

    def proof(self, *parts):
        """Prove that one has the attempt's token without showing it."""
        return hmac.new(self.key, json.dumps(parts).encode(), hashlib.sha256).hexdigest()

    def meet(self):
        """Give the lines over which this worker hears of the others. Raises NotTogetherError."""
        return self.gather() if self.me == 0 else self.join()

    def gather(self):
        """Be worker 0: let the others come, and tell all of them to begin, or that nobody does."""
        family = socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                door.bind(self.address)
            except OSError as error:
                raise NotTogetherError(
                    "can't listen on {}:{}: {}".format(*self.address, error.strerror)
                ) from error
            door.listen(len(self.names))
            there, strangers = {}, {}
            try:
                self.let_in(door, there, strangers)
                for line in there.values():
                    line.send({"begin": True})
            except NotTogetherError as error:
                for line in there.values():
                    line.send({"no": str(error)})
                    line.close()
                raise
            finally:
                for line in strangers:
                    line.close()
        return list(there.values())

    def let_in(self, door, there, strangers):
        """Wait until everyone has come; ``there`` is by number, ``strangers`` have yet to prove."""
        said = None
        while True:
            missing = [n for n in range(1, len(self.names)) if n not in there]
            if missing != said:
                self.say([self.names[n] for n in missing])
                said = missing
            if not missing:
                return
            left = self.until - time.monotonic()
            if left <= 0:
                names = ", ".join(self.names[n] for n in missing)
                raise NotTogetherError(f"{names} did not come")
            watched = [door, *strangers, *there.values()]
            for ready in select.select(watched, [], [], min(left, 1))[0]:
                if ready is door:
                    line = Line(door.accept()[0])
                    nonce = secrets.token_hex(16)
                    if line.send({"nonce": nonce}):
                        strangers[line] = nonce
                    continue
                messages = ready.receive()
                if ready in strangers:
                    self.know(ready, messages, there, strangers)
                elif messages is None:
                    for number in [n for n, line in there.items() if line is ready]:
                        there.pop(number).close()

    def know(self, line, messages, there, strangers):
        """Take a stranger in who has the token; one that is there with something else ends it."""
        if messages == []:
            return
        nonce = strangers.pop(line)
        hello = messages[0] if messages else {}
        number, same, theirs = (hello.get(key) for key in ("number", "same", "nonce"))
        expected = self.proof("come", nonce, number, same, theirs)
        if not hmac.compare_digest(str(hello.get("proof")), expected):
            line.close()
            return
        line.name = self.names[number]
        if number in there:
            there[number].close()
        there[number] = line
        line.send({"proof": self.proof("there", theirs)})
        for what, value in self.same.items():
            if same.get(what) != value:
                raise NotTogetherError(
                    f"{line.name} has come with {what} {same.get(what)}, "
                    f"{self.names[0]} has {value}"
                )

    def join(self):
        """Be another worker: come to worker 0, again until the time is up, and hear its word."""
        self.say([self.names[0]])
        why = "no answer"
        while time.monotonic() < self.until:
            try:
                line = Line(socket.create_connection(self.address, timeout=5))
            except OSError as error:
                why = error.strerror or "no answer"
                time.sleep(0.2)
                continue
            line.name = self.names[0]
            if self.introduce(line):
                return [line]
            line.close()
            why = "it closed the connection"
            time.sleep(0.2)
        raise NotTogetherError(
            "{} ({}:{}) did not come: {}".format(self.names[0], *self.address, why)
        )

    def introduce(self, line):
        """Prove to worker 0 who comes, and wait for its word; False if it is gone meanwhile."""
        mine, waiting = secrets.token_hex(16), {"nonce", "proof", "begin"}
        # A while longer than worker 0 itself, so that its word on who is missing is heard.
        while time.monotonic() < self.until + 10:
            if not select.select([line], [], [], 1)[0]:
                continue
            messages = line.receive()
            if messages is None:
                return False
            for number, message in enumerate(messages, 1):
                if "nonce" in message and "nonce" in waiting:
                    waiting.remove("nonce")
                    proof = self.proof("come", message["nonce"], self.me, self.same, mine)
                    hello = {"number": self.me, "same": self.same, "nonce": mine, "proof": proof}
                    if not line.send(hello):
                        return False
                elif "proof" in message and "proof" in waiting:
                    if not hmac.compare_digest(str(message["proof"]), self.proof("there", mine)):
                        return False
                    waiting.remove("proof")
                    self.say(["the others"])
                elif "no" in message and "proof" not in waiting:
                    raise NotTogetherError(str(message["no"]))
                elif "begin" in message and "proof" not in waiting:
                    line.early = messages[number:]
                    return True
        return False
