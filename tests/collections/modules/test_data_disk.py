"""A data disk is formatted only if it is empty."""

import subprocess
from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.data_disk import (
    FILLING,
    DiskState,
    UnusableDiskError,
    must_format,
)
from ansible_collections.tpufleet.core.plugins.modules import data_disk
from hypothesis import given
from hypothesis import strategies as st

from harness.playbooks import ROOT

EMPTY = DiskState(
    "corpus", "/dev/sdb", read_only=False, tags={}, signatures=(), partitions=(), blank=True
)
EXT4 = replace(
    EMPTY,
    tags={"TYPE": "ext4", "UUID": "6f0c9c1e-7c55-4f0e-9a53-64042c10cd00"},
    signatures=("ext4",),
    blank=False,
)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_disk_with_ext4_is_not_formatted(read_only: bool):
    assert not must_format(replace(EXT4, read_only=read_only))


def test_a_disk_that_was_not_filled_completely_is_refused():
    incomplete = replace(EXT4, tags=EXT4.tags | {"LABEL": FILLING})
    assert f"{FILLING}]" in (ROOT / "playbooks/fill_disk.yml").read_text()
    assert not must_format(incomplete)
    with pytest.raises(UnusableDiskError, match=r"interrupted.*fill_disk\.yml -e disk=corpus"):
        must_format(replace(incomplete, read_only=True))


@pytest.mark.parametrize(
    ("disk", "error"),
    [
        (replace(EMPTY, tags={"TYPE": "xfs", "UUID": "1"}), "holds xfs"),
        (replace(EMPTY, tags={"PTTYPE": "gpt"}), "holds gpt"),
        (replace(EMPTY, partitions=("sdb1",)), "holds partitions (sdb1)"),
        (replace(EXT4, partitions=("sdb1",)), "holds partitions (sdb1)"),
        (replace(EMPTY, signatures=("LVM2_member",)), "holds LVM2_member"),
        (replace(EMPTY, blank=False), "unknown kind"),
        (replace(EMPTY, read_only=True), "fill_disk.yml -e disk=corpus"),
    ],
)
def test_any_other_disk_is_refused_and_not_formatted(disk: DiskState, error: str):
    with pytest.raises(UnusableDiskError) as caught:
        must_format(disk)
    assert error in str(caught.value)
    assert "/dev/sdb" in str(caught.value)


@given(
    st.builds(
        DiskState,
        name=st.just("corpus"),
        device=st.just("/dev/sdb"),
        read_only=st.booleans(),
        tags=st.dictionaries(
            st.sampled_from(["TYPE", "PTTYPE", "UUID", "LABEL", "USAGE"]), st.text(max_size=8)
        ),
        signatures=st.lists(st.sampled_from(["ext4", "xfs", "gpt", "zfs"]), max_size=2).map(tuple),
        partitions=st.lists(st.just("sdb1"), max_size=2).map(tuple),
        blank=st.booleans(),
    )
)
def test_nothing_but_a_blank_writable_disk_without_signatures_is_ever_formatted(disk: DiskState):
    try:
        formats = must_format(disk)
    except UnusableDiskError:
        formats = False
    if formats:
        assert disk.blank and not disk.read_only
        assert not disk.signatures and not disk.partitions
        assert not disk.tags.get("TYPE") and not disk.tags.get("PTTYPE")


class Tools:
    """Fake commands of a worker with a blank disk.

    The command whose name is ``fails`` exits with 1 and writes ``stderr``.
    """

    def __init__(self, fails="", stderr=""):
        self.fails, self.stderr, self.called = fails, stderr, []

    def __call__(self, *command):
        self.called.append(command[0])
        if command[0] == self.fails:
            return subprocess.CompletedProcess(command, 1, "", self.stderr)
        if command[0] == "blkid":
            return subprocess.CompletedProcess(command, 2, "", "")
        output = "0\n" if command[0] == "blockdev" else ""
        return subprocess.CompletedProcess(command, 0, output, "")


@pytest.fixture
def params(tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(3 << 20))
    return {"name": "corpus", "device": str(disk), "owner": 0}


def test_a_blank_disk_is_formatted(monkeypatch, params):
    tools = Tools()
    monkeypatch.setattr(data_disk, "run_tool", tools)

    result = data_disk.ensure(params, check=False)

    assert (result["changed"], result["read_only"]) == (True, False)
    assert tools.called[-1] == "mkfs.ext4"


def test_a_dry_run_only_reads_the_disk(monkeypatch, params):
    tools = Tools()
    monkeypatch.setattr(data_disk, "run_tool", tools)

    result = data_disk.ensure(params, check=True)

    assert (result["changed"], result["diff"]["after"]) == (True, "ext4\n")
    assert set(tools.called) == {"blkid", "wipefs", "lsblk", "blockdev"}


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        ("mkfs: no space\n  see its page\n", "mkfs.ext4: mkfs: no space; see its page"),
        ("", "mkfs.ext4: no error output"),
    ],
)
def test_a_failing_tool_is_reported_on_one_line(monkeypatch, params, stderr, line):
    monkeypatch.setattr(data_disk, "run_tool", Tools("mkfs.ext4", stderr))

    with pytest.raises(UnusableDiskError) as caught:
        data_disk.ensure(params, check=False)

    assert str(caught.value) == line


@pytest.mark.parametrize("tool", ["wipefs", "lsblk", "blockdev"])
def test_a_disk_that_a_tool_can_t_read_is_not_formatted(monkeypatch, params, tool):
    tools = Tools(tool, f"{tool}: permission denied")
    monkeypatch.setattr(data_disk, "run_tool", tools)

    with pytest.raises(UnusableDiskError, match=f"{tool}: permission denied"):
        data_disk.ensure(params, check=False)

    assert "mkfs.ext4" not in tools.called


def test_a_missing_disk_is_named_with_the_next_step():
    with pytest.raises(UnusableDiskError, match=r"fill_disk\.yml -e disk=nowhere"):
        data_disk.find("nowhere", None)
