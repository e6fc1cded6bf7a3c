"""What a failure is put down to: the words that were meant for a person."""

from ansible_collections.tpufleet.core.plugins.plugin_utils.view.task_tally import failure_text

MANDATORY = (
    "Task failed: Finalization of task args for 'ansible.builtin.fail' failed: Error while "
    "resolving value for 'port': The filter plugin 'ansible.builtin.mandatory' failed: "
    "which port? -e port=1"
)


def test_a_missing_variable_is_reported_with_the_playbook_s_message():
    assert failure_text({"msg": MANDATORY}) == "which port? -e port=1"


def test_a_module_s_own_words_come_before_what_it_printed():
    assert failure_text({"msg": "no disk", "stderr": "trace"}) == "no disk"


def test_a_loop_s_words_are_those_of_its_failed_items_once():
    items = [
        {"failed": True, "msg": "no disk"},
        {"msg": "fine"},
        {"exception": "(traceback unavailable)", "msg": "no disk"},
    ]

    assert failure_text({"msg": "one or more items failed", "results": items}) == "no disk"


def test_a_failure_without_a_message_shows_the_last_output():
    assert failure_text({"stdout": "\n".join("abcdefg")}) == "c\nd\ne\nf\ng"
