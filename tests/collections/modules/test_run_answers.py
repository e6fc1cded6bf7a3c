"""What playbooks decide from the answers of all workers: a run starts on all or on none."""

from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.answers import (
    active_runs,
    by_host,
    stopped_lines,
    stray_lines,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.launch_outcome import (
    bad_logs,
    failures,
    hosts_to_stop,
    launch_verdict,
    start_answers,
    wait_outcome,
)

from tests.collections.runs.answers import report, report_end

PARTS = {"w0": {"run": "mine", "tpu": "pod"}, "w1": {"run": "mine", "tpu": "pod"}}
DOWN = {"unreachable": True, "msg": "Failed to connect to the host via ssh: ssh: No route to host"}


def ready(status="absent", *blockers):
    return {
        "status": status,
        "blockers": list(blockers),
        "started": False,
        "release_is_missing": False,
    }


def started():
    return ready() | {"started": True}


def problems(answers):
    return wait_outcome(answers)["problems"]


def test_an_unreachable_worker_is_named_and_prevents_the_launch():
    verdict = launch_verdict({"w0": ready(), "w1": DOWN}, PARTS)

    fix = "ansible-playbook playbooks/doctor.yml -e tpu=pod"
    problem = f"w1: can't be reached: ssh: No route to host. Find the cause: {fix}"
    assert verdict["problems"] == {"mine": [problem]}
    assert verdict["launch"] == []


def test_a_failed_push_counts_as_a_failure_of_the_worker():
    bare, failed = (
        ready() | {"release_is_missing": True},
        {"failed": True, "msg": "no space left"},
    )
    answers = start_answers(
        ["w0", "w1", "w2"],
        {"w0": started() | {"info": {}}, "w1": bare, "w2": bare},
        {"w1": failed, "w2": DOWN},
        {},
    )

    assert failures(answers) == ["w1: no space left", "w2: can't be reached: ssh: No route to host"]


def test_a_worker_that_lacked_the_release_fails_if_it_gives_no_second_answer():
    bare = ready() | {"release_is_missing": True, "info": {}}

    assert failures(start_answers(["w0"], {"w0": bare}, {}, {})) == ["w0: no answer"]


def test_the_answer_of_the_second_step_replaces_the_first_one():
    second = {"w0": {"info": {"state": "starting"}}}

    assert start_answers(["w0"], {"w0": ready()}, {"w0": {"files": 3}}, second) == second


def test_equal_messages_of_several_workers_are_shown_once():
    verdict = launch_verdict({"w0": ready("absent", "full"), "w1": ready("absent", "full")}, PARTS)

    assert verdict["problems"] == {"mine": ["w[0-1]: full"]}


def test_workers_that_never_had_a_run_do_not_report_its_end():
    never = {"info": report("lost", attempt=None)}
    saved = {"info": report_end("75", heartbeat={"step": 7})}

    assert stopped_lines({"w0": saved, "w1": saved, "w2": never}) == [
        "w[0-1]: interrupted, saved at step 7"
    ]
    assert stopped_lines({"w2": never}) == []


def test_a_blocker_of_one_run_does_not_block_another():
    processes = {"w0": {"run": "a"}, "w1": {"run": "b"}}

    verdict = launch_verdict({"w0": ready("absent", "no space"), "w1": ready()}, processes)

    assert (verdict["problems"], verdict["launch"]) == ({"a": ["w0: no space"]}, ["b"])


def test_a_run_is_running_or_done_only_if_all_its_workers_report_it_without_a_blocker():
    statuses = {
        "a": ("running", "running"),
        "b": ("done", "done"),
        "c": ("absent", "absent"),
        "d": ("running", "absent"),  # the run has lost a worker
        "e": ("done", "done"),
    }
    processes = {f"{run}-w{n}": {"run": run} for run in statuses for n in (0, 1)}
    answers = {host: ready(statuses[host[0]][int(host[-1])]) for host in processes}
    answers["e-w0"] = ready("done", "no space")

    verdict = launch_verdict(answers, processes)

    assert [verdict[name] for name in ("running", "done", "launch")] == [["a"], ["b"], ["c", "d"]]
    assert verdict["notes"] == [
        "a is already running",
        "b is already done. Start a new run: -e run=NAME",
    ]


def test_a_worker_that_gave_no_answer_is_a_failure():
    answers = {"w0": {"info": {}}, "w1": {"msg": "no space left"}, "w2": {}}

    assert failures(answers) == ["w1: no space left", "w2: no answer"]
    assert failures({"w0": {"runs": []}, "w1": {"msg": "no bus"}}, "runs") == ["w1: no bus"]


def test_the_worker_that_failed_first_is_named_first_with_its_error():
    answers = {
        "w0": {"info": report_end("ABRT", log=["peer died"], ended_at=9.0)},
        "w1": {"info": report_end("2", error="train: unknown key: stpes", ended_at=8.0)},
    }

    assert problems(answers) == [
        "w1: bad config: train: unknown key: stpes",
        "w0: crashed (signal ABRT): peer died",
    ]


def test_only_the_last_attempts_lines_are_shown():
    first, second = (f"--- 2026-11-23T06:00:0{number}Z attempt {number}" for number in (1, 2))
    log = [first, "old", second, "--- my attempt 3", "new"]

    lines = bad_logs({"w0": {"info": report_end("1", log=log)}})
    assert lines == ["w0: --- my attempt 3", "w0: new"]


def test_a_run_that_is_done_or_was_saved_has_no_problem():
    assert problems({"w0": {"info": report("done")}, "w1": {"info": report_end("75")}}) == []


def test_a_starting_worker_is_a_problem_only_after_the_time_limit():
    starting = {"info": report("starting"), "outcome": "left"}
    late = {"info": report("starting"), "outcome": "timed_out"}

    assert problems({"w0": starting}) == []
    (problem,) = problems({"w0": late})
    assert problem.startswith("w0: starting, no first step in time")
    assert "-e wait=started" in problem


def test_active_runs_are_named_once():
    result = {"runs": [report(), report("done", run="old")]}

    assert active_runs({"w0": result, "w1": result, "w2": {}}) == ["mine"]


def test_a_host_that_registered_nothing_has_an_empty_answer():
    assert by_host({"w0": {"r": {"a": 1}}, "w1": {}}, ["w0", "w1"], "r") == {
        "w0": {"a": 1},
        "w1": {},
    }


def test_a_refused_run_and_processes_of_older_attempts_are_stopped():
    older = ready() | {"info": report(active=True)}
    newer = started() | {"info": report(active=True)}
    answers = {"w0": started(), "w1": ready(), "w2": newer, "w3": older}
    processes = {host: {"run": "a" if host < "w2" else "b"} for host in answers}

    assert hosts_to_stop(answers, processes, refused={"a"}, again={"b"}) == ["w0", "w3"]


def test_each_process_that_holds_a_device_is_a_line_with_its_worker():
    stray = {"pid": 7, "user": "ada", "since": "2026-01-02T03:04:05Z", "device": "/dev/accel0"}
    answers = {"w0": {"strays": []}, "w1": {"strays": [{**stray, "command": "python x.py"}]}}
    assert stray_lines(answers) == [
        "w1: pid 7 of ada, since 2026-01-02T03:04:05Z, holds /dev/accel0: python x.py"
    ]
