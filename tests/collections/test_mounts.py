"""``mounts``: validation of the entries, and the systemd units made from them."""

import json
import shutil
import subprocess

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.tpufleet.core.plugins.plugin_utils.setup.mounts import (
    disk_mounts,
    mount_exports,
    mount_units,
    parse_mounts,
    unit_of,
)
from hypothesis import given
from hypothesis import strategies as st

from localcloud.local_cloud import PROJECT_ROOT
from tests.collections.role_templates import rendered, run_tasks

WITH_DISK = {"tpu_data_disks": ["my-corpus"]}
HOSTVARS = {
    "pod-w0": {
        "tpu_internal_ip": "10.0.0.2",
        "ansible_host": "pod.example",
        "tpu_generation": "v4",
    },
    "pod-w1": {"tpu_internal_ip": "10.0.0.3", "tpu_generation": "v4", **WITH_DISK},
    "new-w0": {"tpu_internal_ip": "10.0.0.4", "tpu_generation": "v6e", **WITH_DISK},
    "store": {"ansible_host": "store.internal"},
}
SHARED = {"kind": "nfs", "path": "/mnt/shared", "server": "pod-w0"}
FILESTORE = {"kind": "filestore", "path": "/mnt/store", "server": "10.1.2.2", "share": "vol1"}
BUCKET = {"kind": "gcsfuse", "path": "/mnt/corpus", "bucket": "my-bucket"}
DISK = {"kind": "disk", "path": "/mnt/disks/my-corpus", "disk": "my-corpus"}


def unit(entry, host="pod-w1"):
    [mount_unit] = mount_units([entry], host, HOSTVARS, 64042)
    return mount_unit


def exports(*lists):
    return mount_exports(lists, list(HOSTVARS), HOSTVARS)


def test_an_inventory_host_exports_the_directory_and_does_not_mount_it():
    assert mount_units([SHARED], "pod-w0", HOSTVARS, 64042) == []
    [export] = exports([SHARED], [SHARED], None)
    assert (export["server"], export["path"], export["mode"]) == ("pod-w0", "/mnt/shared", "1777")


@pytest.mark.parametrize("read_only", [False, True])
def test_a_server_has_its_export_at_the_path_that_the_other_workers_use(read_only):
    entry = SHARED | {"export": "/mnt/disks/a", "read_only": read_only, "options": ["nconnect=8"]}
    bound = unit(entry, "pod-w0")
    options = "bind,noatime,nosuid,nodev"
    assert bound["options"] == (f"ro,{options}" if read_only else options)
    assert (bound["path"], bound["what"], bound["type"]) == ("/mnt/shared", "/mnt/disks/a", "none")
    assert (bound["unit"], bound["disk"], bound["is_network"]) == ("mnt-shared", "", False)


def test_a_mount_below_a_disk_changes_with_it():
    shared, disk = SHARED | {"path": f"{DISK['path']}/shared"}, DISK | {"options": ["discard"]}
    [(alone,), (_, below), (_, changed)] = (
        mount_units(entries, "pod-w1", HOSTVARS, 64042)
        for entries in ([shared], [DISK, shared], [disk, shared])
    )
    assert alone["below"] == []
    assert below["below"] != changed["below"]
    assert below["below"][0].startswith(f"{DISK['path']} (/dev/disk/by-id/google-my-corpus, ")


def test_a_mount_below_a_network_file_system_is_refused():
    entries = [SHARED, DISK | {"path": "/mnt/shared/corpus"}]
    with pytest.raises(AnsibleFilterError, match="/mnt/shared/corpus: it is below /mnt/shared,"):
        mount_units(entries, "pod-w1", HOSTVARS, 64042)
    assert len(mount_units([SHARED, DISK | {"path": "/mnt/shared-2"}], "pod-w1", HOSTVARS, 1)) == 2


def test_hosts_of_two_tpus_can_export_at_the_same_path():
    other = SHARED | {"server": "new-w0", "mode": "0750"}
    servers = [(export["server"], export["mode"]) for export in exports([SHARED], [other])]
    assert servers == [("new-w0", "0750"), ("pod-w0", "1777")]


