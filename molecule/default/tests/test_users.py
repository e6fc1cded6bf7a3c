"""User accounts on the workers: listed users, accounts of others, and removed users."""

import json

ADA = {"name": "ada", "keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGBm ada@home"], "sudo": True}


def accounts(*users):
    """Return the arguments of ansible-playbook that set up only these user accounts."""
    return ("setup.yml", "--tags", "users", "-e", json.dumps({"users_accounts": users}))


def test_a_listed_user_has_only_the_listed_keys(leader, play):
    assert play(*accounts(ADA)).returncode == 0
    ada = leader.user("ada")
    assert ada.shell == "/bin/bash"
    assert "tpufleet-people" in ada.groups
    with leader.sudo():
        sshd = leader.check_output("sshd -T -C user=ada,host=here,addr=127.0.0.1").splitlines()
        assert "authorizedkeysfile /etc/ssh/tpufleet-people/%u" in sshd
        keys = leader.file("/etc/ssh/tpufleet-people/ada")
        assert keys.content_string == f"{ADA['keys'][0]}\n"
        assert (keys.user, keys.mode) == ("root", 0o644)
        assert "NOPASSWD: ALL" in leader.check_output("sudo -l -U ada")


def test_an_account_that_tpufleet_did_not_create_is_refused(play):
    done = play(*accounts({"name": "daemon", "keys": []}))
    assert done.returncode != 0
    assert "the user daemon exists, but tpufleet did not" in " ".join(done.stdout.split())


def test_a_user_removed_from_the_list_loses_account_and_sudo_but_not_the_home(leader, play):
    assert play(*accounts(ADA)).returncode == 0
    assert leader.user("ada").exists

    assert play(*accounts()).returncode == 0

    assert not leader.user("ada").exists
    with leader.sudo():
        assert "ada" not in leader.file("/etc/sudoers.d/tpufleet-people").content_string
        assert leader.file("/home/ada").is_directory
        assert not leader.file("/etc/ssh/tpufleet-people/ada").exists
