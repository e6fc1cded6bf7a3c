"""The screen in a worker process: CTRL+C does not end the process in the middle of a message."""

import os
import signal
from types import SimpleNamespace

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.view.screen import Screen


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_worker_process_only_after_its_message_is_sent(number):
    reader, writer = os.pipe()

    def send(message: str) -> None:
        os.kill(os.getpid(), number)
        os.write(writer, message.encode())

    screen = Screen(
        SimpleNamespace(display=send, prompt_until=None),
        None,
        lambda _: [],
        lambda _: None,
        lambda _: False,
    )
    if not (worker := os.fork()):
        try:
            signal.signal(number, signal.SIG_DFL)
            screen.display("step 3")
        finally:
            os._exit(0)
    os.close(writer)
    _, status = os.waitpid(worker, 0)
    screen.close()

    assert os.read(reader, 100) == b"step 3"
    assert os.WTERMSIG(status) == number
    os.close(reader)
