import re

from ansible_collections.tpufleet.core.plugins.plugin_utils.view.folded_names import folded, stem_of
from hypothesis import given
from hypothesis import strategies as st

NAMES = st.lists(st.from_regex(r"[a-z]{1,3}(-w)?(0|[1-9][0-9]?|0[0-9])?", fullmatch=True))


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


def test_workers_of_one_tpu_are_one_word():
    assert folded([f"pod-w{n}" for n in range(32)]) == "pod-w[0-31]"


def test_gaps_are_shown():
    assert folded(["pod-w0", "pod-w1", "pod-w5", "pod-w3"]) == "pod-w[0-1,3,5]"


def test_one_worker_keeps_its_name():
    assert folded(["pod-w7", "localhost"]) == "pod-w7, localhost"


def test_a_leading_zero_is_never_lost():
    assert folded(["a01", "a1", "a2"]) == "a01, a[1-2]"


@given(NAMES)
def test_no_name_is_lost_and_none_is_made_up(names):
    assert unfolded(folded(names)) == set(names)


def test_a_tpu_is_known_by_its_workers_stem():
    assert [stem_of(name) for name in ("pod-w12", "node5", "localhost")] == [
        "pod",
        "node5",
        "localhost",
    ]