FIRST, SECOND = (SHARED | {"path": path} for path in ("/mnt/a-b", "/mnt/c"))
WORKERS = {
    "pod-w0": {"tpu_internal_ip": "10.0.0.2", "mounts": [FIRST], "tpufleet_uid": 64042},
    "pod-w1": {"tpu_internal_ip": "10.0.0.3", "mounts": [SECOND]},
    "their-w0": {"tpu_internal_ip": "10.0.0.4"},
}
NOT_READY = {"own": {"tpu_internal_ips": ["10.0.0.5"]}, "their": {"tpu_internal_ips": ["10.0.0.6"]}}
INVENTORY = {
    "tpu": {"hosts": WORKERS},
    "others": {"hosts": NOT_READY},
    "foreign": {"hosts": {"their-w0": {}, "their": {}}},
}
OUTSIDE = "[{'kind': 'nfs', 'path': '/mnt/data', 'server': '192.0.2.7'}]"


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> str:
    """The output of a play, limited to pod-w0, that prints values of the role mounts."""
    folder = tmp_path_factory.mktemp("mounts")
    files = [str(PROJECT_ROOT / f"roles/mounts/{name}/main.yml") for name in ("defaults", "vars")]
    messages = (
        "{{ __mounts_own_exports | join(' ') }}",
        "{{ mounts_clients | join(' ') }}!",
        f"{{{{ {OUTSIDE} | tpufleet.core.mount_units(inventory_hostname, hostvars, 64042, []) }}}}",
    )
    tasks = [{"ansible.builtin.debug": {"msg": message}} for message in messages]
    hosts = json.dumps({"all": {"children": INVENTORY}})
    return run_tasks(folder, tasks, "--limit", "pod-w0", inventory=hosts, vars_files=files).stdout


def test_a_server_keeps_the_exports_of_all_hosts_even_with_limit(printed):
    expected = r"tpufleet-mnt-a\x2db.exports tpufleet-mnt-c.exports"
    assert expected in printed.replace("\\\\", "\\")


@pytest.mark.parametrize(
    ("export", "server", "mount_point"),
    [
        ("/mnt/disks/my-corpus/a", "pod-w1", "/mnt/disks/my-corpus"),
        ("/mnt/disks/my-corpus", "pod-w1", "/mnt/disks/my-corpus"),
        ("/mnt/disks/my-corpus-2", "pod-w1", ""),
        ("/mnt/disks/my-corpus/a", "pod-w0", ""),
    ],
)
def test_a_directory_of_a_data_disk_is_exported_only_if_the_disk_is_mounted(
    export, server, mount_point
):
    [entry] = exports([SHARED | {"server": server, "export": export}, DISK])
    assert entry["mount_point"] == mount_point
    text = rendered("mounts/exports.j2", item=entry, mounts_clients=["10.0.0.2", "10.0.0.3"])
    assert text.count(f",mp={mount_point})") == (2 if mount_point else 0)
    assert text.count("sec=sys") == 2


@pytest.mark.parametrize("directory", ["/home", "/etc", "/root/x"])
def test_a_directory_of_the_system_is_not_exported(directory):
    with pytest.raises(AnsibleFilterError, match=f"{directory} of pod-w0 belongs to the system"):
        exports([SHARED | {"export": directory}])
    of_another_server = SHARED | {"server": "10.9.9.9", "export": directory}
    assert unit(of_another_server)["what"] == f"10.9.9.9:{directory}"


OTHER_SERVER = SHARED | {"server": "10.9.9.9", "export": "/vol/data", "read_only": True}


