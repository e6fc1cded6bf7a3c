"""QMP commands to qemu over its socket: answers, events and errors."""

import json
import socket
import threading

import pytest

from localcloud.machines import qmp


@pytest.fixture
def qemu(tmp_path):
    """Serve a QMP socket; yield its directory, and a dictionary of the answers by command."""
    answers = {"qmp_capabilities": [{"return": {}}]}
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / qmp.SOCKET))
    listener.listen()

    def serve():
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as lines:
            lines.write('{"QMP": {}}\n')
            lines.flush()
            for line in lines:
                for answer in answers.get(json.loads(line)["execute"], ()):
                    lines.write(json.dumps(answer) + "\n")
                lines.flush()
                if json.loads(line)["execute"] not in answers:
                    return

    threading.Thread(target=serve, daemon=True).start()
    yield tmp_path, answers
    listener.close()


def test_events_before_an_answer_are_skipped(qemu):
    directory, answers = qemu
    answers["query-status"] = [{"event": "STOP"}, {"return": {"status": "paused"}}]

    assert qmp.ask(directory, "query-status") == {"status": "paused"}


def test_a_qemu_error_is_raised_with_its_message(qemu):
    directory, answers = qemu
    answers["cont"] = [{"error": {"desc": "not now"}}]

    with pytest.raises(OSError, match="not now"):
        qmp.ask(directory, "cont")


def test_a_qemu_that_closes_the_connection_is_an_error(qemu):
    with pytest.raises(OSError, match="closed the connection"):
        qmp.ask(qemu[0], "stop")


def test_a_machine_without_a_qemu_is_an_error(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        qmp.ask(tmp_path, "stop")
