"""A playbook whose time is up or whose lease is lost is stopped with all its processes."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs import actor as playbook_actor
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs import playbook_process
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.actor import (
    Actor,
    Play,
    ansible_playbook,
    play_error,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.lease import Claim
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.playbook_process import run_process
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_log import WatchLog

from harness.playbooks import ROOT

# A shell and its child ignore SIGTERM. The child has its own session, like a process in which
# Ansible runs a task.
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


def left_running(folder: Path) -> list[int]:
    """Return which of the processes in ``folder/pids`` are still running after 20 seconds."""
    deadline = time.monotonic() + 20
    while running := [pid for pid in pids(folder) if is_running(pid)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return running


def run(folder: Path, command: list[str], reason_to_stop: Callable[[], str]) -> tuple[int, str]:
    with (folder / "output").open("w") as output:
        return run_process(command, folder, {}, output, reason_to_stop)


def test_a_process_that_must_stop_ends_with_its_descendants_in_other_sessions(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(playbook_process, "TERM_S", 0.5)

    def reason_to_stop() -> str:
        return "the lease is lost" if len(pids(tmp_path)) == 2 else ""

    assert run(tmp_path, ["sh", "-c", STUBBORN], reason_to_stop) == (-9, "the lease is lost")
    assert left_running(tmp_path) == []


def test_a_process_that_must_stop_ends_without_ps(tmp_path, monkeypatch):
    sleep = shutil.which("sleep")
    monkeypatch.setenv("PATH", str(tmp_path))

    result = run(tmp_path, [sleep, "60"], lambda: "the lease is lost")

    assert result == (-15, "the lease is lost")


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
    assert len(pids(tmp_path)) == 1

    parent.terminate()
    parent.wait(30)

    assert left_running(tmp_path) == []


PLAYBOOK = """
- hosts: localhost
  gather_facts: false
  tasks:
    - name: Take long
      ansible.builtin.shell: "echo $$ >> {{ playbook_dir }}/pids; exec sleep 600"
