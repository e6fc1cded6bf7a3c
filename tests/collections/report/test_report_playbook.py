"""playbooks/report.yml, run by ansible-playbook."""

import os
from pathlib import Path

import pytest
import requests
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import Bucket
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import RecordFolder

from harness.playbooks import environment_of, flat, play
from harness.valid_record import record_fields
from tests.collections.report.test_report_page import Reader
from tests.collections.test_run_schedule_cron import CRONTAB, script

REPORT = "playbooks/report.yml"


def test_without_workers_the_report_is_made_from_the_records(local_api):
    RecordFolder(str(local_api.state / "fleet")).change(
        "pod-run", 0, record_fields("pod-run"), {"kind": "launched", "release": "a"}
    )
    path = local_api.state / "report.html"
    path.write_bytes(b"a damaged page \xff")
    result = play(environment_of(local_api), REPORT, "-e", f"report={path}")
    assert result.returncode == 0, flat(result)
    assert f"{path} shows 1 run" in flat(result)
    assert "launched with release a" in " ".join(Reader(path.read_text()).texts)


def test_an_unknown_run_is_named(local_api):
    result = play(environment_of(local_api), REPORT, "-e", "run=none")
    assert result.returncode != 0
    assert "there is no run none: ansible-playbook playbooks/status.yml" in flat(result)


@pytest.fixture
def bucket(local_api, emulator):
    """The directory of published pages in the bucket of the local cloud."""
    (local_api.state / "bucket-endpoint").write_text(emulator)
    return Bucket("gs://fleet/pages", address=emulator)


def test_the_report_is_written_and_published_to_the_bucket_but_not_in_check_mode(local_api, bucket):
    report = local_api.state / "fleet/report.html"
    environment = environment_of(local_api)
    publish = "publish=gs://fleet/pages/report.html"
    result = play(environment, REPORT, "-e", publish, "--check")
    assert result.returncode == 0, flat(result)
    assert bucket.names() == []
    assert not report.exists()
    result = play(environment, REPORT, "-e", publish)
    assert result.returncode == 0, flat(result)
    assert f"published at {bucket.browser_url('report.html')}" in flat(result)
    assert "No run has a record" in report.read_text()
    served = requests.get(bucket.browser_url("report.html"), timeout=10)
    assert served.content == report.read_bytes()
    assert served.headers["Content-Type"] == "text/html; charset=utf-8"


def test_a_report_is_published_only_to_an_html_file_in_a_bucket(local_api):
    result = play(environment_of(local_api), REPORT, "-e", "publish=gs://fleet/report")
    assert result.returncode != 0
    assert "publish=gs://BUCKET/report.html" in flat(result)


@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="this would schedule it")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "publish=gs://local-fleet/report.html"),
        (["-e", "publish=gs://fleet/x.html"], "publish=gs://fleet/x.html"),
    ],
)
def test_a_scheduled_report_is_published_to_the_bucket(local_api, tmp_path, arguments, expected):
    script(tmp_path / "crontab", CRONTAB, table=tmp_path / "table")
    environment = environment_of(local_api)
    environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"
    arguments = ["-e", "report=5m", "-e", "bucket=gs://local-fleet", *arguments]
    result = play(environment, "playbooks/schedule.yml", *arguments)
    assert result.returncode == 0, flat(result)
    assert "*/5 * * * * tpufleet-do-report" in flat(result)
    assert f"playbooks/report.yml -e {expected} " in (tmp_path / "table").read_text()


def test_the_error_about_an_unwritable_path_names_it(local_api, tmp_path):
    (tmp_path / "file").write_text("")
    result = play(environment_of(local_api), REPORT, "-e", f"report={tmp_path}/file/report.html")
    assert result.returncode != 0
    assert f"can't write {tmp_path}/file/report.html" in flat(result)
