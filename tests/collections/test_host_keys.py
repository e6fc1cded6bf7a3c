"""The fleet's known_hosts file: only keys that workers have published, each written once."""

import base64
import stat
import subprocess
from unittest.mock import Mock

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.errors import (
    Forbidden,
    NoAnswer,
    NotFound,
    Unavailable,
)
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.host_keys import (
    KnownHost,
    KnownHostsFile,
    known_host,
    published_keys,
    remember_host_keys,
    ssh_options,
)
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.nodes import parse_node

from harness.scripted_api import Reply, error, node


def key_of(kind: str, tail: bytes = b"\0\0\0\1x") -> str:
    return base64.b64encode(len(kind).to_bytes(4, "big") + kind.encode() + tail).decode()


ED25519 = key_of("ssh-ed25519")


def published(*workers: dict[str, str]) -> Reply:
    return Reply(
        {
            "guestAttributes": [
                {"queryValue": {"items": [{"key": k, "value": v} for k, v in worker.items()]}}
                for worker in workers
            ]
        }
    )


def test_a_written_host_key_is_read_back(tmp_path):
    file = KnownHostsFile(tmp_path / "new" / "known_hosts")
    host = KnownHost("1-w0", {"ssh-ed25519": ED25519}, "guest-0")
    file.add([host])
    assert file.read() == {"1-w0": host}
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_keys_that_ssh_has_added_belong_to_the_worker_and_other_lines_do_not(tmp_path):
    path = tmp_path / "known_hosts"
    path.write_text(
        "1-w0 ssh-ed25519 A guest\n1-w0 ssh-rsa B\n1-w1 ssh-rsa C me@laptop\n@revoked * ssh-rsa D\n"
    )
    assert KnownHostsFile(path).read() == {
        "1-w0": KnownHost("1-w0", {"ssh-ed25519": "A", "ssh-rsa": "B"}, "guest"),
        "1-w1": KnownHost("1-w1", {"ssh-rsa": "C"}),
    }


def test_a_worker_keeps_its_first_host_keys(tmp_path):
    file = KnownHostsFile(tmp_path / "known_hosts")
    file.add([KnownHost("1-w0", {"ssh-ed25519": ED25519})])
    file.add([KnownHost("1-w0", {"ssh-ed25519": "other"})])
    assert file.read()["1-w0"].keys == {"ssh-ed25519": ED25519}


def test_forgetting_a_tpu_removes_only_its_own_workers(tmp_path):
    file = KnownHostsFile(tmp_path / "known_hosts")
    file.add([KnownHost(alias, {"ssh-ed25519": ED25519}) for alias in ("1-w0", "1-w10", "11-w0")])
    file.forget("1")
    assert list(file.read()) == ["11-w0"]


def test_lines_of_other_programs_are_kept(tmp_path):
    path = tmp_path / "known_hosts"
    others = b"# not UTF-8: \xff\n@cert-authority *.example ssh-ed25519 AAAA\nbroken\n"
    path.write_bytes(others)
    file = KnownHostsFile(path)
    file.add([KnownHost("1-w0", {"ssh-ed25519": ED25519})])
    file.forget("1")
    assert path.read_bytes() == others


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"ssh-ed25519": "not base64"},
        {"ssh-ed25519": key_of("ssh-rsa")},
        {"ssh-ed25519": key_of("ssh-ed25519", tail=b"")},
        {"ssh-ed25519\nevil": ED25519},
        {"other": ED25519},
    ],
)
def test_an_invalid_host_key_is_ignored(attributes):
    assert known_host("1-w0", attributes) is None


def test_an_invalid_host_name_is_ignored():
    """It could add a line with the key of another worker."""
    attributes = {"ssh-ed25519": ED25519, "hostname": f"guest\n2-w0 ssh-ed25519 {ED25519}"}
    assert known_host("1-w0", attributes).host_name == ""


