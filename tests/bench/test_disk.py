"""The warning that a disk with ext4 without a journal distorts a benchmark's measurements."""

import os

import pytest

from bench import disk
from bench.disk import has_no_journal


@pytest.fixture
def machine(tmp_path):
    """A directory with a fake sys and proc, according to which the directory is on the disk vda."""
    device = tmp_path.stat().st_dev
    (tmp_path / "sys/devices/vda").mkdir(parents=True)
    link = tmp_path / f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "sys/devices/vda")
    (tmp_path / "proc/fs").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("entries", "is_detected"),
    [
        (["ext4/vda", "ext4/vdb", "jbd2/vdb-8"], True),
        (["ext4/vda", "jbd2/vda-8"], False),
        (["xfs/vda"], False),
    ],
    ids=["ext4 without a journal", "ext4 with one", "another file system"],
)
def test_an_ext4_without_a_journal_is_detected(machine, entries, is_detected):
    for name in entries:
        (machine / "proc/fs" / name).mkdir(parents=True)

    assert has_no_journal(machine, machine) is is_detected


def test_a_directory_without_a_block_device_is_ignored(tmp_path):
    assert not has_no_journal(tmp_path, tmp_path)


def test_the_warning_names_the_directory_and_the_variables_to_set(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(disk, "has_no_journal", lambda directory: directory == tmp_path / "clouds")

    disk.warn_of_distortion(tmp_path / "clouds", tmp_path / "code")

    (warning,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "clouds") in warning
    assert "TPUFLEET_LOCALCLOUD_DIR" in warning
