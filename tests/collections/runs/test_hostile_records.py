"""Whoever can write records in the bucket runs no code on the controller and hides no other run."""

from typing import Any

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


def test_restart_evaluates_no_text_of_a_record(emulator, local_api, tmp_path):
    (local_api.state / "bucket-endpoint").write_text(emulator)
    owned = tmp_path / "owned"
    keep_release(tmp_path / ".cache/tpufleet")
    records = hostile(f"{{{{ lookup('ansible.builtin.pipe', 'touch {owned}') }}}}")
    bucket = Bucket("gs://fleet/restart/runs", address=emulator)
    for run, record in records.items():
        bucket.write(f"{run}.json", record, ABSENT)
    environment = environment_of(local_api) | {"HOME": str(tmp_path)}

    for name in ("tpu", "release", "command", "checkpoints"):
        words = ("-e", f"run=bad-{name}", "-e", "fleet_state=gs://fleet/restart")
        done = flat(play(environment, "playbooks/restart.yml", *words))
        if name != "command":
            assert f"run 'bad-{name}': invalid record: {name}" in done.replace("''", "'")

    assert not owned.exists()
