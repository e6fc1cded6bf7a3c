"""The guest agent creates accounts and keys from the metadata, and keeps users' own keys."""

import getpass
import os
import pwd
import subprocess

import pytest

from localcloud.machines import nspawn
from localcloud.machines.guest import agent, install


def reply(node: str = "", project: str = "", **attributes: str) -> dict:
    """Return metadata in the format of the metadata server."""
    return {
        "instance": {"attributes": {"ssh-keys": node, **attributes}},
        "project": {"attributes": {"ssh-keys": project}},
    }


def test_each_line_of_ssh_keys_has_a_user_and_a_key():
    keys = agent.login_keys("ada:ssh-ed25519 AAAA a@b\nbob:ssh-rsa BBBB\nada:ssh-rsa CCCC")
    assert keys == {"ada": ["ssh-ed25519 AAAA a@b", "ssh-rsa CCCC"], "bob": ["ssh-rsa BBBB"]}


def test_an_invalid_user_name_is_skipped():
    assert agent.login_keys("../root:ssh-rsa A\n-x:ssh-rsa B\nno colon here\nada:") == {}


def test_metadata_without_keys_has_no_users():
    assert agent.desired_keys({"instance": {"attributes": {}}, "project": {"attributes": {}}}) == {}


def test_project_keys_apply_unless_the_node_blocks_them():
    both = reply("ada:a", "ada:p\nbob:b")
    assert agent.desired_keys(both) == {"ada": ["a", "p"], "bob": ["b"]}
    blocked = reply("ada:a", "bob:b", **{"block-project-ssh-keys": "TRUE"})
    assert agent.desired_keys(blocked) == {"ada": ["a"]}


def test_users_own_keys_stay_and_metadata_keys_are_replaced():
    before = ["ssh-rsa own", agent.MARKER, "ssh-rsa old", "# mine", agent.MARKER, "ssh-rsa older"]
    after = agent.merge(before, ["ssh-rsa new"])
    assert after == ["ssh-rsa own", "# mine", agent.MARKER, "ssh-rsa new"]
    assert agent.merge(after, ["ssh-rsa new"]) == after


@pytest.fixture
def home(tmp_path):
    """A stand-in for /home that contains the home directory of the current user."""
    (tmp_path / getpass.getuser()).mkdir()
    return tmp_path


def test_a_users_keys_are_written_once_and_removed_when_the_metadata_has_none(home):
    me = getpass.getuser()
    file = home / me / ".ssh/authorized_keys"

    assert agent.apply({me: ["ssh-rsa A"]}, home) == [me]
    assert file.read_text() == f"{agent.MARKER}\nssh-rsa A\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert agent.apply({me: ["ssh-rsa A"]}, home) == []
    assert agent.apply({}, home) == [me]
    assert file.read_text() == ""


def test_the_agent_follows_no_link_in_a_users_directory(home, tmp_path):
    me = getpass.getuser()
    (home / me / ".ssh").mkdir()
    target = tmp_path / "target"
    target.write_text("theirs\n")
    (home / me / ".ssh/.authorized_keys.partial").symlink_to(target)

    agent.apply({me: ["ssh-rsa A"]}, home)

    assert target.read_text() == "theirs\n"


def test_every_guest_file_is_installed_and_its_units_are_enabled(tmp_path):
    install.install(tmp_path)
    install.install(tmp_path)

    wants = tmp_path / "etc/systemd/system/multi-user.target.wants"
    for unit in wants.iterdir():
        text = (tmp_path / str(unit.readlink())[1:]).read_text()
        for line in text.splitlines():
            if "tpufleet-guest" in line:
                program = next(
                    word for word in line.split() if word.endswith(("agent.py", "script"))
                )
                program = program.partition("=")[2] or program
                assert (tmp_path / program[1:]).stat().st_mode & 0o111
    assert len(list(wants.iterdir())) == 3


def test_a_user_that_cannot_be_created_does_not_affect_others(tmp_path, monkeypatch, capsys):
    def add(user: str) -> None:
        if user == "games":
            raise subprocess.CalledProcessError(9, ["useradd", user])
        (tmp_path / user).mkdir()

    monkeypatch.setattr(agent, "_add", add)
    monkeypatch.setattr(agent, "_write", lambda directory, user, keys: True)

    assert agent.apply({"ada": ["a"], "games": ["g"], "zoe": ["z"]}, tmp_path) == ["ada", "zoe"]
    assert "games" in capsys.readouterr().err


def test_a_key_comment_that_is_not_utf8_is_kept(tmp_path, monkeypatch):
    file = tmp_path / "ada/.ssh/authorized_keys"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"ssh-rsa A M\xfcller\n")
    account = pwd.getpwuid(os.getuid())
    monkeypatch.setattr(agent.pwd, "getpwnam", lambda _: account)

    assert agent.apply({"ada": ["ssh-rsa B"]}, tmp_path) == ["ada"]

    assert file.read_bytes() == b"ssh-rsa A M\xfcller\n# Added by Google\nssh-rsa B\n"


def test_a_key_of_a_system_user_does_not_stop_the_boot(tmp_path, monkeypatch):
    monkeypatch.setattr(nspawn, "attempt", lambda *_: "")
    (tmp_path / "home").mkdir()
    nspawn._add_user(tmp_path, "root", ["ssh-rsa A"])
    assert list((tmp_path / "home").iterdir()) == []
