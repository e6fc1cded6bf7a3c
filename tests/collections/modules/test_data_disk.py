"""A data disk is formatted only if nothing is on it, and mounted as the TPU has it."""

import subprocess
from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.data_disk import (
    Plan,
    Seen,
    UnusableDiskError,
    decide,
    line,
    with_line,
)
from ansible_collections.tpufleet.core.plugins.modules import data_disk
from hypothesis import given
from hypothesis import strategies as st

EMPTY = Seen("/dev/sdb", read_only=False, tags={}, signatures=(), partitions=(), blank=True)
EXT4 = replace(
    EMPTY,
    tags={"TYPE": "ext4", "UUID": "6f0c9c1e-7c55-4f0e-9a53-64042c10cd00"},
    signatures=("ext4",),
    blank=False,
)
FSTAB = "# what the image has\nUUID=aa / ext4 defaults 0 1\n"


def test_an_empty_disk_gets_a_file_system():
    assert decide(EMPTY, "ext4") == Plan(make=True, filesystem="ext4", uuid=None)


def test_a_disk_with_the_file_system_is_mounted_as_it_is():
    assert decide(EXT4, "ext4") == Plan(
        make=False, filesystem="ext4", uuid="6f0c9c1e-7c55-4f0e-9a53-64042c10cd00"
    )


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (replace(EMPTY, tags={"TYPE": "xfs", "UUID": "1"}), "holds xfs"),
        (replace(EMPTY, tags={"PTTYPE": "gpt"}), "holds gpt"),
        (replace(EMPTY, partitions=("sdb1",)), "holds partitions (sdb1)"),
        (replace(EXT4, partitions=("sdb1",)), "holds partitions (sdb1)"),
        (replace(EMPTY, signatures=("LVM2_member",)), "holds LVM2_member"),
        (replace(EMPTY, blank=False), "unknown kind"),
        (replace(EMPTY, read_only=True), "attach it READ_WRITE"),
    ],
)
def test_any_other_disk_is_left_as_it_is(seen: Seen, said: str):
    with pytest.raises(UnusableDiskError) as caught:
        decide(seen, "ext4")
    assert said in str(caught.value)
    assert "/dev/sdb" in str(caught.value)


@given(
    st.builds(
        Seen,
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
def test_nothing_but_a_blank_writable_disk_without_signatures_is_ever_formatted(seen: Seen):
    try:
        makes = decide(seen, "ext4").make
    except UnusableDiskError:
        makes = False
    if makes:
        assert seen.blank and not seen.read_only
        assert not seen.signatures and not seen.partitions
        assert not seen.tags.get("TYPE") and not seen.tags.get("PTTYPE")


def test_a_disk_that_can_only_be_read_is_mounted_so_and_holds_up_no_boot():
    made = line("corpus", Plan(False, "ext4", "0b1c"), "0b1c", "/mnt/corpus", read_only=True)
    uuid, path, kind, options, dump, check = made.split()
    assert (uuid, path, kind, dump, check) == ("UUID=0b1c", "/mnt/corpus", "ext4", "0", "0")
    assert {"ro", "noload", "nofail"} <= set(options.split(","))


def test_a_disk_has_one_line_in_fstab_and_other_lines_stay():
    plan = Plan(False, "ext4", "0b1c")
    first = line("corpus", plan, "0b1c", "/mnt/corpus", read_only=False)
    once = with_line(FSTAB, "corpus", first)
    assert once == FSTAB + first + "\n"
    assert with_line(once, "corpus", first) == once
    moved = line("corpus", plan, "0b1c", "/mnt/other", read_only=False)
    assert with_line(once, "corpus", moved) == FSTAB + moved + "\n"


def test_a_mount_point_of_something_else_is_refused():
    new = line("corpus", Plan(False, "ext4", "0b1c"), "0b1c", "/", read_only=False)
    with pytest.raises(UnusableDiskError, match="mount point of UUID=aa"):
        with_line(FSTAB, "corpus", new)


class Tools:
    """The tools of a worker with one blank disk; ``fails`` is one that does, with what it says."""

    def __init__(self, fails="", said=""):
        self.fails, self.said, self.called = fails, said, []

    def __call__(self, *words):
        self.called.append(words[0])
        if words[0] == self.fails:
            return subprocess.CompletedProcess(words, 1, "", self.said)
        if words[0] == "blkid":
            made = "mkfs.ext4" in self.called
            text = "TYPE=ext4\nUUID=0b1c-0b1c\n" if made else ""
            return subprocess.CompletedProcess(words, 0 if made else 2, text, "")
        return subprocess.CompletedProcess(words, 0, "0\n" if words[0] == "blockdev" else "", "")


@pytest.fixture
def wanted(tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(3 << 20))
    return {
        "name": "corpus",
        "device": str(disk),
        "path": str(tmp_path / "mnt"),
        "filesystem": "ext4",
        "owner": 0,
        "fstab": str(tmp_path / "fstab"),
    }


def test_a_blank_disk_is_formatted_written_down_and_mounted(monkeypatch, tmp_path, wanted):
    tools = Tools()
    monkeypatch.setattr(data_disk, "run_tool", tools)

    told = data_disk.ensure(wanted, check=False)

    assert (told["changed"], told["formatted"], told["uuid"]) == (True, True, "0b1c-0b1c")
    assert "UUID=0b1c-0b1c" in (tmp_path / "fstab").read_text()
    assert tools.called[-2:] == ["systemctl", "mount"]


def test_a_dry_run_only_looks_at_the_disk(monkeypatch, tmp_path, wanted):
    tools = Tools()
    monkeypatch.setattr(data_disk, "run_tool", tools)

    told = data_disk.ensure(wanted, check=True)

    assert (told["changed"], told["uuid"]) == (True, "")
    assert set(tools.called) == {"blkid", "wipefs", "lsblk", "blockdev", "findmnt"}
    assert [path.name for path in tmp_path.iterdir()] == ["disk"]


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("mount: wrong fs type\n  dmesg(1) may know\n", "mount: wrong fs type; dmesg(1) may know"),
        ("", "no error output"),
    ],
)
def test_a_failing_tool_is_reported_on_one_line(monkeypatch, wanted, said, line):
    monkeypatch.setattr(data_disk, "run_tool", Tools("mount", said))

    with pytest.raises(UnusableDiskError) as caught:
        data_disk.ensure(wanted, check=False)

    assert str(caught.value) == f"mount: {line}"
