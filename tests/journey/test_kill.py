"""kill.yml ends trainers that ignore SIGTERM. The tests share a fleet but are independent."""

import shlex

import pytest

from harness.fleet import Fleet, fleet_set_up, write_inventory

pytestmark = [pytest.mark.machines, pytest.mark.long]
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    time.sleep(1)
"""
SAVES = """
import os, pathlib, signal, sys, time
def save(*_):
    pathlib.Path(os.environ["TPUFLEET_RUN_DIR"], "saved").touch()
    os._exit(75)
signal.signal(signal.SIGTERM, save)
pathlib.Path(os.environ["TPUFLEET_RUN_DIR"], "begun").touch()
while True:
    time.sleep(1)
"""
SWALLOWS = "trap '' TERM\npython3 saves.py &\nwhile true; do sleep 1; done\n"
# Search for processes by user and by command: the service that stores output has the same user.
NO_PROCESS = (
    "! pgrep -u tpufleet --full 'stubborn|saves|wrapper'"
    " && ! systemctl --quiet is-active 'tpufleet-run@*'"
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    inventory = write_inventory(tmp_path_factory.mktemp("inventory"), run_stop_seconds=8)
    with fleet_set_up("kill", inventory) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    files = {"stubborn.py": STUBBORN, "saves.py": SAVES, "wrapper.sh": SWALLOWS}
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def begin(fleet, code):
    def begin(run: str, command: str) -> None:
        options = (
            "-e",
            f"run={run}",
            "-e",
            f"code={code}",
            "-e",
            f"command={shlex.quote(command)}",
        )
        fleet.must_play("train.yml", *options, "-e", "wait=started")

    return begin


def assert_no_process_is_left(fleet: Fleet, worker: str) -> None:
    fleet.on(worker, "sh", "-c", NO_PROCESS)


def test_a_trainer_that_ignores_term_is_killed(fleet, begin):
    begin("stubborn", "python3 stubborn.py")
    fleet.must_play("playbooks/kill.yml", "-e", "run=stubborn")

    for worker in ("demo-w0", "demo-w1"):
        assert_no_process_is_left(fleet, worker)


def test_a_trainer_saves_on_term_although_its_shell_ignores_term(fleet, begin):
    begin("wrapped", "sh wrapper.sh")
    fleet.on(
        "demo-w1",
        "sh",
        "-c",
        "until test -e /var/lib/tpufleet/runs/wrapped/begun; do sleep 0.2; done",
    )
    fleet.must_play("playbooks/kill.yml", "-e", "run=wrapped")

    for worker in ("demo-w0", "demo-w1"):
        assert_no_process_is_left(fleet, worker)
    fleet.on("demo-w1", "test", "-e", "/var/lib/tpufleet/runs/wrapped/saved")
