import sys

import pytest

from localcloud import demo
from localcloud.local_cloud import LocalCloud


def output(command: str) -> list[str]:
    return list(demo.output_lines([sys.executable, "-c", command], demo.Activity("python")))


def test_output_lines_arrive_as_they_are_printed():
    assert output("print('one'); print('two')") == ["one", "two"]


def test_a_failing_command_raises_its_exit_code():
    with pytest.raises(demo.CommandError, match="exit code 3"):
        output("raise SystemExit(3)")


def test_a_line_that_looks_like_an_exit_code_is_output():
    assert output("print('exit code 3')") == ["exit code 3"]


def test_a_silent_command_shows_what_it_waits_for(capsys, monkeypatch):
    monkeypatch.setattr(demo, "QUIET_S", 0.05)
    assert output("import time; time.sleep(0.2); print('late')") == ["late"]
    assert "python" in capsys.readouterr().out


def test_a_heartbeat_is_progress():
    line = '{"step": 7, "steps": 9, "loss": 2.5, "tokens_per_second": 100.0, "state": "running"}'
    assert demo.parse_heartbeat(line) == demo.Progress(7, 9, 2.5, 100.0)


@pytest.mark.parametrize(
    "line", ["", "cat: heartbeat.json: no such file", "{", "[]", '{"step": 1}']
)
def test_other_lines_are_not_heartbeats(line):
    assert demo.parse_heartbeat(line) is None


def test_the_summary_shows_the_duration_of_the_whole_demo(capsys, monkeypatch):
    line = '{"step": 7, "loss": 2.5, "tokens_per_second": 100.0}'
    monkeypatch.setattr(demo, "remote", lambda _ssh, command: line if "metrics" in command else "")
    demo.summary(LocalCloud.of("demo"), [], {"demo-w0": "10.0.0.2"}, 812.3)
    expected = "whole demo   812 s (local cloud, TPU, setup and training)"
    assert expected in capsys.readouterr().out.splitlines()


def test_a_failing_playbook_ends_the_demo_after_its_own_output(tmp_path, monkeypatch, capfd):
    script = tmp_path / "ansible-playbook"
    script.write_text("#!/bin/sh\necho 'FAILED  w0  Do it'\nexit 2\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(demo.DemoError, match=r"setup\.yml failed"):
        demo.playbook("setup.yml")
    assert "FAILED  w0  Do it" in capfd.readouterr().out
