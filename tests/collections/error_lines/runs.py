"""Cases of bad input to runs: configs, names, sweeps, commands, schedules, checkpoints, workers.

Two mistakes are missing here because they cause no error: a wrapper that ignores SIGTERM
(tests/journey/test_kill.py), and an interval shorter than the playbook
(tests/collections/test_run_schedule_timers.py).
"""

import subprocess

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.schedule.run_schedule import (
    Timer,
    check,
    cron_line,
    playbook_arguments,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker import (
    run_checkpoints,
    run_start,
    run_unit,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.end_state import end_state
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import (
    WorkerPaths,
    split_command,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_files import Exit
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.launch_outcome import (
    attempt_text,
    launch_verdict,
    wait_outcome,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.run_plan import (
    Worker,
    find_config,
    parse_overrides,
    place_processes,
    read_config,
    run_name,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.run_sweep import (
    assigned,
    read_sweep,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.typed_values import parse_env

from harness.scripted_api import error
from harness.unit_program import unit_program
from harness.valid_record import launch_spec, process
from tests.collections.error_lines.bad import Bad, case, printed_error, printed_failure, refused


@case("mine.yml")
def missing_config(bad: Bad) -> str:
    return printed_error(find_config, "mine.yml", [bad.folder])


@case("line 2")
def config_that_is_not_yaml(bad: Bad) -> str:
    return printed_error(read_config, bad.file("steps: [\n"), strict=True)


@case("mine.yml")
def config_without_settings(bad: Bad) -> str:
    return printed_error(read_config, bad.file("- a\n"), strict=True)


ONE_OF_TWO = [Worker("pod-w0", "pod", 0, 2, "10.0.0.2")]
UNEVEN = Timer("watch", "", "", 5400, "/", "tool", ())
refused("override without a value", "'steps'", parse_overrides, "steps")
refused("run name with odd characters", "'a b/c'", run_name, "a b/c", None, ())
refused("no worker to run on", "READY", place_processes, [], "mine")
refused("slice with a missing worker", "pod", place_processes, ONE_OF_TWO, "mine")
refused("env that cannot be parsed", "env", parse_env, "A B")
refused("command that cannot be parsed", "command", split_command, "python 'x")
refused("schedule with an invalid interval", "'soon'", check, "watch", "", "", "soon")
refused("schedule that cron would keep unevenly", "every=5400s", cron_line, UNEVEN)
refused(
    "schedule with a time and an interval", "watch", check, "watch", "", "2026-12-31 18:00", "1m"
)
refused("delete scheduled at an interval", "delete", check, "delete", "pod", "", "1d")
refused("delete scheduled for an unknown TPU", "pod", playbook_arguments, "delete", "pod", [])


@case("line 3")
def sweep_with_a_mistake(bad: Bad) -> str:
    return printed_error(read_sweep, bad.file("- set: {seed: 1}\n- name: b\n  sett: {seed: 2}\n"))


@case("mine.yml")
def sweep_that_is_not_a_list(bad: Bad) -> str:
    return printed_error(read_sweep, bad.file("set: {seed: 1}\n"))


@case("2 runs")
def sweep_with_more_runs_than_tpus(bad: Bad) -> str:
    file = bad.file("- set: {seed: 1}\n- set: {seed: 2}\n")
    return printed_error(assigned, read_sweep(file), ["pod"], file)


def ended(run: str, status: str, log: str) -> str:
    """Return train.yml's last error if a trainer logs ``log`` and exits with ``status``."""
    state = end_state(Exit(1, "exit-code", "exited", status, 7.0))
    codes = {"state": state.state.value, "reason_code": state.reason_code.value}
    answers = {"pod-w1": {"info": codes | {"exit_code": state.exit_code, "log": [log]}}}
    return printed_failure(attempt_text(wait_outcome(answers), run, answers))


@case("pod-w1")
def command_that_does_not_exist(bad: Bad) -> str:
    command, environ = unit_program(bad.folder, launch_spec(command=["no-such-program"]))
    code = subprocess.run(command, env=environ, check=False).returncode
    log = (bad.folder / "run/log").read_text()
    assert code == 127
    return ended("mine", str(code), log.splitlines()[-1])


@case("pod-w1")
def bad_config_on_the_workers(bad: Bad) -> str:
    last_line = bad.train(str(bad.file("stepz: 1\n"))).splitlines()[-1]
    return ended("mine", "2", last_line)


@case("pod-w1")
def worker_that_is_down_at_launch(bad: Bad) -> str:
    part = {"run": "mine", "process_id": 1, "tpu": "pod"}
    text = "Failed to connect to the host via ssh: ssh: connect to host 10.0.0.3 port 22: refused"
    verdict = launch_verdict({"pod-w1": {"unreachable": True, "msg": text}}, {"pod-w1": part})
    return printed_failure(f"run mine was not started: {verdict['problems']['mine'][0]}")


@case("0123456789abcdef")
def release_that_fails_its_manifest(bad: Bad) -> str:
    paths = WorkerPaths(bad.folder, bad.folder, bad.folder)
    paths.release(process().spec.release).mkdir(parents=True)
    return printed_failure(run_start.release_problem(process(), paths))


@case("other")
def worker_with_another_active_run(bad: Bad) -> str:
    paths = WorkerPaths(bad.folder, bad.folder, bad.folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_start, "active_runs", lambda: ["other"])
        patch.setattr(run_unit, "unit_states", lambda runs: {runs[0]: {"ActiveState": "active"}})
        patch.setattr(run_start.run_checkpoints, "unwritable_reason", lambda *_: None)
        patch.setattr(run_start, "is_set_up", lambda root: False)
        patch.setattr(run_start, "is_complete", lambda env: True)
        return printed_failure("; ".join(run_start.blockers(process(), paths)))


@case("checkpoints")
def checkpoints_on_a_disk_of_the_leader(bad: Bad) -> str:
    found = process(checkpoints="/opt/mine", volatile_checkpoints=False)
    return printed_failure("; ".join(run_start.lost_with_tpu(found)))


@case("gs://fleet/a")
def bucket_without_write_permission(bad: Bad) -> str:
    bad.scripted.handler = lambda asked: error(403, "no storage.objects.create access")
    emulator = {"STORAGE_EMULATOR_HOST": bad.scripted.endpoint}
    return printed_failure(run_checkpoints.unwritable_reason("gs://fleet/a", emulator) or "")
