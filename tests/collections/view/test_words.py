"""Texts of the view: folded host names, and messages of failures."""

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
    """Return all names that a folded text such as ``pod-w[0-1,3]`` stands for."""
    names = set()
    for stem, numbers, name in re.findall(r"([^,\[\] ]+)\[([0-9,-]+)\]|([^,\[\] ]+)", text):
        if name:
            names.add(name)
        for piece in filter(None, numbers.split(",")):
            low, _, high = piece.partition("-")
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
def test_names_that_differ_only_in_their_number_are_folded(names, text):
    assert folded(names.split()) == text


@given(NAMES)
def test_folding_neither_loses_nor_adds_names(names):
    assert unfolded(folded(names)) == set(names)


@pytest.mark.parametrize(
    ("name", "stem"), [("pod-w12", "pod"), ("node5", "node5"), ("localhost", "localhost")]
)
def test_the_stem_of_a_worker_is_the_name_of_its_tpu(name, stem):
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
def test_the_text_of_a_failure_is_the_message_for_the_user(result, text):
    assert failure_text(result) == text
