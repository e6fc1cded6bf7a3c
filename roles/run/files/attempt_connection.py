"""Authenticated connections between the workers of an attempt (`attempt_rendezvous.py`).

Worker 0 first sends a nonce. Every later line is a message with its HMAC-SHA256 (the seal):
`<64 hex digits> <JSON object>`.
"""

import errno
import hashlib
import hmac
import json
import socket

LOST_SECONDS = 30  # a worker that does not answer for this time counts as gone (tcp(7))
MAX_LINE_BYTES = 4096


def mac(key, *fields):
    """Return the HMAC-SHA256 of several byte strings under ``key``, in hexadecimal digits."""
    text = b"".join(b"%d:%s" % (len(field), field) for field in fields)
    return hmac.new(key, text, hashlib.sha256).hexdigest().encode()


def parse(text):
    """Parse a JSON object; return None if the text is anything else or is nested too deeply."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class Connection:
    """One connection to another worker; ``name`` is empty until that worker is verified."""

    def __init__(self, connection):
        self.connection = connection
        self.name = ""
        self.reported_code = None  # the exit code that the other worker has reported
        self.early_messages = []  # messages that arrived together with the message "begin"
        self._rest = b""
        self._key, self._sent, self._received, self._own_side = b"", 0, 0, b""
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
        """Seal and verify all further messages with ``key``.

        A seal also covers the number and the sender of a message, so messages can't be replayed.
        ``is_server`` says that this worker is worker 0.
        """
        self._key, self._own_side = key, b"server" if is_server else b"client"

    def send(self, message):
        """Send an object as a sealed message; return False if the other worker is gone."""
        text = json.dumps(message).encode()
        number, self._sent = b"%d" % self._sent, self._sent + 1
        return self.send_line(mac(self._key, self._own_side, number, text) + b" " + text)

    def send_line(self, line):
        """Send a line as it is, and add no seal; return False if the other worker is gone."""
        try:
            self.connection.sendall(line + b"\n")
        except OSError:
            return False
        return True

    def receive(self):
        """Return the messages that have arrived; None if the worker is gone or a seal is wrong."""
        lines = self.receive_lines()
        messages = [] if lines is None else [self._verify(line) for line in lines]
        return None if lines is None or None in messages else messages

    def receive_lines(self):
        """Return the complete lines that have arrived, unverified; None if the worker is gone."""
        try:
            data = self.connection.recv(MAX_LINE_BYTES)
        except OSError as error:
            return [] if error.errno in (errno.EAGAIN, errno.EINTR) else None
        *lines, self._rest = (self._rest + data).split(b"\n")
        too_long = any(len(line) > MAX_LINE_BYTES for line in [*lines, self._rest])
        return None if not data or too_long else lines

    def _verify(self, line):
        """Verify the seal of a line, then parse its message; return None if either is invalid."""
        seal, _, text = line.partition(b" ")
        other_side = b"client" if self._own_side == b"server" else b"server"
        number, self._received = b"%d" % self._received, self._received + 1
        if not hmac.compare_digest(seal, mac(self._key, other_side, number, text)):
            return None
        return parse(text)

    def close(self):
        """Close the connection."""
        self.connection.close()
