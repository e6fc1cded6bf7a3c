"""A data disk is formatted only if it is empty."""

import subprocess
from dataclasses import replace
from pathlib import Path

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

    ``results`` has the exit code, output and error output of commands that return something else.
    """

    def __init__(self, **results: tuple[int, str, str]) -> None:
        self.results = {"blkid": (2, "", ""), "blockdev": (0, "0\n", "")} | results
        self.called: list[str] = []

    def __call__(self, *command: str) -> subprocess.CompletedProcess[str]:
        name = command[0].partition(".")[0]
        self.called.append(name)
        return subprocess.CompletedProcess(command, *self.results.get(name, (0, "", "")))


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
    assert tools.called[-1] == "mkfs"


@pytest.mark.parametrize(
    ("tool", "result", "error"),
    [
        ("blkid", (0, "TYPE=xfs\n", ""), "holds xfs"),
        ("blkid", (8, "", "ambivalent result"), "cannot identify"),
        ("wipefs", (0, "LVM2_member\n", ""), "holds LVM2_member"),
        ("wipefs", (1, "", "read error"), "wipefs: read error"),
        ("lsblk", (0, "sdb\nsdb1\n", ""), "holds partitions (sdb1)"),
        ("lsblk", (32, "", "not a block device"), "lsblk: not a block device"),
        ("blockdev", (0, "1\n", ""), "is empty and read-only"),
        ("blockdev", (1, "", "ioctl error"), "blockdev: ioctl error"),
    ],
)
def test_a_disk_is_not_formatted_if_a_tool_finds_something_or_fails(
    monkeypatch, params, tool, result, error
):
    tools = Tools(**{tool: result})
    monkeypatch.setattr(data_disk, "run_tool", tools)

    with pytest.raises(UnusableDiskError) as caught:
        data_disk.ensure(params, check=False)

    assert error in str(caught.value)
    assert "mkfs" not in tools.called


@pytest.mark.parametrize("offset", [0, (1 << 20) - 1, (2 << 20), (3 << 20) - 1])
def test_a_disk_with_data_in_its_first_or_last_mib_is_not_formatted(monkeypatch, params, offset):
    monkeypatch.setattr(data_disk, "run_tool", Tools())
    with Path(params["device"]).open("r+b") as disk:
        disk.seek(offset)
        disk.write(b"x")

    with pytest.raises(UnusableDiskError, match="data of an unknown kind"):
        data_disk.ensure(params, check=False)


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
    monkeypatch.setattr(data_disk, "run_tool", Tools(mkfs=(1, "", stderr)))

    with pytest.raises(UnusableDiskError) as caught:
        data_disk.ensure(params, check=False)

    assert str(caught.value) == line


def test_a_missing_disk_is_named_with_the_next_step():
    with pytest.raises(UnusableDiskError, match=r"fill_disk\.yml -e disk=nowhere"):
        data_disk.find("nowhere", None)
