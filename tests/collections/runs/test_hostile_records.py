"""restart.yml with a record in a bucket whose fields contain Jinja templates."""

from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import ABSENT, Bucket

from harness.playbooks import environment_of, flat, play
from tests.collections.runs.records import keep_release, record_fields


def test_restart_does_not_evaluate_templates_in_a_record(emulator, local_api, tmp_path):
    (local_api.state / "bucket-endpoint").write_text(emulator)
    keep_release(tmp_path / ".cache/tpufleet")
    owned = tmp_path / "owned"
    evil = f"{{{{ lookup('ansible.builtin.pipe', 'touch {owned}') }}}}"
    record = record_fields(command=["python", evil], config=evil, env={"A": evil})
    Bucket("gs://fleet/hostile/runs", address=emulator).write("mine.json", record, ABSENT)
    environment = environment_of(local_api) | {"HOME": str(tmp_path)}

    options = ("-e", "run=mine", "-e", "fleet_state=gs://fleet/hostile")
    output = flat(play(environment, "playbooks/restart.yml", *options))

    assert not owned.exists()
    assert "run mine: its TPU is gone" in output, output
