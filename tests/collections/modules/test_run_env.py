"""The trainer's environment as people give it: a mapping, JSON, or NAME=value words."""

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.tpufleet.core.plugins.filter.runs import run_env


@pytest.mark.parametrize(
    "given",
    [{"A": "b c", "N": 1}, '{"A": "b c", "N": 1}', "A='b c' N=1", ' A="b c"  N=1 '],
)
def test_every_form_means_the_same(given):
    assert run_env([given]) == {"A": "b c", "N": "1"}


def test_what_the_user_says_lies_over_what_the_inventory_says():
    assert run_env([{"A": "1", "B": "1"}, {}, "A=2"]) == {"A": "2", "B": "1"}


def test_a_value_may_hold_an_equals_sign():
    assert run_env(["XLA_FLAGS=--a=b"]) == {"XLA_FLAGS": "--a=b"}


@pytest.mark.parametrize("given", ["A", "A='b", "{", [1], {"A": {"B": 1}}])
def test_what_can_not_be_read_is_one_line_that_says_how(given):
    with pytest.raises(AnsibleFilterError, match="say -e env="):
        run_env([given])


def test_a_mistake_shows_no_value():
    with pytest.raises(AnsibleFilterError) as refused:
        run_env(["TOKEN=hunter2 oops"])

    assert "hunter2" not in str(refused.value)
