"""playbooks/report.yml, run by ansible-playbook."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.tpufleet.core.plugins.action import report
from ansible_collections.tpufleet.core.plugins.action.report import ActionModule
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import Bucket
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import EventKind
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.history import Event
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import RecordFolder
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import (
    ARCHIVE_AFTER_S,
    RunStore,
)

from harness.playbooks import environment_of, output_of
from harness.valid_record import record_fields
from tests.collections.report.test_report_page import Reader
from tests.collections.running_actions import run_action
from tests.collections.runs.answers import report_end
from tests.collections.test_run_schedule_timers import TOOLS

REPORT = "playbooks/report.yml"


@pytest.fixture
def bucket(local_api, emulator):
    """The directory of published pages in the bucket of the local cloud."""
    (local_api.state / "bucket-endpoint").write_text(emulator)
    return Bucket("gs://fleet/pages", address=emulator)


def test_without_workers_the_report_of_a_run_is_made_from_its_record_and_published(
    local_api, bucket
):
    for run in ("pod-run", "other"):
        RecordFolder(str(local_api.state / "fleet")).change(
            run, 0, record_fields(run), {"kind": "launched", "release": "a"}
        )
    page = local_api.state / "fleet/report.html"
    page.write_bytes(b"a damaged page \xff")
    options = ("-e", "publish=gs://fleet/pages/report.html", "-e", "run=pod-run")

    output = output_of(environment_of(local_api), REPORT, *options)

    url = bucket.browser_url("report.html")
    assert f"{page} shows 1 run, published at {url}" in output
    assert "launched with release a" in " ".join(Reader(page.read_text()).texts)
    served = requests.get(url, timeout=10)
    assert served.content == page.read_bytes()
    assert served.headers["Content-Type"] == "text/html; charset=utf-8"


def test_check_mode_neither_writes_nor_publishes_the_report(tmp_path, emulator, bucket_api):
    paths = {name: str(tmp_path / name) for name in ("path", "fleet_state", "directory", "cache")}
    (tmp_path / "path").write_bytes(b"a damaged page \xff")
    options = {**paths, "answers": {}, "api": bucket_api, "publish": "gs://fleet/check/a.html"}

    assert run_action(report, check=True, **options)["changed"]

    assert (tmp_path / "path").read_bytes() == b"a damaged page \xff"
    assert Bucket("gs://fleet/check", address=emulator).names() == []


def test_the_report_shows_archived_runs(tmp_path):
    paths = {name: str(tmp_path / name) for name in ("path", "fleet_state", "directory", "cache")}
    store = RunStore.of(paths["fleet_state"])
    record = store.change("old", 0, record_fields("old", wanted="done"), Event(EventKind.LAUNCHED))
    assert store.archive_finished([record], time.time() + 2 * ARCHIVE_AFTER_S) == ["old"]

    assert run_action(report, answers={}, **paths)["runs"] == ["old"]


@pytest.mark.parametrize(
    ("answers", "tpu_state", "text"),
    [
        ({"pod-w0": {"runs": [report_end("2", error="no such file")]}}, "READY", "no such file"),
        ({}, "PREEMPTED", "preempted"),
        ({}, "READY", ""),
    ],
    ids=["a worker's report", "a preempted TPU", "a READY TPU"],
)
def test_a_report_shows_errors_of_workers_and_the_state_of_tpus(tmp_path, answers, tpu_state, text):
    paths = {name: str(tmp_path / name) for name in ("path", "fleet_state", "directory", "cache")}
    store = RunStore.of(paths["fleet_state"])
    store.change("mine", 0, record_fields(workers=1), Event(EventKind.LAUNCHED))

    run_action(report, answers=answers, tpu_states={"pod": tpu_state}, **paths)

    texts = Reader((tmp_path / "path").read_text()).texts
    assert text in " ".join(texts)
    assert ("preempted" in texts) == (tpu_state == "PREEMPTED")


def test_a_report_warns_of_what_it_cannot_read_and_is_unchanged_if_only_the_time_differs(
    tmp_path, monkeypatch
):
    paths = {name: str(tmp_path / name) for name in ("path", "fleet_state", "directory", "cache")}
    store = RunStore.of(paths["fleet_state"])
    for run in ("mine", "other"):
        store.change(run, 0, record_fields(run, wanted="done"), Event(EventKind.LAUNCHED))
    (tmp_path / "fleet_state/runs/damaged.json").write_text("[]")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory/other").touch()  # its output can't be read
    times = iter((1e9, 1e9 + 600, 1e9))
    monkeypatch.setattr(report, "time", SimpleNamespace(time=lambda: next(times)))

    one, again, every = (
        run_action(report, answers={}, run=run, **paths) for run in ("mine", "mine", "")
    )

    assert (one["runs"], one["changed"], again["changed"]) == (["mine"], True, False)
    assert len(one["warnings"]) == 1
    assert "damaged" in one["warnings"][0]
    assert sorted(every["runs"]) == ["mine", "other"]
    assert len(every["warnings"]) == 2
    assert "other" in every["warnings"][1]


def test_a_report_is_changed_if_only_the_published_page_differs(tmp_path, emulator, bucket_api):
    paths = {name: str(tmp_path / name) for name in ("path", "fleet_state", "directory", "cache")}
    options = {**paths, "answers": {}, "api": bucket_api}
    published = {**options, "publish": f"gs://fleet/{tmp_path.name}/a.html"}
    run_action(report, **options)

    results = [
        run_action(report, check=True, **published),
        run_action(report, **published),
        run_action(report, check=True, **published),
        run_action(report, **published),
    ]

    assert [result["changed"] for result in results] == [True, True, False, False]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"run": "none"},
            "there is no run none. List the runs: ansible-playbook playbooks/status.yml",
        ),
        ({"publish": "gs://fleet/report"}, "publish=gs://BUCKET/report.html"),
    ],
    ids=["an unknown run", "an object that is not an HTML file"],
)
def test_an_invalid_option_is_named_with_the_fix(tmp_path, monkeypatch, options, error):
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    action = ActionModule.__new__(ActionModule)
    paths = {name: str(tmp_path / name) for name in ("path", "fleet_state", "directory", "cache")}
    action._task = SimpleNamespace(args=paths | {"answers": {}} | options, check_mode=False)

    with pytest.raises(AnsibleActionFail, match=error):
        action.run()


@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="this would schedule it")
def test_a_scheduled_report_is_published_to_the_bucket(local_api, tmp_path):
    crontab = tmp_path / "crontab"
    crontab.write_text(TOOLS["crontab"].replace("{folder}", str(tmp_path)))
    crontab.chmod(0o755)
    environment = environment_of(local_api)
    environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"

    options = ("-e", "report=5m", "-e", "bucket=gs://ours/")
    output_of(environment, "playbooks/schedule.yml", *options)

    [line] = (tmp_path / "table").read_text().splitlines()
    assert line.startswith("*/5 * * * * ")
    arguments = line.partition("playbooks/report.yml")[2].partition(">")[0].strip()
    assert arguments == "-e publish=gs://ours/report.html"


def test_the_error_about_an_unwritable_path_names_it(tmp_path):
    (tmp_path / "file").write_text("")
    paths = {name: str(tmp_path / name) for name in ("fleet_state", "directory", "cache")}
    path = f"{tmp_path}/file/report.html"

    with pytest.raises(AnsibleActionFail, match=f"can't write {path}"):
        run_action(report, answers={}, path=path, **paths)
