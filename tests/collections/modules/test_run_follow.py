"""Following a run's logs: new lines until it ends, equal lines of several workers only once."""

import json
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible_collections.tpufleet.core.plugins.action import run_follow
from ansible_collections.tpufleet.core.plugins.module_utils.worker import run_log
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_log import (
    log_since,
    log_start,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.view.folded_stream import (
    HOLD_SECONDS,
    FoldedStream,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.collections.runs.answers import report

BOTH = {"w0", "w1"}


def test_new_complete_lines_are_returned(tmp_path):
    log = tmp_path / "log"
    log.write_text("one\ntwo\nhal")

    lines, end = log_since(log, 4)
    assert (lines, end) == (["two"], 8)

    log.write_text("one\ntwo\nhalf\n")
    assert log_since(log, end) == (["half"], 13)


def test_a_recreated_log_is_read_from_its_beginning(tmp_path):
    log = tmp_path / "log"
    assert (log_since(log, 0), log_start(log, 5)) == (([], 0), 0)

    log.write_text("new\n")

    assert log_since(log, 500) == (["new"], 4)


def test_a_line_longer_than_the_read_limit_is_returned_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(run_log, "MAX_READ_BYTES", 10)
    log = tmp_path / "log"
    log.write_text("x" * 25 + "\n")

    assert log_since(log, 0) == (["x" * 10], 10)


@given(
    st.lists(st.text(st.characters(codec="ascii", exclude_characters="\n\r\v\f\x1c\x1d\x1e"))),
    st.integers(0, 8),
)
def test_log_start_is_the_offset_of_the_last_lines(tmp_path_factory, texts, count):
    log = tmp_path_factory.mktemp("run") / "log"
    log.write_text("".join(f"{text}\n" for text in texts))

    lines, _ = log_since(log, log_start(log, count))

    assert lines == (texts[-count:] if count else [])


def test_a_line_of_all_workers_is_shown_once_when_the_last_has_logged_it():
    stream = FoldedStream(["w0", "w1"])
    stream.add("w0", "begin", 0.0)
    assert stream.due(0.1, BOTH) == []

    stream.add("w1", "begin", 0.2)
    assert stream.due(0.2, BOTH) == ["w[0-1]: begin"]


@pytest.mark.parametrize(
    ("now", "active"), [(HOLD_SECONDS, BOTH), (0.0, {"w0"})], ids=["delay", "the other has ended"]
)
def test_a_line_of_one_worker_is_shown_after_a_delay_or_when_no_other_runs(now, active):
    stream = FoldedStream(["w0", "w1"])
    stream.add("w0", "only me", 0.0)

    assert stream.due(now, active) == ["w0: only me"]


@given(st.lists(st.tuples(st.sampled_from(["w0", "w1", "w2"]), st.sampled_from("abc"))))
def test_each_workers_lines_stay_in_their_order_and_none_is_lost(lines):
    stream = FoldedStream(["w0", "w1", "w2"])
    for moment, (host, text) in enumerate(lines):
        stream.add(host, text, float(moment))
    displayed = stream.due(0.0, set())

    for host in ("w0", "w1", "w2"):
        number = host[1]
        own_texts = [line.split(": ")[1] for line in displayed if number in worker_numbers(line)]
        assert own_texts == [text for worker, text in lines if worker == host]


def worker_numbers(line):
    """Return the numbers of the workers in the prefix of a line: ``w[0-2]``, ``w[0,2]``, ``w1``."""
    inside = line.partition(":")[0].strip("w[]")
    first, dash, last = inside.partition("-")
    return {str(n) for n in range(int(first), int(last) + 1)} if dash else set(inside.split(","))


def result_of(state="training", *, log=(), end=0):
    return {"runs": [report(state, log=list(log), log_end=end)]}


@pytest.fixture
def follow(monkeypatch, tmp_path):
    """Return a function that runs run_follow for worker w0.

    Each module call returns or raises the next of ``answers``. The function returns the action's
    result, the displayed lines, and the values of ``since`` and ``lines`` in each module call.
    """
    monkeypatch.setattr(run_follow, "GATHER_SECONDS", 0)
    monkeypatch.setattr(run_follow.constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    monkeypatch.setattr(run_follow.context, "CLIARGS", {"forks": 4})
    monkeypatch.setattr(run_follow.ActionBase, "run", lambda *_: {})

    def run(*answers, hosts=("w0",), **options):
        results, requested, displayed = iter(answers), [], []
        display = SimpleNamespace(display=lambda text, **_: displayed.extend(text.splitlines()))
        monkeypatch.setattr(run_follow, "Display", lambda: display)
        action = run_follow.ActionModule.__new__(run_follow.ActionModule)
        action._task = SimpleNamespace(_uuid="task")
        action.validate_argument_spec = lambda **_: (None, {"run": None, "lines": 10, **options})

        def ask(module_args, **_):
            requested.append((module_args.get("since"), module_args.get("lines")))
            result = next(results)
            if isinstance(result, Exception):
                raise result
            return result

        action._execute_module = ask
        variables = {"inventory_hostname": "w0", "ansible_play_hosts": list(hosts)}
        return action.run(task_vars=variables), displayed, requested

    return run


def test_the_active_run_is_followed_from_the_end_of_the_last_answer(follow):
    result, displayed, requested = follow(
        result_of(),
        result_of(log=["a", "b"], end=4),
        AnsibleConnectionFailure("down"),
        result_of("done", log=["c"], end=6),
        result_of("done", end=6),
    )

    assert displayed == ["w0: a", "w0: b", "w0: c", "w0: --- done"]
    assert requested == [(None, None), (-1, 10), (4, 10), (4, 10), (6, 10)]
    assert (result["run"], result["state"]) == ("mine", "done")


def test_run_follow_ends_with_the_error_of_a_failed_module(follow):
    with pytest.raises(AnsibleActionFail, match="there is no run mine"):
        follow({"failed": True, "msg": "there is no run mine"}, run="mine")


def test_an_entry_in_the_file_of_a_fork_is_read_only_when_its_line_is_complete(tmp_path):
    file, bytes_read = tmp_path / "0.jsonl", {"w0": 0}
    file.write_text('{"lines": ["a"]}\n{"lin')
    assert run_follow.new_entries(file, bytes_read, "w0") == [{"lines": ["a"]}]

    with file.open("a") as stream:
        stream.write('es": ["b"]}\n')
    assert run_follow.new_entries(file, bytes_read, "w0") == [{"lines": ["b"]}]


def test_followed_lines_carry_no_control_characters_to_a_terminal(follow):
    done = result_of("done", log=["\x1b]0;title\x07\x1b[31mred"], end=2)

    _, displayed, _ = follow(done, result_of("done", end=2), run="mine")

    assert displayed == ["w0: ]0;titlered", "w0: --- done"]


def test_following_more_workers_than_forks_is_an_error(follow):
    with pytest.raises(AnsibleActionFail, match="--forks 5"):
        follow(hosts=[f"w{index}" for index in range(5)])


def test_lines_of_all_forks_are_shown_together_until_the_last_ends(follow, tmp_path):
    (tmp_path / "follow-task").mkdir()
    other = [{"lines": ["a"]}, {"lines": ["--- done"], "end": True}]
    (tmp_path / "follow-task/1.jsonl").write_text("\n".join(map(json.dumps, other)) + "\n")
    answers = [result_of("done", log=["a"], end=2), result_of("done", end=2)]

    _, displayed, _ = follow(*answers, hosts=["w0", "w1"], run="mine")

    assert displayed == ["w[0-1]: a", "w[0-1]: --- done"]


def test_a_worker_without_the_run_is_not_shown_as_lost(follow):
    _, displayed, _ = follow({"runs": [report(attempt=0)]}, run="mine")

    assert displayed == ["w0: --- this worker does not have the run"]


def test_an_active_run_is_followed_although_the_run_of_another_chip_has_ended(follow):
    ended = report("done", run="sweep-c0", launched={"chip": 0})
    active = report(run="sweep-c1", launched={"chip": 1})
    over = report("done", run="sweep-c1", log_end=0)

    result, _, _ = follow({"runs": [ended, active]}, {"runs": [over]})

    assert result["run"] == "sweep-c1"
