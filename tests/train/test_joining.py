"""A process that comes before process 0 looks out for it."""

import socket
import threading

from train.mesh import listens


def test_a_process_that_comes_first_waits_until_process_0_listens():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        host, port = bound.getsockname()
        assert not listens(host, port, 0.3)
        came: list[bool] = []
        waiting = threading.Thread(target=lambda: came.append(listens(host, port, 60)))
        waiting.start()
        waiting.join(0.3)
        assert came == []
        bound.listen()
        waiting.join(60)
    assert came == [True]
