"""Values of options on the command line: accepted forms, and unquoted values with spaces."""

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs import typed_values

from harness.playbooks import environment_of, flat, play

EXAMPLES = {
    "set": "steps=2000 seed=2",
    "command": "PROGRAM ARGUMENT",
    "env": "A=1 B=2",
    "at": "2026-12-31 18:00",
}


@pytest.mark.parametrize(
    ("playbook", "target", "name", "value"),
    [
        ("train.yml", "tpu=demo", "set", "steps=5 seed=2"),
        ("playbooks/schedule.yml", "kill=mine", "at", "2099-12-31 18:00"),
        ("playbooks/fill_disk.yml", "disk=corpus", "command", "tar xf a.tar"),
    ],
)
def test_a_value_that_is_cut_is_refused_and_the_error_shows_how_to_quote_it(
    local_api, playbook, target, name, value
):
    local_api.ready("demo")

    result = play(environment_of(local_api), playbook, "-e", target, "-e", f"{name}={value}")

    assert result.returncode == 2
    assert f"-e {name}=… is cut at its first space" in flat(result)
    assert f"{playbook} -e {name}='\"{EXAMPLES[name]}\"'" in flat(result)


def cut(monkeypatch, *extra_vars):
    monkeypatch.setattr(typed_values.context, "CLIARGS", {"extra_vars": extra_vars})
    return typed_values.truncated_value_error(EXAMPLES, "train.yml")


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_option_that_may_contain_spaces_is_checked(monkeypatch, name):
    second_word = "second" if name == "at" else "second=third"

    error = cut(monkeypatch, "run=a tpu=b", f"{name}=first {second_word}")

    assert f"train.yml -e {name}='\"{EXAMPLES[name]}\"'" in error


@pytest.mark.parametrize(
    "extra_vars",
    [
        "at=18:00 kill=mine",
        'set="steps=5 seed=2"',
        '{"command": "sh mine.sh"}',
        "run=a tpu=b",
        "set=steps=5",
        "@a.yml",
    ],
)
def test_complete_values_and_other_types_are_accepted(monkeypatch, extra_vars):
    assert cut(monkeypatch, extra_vars) == ""


@pytest.mark.parametrize(
    "env",
    [{"A": "b c", "N": 1}, '{"A": "b c", "N": 1}', "A='b c' N=1", ' A="b c"  N=1 '],
)
def test_every_form_of_the_environment_is_parsed_to_the_same_variables(env):
    assert typed_values.parse_env(env) == {"A": "b c", "N": "1"}


def test_a_value_may_hold_an_equals_sign():
    assert typed_values.parse_env("XLA_FLAGS=--a=b") == {"XLA_FLAGS": "--a=b"}


@pytest.mark.parametrize("env", ["A", "A='b", "{", [1], {"A": {"B": 1}}])
def test_the_error_about_an_invalid_environment_shows_the_expected_form(env):
    with pytest.raises(AnsibleFilterError, match="Use a mapping"):
        typed_values.parse_env(env)


def test_an_error_about_the_environment_shows_no_value():
    with pytest.raises(AnsibleFilterError) as refused:
        typed_values.parse_env("TOKEN=hunter2 oops")

    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        *((choice, choice) for choice in ("none", "newest", "all")),
        # Without the option, the value is that of the inventory's variable, a path or URI.
        ("gs://mine/checkpoints", "none"),
    ],
)
def test_the_option_checkpoints_names_what_to_copy_and_a_location_copies_nothing(option, expected):
    assert typed_values.checkpoint_choice(option) == expected


def test_an_unknown_value_of_checkpoints_is_refused():
    with pytest.raises(AnsibleFilterError, match="expected none, newest or all"):
        typed_values.checkpoint_choice("latest")