def remembered(client, file):
    demo = parse_node(node())
    return remember_host_keys(lambda: published_keys(client, demo), demo, file, client.polling)


def test_one_request_returns_the_keys_of_all_workers(client, scripted):
    scripted.script = [published({"ssh-ed25519": ED25519}, {"ssh-ed25519": ED25519})]
    keys = published_keys(client, parse_node(node()))
    assert scripted.asked[0].body["queryPath"] == "hostkeys/"
    assert [host.alias for host in keys] == ["4711-w0", "4711-w1"]


def test_keys_are_never_assigned_to_the_wrong_worker(client, scripted):
    def only_worker_1(asked):
        return published(*([{"ssh-ed25519": ED25519}] if asked.body["workerIds"] != ["0"] else []))

    scripted.handler = only_worker_1
    assert [host.alias for host in published_keys(client, parse_node(node()))] == ["4711-w1"]


def test_keys_that_are_published_late_are_waited_for(client, scripted, tmp_path):
    late = published({"ssh-ed25519": ED25519}, {"ssh-ed25519": ED25519})
    no_answer = error(404, "no guest attributes yet")
    early = [no_answer, published({}, {}), published({"ssh-ed25519": ED25519}, {})]
    scripted.script = [*early, late]
    file = tmp_path / "known_hosts"
    assert remembered(client, str(file)) == []
    assert sorted(KnownHostsFile(file).read()) == ["4711-w0", "4711-w1"]


def test_keys_are_requested_at_most_ten_times_a_minute(client, scripted, tmp_path, clock):
    times = []

    def answer(_):
        times.append(clock())
        return published({}, {})

    scripted.handler = answer
    remembered(client, str(tmp_path / "known_hosts"))
    assert max(sum(start <= time < start + 60 for time in times) for start in times) <= 10


@pytest.mark.parametrize("problem", [NotFound, NoAnswer, Unavailable])
def test_keys_are_waited_for_while_they_cannot_be_read(client, tmp_path, problem):
    demo = parse_node(node())
    keys = [KnownHost(f"4711-w{worker}", {"ssh-ed25519": ED25519}) for worker in (0, 1)]
    read_keys = Mock(side_effect=[problem("not now"), keys])
    file = str(tmp_path / "known_hosts")
    assert remember_host_keys(read_keys, demo, file, client.polling) == []


def test_workers_that_publish_no_keys_are_returned(client, scripted, tmp_path):
    scripted.handler = lambda _: published({"ssh-ed25519": ED25519}, {})
    file = str(tmp_path / "known_hosts")
    [warning] = remembered(client, file)
    assert warning == "worker 1 of TPU demo (us-central2-b) published no ssh host keys"


def test_a_missing_permission_to_read_keys_is_an_error(client, scripted, tmp_path):
    scripted.handler = lambda _: error(403, "guest attributes are disabled")
    with pytest.raises(Forbidden, match="guest attributes are disabled"):
        remembered(client, str(tmp_path / "known_hosts"))


def test_keys_of_known_workers_are_not_requested_again(client, scripted, tmp_path):
    scripted.handler = lambda _: error(403, "must not be asked")
    file = KnownHostsFile(tmp_path / "known_hosts")
    file.add([KnownHost(f"4711-w{worker}", {"ssh-ed25519": ED25519}) for worker in (0, 1)])
    assert remembered(client, str(file.path)) == []


@pytest.mark.parametrize("folder", ["plain", "with space", "100%", "it's"])
def test_ssh_accepts_the_host_key_options(tmp_path, folder):
    path = tmp_path / folder / "known_hosts"
    options = ssh_options(str(path), "1-w0", accept_new=False)
    command = ["sh", "-c", f"ssh -F /dev/null -G {options} host"]
    settings = subprocess.check_output(command, text=True).lower()
    assert "hostkeyalias 1-w0" in settings
    assert "stricthostkeychecking true" in settings
    assert str(path).lower() in settings.replace("%%", "%")
