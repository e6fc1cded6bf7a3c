"""Summary of a run: curves over all attempts, how each attempt ended, the end of the log."""

import json

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs import summary as summary_module
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs import summary_cache
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.reader import stored_processes
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.stored_answers import (
    progress_of,
    stored_answers,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.summary import (
    RunOutput,
    summary_of,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.summary_cache import (
    cached_summary,
)
from hypothesis import given
from hypothesis import strategies as st

from harness.stored_output import EXITS, START_TIME, attempt, in_directory, jsonl, line

LATER = START_TIME + 500


def summary(folder, *attempts):
    store = in_directory(
        folder, {name: content for objects in attempts for name, content in objects.items()}
    )
    return summary_of(store, "mine", stored_processes(store.list("mine")))


def resumed(steps, shift=500):
    """Return metrics of an attempt that began ``shift`` seconds after the first one."""
    return [line(step) | {"time": START_TIME + shift + step} for step in steps]


def steps_of(output):
    return [step for step, _ in output.curves["loss"]]


def test_a_curve_continues_over_attempts_without_repeated_steps(tmp_path):
    output = summary(
        tmp_path,
        attempt(1, metrics=jsonl(map(line, range(1, 31)))),
        attempt(2, began=LATER, metrics=jsonl(resumed(range(21, 41))), end=EXITS["finished"]),
    )
    assert steps_of(output) == list(range(1, 41))
    assert output.last["step"] == 40
    first, second = output.attempts
    assert (first.first_step, first.kept, first.redone) == (1, 19, 10)
    assert (second.first_step, second.kept, second.redone) == (21, 19, 0)
    assert (first.began, first.ended, second.ended) == (START_TIME, None, LATER + 1000)
    assert progress_of(output) == {"first": 1, "last": 40, "counted": 38}


def test_values_that_are_not_in_every_line_keep_their_last_value(tmp_path):
    values = {
        "mfu": 0.4,
        "heldout_loss": 2.0,
        "device_bytes": 1 << 30,
        "device_limit_bytes": 3 << 30,
    }
    lines = [line(1, mfu=0.1), line(2, **values), line(3), line(4, loss=None)]
    output = summary(tmp_path, attempt(metrics=jsonl(lines)))
    last = output.last
    assert (last["step"], last["loss"]) == (4, None)
    assert (last["mfu"], last["heldout_loss"]) == (0.4, 2.0)
    assert (last["device_memory_gib"], last["device_limit_gib"]) == (1.0, 3.0)
    assert output.curves["memory"] == [(2, 1.0)]
    assert output.curves["heldout"] == [(2, 2.0)]


def test_metrics_that_the_trainer_rewrote_repeat_no_step(tmp_path):
    lines = [*map(line, range(1, 21)), *resumed(range(21, 41))]
    output = summary(
        tmp_path,
        attempt(1, metrics=jsonl(map(line, range(1, 31)))),
        attempt(2, began=LATER, metrics=jsonl(lines)),
    )
    assert steps_of(output) == list(range(1, 41))
    assert output.attempts[1].first_step == 21


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=6))
def test_kept_and_repeated_time_sum_to_the_time_of_all_steps(tmp_path_factory, spans):
    attempts = [
        attempt(
            number,
            began=START_TIME + 1000 * number,
            metrics=jsonl(resumed(range(first, first + count), 1000 * number)),
        )
        for number, (first, count) in enumerate(spans, 1)
    ]
    output = summary(tmp_path_factory.mktemp("outputs"), *attempts)
    for measured, (_, count) in zip(output.attempts, spans, strict=True):
        assert measured.kept + measured.redone == pytest.approx(count - 1)
        assert measured.kept >= 0 <= measured.redone
    assert output.attempts[-1].redone == 0
    assert steps_of(output) == sorted(set(steps_of(output)))


def test_attempts_of_an_older_run_with_the_same_name_are_left_out(tmp_path):
    output = summary(
        tmp_path,
        attempt(1, began=LATER, metrics=jsonl(resumed(range(1, 4)))),
        attempt(2, began=START_TIME, metrics=jsonl(map(line, range(4, 90))), log=b"old\n"),
    )
    assert [each.number for each in output.attempts] == [1]
    assert (steps_of(output), output.log) == ([1, 2, 3], ())


def test_an_attempt_without_a_stored_start_is_included(tmp_path):
    second = attempt(2, began=LATER, metrics=jsonl(resumed(range(2, 4))))
    del second["mine/2/0/start.json"]
    output = summary(tmp_path, attempt(1, metrics=jsonl([line(1)])), second)
    assert [(each.number, each.began) for each in output.attempts] == [(1, START_TIME), (2, None)]
    assert output.attempts[1].processes[0].name == "process 0"
    assert steps_of(output) == [1, 2, 3]