"""


@pytest.fixture
def run_playbook(tmp_path, monkeypatch):
    """Return a function that runs a playbook as the watch does and returns its error or ""."""
    # Ignore the project's ansible.cfg, because its inventory would call Google's API.
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    monkeypatch.setenv("ANSIBLE_COLLECTIONS_PATH", str(ROOT / "collections"))
    monkeypatch.setenv("TPUFLEET_LOG_DIR", str(tmp_path / "logs"))
    log = WatchLog(tmp_path / "watch.log", quiet=False)
    (tmp_path / "long.yml").write_text(PLAYBOOK)
    (tmp_path / "fails.yml").write_text(
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n"
        "    - ansible.builtin.fail: {msg: \"{{ run }} is '{{ value }}'\"}\n"
    )

    def run_playbook(name: str, seconds: float = 60, claim: Claim = FREE, **variables: str) -> str:
        actor = Actor(tmp_path, tmp_path, "", log, time.monotonic() + seconds)
        return actor._play("run mine", "mine", Play((name,), variables), claim)

    return run_playbook


def test_a_playbook_whose_lease_is_lost_ends_with_its_tasks(run_playbook, tmp_path):
    claim = Claim(lambda: "the lease is lost" if pids(tmp_path) else "", lambda: "")

    error = run_playbook("long.yml", claim=claim)

    assert error.endswith("s: the lease is lost")
    assert left_running(tmp_path) == []


def test_a_pass_that_is_out_of_time_ends_its_playbook_and_starts_no_other(
    run_playbook, monkeypatch
):
    monkeypatch.setattr(playbook_actor, "ansible_playbook", lambda: ["sh", "-c", "exec sleep 600"])

    error = run_playbook("long.yml", 0.4)
    late = run_playbook("long.yml", 0)

    assert "its time limit of" in error
    assert late == (
        "long.yml was not started, because the watch's pass has reached its time limit. "
        "The next pass continues"
    )


def test_extra_variables_are_one_json_argument(run_playbook, tmp_path):
    value = "a b=c -e x"

    error = run_playbook("fails.yml", run="m", value=value)

    assert error.endswith(f": m is '{value}'")
    assert "(its output: " in (tmp_path / "watch.log").read_text()


def test_a_playbook_is_not_started_after_its_run_was_stopped(run_playbook, tmp_path):
    claim = Claim(lambda: "", lambda: "the run is stopped now")

    error = run_playbook("long.yml", claim=claim)

    assert (error, pids(tmp_path)) == ("the run is stopped now", [])


def test_vault_passwords_are_passed_on_unless_they_were_typed(monkeypatch, tmp_path):
    # The child process may have another current directory, so its paths must be absolute.
    monkeypatch.chdir(tmp_path)
    ids = ["a@/b", "c@prompt", "c@prompt_ask_vault_pass", "d@prompts"]
    cli_arguments = {"vault_password_files": ["/home/me/vault"], "vault_ids": ids}
    monkeypatch.setattr(playbook_actor.context, "CLIARGS", cli_arguments)

    tool, *options = ansible_playbook()

    assert tool == str(Path(sys.executable).with_name("ansible-playbook"))
    files = ["--vault-id", "a@/b", "--vault-id", f"d@{tmp_path}/prompts"]
    assert options == ["--vault-password-file", "/home/me/vault", *files]


def test_a_playbook_that_succeeds_leaves_a_result_without_failures(run_playbook, tmp_path):
    (tmp_path / "succeeds.yml").write_text("- hosts: localhost\n  gather_facts: false\n")

    assert run_playbook("succeeds.yml") == ""
    assert "succeeds.yml succeeded" in (tmp_path / "watch.log").read_text()


def test_a_playbook_without_a_result_fails_with_its_exit_code_and_names_its_output(
    run_playbook, monkeypatch
):
    fails = ["sh", "-c", "echo no such playbook: $0; exit 1"]
    monkeypatch.setattr(playbook_actor, "ansible_playbook", lambda: fails)

    error = run_playbook("missing.yml")

    assert "exit code 1, the playbook wrote no result file. See its output: tail " in error
    output = Path(error.rpartition("tail ")[2])
    assert output.read_text() == "no such playbook: missing.yml\n"


FIRST = {"host": "pod-w1", "task": "Install", "error": "no way\nat all"}
SECOND = FIRST | {"host": "pod-w2"}
THIRD = FIRST | {"host": "localhost", "error": "not ready: pod-w1"}


@pytest.mark.parametrize(
    ("result", "code", "error"),
    [
        ({"failures": [FIRST, SECOND, THIRD]}, 2, "pod-w[1-2]: no way at all"),
        ({"failures": []}, 0, ""),
        ({"failures": [FIRST]}, 0, ""),
        ({"failures": []}, 4, "exit code 4. See its output: tail watch.d/mine.log"),
        (
            None,
            0,
            "exit code 0, the playbook wrote no result file. See its output: tail watch.d/mine.log",
        ),
        ([], 0, "exit code 0, the playbook's result file cannot be read"),
        ({"failures": ["text"]}, 2, "exit code 2, the playbook's result file cannot be read"),
        ({"failures": [{"task": "Install"}]}, 2, "the playbook's result file cannot be read"),
        ("{", 0, "the playbook's result file cannot be read"),
    ],
)
def test_a_playbook_succeeds_only_with_exit_code_0_and_a_valid_result(
    tmp_path, result, code, error
):
    file = tmp_path / "result.json"
    if result is not None:
        file.write_text(result if isinstance(result, str) else json.dumps(result))

    message = play_error(code, file, Path("watch.d/mine.log"))

    assert error in message
    assert bool(message) == bool(error)


def test_the_log_of_the_watch_has_one_printable_line_for_each_event(tmp_path, capsys):
    log = WatchLog(tmp_path / "watch.log", quiet=False)

    log("run mine: crashed:\nno \x1b]0;owned\x07\x1b[31mred\x9b2J")

    (line,) = (tmp_path / "watch.log").read_text().splitlines()
    assert "Z run mine: crashed: no " in line
    assert line.isprintable()
    shown = capsys.readouterr().out
    assert "run mine: crashed: no " in shown
    assert "\x1b" not in shown


def test_only_the_owner_can_read_the_log_of_the_watch_and_the_output_of_its_playbooks(tmp_path):
    output = WatchLog(tmp_path / "new/watch.log", quiet=False).output_of("mine")

    for folder in (tmp_path / "new", output.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_dry_run_of_the_watch_shows_its_log_and_writes_none(tmp_path, capsys):
    WatchLog(tmp_path / "new/watch.log", quiet=True)("run mine: crashed: launch")

    assert "run mine: crashed: launch" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()


def test_a_relative_log_has_its_output_files_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    output = WatchLog(Path("watch.log"), quiet=False).output_of("a/../b")

    assert output == tmp_path / "watch.d/a-..-b.log"
