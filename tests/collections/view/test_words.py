"""Texts of the view: folded names, and the causes of failures."""

import re

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.view.folded_names import folded, stem_of
from ansible_collections.tpufleet.core.plugins.plugin_utils.view.task_tally import failure_text
from hypothesis import given
from hypothesis import strategies as st

NAMES = st.lists(st.from_regex(r"[a-z]{1,3}(-w)?(0|[1-9][0-9]?|0[0-9])?", fullmatch=True))
MANDATORY = (
    "Task failed: Finalization of task args for 'ansible.builtin.fail' failed: Error while "
    "resolving value for 'port': The filter plugin 'ansible.builtin.mandatory' failed: "
    "which port? -e port=1"
)
ITEMS = [
    {"failed": True, "msg": "no disk"},
    {"msg": "fine"},
    {"exception": "(traceback unavailable)", "msg": "no disk"},
]


def unfolded(text: str) -> set[str]:
    """Read folded names as a person does."""
    names = set()
    for stem, numbers, plain in re.findall(r"([^,\[\] ]+)\[([0-9,-]+)\]|([^,\[\] ]+)", text):
        if plain:
            names.add(plain)
        for part in filter(None, numbers.split(",")):
            low, _, high = part.partition("-")
            names |= {f"{stem}{n}" for n in range(int(low), int(high or low) + 1)}
    return names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("pod-w0 pod-w1 pod-w5 pod-w3", "pod-w[0-1,3,5]"),
        ("pod-w7 localhost", "pod-w7, localhost"),
        ("a01 a1 a2", "a01, a[1-2]"),
    ],
)
def test_names_that_differ_in_a_number_are_one_word(names, text):
    assert folded(names.split()) == text


@given(NAMES)
def test_no_name_is_lost_and_none_is_made_up(names):
    assert unfolded(folded(names)) == set(names)


@pytest.mark.parametrize(
    ("name", "stem"), [("pod-w12", "pod"), ("node5", "node5"), ("localhost", "localhost")]
)
def test_a_tpu_is_known_by_its_workers_stem(name, stem):
    assert stem_of(name) == stem


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"msg": MANDATORY}, "which port? -e port=1"),
        ({"msg": "no disk", "stderr": "trace"}, "no disk"),
        ({"msg": "one or more items failed", "results": ITEMS}, "no disk"),
        ({"stdout": "\n".join("abcdefg")}, "c\nd\ne\nf\ng"),
    ],
)
def test_a_failure_is_shown_with_the_words_that_were_meant_for_a_person(result, text):
    assert failure_text(result) == text