def test_an_attempt_has_its_start_seconds_and_its_save_seconds(tmp_path):
    lines = [line(1, start_seconds=9.5), line(2, save_seconds=2.0), line(3, save_seconds=1.5)]
    [found] = summary(tmp_path, attempt(metrics=jsonl(lines))).attempts
    assert (found.start_seconds, found.saves) == (9.5, 3.5)


@pytest.mark.parametrize(("most", "steps"), [(4, 2), (5, 3), (6, 3)])
def test_metrics_after_the_maximum_number_of_lines_are_missing(tmp_path, monkeypatch, most, steps):
    monkeypatch.setattr(summary_module, "MAX_LINES", most)
    output = summary(
        tmp_path,
        attempt(1, metrics=jsonl(map(line, (1, 1, 1)))),
        attempt(2, began=LATER, metrics=jsonl(resumed((2, 3)))),
    )
    assert (steps_of(output)[-1:], output.is_cut) == ([min(steps, 3)], most < 5)
    assert bool(output.warnings("mine")) == output.is_cut


@pytest.mark.parametrize(
    ("end", "state", "reason"),
    [
        ("finished", "done", ""),
        ("crashed", "failed", "exit_code"),
        ("killed", "interrupted", "saved"),
        (None, "lost", ""),
    ],
)
def test_stored_output_gives_the_answer_that_the_worker_would_give(tmp_path, end, state, reason):
    output = summary(
        tmp_path,
        attempt(
            metrics=jsonl(map(line, (1, 2))),
            log=b"--- 2026-11-21T14:40:00Z attempt 1\nValueError: too long\n",
            end=EXITS.get(end or ""),
        ),
    )
    [answer] = stored_answers("mine", output, {0: ["bye"]})["pod-w0"]["runs"]
    assert (answer["state"], answer["reason_code"], answer["attempt"]) == (state, reason, 1)
    assert (answer["heartbeat"]["step"], answer["heartbeat"]["loss"]) == (2, 2.5)
    assert answer["error"] == ("ValueError: too long" if end == "crashed" else "")
    assert answer["log"] == ["bye"]


def test_the_log_is_from_the_worker_that_failed(tmp_path):
    peer = {"result": "exit-code", "code": "exited", "status": "77"}
    output = summary(
        tmp_path,
        attempt(process_id=0, log=b"peer ended\n", end=peer),
        attempt(process_id=1, log=b"no memory\n", end=EXITS["crashed"]),
        attempt(process_id=2, log=b"peer ended\n", end=peer),
    )
    assert (output.log, output.log_worker, output.log_attempt) == (("no memory",), "pod-w1", 1)
    assert output.error == "no memory"


def test_a_run_without_output_has_an_empty_summary(tmp_path):
    assert summary(tmp_path) == RunOutput()
    assert stored_answers("mine", RunOutput(), {}) == {}


HOSTILE = [
    b'{"step": 1e308, "loss": 1, "time": 1e308}',
    b'{"step": -5, "time": -1}',
    b'{"step": 10' + b"0" * 400 + b"}",
    b"[" * 60_000,
    b'{"step": {}}',
    b'{"step": 1, "time": "now", "loss": [[]]}',
    b"\xff\x00",
    b'{"step": true, "time": null}',
]


@given(st.lists(st.sampled_from([*HOSTILE, *jsonl(map(line, range(1, 6))).splitlines()])))
def test_no_line_of_metrics_makes_a_run_unreadable(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("outputs")
    output = summary(folder, attempt(metrics=b"".join(text + b"\n" for text in lines)))
    stored_answers("mine", output, {})
    assert RunOutput.from_json(output.to_json()).to_json() == output.to_json()


def test_only_a_run_that_has_changed_is_read_again(tmp_path, monkeypatch):
    objects = attempt(metrics=jsonl([line(1)]), log=b"a\n", end=EXITS["crashed"])
    store = in_directory(tmp_path / "outputs", objects)
    cache = tmp_path / "cache"
    first = cached_summary(store, "mine", store.list("mine"), cache)
    with monkeypatch.context() as patch:
        patch.setattr(summary_cache, "summary_of", None)
        cached = cached_summary(store, "mine", store.list("mine"), cache)
    assert (cached.to_json(), cached.attempts) == (first.to_json(), first.attempts)
    store.write("mine/1/0/metrics/000000000000", jsonl([line(1), line(2)]))
    assert cached_summary(store, "mine", store.list("mine"), cache).last["step"] == 2


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b"key\n{}"])
def test_a_damaged_cache_is_ignored(tmp_path, content):
    store = in_directory(tmp_path / "outputs", attempt(log=b"a\n"))
    first = cached_summary(store, "mine", store.list("mine"), tmp_path)
    path = tmp_path / "mine.json"
    key = path.read_bytes().partition(b"\n")[0]
    path.write_bytes(content.replace(b"key", key))
    assert cached_summary(store, "mine", store.list("mine"), tmp_path) == first
    assert json.loads(path.read_bytes().partition(b"\n")[2])["log"] == ["a"]
