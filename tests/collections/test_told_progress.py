"""While one TPU is waited for, a person sees what it is at."""

import threading
import time

import pytest
import yaml

from tests.collections.test_playbooks import environment_of, play

KIND = {"accelerator_type": "v4-8", "runtime_version": "tpu-ubuntu2204-base"}
NAMED = {"api": "{{ tpu_api }}", "name": "slow", "zone": "us-central2-b"}
STATES = {"tpu_node": "CREATING", "tpu_queued_resource": "PROVISIONING"}


def hold_back(machines, seconds=4):
    """Have the machine's start last a while, counted from when it is asked for."""
    machines.hold = threading.Event()

    def let_go():
        machines.reached_hold.wait(60)
        time.sleep(seconds)
        machines.hold.set()

    threading.Thread(target=let_go, daemon=True).start()


@pytest.mark.parametrize("module", STATES)
def test_a_module_that_waits_says_what_for(local_api, tmp_path, module):
    hold_back(local_api.machines)
    task = {f"tpufleet.core.{module}": NAMED | KIND}
    (tmp_path / "book.yml").write_text(yaml.safe_dump([{"hosts": "localhost", "tasks": [task]}]))

    done = play(environment_of(local_api), tmp_path / "book.yml")

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"  slow: {STATES[module]}, " in done.stdout
