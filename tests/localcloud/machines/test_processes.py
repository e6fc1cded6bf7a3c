import subprocess
import sys
import uuid

from localcloud.machines import processes


def sleeper(mark: str, *, deaf: bool = False) -> subprocess.Popen:
    """Start a process that has the argument ``mark`` and ends in a minute; deaf: ignores TERM."""
    code = "import signal, sys, time\n"
    if deaf:
        code += "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code += "print('ready', flush=True)\ntime.sleep(60)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code, mark], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_process_is_found_only_by_a_whole_argument():
    mark = f"--mark={uuid.uuid4()}"
    with sleeper(mark) as process:
        assert processes.with_argument(mark) == [process.pid]
        assert processes.with_argument(mark[:-1]) == []
        process.kill()


def test_a_process_that_ignores_term_is_killed_after_the_grace_period():
    mark = f"--mark={uuid.uuid4()}"
    with sleeper(mark, deaf=True) as process:
        assert processes.end(mark, grace_s=0.2) == [process.pid]
        assert process.wait(timeout=5) == -9


def test_a_process_that_ends_on_term_is_not_killed():
    mark = f"--mark={uuid.uuid4()}"
    with sleeper(mark) as process:
        assert processes.end(mark, grace_s=10) == [process.pid]
        assert process.wait(timeout=5) == -15


def test_ending_a_missing_process_does_nothing():
    assert processes.end(f"--mark={uuid.uuid4()}") == []
