"""Output of status.yml and logs.yml: one line per run, then the workers that differ."""

import json

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_files import read_heartbeat
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.judge import (
    finished_runs,
    run_statuses,
    tpu_states,
    worker_statuses,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.merged_logs import (
    folded_logs,
    log_lines,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.status_table import (
    run_fields,
    run_status,
    status_lines,
    worker_fields,
)

from tests.collections.runs.answers import report, report_end

DOWN = {"unreachable": True, "msg": "Failed to connect to the host via ssh: ssh: No route to host"}


def evaluate(answers, records=None, nodes=None, **states):
    tpu_states_of = {host: states.get(host, "READY") for host in [*answers, *states]}
    workers = worker_statuses(answers, tpu_states_of)
    return workers, run_statuses(workers, records or {}, nodes or {}, now=1000.0)


def shown_lines(answers, records=None, nodes=None, **states):
    return status_lines(*evaluate(answers, records, nodes, **states))


def runs_of(answers):
    workers = worker_statuses(answers, dict.fromkeys(answers, "READY"))
    return [worker.process.run for worker in workers if worker.process]


def results(**runs):
    return {host: {"runs": [observed]} for host, observed in runs.items()}


def test_a_run_on_many_workers_is_one_line_with_step_loss_and_speed():
    beat = {"step": 5, "steps": 10, "loss": 2.34567, "tokens_per_second": 12345.6}
    observed = report(heartbeat=beat, heartbeat_age=1.2)

    head, line = shown_lines(results(w0=observed, w1=observed, w2=observed))

    assert head.split()[:3] == ["RUN", "ATTEMPT", "STATE"]
    assert " ".join(line.split()) == "mine 1 training 5/10 2.346 12,346 - 1 s ago w[0-2]"


def test_mfu_and_the_fullest_device_are_shown_where_a_trainer_reports_them():
    beat = {"step": 5, "mfu": 0.412, "device_bytes": 3 << 30, "device_limit_bytes": 16 << 30}
    fuller = beat | {"device_bytes": 12 << 30}
    answers = results(
        w0=report(heartbeat=beat), w1=report(heartbeat=fuller), w2=report(run="other")
    )

    head, own, other = shown_lines(answers)

    assert head.split()[6:9] == ["MFU", "MEMORY", "GOODPUT"]
    assert " ".join(own.split()) == "mine 1 training 5 - - 41% 12.0/16.0 GiB - - w[0-1]"
    assert " ".join(other.split()) == "other 1 training - - - - - - - w2"
    assert [shown_fields(answers, "mine")[name] for name in ("mfu", "device_bytes")] == [
        0.412,
        12 << 30,
    ]


def shown_fields(answers, run):
    return next(row for row in map(run_fields, evaluate(answers)[1]) if row["run"] == run)


@pytest.mark.parametrize(
    ("name", "written", "read"),
    [
        *(("mfu", 0.4, 0.4), ("mfu", 1, 1), ("mfu", 40, None), ("mfu", -0.1, None)),
        *(("mfu", "0.4", None), ("mfu", True, None)),
        *(("start_step", 0, 0), ("start_step", 9, 9)),
        *(("start_step", -1, None), ("start_step", "9", None)),
    ],
)
def test_an_invalid_value_of_a_heartbeat_counts_as_missing(name, written, read):
    assert getattr(read_heartbeat({name: written}), name) == read


RESUMED = {"step": None, "start_step": 173, "steps": 700}


@pytest.mark.parametrize(
    ("observed", "row"),
    [
        (report("waiting", waiting_for=["w3"]), "waiting for w3 - - - - - w0"),
        (report(heartbeat=RESUMED | {"start_step": None}), "training - - - - - w0"),
        (report(heartbeat=RESUMED, heartbeat_age=700.0), "training 173/700 - - - 700 s ago w0"),
        (report(heartbeat=RESUMED | {"step": 174}), "training 174/700 - - - - w0"),
        (
            report(heartbeat={"step": 3}, heartbeat_age=700.0),
            "hung, no heartbeat for 700 s 3 - - - 700 s ago w0",
        ),
        (report(heartbeat={"step": "many", "loss": [1]}), "training - - - - - w0"),
    ],
    ids=[
        "waiting for a worker",
        "resuming, step unknown",
        "resumed, not hung while it compiles",
        "resumed, with a step of its own",
        "hung",
        "heartbeat with invalid values",
    ],
)
def test_the_row_of_a_run_shows_its_state_and_the_step_that_it_has_or_resumes_from(observed, row):
    assert " ".join(shown_lines(results(w0=observed))[1].split()) == f"mine 1 {row}"


CRASH = report_end("1", error="ValueError: no such layer: 7")
ENDED_BY_PEER = report_end("77", peer="w1", peer_exit_code=1)


@pytest.mark.parametrize(
    ("observed", "state", "lines"),
    [
        ([report(), report(), report("stopping")], "training", ["mine, w2: stopping"]),
        (
            [ENDED_BY_PEER, report_end("1")],
            "crashed (exit 1)",
            ["mine, w0: ended because w1 ended with exit code 1"],
        ),
        ([CRASH, CRASH], "crashed (exit 1)", ["mine, w[0-1]: ValueError: no such layer: 7"]),
        ([report(attempt=2), report(attempt=1)], "training", ["mine, w1: training, attempt 1"]),
    ],
    ids=["another state", "ended by a peer", "one error of all", "an older attempt"],
)
def test_only_workers_that_differ_or_failed_have_a_line_of_their_own(observed, state, lines):
    answers = results(**{f"w{number}": worker for number, worker in enumerate(observed)})

    _, row, *others = shown_lines(answers)

    assert state in row
    assert others == lines


def test_a_trainer_without_a_heartbeat_is_running_and_its_last_output_is_shown():
    silent, writes = report("running", output_age=90.0), report("running", output_age=3.2)

    _, line, *rest = shown_lines(results(w0=silent, w1=writes))

    assert " ".join(line.split()) == "mine 1 running - - - - output 3 s ago w[0-1]"
    assert rest == []


def test_a_killed_run_is_shown_as_stopped_by_you():
    record = {"wanted": "stopped", "history": [{"kind": "stopped"}]}
    lines = shown_lines(results(w0=report_end("75")), {"mine": record})

    assert len(lines) == 2
    assert "stopped by kill.yml" in lines[1]


def test_a_run_shows_its_goodput():
    record = {"wanted": "running", "wanted_seconds": 0.0, "wanted_since": 900.0}
    progress = {"first": 1, "last": 31, "counted": 60.0}
    lines = shown_lines(results(w0=report(progress=progress), w1=report()), {"mine": record})

    assert "60%" in lines[1].split()


def test_a_wanted_run_on_a_lost_tpu_is_shown_as_preempted():
    record = {"wanted": "running", "attempt": 3, "tpu": "pod", "watch": {"best_step": 70}}
    stopped = {**record, "wanted": "stopped"}
    lines = shown_lines({}, {"mine": record, "old": stopped}, {"pod": "PREEMPTED"}, pod="PREEMPTED")

    assert " ".join(lines[1].split()) == "mine 3 preempted 70 - - - - pod"
    assert len(lines) == 2  # the TPU has no line of its own, because the run's line names it
    assert not any("old" in line for line in lines)


@pytest.mark.parametrize(
    ("nodes", "text"),
    [({"other": "READY"}, "preempted"), ({"pod": "CREATING"}, "its TPU is creating")],
)
def test_a_wanted_run_shows_that_its_tpu_is_gone_or_recreated(nodes, text):
    lines = shown_lines({}, {"mine": {"wanted": "running", "tpu": "pod"}}, nodes)

    assert text in lines[1]


def test_a_multislice_has_the_state_of_its_slice_that_is_not_ready():
    hostvars = {
        "a-w0": {"tpu_name": "a", "tpu_state": "READY", "tpu_multislice": "both"},
        "b": {"tpu_name": "b", "tpu_state": "PREEMPTED", "tpu_multislice": "both"},
        "localhost": {},
    }

    assert tpu_states(hostvars) == {"a": "READY", "b": "PREEMPTED", "multislice_both": "PREEMPTED"}


def test_scripts_get_codes_numbers_and_the_text():
    answers = results(w0=report("training"), w1=report_end("1", error="ValueError: 7"))
    workers, runs = evaluate(answers)

    run, worker = run_fields(runs[0]), worker_fields(workers[1])
    assert [run[name] for name in ("state", "reason_code", "host", "text", "workers")] == [
        *("failed", "exit_code", "w1", "crashed (exit 1)", ["w0", "w1"]),
    ]
    names = ("worker", "run", "state", "reason_code", "exit_code", "error")
    assert [worker[name] for name in names] == [
        *("w1", "mine", "failed", "exit_code", 1, "ValueError: 7"),
    ]
    hostvars = {host: {"run_observed": result} for host, result in answers.items()}
    status = run_status(hostvars, [*hostvars, "localhost"], {}, {"records": {}}, {})
    assert json.loads(json.dumps(status)) == status


def test_a_mistyped_run_is_reported_as_unknown():
    hostvars = {"w0": {"run_observed": results(w0=report())["w0"]}}

    def last_line(run: str) -> str:
        record = {"exists": False, "record": {}}
        return run_status(hostvars, ["w0"], {}, record, {}, run)["lines"][-1]

    assert last_line("nime").startswith("no worker has run nime, and it has no record. To see")
    assert last_line("mine").startswith("mine ")


def test_users_and_scripts_see_why_a_worker_has_no_run():
    workers, runs = evaluate({"w0": {"runs": []}, "w1": DOWN}, gone="PREEMPTED")
    states = ["preempted", "idle", "unreachable"]

    lines = status_lines(workers, runs)
    assert [line.split()[2] for line in lines[1:4]] == states
    assert lines[-1] == "w1: can't be reached: ssh: No route to host"
    assert [worker_fields(worker)["state"] for worker in workers] == states
    assert worker_fields(workers[2])["error"] == "can't be reached: ssh: No route to host"


def test_lines_of_several_workers_are_shown_once_in_order():
    answers = results(
        w0=report(log=["begin", "only 0", "end"]),
        w1=report(log=["begin", "end"]),
        w2=report(log=["begin", "end", "end"]),
    )

    assert folded_logs(answers) == ["w[0-2]: begin", "w0: only 0", "w[0-2]: end", "w2: end"]


def test_log_lines_carry_no_control_characters_to_a_terminal():
    answers = results(w0=report(log=["\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "a\tb"]))

    assert log_lines(answers["w0"]) == ["red", "]0;title", "a\tb"]
    assert folded_logs(answers) == ["w0: red", "w0: ]0;title", "w0: a\tb"]


def test_the_worker_that_failed_comes_first():
    answers = results(
        w0=report_end("77", log=["left"]),
        w1=report_end("1", log=["the reason"]),
    )

    assert folded_logs(answers) == ["w1: the reason", "w0: left"]


def test_workers_are_sorted_by_number():
    states = {f"pod-w{index}": "READY" for index in (10, 2, 1)}
    workers = worker_statuses({host: {"runs": []} for host in states}, states)

    assert [worker.worker for worker in workers] == ["pod-w1", "pod-w2", "pod-w10"]


def test_a_missing_log_is_explained():
    assert log_lines(DOWN) == ["can't be reached: ssh: No route to host"]
    assert log_lines({"runs": []}) == ["no run has a log on this worker"]


def on_chip(chip, *, time=None, run=None, log=()):
    state = "done" if time else "training"
    more = {"launched": {"chip": chip}, "run": run or f"mine-c{chip}", "log": list(log)}
    return report(state, ended_at=time, **more)


def test_the_last_run_of_each_chip_is_shown_even_after_all_have_ended():
    ended = [on_chip(chip, time=10.0 + chip, log=[f"chip {chip}"]) for chip in range(4)]
    older = on_chip(0, time=5.0, run="older")
    answers = {"w0": {"runs": [older, *ended]}}

    assert runs_of(answers) == ["mine-c0", "mine-c1", "mine-c2", "mine-c3"]
    assert log_lines(answers["w0"]) == ["chip 0", "chip 1", "chip 2", "chip 3"]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([on_chip(0, time=3.0), on_chip(-1, time=4.0, run="whole")], ["whole"]),
        ([on_chip(0, time=5.0), on_chip(-1, time=4.0, run="whole")], ["mine-c0"]),
        ([on_chip(0, time=5.0), on_chip(-1, run="whole")], ["whole"]),
        ([on_chip(0, time=3.0), on_chip(1)], ["mine-c0", "mine-c1"]),
        ([], []),
    ],
    ids=["whole is newer", "chip is newer", "whole runs", "one chip has ended", "no run"],
)
def test_a_run_on_all_chips_replaces_older_ones_on_single_chips(runs, expected):
    assert runs_of({"w0": {"runs": runs}}) == expected


DONE_RECORD = {"mine": {"wanted": "running", "attempt": 1, "workers": 2}}


@pytest.mark.parametrize(
    ("second", "record"),
    [
        (report(), {}),
        (report_end("KILL"), {}),
        (report("lost"), {}),
        (report("done", attempt=2), {}),
        (report("done", run="other"), {}),
        (report("done"), {"attempt": 2}),
        (report("done"), {"wanted": "done"}),
        (report("done"), {"workers": 3}),
    ],
)
def test_a_run_is_done_only_if_every_process_of_its_attempt_ended_with_0(second, record):
    done = report("done")

    assert finished_runs(results(w0=done, w1=done), DONE_RECORD) == [{"run": "mine", "attempt": 1}]
    changed = {"mine": DONE_RECORD["mine"] | record}
    assert finished_runs(results(w0=done, w1=second), changed) == []


def test_a_stopped_run_is_done_if_every_process_had_exited_with_0():
    stopped = {"mine": DONE_RECORD["mine"] | {"wanted": "stopped"}}
    answers = {host: {"info": report("done")} for host in ("w0", "w1")}

    assert finished_runs(answers, stopped) == [{"run": "mine", "attempt": 1}]
