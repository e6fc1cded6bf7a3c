import subprocess
import sys
import uuid

import pytest

from localcloud.machines import processes


def sleeper(argument: str, *, deaf: bool = False) -> subprocess.Popen:
    """Start a process with this argument that sleeps for a minute; if ``deaf``, it ignores TERM."""
    code = "import signal, sys, time\n"
    if deaf:
        code += "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code += "print('ready', flush=True)\ntime.sleep(60)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code, argument], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_process_is_found_only_by_a_whole_argument():
    argument = f"--mark={uuid.uuid4()}"
    with sleeper(argument) as process:
        assert processes.with_argument(argument) == [process.pid]
        assert processes.with_argument(argument[:-1]) == []
        process.kill()


@pytest.mark.parametrize(("deaf", "grace_s", "code"), [(True, 0.2, -9), (False, 10, -15)])
def test_only_a_process_that_ignores_term_for_the_grace_period_is_killed(deaf, grace_s, code):
    argument = f"--mark={uuid.uuid4()}"
    with sleeper(argument, deaf=deaf) as process:
        assert processes.end(argument, grace_s=grace_s) == [process.pid]
        assert process.wait(timeout=5) == code


def test_ending_a_missing_process_does_nothing():
    assert processes.end(f"--mark={uuid.uuid4()}") == []
