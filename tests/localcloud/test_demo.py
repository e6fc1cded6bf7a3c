import sys
from pathlib import Path

import pytest

from localcloud import demo
from localcloud.local_cloud import LocalCloud


def test_a_command_is_shown_before_its_output(capfd):
    demo.command(sys.executable, "-c", "print('out' + 'put')")
    shown, output = capfd.readouterr().out.splitlines()
    assert shown.startswith("  $ ")
    assert shown.endswith("""-c 'print('"'"'out'"'"' + '"'"'put'"'"')'""")
    assert output == "output"


def test_a_failing_playbook_ends_the_demo_after_its_own_output(tmp_path, monkeypatch, capfd):
    script = tmp_path / "ansible-playbook"
    script.write_text("#!/bin/sh\necho 'FAILED  w0  Do it'\nexit 2\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(demo.DemoError, match=r"setup\.yml failed"):
        demo.playbook("setup.yml")
    assert "FAILED  w0  Do it" in capfd.readouterr().out


def test_the_end_shows_how_long_the_demo_took_and_commands_for_its_cloud():
    end = demo.next_steps(LocalCloud("own", Path("/clouds/own")), 812.3)
    assert "The demo took 812 s" in end
    assert "TPUFLEET_LOCALCLOUD=own .venv/bin/ansible-playbook -i inventory/local train.yml" in end