@pytest.mark.parametrize(
    ("entry", "source", "options"),
    [
        (SHARED, "nfs4 10.0.0.2:/mnt/shared", "vers=4.2,hard,nosuid,nodev"),
        (SHARED | {"server": "store"}, "nfs4 store.internal:/mnt/shared", "hard"),
        (SHARED | {"server": "nfs.internal"}, "nfs4 nfs.internal:/mnt/shared", "hard"),
        (OTHER_SERVER, "nfs4 10.9.9.9:/vol/data", "ro,vers=4.2"),
        (SHARED | {"options": ["vers=4.1"]}, "nfs4 10.0.0.2:/mnt/shared", "vers=4.1,hard"),
        (FILESTORE, "nfs 10.1.2.2:/vol1", "vers=3,nosuid,nodev"),
        (BUCKET, "gcsfuse my-bucket", "ro,allow_other,uid=64042,gid=64042,implicit_dirs"),
        (BUCKET | {"directory": "a/b", "read_only": False}, "gcsfuse my-bucket", "only_dir=a/b,rw"),
        (DISK, "ext4 /dev/disk/by-id/google-my-corpus", "nosuid,nodev"),
        (DISK | {"device": "/dev/disk/by-uuid/6f0c"}, "ext4 /dev/disk/by-uuid/6f0c", "nosuid"),
    ],
)
def test_each_kind_of_mount_has_its_source_and_options(entry, source, options):
    mount_unit = unit(entry)
    names = [option.partition("=")[0] for option in mount_unit["options"].split(",")]

    assert f"{mount_unit['type']} {mount_unit['what']}" == source
    assert set(options.split(",")) <= set(mount_unit["options"].split(","))
    assert len(names) == len(set(names))
    assert not {"ro", "rw"} <= set(names)
    assert mount_unit["is_network"] == (entry["kind"] != "disk")


def test_a_directory_of_another_nfs_server_is_not_exported():
    assert exports([OTHER_SERVER]) == []


def test_an_nfs_server_that_is_neither_a_host_nor_an_address_is_refused():
    with pytest.raises(AnsibleFilterError, match="server: the inventory has no host pod2-w0"):
        unit(SHARED | {"server": "pod2-w0"})


def test_only_workers_of_this_fleet_may_mount_an_export(printed):
    assert "msg: 10.0.0.2 10.0.0.3 10.0.0.5!" in printed, printed


@pytest.mark.parametrize(
    "listed", [["my-corpus"], [{"name": "my-corpus", "size_gb": 5}], "my-corpus"]
)
def test_a_disk_is_mounted_only_on_workers_of_a_tpu_that_has_it(listed):
    fleet = [{"name": "other"}, {"name": "pod", "data_disks": listed}]
    assert mount_units([DISK], "pod-w0", HOSTVARS, 64042, fleet) == []


def test_a_disk_that_no_tpu_has_is_refused():
    with pytest.raises(AnsibleFilterError, match=r"no TPU has the disk my-corpus\. Add it"):
        mount_units([DISK], "pod-w0", HOSTVARS, 64042, [{"name": "pod", "data_disks": ["books"]}])


def test_disk_mounts_finds_a_disk_before_it_is_attached():
    entries = [SHARED, DISK | {"device": "/dev/disk/by-id/scsi-x"}]
    mounts = disk_mounts(entries, "my-corpus")
    assert mounts == {"device": "/dev/disk/by-id/scsi-x", "units": [r"mnt-disks-my\x2dcorpus"]}
    assert disk_mounts(entries, "my-corpus", "/dev/disk/by-id/y")["device"] == "/dev/disk/by-id/y"
    assert disk_mounts([], "other") == {"device": "/dev/disk/by-id/google-other", "units": []}
    with pytest.raises(AnsibleFilterError, match=r"^device: expected a path below /dev/disk/by-id"):
        disk_mounts([], "other", "/dev/sdb")


