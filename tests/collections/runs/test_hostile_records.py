"""Whoever can write records in the bucket runs no code on the controller and hides no other run."""

from typing import Any

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import ABSENT, Bucket

from tests.collections.runs.records import keep_release, record_fields
from tests.collections.test_playbooks import environment_of, flat, play
from tests.collections.test_storage import emulator as emulator

TEXTS = ("run", "wanted", "release", "requirements", "jax_requirements", "config_name", "tpu")
PATHS = ("checkpoints", "compile_cache")
NUMBERS = ("attempt", "generation", "chip", "workers", "fence", "wanted_since")
"""Fields that must have a form; a record with another value in one of them is not used."""
FREE = ("config",)
"""Fields that may hold any text, as they never leave a record but for a worker or a screen."""


def hostile(evil: str) -> dict[str, dict[str, Any]]:
    """Return a record for each field, with the evil text in it, by the run's name."""
    node = {"name": "pod", "zone": "us-east1-d", "id": "1"}
    fields: dict[str, dict[str, Any]] = {
        **{name: {name: evil} for name in (*TEXTS, *PATHS, *NUMBERS, *FREE)},
        "command": {"command": ["python", evil]},
        "env": {"env": {"A": evil}},
        "env_name": {"env": {evil: "1"}},
        "history": {"history": [{"time": 1.0, "what": evil}]},
        "events": {"history": [{"time": 1.0, "kind": "launch_failed", "text": evil}]},
        "watch": {"watch": {"state": evil, "bad_worker": evil}},
        "nodes_name": {"nodes": [{**node, "name": evil}]},
        "nodes_zone": {"nodes": [{**node, "zone": evil}]},
        "nodes_id": {"nodes": [{**node, "id": evil}]},
        "unknown": {evil: evil, "ansible_connection": "local"},
    }
    names = {f"bad-{name.replace('_', '-')}": changed for name, changed in fields.items()}
    return {run: record_fields(run, nodes=[node]) | changed for run, changed in names.items()}


@pytest.mark.parametrize("playbook", ["watch", "restart"])
def test_no_text_of_a_record_is_evaluated_and_no_record_hides_another(
    emulator, local_api, tmp_path, playbook: str
):
    (local_api.state / "bucket-endpoint").write_text(emulator)
    owned = tmp_path / "owned"
    keep_release(tmp_path / ".cache/tpufleet")
    records = hostile(f"{{{{ lookup('ansible.builtin.pipe', 'touch {owned}') }}}}")
    state = f"gs://fleet/{playbook}"
    bucket = Bucket(f"{state}/runs", address=emulator)
    for run, record in records.items():
        bucket.write(f"{run}.json", record, ABSENT)
    bucket.write("good.json", record_fields("good", wanted="stopped"), ABSENT)
    log = tmp_path / "watch.log"
    words = ["-e", f"fleet_state={state}", "-e", f"watch_log={log}"]
    environment = environment_of(local_api) | {"HOME": str(tmp_path)}

    if playbook == "watch":
        done = play(environment, "playbooks/watch.yml", *words)
        said = flat(done)
        assert "run: good state: stopped" in said
        assert "ansible-playbook playbooks/create.yml" in log.read_text()
    else:
        chosen = ("bad-tpu", "bad-release", "bad-command", "bad-checkpoints")
        said = " ".join(
            flat(play(environment, "playbooks/restart.yml", "-e", f"run={run}", *words))
            for run in chosen
        )

    assert not owned.exists()
    for name in ("tpu", "release", "checkpoints"):
        assert f"run 'bad-{name}': invalid record: {name}" in said.replace("''", "'")
