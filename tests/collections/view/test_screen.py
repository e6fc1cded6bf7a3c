"""CTRL+C ends a worker process of Ansible only after its message to the view's screen is sent."""

import os
import signal
import subprocess
import sys

import pytest

#: The program of a new process, in which the test forks a worker process as Ansible does. It must
#: not fork the process of the tests: there, gRPC would start threads, which would get the signal.
FORK = """
import os, signal, sys
from types import SimpleNamespace
from ansible_collections.tpufleet.core.plugins.plugin_utils.view.screen import Screen

def send(message):
    os.kill(os.getpid(), number)
    os.write(1, message.encode())

number = int(sys.argv[1])
display = SimpleNamespace(display=send, prompt_until=None)
screen = Screen(display, None, lambda _: [], lambda _: None, lambda _: False)
if not (worker := os.fork()):
    try:
        signal.signal(number, signal.SIG_DFL)
        screen.display("step 3")
    finally:
        os._exit(0)
_, status = os.waitpid(worker, 0)
screen.close()
sys.exit(0 if os.WIFSIGNALED(status) and os.WTERMSIG(status) == number else f"status {status}")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_worker_process_only_after_its_message_is_sent(number):
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, str(int(number))],
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (result.stdout, result.stderr, result.returncode) == ("step 3", "", 0)
