"""An ssh ProxyCommand that delays every round trip: delayed_proxy.py HOST PORT MILLISECONDS.

Each direction is delayed by half of MILLISECONDS; the bandwidth is not limited.
"""

import os
import queue
import socket
import sys
import threading
import time


def carry(read, write, close, delay_s: float) -> None:
    """Forward data from ``read()`` to ``write()``, delayed by ``delay_s`` seconds.

    When ``read()`` returns b"" (end of data), ``close()`` is called after the same delay. Reading
    does not wait for writing, so the bandwidth is not limited.
    """
    held: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def late() -> None:
        while True:
            due, data = held.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if data:
                    write(data)
                else:
                    close()
            except OSError:
                return
            if not data:
                return

    writer = threading.Thread(target=late)
    writer.start()
    data = b"?"
    while data:
        try:
            data = read()
        except OSError:
            data = b""
        held.put((time.monotonic() + delay_s, data))
    writer.join()


def main() -> None:
    """Forward standard input to HOST:PORT and replies to standard output, until both have ended."""
    host, port, delay_ms = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    wire = socket.create_connection((host, port))
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    half_s = delay_ms / 2000

    def write_out(data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]

    back = threading.Thread(
        target=carry, args=(lambda: wire.recv(1 << 16), write_out, lambda: os.close(1), half_s)
    )
    back.start()
    carry(lambda: os.read(0, 1 << 16), wire.sendall, lambda: wire.shutdown(socket.SHUT_WR), half_s)
    back.join()


if __name__ == "__main__":
    main()
