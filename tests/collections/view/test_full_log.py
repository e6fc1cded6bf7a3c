"""The full log of a playbook: which old logs are deleted, and what happens if the disk is full."""

from pathlib import Path

from ansible_collections.tpufleet.core.plugins.plugin_utils.view.full_log import MAX_LOGS, FullLog


def test_the_log_of_a_running_playbook_and_files_of_others_are_not_deleted(tmp_path):
    (tmp_path / "0-mine.log").touch()
    running = FullLog(tmp_path, "train")
    for number in range(MAX_LOGS + 20):
        (tmp_path / f"20990101T000000-watch-{99999000 + number}.log").touch()

    FullLog(tmp_path, "status")

    assert running.path.exists()
    assert (tmp_path / "0-mine.log").exists()
    assert len(list(tmp_path.glob("*-watch-*.log"))) < MAX_LOGS


def test_a_full_disk_does_not_end_the_output_of_a_playbook(tmp_path):
    log = FullLog(tmp_path, "status")
    log._file = Path("/dev/full").open("w", 1)  # noqa: SIM115 (closed below)

    log.line("x")
    log.close()


def test_an_old_log_that_cannot_be_deleted_does_not_prevent_a_new_one(tmp_path):
    for number in range(MAX_LOGS):
        (tmp_path / f"20260101T000000-a-{99999000 + number}.log").mkdir()

    assert FullLog(tmp_path, "status").path.exists()