def test_hyperdisk_ml_is_refused_on_a_tpu_that_does_not_support_it():
    entry = DISK | {"kind": "hyperdisk-ml"}
    assert unit(entry, "new-w0")["type"] == "ext4"
    with pytest.raises(AnsibleFilterError, match="a TPU v4 does not support Hyperdisk ML"):
        unit(entry)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("nfs", "entry 1: expected a mapping"),
        ({"path": "/mnt/a"}, "kind: expected one of nfs, filestore, gcsfuse, disk, hyperdisk-ml"),
        (SHARED | {"path": "mnt/a"}, "path: expected an absolute path"),
        (SHARED | {"path": "/mnt/../etc"}, "path: expected an absolute path"),
        (SHARED | {"path": "/etc/shared"}, "/etc/shared belongs to the system; use /mnt/NAME"),
        (SHARED | {"path": "/home"}, "/home belongs to the system; use /mnt/NAME"),
        (SHARED | {"server": "a b"}, "server: expected an inventory host"),
        (SHARED | {"bucket": "b"}, "unknown keys for kind nfs: bucket (expected export, kind"),
        (SHARED | {"mode": 1777}, "mode: expected a quoted octal mode"),
        (SHARED | {"options": ["rw,suid"]}, "options: expected a list of mount options"),
        (SHARED | {"read_only": "yes"}, "read_only: expected true or false"),
        (BUCKET | {"bucket": "gs://my-bucket"}, "bucket: expected a bucket's name without gs://"),
        (BUCKET | {"directory": "../other"}, "directory: expected a directory of the bucket"),
        (DISK | {"disk": "a/b"}, "disk: expected the name of a data disk"),
        (DISK | {"device": "/dev/sdb"}, "device: expected a path below /dev/disk/by-id"),
        (DISK | {"device": "/dev/disk/by-id/../sdb"}, "device: expected a path below /dev"),
        (DISK | {"read_only": True}, "unknown keys for kind disk: read_only"),
    ],
)
def test_an_invalid_entry_is_refused_with_what_is_expected(entry, message):
    with pytest.raises(ValueError) as caught:
        parse_mounts([entry])
    assert message in str(caught.value)


def test_an_error_says_where_to_fix_it():
    where_to_fix = r"^mounts: .*then run: ansible-playbook setup\.yml"
    with pytest.raises(AnsibleFilterError, match=where_to_fix):
        mount_units({"kind": "nfs"}, "pod-w0", HOSTVARS, 64042)
    with pytest.raises(AnsibleFilterError, match="/mnt/shared is the path of two entries"):
        mount_units([SHARED, SHARED], "pod-w1", HOSTVARS, 64042)


EVERY_KIND = [
    SHARED | {"options": ["nconnect=8"]},
    FILESTORE,
    BUCKET | {"directory": "a/b"},
    DISK,
]
EXPORTED_HERE = SHARED | {"server": "pod-w1", "export": "/mnt/disks/a"}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("entry", [*EVERY_KIND, EXPORTED_HERE], ids=lambda entry: entry["kind"])
@pytest.mark.parametrize("read_only", [True, False])
def test_systemd_accepts_the_units(tmp_path, entry, read_only):
    mount_unit = unit(entry)
    variables = {
        "item": [mount_unit],
        "__mounts_mark": "# A mount of tpufleet.",
        "__mounts_read_only": [mount_unit["unit"]] if read_only else [],
        "mounts_seconds": 30,
    }
    kinds = ("mount", "automount") if mount_unit["is_network"] else ("mount",)
    files = [tmp_path / f"{mount_unit['unit']}.{kind}" for kind in kinds]
    for file, kind in zip(files, kinds, strict=True):
        file.write_text(rendered(f"mounts/{kind}.j2", **variables))

    command = ["systemd-analyze", "verify", *map(str, files)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
    assert str(tmp_path) not in result.stderr
    assert ("ro,noload" in files[0].read_text()) == read_only


TEXT = st.text(alphabet="ab1-_./: %$\n\\\"'{}=,", max_size=12)


KEYS = st.sampled_from(["path", "server", "export", "bucket", "directory", "disk", "device"])


@given(
    st.sampled_from([SHARED, BUCKET, DISK]),
    st.dictionaries(KEYS, TEXT, max_size=3),
    st.lists(TEXT, max_size=2),
)
def test_no_special_character_of_systemd_or_a_shell_reaches_a_unit(base, change, options):
    entry = {key: value for key, value in (base | change).items() if key in base}
    try:
        [mount_unit] = mount_units([entry | {"options": options}], "pod-w1", HOSTVARS, 64042)
    except AnsibleFilterError:
        return
    for key in ("path", "what", "options"):
        assert not set(mount_unit[key]) & set(" %$\n\\\"'{}")


@pytest.mark.skipif(not shutil.which("systemd-escape"), reason="needs systemd-escape")
@given(st.from_regex(r"(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,8}){1,4}", fullmatch=True))
def test_units_have_the_names_that_systemd_expects(path):
    command = ["systemd-escape", "--path", path]
    expected = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert unit_of(path) == expected


def test_mount_units_accepts_a_server_outside_the_inventory(printed):
    assert "192.0.2.7:/mnt/data" in printed, printed
