"""A value with spaces that Ansible would cut at the first is refused: nothing typed is lost."""

import pytest

from tests.collections.test_playbooks import environment_of, flat, play


@pytest.mark.parametrize(
    ("playbook", "said", "example"),
    [
        ("train.yml", "set=steps=5 seed=2", "train.yml -e set='\"steps=2000 seed=2\"'"),
        ("train.yml", "command=sh mine.sh", "train.yml -e command='\"PROGRAM ARGUMENT\"'"),
        ("train.yml", "env=A=1 B=2", "train.yml -e env='\"A=1 B=2\"'"),
        ("playbooks/schedule.yml", "at=Fri 20:00", "schedule.yml -e at='\"2026-12-31 18:00\"'"),
    ],
)
def test_a_value_that_is_cut_is_named_with_how_it_is_typed(local_api, playbook, said, example):
    done = play(environment_of(local_api), playbook, "-e", said)

    assert done.returncode == 4
    assert "is cut at its first space" in flat(done)
    assert example in flat(done)


@pytest.mark.parametrize(
    ("playbook", "said"),
    [
        ("train.yml", 'set="steps=5 seed=2"'),
        ("train.yml", '{"command": "sh mine.sh"}'),
        ("train.yml", "run=a tpu=b"),
        ("playbooks/plan.yml", "env=A=1 B=2"),
    ],
)
def test_what_is_whole_or_is_no_text_of_the_verb_is_left_to_ansible(local_api, playbook, said):
    done = play(environment_of(local_api), playbook, "-e", said)

    assert "is cut" not in flat(done)
