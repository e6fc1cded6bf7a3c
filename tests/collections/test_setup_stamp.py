"""Programs on workers can read the setup stamp that the role writes."""

import json
import os

from ansible_collections.tpufleet.core.plugins.module_utils.worker.setup_stamp import read_stamp

from harness.playbooks import ROOT, play
from tests.collections.role_templates import local_play


def test_the_programs_on_workers_read_the_stamp_that_the_role_writes(tmp_path):
    variables = {
        "__setup_stamp_path": str(tmp_path / "ready.json"),
        "__setup_stamp_wanted": "abc",
        "jax_environment": {"id": "0123456789abcdef"},
        "jax_device_glob": "/dev/accel*",
    }
    role = {"import_role": {"name": str(ROOT / "roles/setup_stamp")}}
    playbook, hosts = local_play(tmp_path, [role])
    result = play(dict(os.environ), playbook, "-e", json.dumps(variables), inventory=hosts)
    assert result.returncode == 0, result.stdout + result.stderr
    assert read_stamp(tmp_path) == {
        "content": "abc",
        "environment": "0123456789abcdef",
        "device_glob": "/dev/accel*",
    }
