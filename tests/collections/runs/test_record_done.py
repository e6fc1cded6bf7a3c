"""Recording that a run is done, by whoever sees it first."""

import json

import pytest
from ansible_collections.tpufleet.core.plugins.action.run_record import changed
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import RunStore

from tests.collections.runs.valid_record import record_fields


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        ({"attempt": 2, "wanted": "running"}, "done"),
        ({"attempt": 3, "wanted": "running"}, "running"),
        ({"attempt": 2, "wanted": "stopped"}, "stopped"),
    ],
)
def test_a_run_that_was_stopped_or_launched_again_meanwhile_is_not_recorded_as_done(
    tmp_path, record, wanted
):
    (tmp_path / "runs").mkdir()
    file = tmp_path / "runs/mine.json"
    file.write_text(json.dumps(record_fields(**record)))
    options = {"run": "mine", "wanted": "done", "attempt": 2, "fleet_state": str(tmp_path)}

    changed(RunStore.of(str(tmp_path), {}), options)

    assert json.loads(file.read_text())["wanted"] == wanted
