"""People on a worker: what is refused before anything is touched."""

import pytest
from ansible_collections.tpufleet.core.plugins.modules.people import (
    PeopleError,
    check,
    keys_text,
    sudoers,
)

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA ada@home"


def person(**changed):
    return {"name": "ada", "keys": [KEY], "sudo": False, "shell": "/bin/bash", **changed}


def test_a_person_with_a_key_is_fine():
    check([person()])


@pytest.mark.parametrize("name", ["root", "tpufleet", "Ada", "../x", "a b", "", "x\n"])
def test_a_name_that_is_no_person_s_is_refused(name):
    with pytest.raises(PeopleError, match="no name for a person"):
        check([person(name=name)])


@pytest.mark.parametrize("key", ["", "AAAA", f"{KEY}\n{KEY}", 'command="x" ' + KEY, "-----BEGIN"])
def test_what_is_no_public_key_is_refused_with_its_owner(key):
    with pytest.raises(PeopleError, match=r"ada: .* is no public key"):
        check([person(keys=[key])])


def test_only_those_who_may_get_sudo():
    people = [person(), person(name="bob", sudo=True)]

    assert sudoers(people) == "bob ALL=(ALL:ALL) NOPASSWD:ALL\n"


def test_the_keys_of_the_list_are_all_there_are():
    assert keys_text(person(keys=[KEY, f"{KEY} "])) == f"{KEY}\n{KEY}\n"
