"""A playbook that overruns, or whose lease is lost, ends with everything that it started."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs import playbook_process
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.actor import (
    Actor,
    Claim,
    Play,
    ansible_playbook,
    error_summary,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.playbook_process import run_process
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_log import WatchLog

# Like Ansible's workers: a process in a session of its own, which ignores TERM.
STUBBORN = """
trap '' TERM
setsid sh -c "trap '' TERM; echo \\$\\$ >> pids; while :; do sleep 0.1; done" &
echo $$ >> pids
while :; do sleep 0.1; done
"""
FREE = Claim(lambda: "", lambda: "")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids(folder: Path) -> list[int]:
    file = folder / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def test_a_process_that_must_stop_ends_with_its_descendants_in_other_sessions(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(playbook_process, "TERM_S", 0.5)

    def why_stop() -> str:
        return "the lease is lost" if len(pids(tmp_path)) == 2 else ""

    with (tmp_path / "output").open("w") as output:
        code, reason = run_process(["sh", "-c", STUBBORN], tmp_path, {}, output, why_stop)

    assert (code, reason) == (-9, "the lease is lost")
    deadline = time.monotonic() + 20
    while any(map(is_running, pids(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in pids(tmp_path) if is_running(pid)] == []


SEARCH_PATH = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
ORPHAN = """
import pathlib, sys
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.playbook_process import run_process
with open(sys.argv[1] + "/output", "w") as output:
    script = "echo $$ > " + sys.argv[1] + "/pids; exec sleep 60"
    run_process(["sh", "-c", script], pathlib.Path("/"), {}, output, lambda: "")
"""


def test_a_playbook_ends_with_the_watch_that_started_it(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN, str(tmp_path)], env=SEARCH_PATH)
    deadline = time.monotonic() + 30
    while not pids(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    (child,) = pids(tmp_path)

    parent.terminate()
    parent.wait(30)

    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)


def test_a_process_that_ends_by_itself_has_its_exit_code_and_no_reason(tmp_path):
    with (tmp_path / "output").open("w+") as output:
        told = run_process(["sh", "-c", "echo x; exit 3"], tmp_path, {}, output, lambda: "")

    assert told == (3, "")
    assert (tmp_path / "output").read_text() == "x\n"


PLAYBOOK = """
- hosts: localhost
  gather_facts: false
  tasks:
    - name: Take long
      ansible.builtin.shell: "echo $$ >> {{ playbook_dir }}/pids; exec sleep 600"
"""


@pytest.fixture
def actor(tmp_path, monkeypatch):
    # The project's own configuration names an inventory that asks Google.
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    log = WatchLog(tmp_path / "watch.log", quiet=False)
    (tmp_path / "long.yml").write_text(PLAYBOOK)
    (tmp_path / "fails.yml").write_text(
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n"
        "    - ansible.builtin.fail: {msg: \"{{ run }} is '{{ word }}'\"}\n"
    )
    return lambda seconds: Actor(tmp_path, tmp_path, "", log, time.monotonic() + seconds)


def test_a_playbook_whose_lease_is_lost_ends_with_its_tasks(actor, tmp_path):
    claim = Claim(lambda: "the lease is lost" if pids(tmp_path) else "", lambda: "")

    why = actor(60)._play("run mine", "mine", Play(("long.yml",), {}), claim)

    assert why.endswith("s: the lease is lost")
    deadline = time.monotonic() + 20
    while any(map(is_running, pids(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in pids(tmp_path) if is_running(pid)] == []


def test_a_playbook_is_ended_when_the_time_of_the_pass_is_up_and_none_starts_after(actor, tmp_path):
    why = actor(3)._play("run mine", "mine", Play(("long.yml",), {}), FREE)
    late = actor(0)._play("run mine", "mine", Play(("long.yml",), {}), FREE)

    assert "no end after" in why
    assert late == ("long.yml was not started: the time of this pass is up, the next one continues")


def test_extra_variables_are_one_json_argument(actor, tmp_path):
    word = "a b=c -e x"

    why = actor(60)._play(
        "run mine", "mine", Play(("fails.yml",), {"run": "m", "word": word}), FREE
    )

    assert why.endswith(f": m is '{word}'")
    assert "(its output: " in (tmp_path / "watch.log").read_text()


def test_a_playbook_is_not_started_where_the_run_may_not_be_acted_on_any_more(actor, tmp_path):
    claim = Claim(lambda: "", lambda: "the run is stopped now")

    why = actor(60)._play("run mine", "mine", Play(("long.yml",), {}), claim)

    assert (why, pids(tmp_path)) == ("the run is stopped now", [])


def test_the_playbook_tool_is_the_one_beside_this_python():
    (tool,) = ansible_playbook()

    assert subprocess.run([tool, "--version"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("output", ["", "FAILED\n", "FAILED\nmore\n", "\n\n"])
def test_any_output_of_a_playbook_has_a_summary(output):
    assert isinstance(error_summary(output), str)


def test_the_summary_of_a_playbooks_output_is_its_error():
    assert error_summary("a\n[ERROR]: Task failed: no way\nPLAY RECAP\n") == "no way"
    assert error_summary("") == ""


def test_the_summary_of_the_terminal_view_is_its_first_failure():
    view = """  failed    base : Install base packages  pod-w1: no way
FAILED  pod-w1  base : Install base packages
  no way
FAILED  localhost  Name the workers that are not ready
  not ready: pod-w1
pod-w1 : ok=2 changed=0 failed=1
3 s; everything is in setup.log
"""

    assert error_summary(view) == "pod-w1: no way"


def test_the_log_of_the_watch_has_one_line_for_each_event(tmp_path):
    log = WatchLog(tmp_path / "watch.log", quiet=False)

    log("run mine: preempted:\nits TPU is gone")

    assert (tmp_path / "watch.log").read_text().endswith("Z run mine: preempted: its TPU is gone\n")


def test_a_log_named_from_the_current_directory_has_its_output_files_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    output = WatchLog(Path("watch.log"), quiet=False).output_of("a/../b")

    assert output == tmp_path / "watch.d/a-..-b.log"
