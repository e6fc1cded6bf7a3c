"""sample.yml, eval.yml, export.yml and bench.yml of a run, also after its TPU is deleted."""

import re

import pytest
from safetensors.numpy import load_file

from harness.fleet import fleet_entry, fleet_set_up, write_inventory

pytestmark = [pytest.mark.machines, pytest.mark.long]
SMALL = "steps=6 checkpoint.every=3 model.layers=1 model.width=32 batch=4 compute.fsdp=null"
SET = f"set='\"{SMALL} sample.length=20\"'"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two TPUs, and a run that is done and whose parameters were sharded over two workers."""
    tpus = [fleet_entry("demo", 2), fleet_entry("solo", 1)]
    inventory = write_inventory(tmp_path_factory.mktemp("inventory"), tpu_fleet=tpus)
    with fleet_set_up("use", inventory) as fleet:
        config = ("-e", "config=train/configs/shakespeare.yml", "-e", SET.replace("'", ""))
        fleet.must_play("train.yml", "-e", "run=mine", "-e", "tpu=demo", "-e", "wait=done", *config)
        yield fleet


def test_sample_prints_the_same_text_each_time_and_changes_nothing(fleet):
    first = fleet.must_play("playbooks/sample.yml", "-e", "run=mine", "-e", "set=sample.prompt=ROM")
    again = fleet.must_play("playbooks/sample.yml", "-e", "run=mine", "-e", "set=sample.prompt=ROM")

    [text] = re.findall(r"^ROM.{20,}", first.output, re.MULTILINE)
    assert text in again.output
    assert first.changed() == again.changed() == 0


def test_eval_reads_the_checkpoint_of_a_step(fleet):
    newest = fleet.must_play("playbooks/eval.yml", "-e", "run=mine")
    earlier = fleet.must_play("playbooks/eval.yml", "-e", "run=mine", "-e", "step=3")

    losses = [
        re.search(r"held-out loss ([\d.]+)", played.output)[1] for played in (newest, earlier)
    ]
    assert losses[0] != losses[1]
    missing = fleet.play("playbooks/eval.yml", "-e", "run=mine", "-e", "step=5")
    assert missing.code != 0
    assert "no intact checkpoint of step 5" in missing.output


def test_bench_measures_the_devices_of_both_workers(fleet):
    played = fleet.must_play("playbooks/bench.yml", "-e", "run=mine", "-e", "steps=2")

    assert re.search(r"2 x cpu: .* ms per step over 2 steps", played.output)
    assert "[Gloo]" not in played.output


def test_bench_with_a_limit_that_omits_a_worker_is_refused(fleet):
    limited = ("--limit", "localhost,demo-w0")
    refused = fleet.play("playbooks/bench.yml", "-e", "run=mine", *limited)

    assert refused.code != 0
    assert "needs 2 workers, but --limit selects 1" in " ".join(refused.output.split())


def test_the_worker_writes_an_export_to_a_bucket(fleet):
    fleet.must_play("playbooks/export.yml", "-e", "run=mine", "-e", "to=gs://local-fleet/exported")

    folder = fleet.cloud.bucket / "local-fleet/exported"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_export_copies_the_parameters_also_after_the_tpu_is_deleted(fleet, tmp_path):
    def export(name: str, *options: str) -> dict[str, bytes]:
        target = tmp_path / name
        fleet.must_play("playbooks/export.yml", "-e", "run=mine", "-e", f"to={target}", *options)
        assert sorted(path.name for path in target.iterdir()) == [
            "config.json",
            "model.safetensors",
        ]
        return {
            key: array.tobytes() for key, array in load_file(target / "model.safetensors").items()
        }

    before = export("before")
    files = fleet.on("demo-w0", "ls", "-A", "/var/lib/tpufleet/runs/mine")
    assert ".export" not in files
    fleet.must_play("playbooks/delete.yml", "-e", "tpu=demo", "-e", "yes=true")
    refused = fleet.play("playbooks/sample.yml", "-e", "run=mine")
    assert refused.code != 0
    assert "no worker of the TPU demo is READY. Use another TPU" in " ".join(refused.output.split())

    assert export("after", "-e", "tpu=solo") == before
