"""A value that Ansible would cut at its first space is refused."""

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs import typed_values

from harness.playbooks import environment_of, flat, play

EXAMPLES = {"set": "steps=2000 seed=2", "command": "PROGRAM ARGUMENT", "env": "A=1 B=2"}


def test_train_refuses_a_value_that_is_cut_and_shows_how_to_quote_it(local_api):
    local_api.ready("demo")

    done = play(
        environment_of(local_api), "train.yml", "-e", "tpu=demo", "-e", "set=steps=5 seed=2"
    )

    assert done.returncode == 2
    assert "-e set=… is cut at its first space" in flat(done)
    assert "train.yml -e set='\"steps=2000 seed=2\"'" in flat(done)


def cut(monkeypatch, *given):
    monkeypatch.setattr(typed_values.context, "CLIARGS", {"extra_vars": given})
    return typed_values.cut_short(EXAMPLES, "train.yml")


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_option_that_may_contain_spaces_is_checked(monkeypatch, name):
    found = cut(monkeypatch, "run=a tpu=b", f"{name}=first second=third")

    assert f"train.yml -e {name}='\"{EXAMPLES[name]}\"'" in found


@pytest.mark.parametrize(
    "given",
    ['set="steps=5 seed=2"', '{"command": "sh mine.sh"}', "run=a tpu=b", "set=steps=5", "@a.yml"],
)
def test_complete_values_and_other_types_are_accepted(monkeypatch, given):
    assert cut(monkeypatch, given) == ""
