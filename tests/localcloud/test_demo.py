import sys

import pytest

from localcloud import demo


def said(command: str) -> list[str]:
    return list(demo.output_lines([sys.executable, "-c", command], demo.Waiting("python")))


def test_a_command_s_lines_come_as_it_says_them():
    assert said("print('one'); print('two')") == ["one", "two"]


def test_a_command_that_fails_says_its_exit_code_last():
    assert said("print('one'); raise SystemExit(3)") == ["one", "exit code 3"]


def test_a_silence_is_broken_by_what_is_awaited(capsys, monkeypatch):
    monkeypatch.setattr(demo, "QUIET_S", 0.05)
    assert said("import time; time.sleep(0.2); print('late')") == ["late"]
    assert "python" in capsys.readouterr().out


def test_a_heartbeat_is_progress():
    line = '{"step": 7, "steps": 9, "loss": 2.5, "tokens_per_second": 100.0, "state": "running"}'
    assert demo.parse_heartbeat(line) == demo.Progress(7, 9, 2.5, 100.0)


@pytest.mark.parametrize(
    "line", ["", "cat: heartbeat.json: no such file", "{", "[]", '{"step": 1}']
)
def test_what_is_no_heartbeat_changes_nothing(line):
    assert demo.parse_heartbeat(line) is None


def test_a_playbook_speaks_for_itself_and_its_failure_ends_the_demo(tmp_path, monkeypatch, capfd):
    script = tmp_path / "ansible-playbook"
    script.write_text("#!/bin/sh\necho 'FAILED  w0  Do it'\nexit 2\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(demo.DemoError, match=r"setup\.yml failed"):
        demo.playbook("setup.yml")
    assert "FAILED  w0  Do it" in capfd.readouterr().out
