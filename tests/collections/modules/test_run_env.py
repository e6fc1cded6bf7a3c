"""The option env for the trainer's environment: a mapping, JSON, or NAME=value pairs."""

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.typed_values import parse_env


@pytest.mark.parametrize(
    "given",
    [{"A": "b c", "N": 1}, '{"A": "b c", "N": 1}', "A='b c' N=1", ' A="b c"  N=1 '],
)
def test_every_form_of_the_environment_is_parsed_to_the_same_variables(given):
    assert parse_env(given) == {"A": "b c", "N": "1"}


def test_a_value_may_hold_an_equals_sign():
    assert parse_env("XLA_FLAGS=--a=b") == {"XLA_FLAGS": "--a=b"}


@pytest.mark.parametrize("given", ["A", "A='b", "{", [1], {"A": {"B": 1}}])
def test_an_invalid_environment_option_is_one_line_with_the_expected_form(given):
    with pytest.raises(AnsibleFilterError, match="Use a mapping"):
        parse_env(given)


def test_an_error_about_the_environment_shows_no_value():
    with pytest.raises(AnsibleFilterError) as refused:
        parse_env("TOKEN=hunter2 oops")

    assert "hunter2" not in str(refused.value)
