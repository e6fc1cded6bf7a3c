"""What a play's forks are spared: the garbage collector's way through all of their parent."""

FILTERS = """
import gc


class FilterModule:
    def filters(self):
        return {
            "in_sight": lambda _: len(gc.get_objects()),
            "frozen": lambda _: gc.get_freeze_count(),
        }
"""
ASK = """
- name: Count in a fork
  ansible.builtin.debug:
    msg: "frozen {{ 1 | frozen }}, in sight {{ 1 | in_sight }}"
  run_once: true
"""


def test_most_of_what_a_fork_has_is_out_of_its_collector_s_sight(stage):
    (stage.directory / "filter_plugins").mkdir()
    (stage.directory / "filter_plugins/counts.py").write_text(FILTERS)

    shown = stage.play(ASK)

    words = shown.text.split()
    frozen = int(words[words.index("frozen") + 1].strip(","))
    in_sight = int(words[words.index("sight") + 1])
    assert frozen > 2 * in_sight, shown.text
