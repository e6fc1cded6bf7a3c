"""Recipes of docs/cookbook.md, and rows of docs/coming_from.md, that need workers.

The tests share a fleet but are independent."""

import json
import re

import pytest

from harness.fleet import Fleet, fleet_entry, write_inventory
from harness.own_cloud import own_or_existing_cloud
from localcloud import client

pytestmark = [pytest.mark.machines, pytest.mark.long]
TPUS = fleet_entry("sweep", 1, count=2)
SMALL = ("-e", "config=train/configs/shakespeare.yml", "-e", "wait=done")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    inventory = write_inventory(tmp_path_factory.mktemp("inventory"), tpu_fleet=[TPUS])
    with own_or_existing_cloud("cookbook") as cloud:
        fleet = Fleet(cloud, inventory)
        shortage = [{"acceleratorType": "v4-8", "times": 1}]
        client.request(cloud, "POST", "/_localcloud/faults", {"capacity": shortage})
        fleet.must_play("playbooks/create.yml", "-e", "wait_for_capacity=600")
        fleet.must_play("setup.yml")
        yield fleet


def test_a_command_a_script_and_a_file_reach_all_workers(fleet, tmp_path):
    (tmp_path / "hello.sh").write_text('#!/bin/sh\necho "hello, $1, from $(hostname)"\n')
    (tmp_path / "words.txt").write_text("to be or not to be\n")

    assert fleet.must_run("ansible", "tpu", "-m", "command", "-a", "uptime").count("load") == 2
    output = fleet.must_run("ansible", "tpu", "-m", "script", "-a", f"{tmp_path}/hello.sh you")
    assert output.count("hello, you, from t1v-n-") == 2
    copied = ("-m", "copy", "-a", f"src={tmp_path}/words.txt dest=/tmp/")
    assert fleet.must_run("ansible", "tpu", *copied).count("CHANGED") == 2
    back = ("-m", "fetch", "-a", f"src=/tmp/words.txt dest={tmp_path}/back/ flat=true")
    fleet.must_run("ansible", "sweep-0-w0", *back)
    assert (tmp_path / "back/words.txt").read_text() == "to be or not to be\n"


def test_a_run_trains_on_text_that_was_copied_to_the_workers(fleet, tmp_path):
    (tmp_path / "one.txt").write_text("to be or not to be\n" * 500)
    text = ("-b", "-m", "copy", "-a", f"src={tmp_path}/ dest=/mnt/shared/corpus/")
    fleet.must_run("ansible", "tpu", *text)
    keys = "data.text=/mnt/shared/corpus/*.txt data.tokenizer=bytes model.vocabulary=256"
    options = ("-e", f'set="{keys} steps=5"', "-e", "tpu=sweep-0", "-e", "run=mine")
    fleet.must_play("train.yml", *SMALL, *options)

    log = fleet.must_play("playbooks/logs.yml", "-e", "run=mine").output
    assert "step 5/5 loss" in log


def test_a_sweep_runs_each_tpu_with_different_settings(fleet, tmp_path):
    sweep = tmp_path / "lr.yml"
    rates = (1e-3, 3e-3)
    sweep.write_text(json.dumps([{"set": {"optimizer.learning_rate": rate}} for rate in rates]))
    options = ("-e", f"sweep={sweep}", "--limit", "sweep-[0-1]-w*", "-e", "set=steps=5")
    fleet.must_play("train.yml", *SMALL, *options)

    runs = [fleet.status(f"shakespeare-sweep-{n}", tmp_path) for n in (0, 1)]
    assert [row["state"] for rows in runs for row in rows.values()] == ["done", "done"]


def test_a_run_for_each_chip_sees_only_its_chip(fleet, tmp_path):
    (tmp_path / "mine.py").write_text("import os; print('chip', os.environ['TPU_VISIBLE_CHIPS'])")
    chips = ("-e", "tpu=sweep-0", "-e", "per_chip=true", "-e", "run=chips")
    code = ("-e", f"code={tmp_path}", "-e", 'command="python mine.py"')
    fleet.must_play("train.yml", *chips, *code, "-e", "wait=done")

    for chip in range(4):
        run = f"chips-sweep-0-c{chip}"
        log = fleet.must_play("playbooks/logs.yml", "-e", f"run={run}").output
        assert f"sweep-0-w0: chip {chip}\n" in log


def test_a_rebooted_worker_trains_again(fleet, tmp_path):
    fleet.must_run("ansible", "tpu_sweep_1", "-b", "-m", "reboot")

    (tmp_path / "mine.py").write_text("print('trained')")
    options = ("-e", "tpu=sweep-1", "-e", "run=rebooted", "-e", f"code={tmp_path}")
    fleet.must_play("train.yml", *options, "-e", 'command="python mine.py"', "-e", "wait=done")


def test_a_run_on_one_chip_is_followed_to_its_end(fleet, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os, time\nprint(os.environ['TPU_VISIBLE_CHIPS'], os.environ['KEY'], flush=True)\n"
        "time.sleep(5)\nprint('the end')\n"
    )
    options = ("-e", "tpu=sweep-0", "-e", "chip=2", "-e", "run=ada", "-e", 'env="KEY=VALUE"')
    code = ("-e", f"code={tmp_path}", "-e", 'command="python mine.py"')
    fleet.must_play("train.yml", *options, *code, "-e", "wait=started")

    followed = fleet.must_play("playbooks/logs.yml", "-e", "run=ada", "-e", "follow=true").output

    assert "sweep-0-w0: 2 VALUE\n" in followed
    assert "sweep-0-w0: the end\n" in followed


def test_a_limit_shows_only_the_tpus_of_a_zone(fleet):
    output = fleet.must_play("playbooks/status.yml", "--limit", "zone_us_central2_b").output
    assert re.search(r"\bsweep-0\b", output)


def test_setup_installs_tools_for_interactive_work(fleet):
    fleet.must_play("setup.yml", "-e", "tpu=sweep-1", "-e", "devtools_enabled=true")
    assert fleet.on("sweep-1-w0", "which", "zsh", "byobu", "mosh-server").count("\n") == 3
