"""restart.yml with records in a bucket whose fields contain Jinja templates."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import ABSENT, Bucket

from harness.playbooks import environment_of, flat, play
from tests.collections.runs.records import keep_release, record_fields


@pytest.mark.parametrize("field", ["command", "tpu"])
def test_restart_does_not_evaluate_templates_in_a_record(emulator, local_api, tmp_path, field):
    (local_api.state / "bucket-endpoint").write_text(emulator)
    keep_release(tmp_path / ".cache/tpufleet")
    owned = tmp_path / "owned"
    evil = f"{{{{ lookup('ansible.builtin.pipe', 'touch {owned}') }}}}"
    changed = {"command": ["python", evil], "config": evil, "env": {"A": evil}}
    record = record_fields(**changed if field == "command" else {"tpu": evil})
    Bucket(f"gs://fleet/{field}/runs", address=emulator).write("mine.json", record, ABSENT)
    environment = environment_of(local_api) | {"HOME": str(tmp_path)}

    options = ("-e", "run=mine", "-e", f"fleet_state=gs://fleet/{field}")
    output = flat(play(environment, "playbooks/restart.yml", *options)).replace("''", "'")

    assert not owned.exists()
    assert ("run 'mine': invalid record: tpu" in output) == (field == "tpu"), output
