"""The module run_command, which runs a trainer's command on a worker; its device is a fake."""

import json
import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import run_start, user_process
from ansible_collections.tpufleet.core.plugins.module_utils.worker.python_env import (
    COMPLETE,
    env_id,
    measure,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import WorkerPaths
from ansible_collections.tpufleet.core.plugins.module_utils.worker.user_process import (
    MAX_OUTPUT_BYTES,
    run_as_user,
)

from harness.valid_record import launch_fields, launch_spec, process
from tests.collections.modules.test_release_manifest import put, stage_code
from tests.collections.running_modules import run_module

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="the command changes its user")
USER = pwd.getpwuid(os.getuid()).pw_name
SHOW = """
import os, sys
config = open(sys.argv[1]).read()
print(os.environ["TPUFLEET_RUN"], repr(config), sys.argv[2:], os.environ.get("TOKEN_OF_MINE"))
print("\\x1b[2Jhere", os.path.basename(os.getcwd()) == sys.argv[2])
sys.exit(int(os.environ.get("EXIT", 0)) or os.environ.get("ERROR"))
"""


class Worker:
    """A worker's directories with an environment and a release; its device is accel0."""

    def __init__(self, folder: Path) -> None:
        self.root, self.state = folder / "opt", folder / "var"
        (self.root / "bin").mkdir(parents=True)
        minor = sys.version_info.minor
        program = self.root / f"bin/python3.{minor}"
        program.symlink_to(sys.executable)
        (self.root / "bin/python").symlink_to(program)
        self.env = self.root / "envs" / env_id("ab" * 32, minor)
        (self.env / "bin").mkdir(parents=True)
        (self.env / "bin/python").symlink_to(sys.executable)
        (self.env / COMPLETE).write_text(json.dumps(measure(self.env)))
        code = folder / "code"
        code.mkdir()
        (code / "show.py").write_text(SHOW)
        self.release = stage_code(code, folder / "staged")
        put(folder / "staged", self.root / "releases", self.release)
        (folder / "accel0").touch()
        self.device = folder / "accel0"

    def run(self, *, check: bool = False, secrets: dict | None = None, **fields) -> dict:
        default_fields = {
            "release": self.release,
            "command": ["python", "show.py", "{config}", self.release],
            "compile_cache": "",
            "env": {},
            "workers": 1,
            "placement": ["pod-w0"],
        }
        return run_module(
            "run_command",
            check=check,
            launch={"run": "mine", **launch_fields(**(default_fields | fields))},
            secrets=secrets or {},
            device_glob=str(self.device.with_name("accel*")),
            constants={"ROOT": str(self.root), "STATE_DIR": str(self.state), "USER": USER},
            seconds=20,
        )


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, systemctl: Path) -> Worker:
    machine = Worker(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return machine


def test_the_command_runs_in_the_release_with_the_config_and_returns_its_output(worker):
    result = worker.run(secrets={"TOKEN_OF_MINE": "a-long-secret"})

    first, second = result["output"]
    assert first.startswith(f"mine 'steps: 10\\n' ['{worker.release}']")
    assert second == " [2Jhere True"  # the escape character was removed
    assert "a-long-secret" not in result["process_output"]
    assert not result["changed"]


def test_a_failure_is_one_line_with_the_exit_code(worker):
    result = worker.run(env={"EXIT": "2"})

    assert result["failed"]
    assert "show.py" in result["msg"]
    assert "exit code 2: " in result["msg"]


def test_a_full_disk_is_reported_in_the_command_s_own_words_without_advice_to_set_up(worker):
    result = worker.run(env={"ERROR": "No space left on device: '/mnt/out'"})

    assert result["msg"].endswith("exit code 1: No space left on device: '/mnt/out'")


def test_a_held_device_is_refused_with_its_holder(worker, holder):
    child = holder(worker.device)

    refused = worker.run()
    on_cpu = worker.run(env={"JAX_PLATFORMS": "cpu"})
    unset = worker.run(env={"JAX_PLATFORMS": ""})  # an empty value lets JAX choose the TPU

    assert f"(pid {child.pid}) holds {worker.device}" in refused["msg"]
    assert "playbooks/kill.yml -e strays=true, or use the CPU" in refused["msg"]
    assert on_cpu["output"]
    assert unset["msg"] == refused["msg"]


@pytest.mark.parametrize(("chip", "expected_run"), [(0, "early"), (1, "late"), (-1, "early")])
def test_the_error_about_a_held_device_names_its_run(tmp_path, monkeypatch, chip, expected_run):
    paths = WorkerPaths(tmp_path, tmp_path, tmp_path)
    for number, name in enumerate(("early", "late")):
        paths.unit_dir(name).mkdir(parents=True)
        launch = {"spec": launch_spec(run=name, chip=number).to_json()}
        (paths.unit_dir(name) / "launch.json").write_text(json.dumps(launch))
    monkeypatch.setattr(run_start, "active_runs", lambda: ["early", "late"])
    monkeypatch.setattr(run_start, "holders", lambda glob, chip: ["python (pid 7) holds it"])

    error = run_start.held_device(process(chip=chip), "/dev/accel*", paths)

    assert error.startswith(
        f"run {expected_run} holds the devices (python (pid 7) holds it). Stop it"
    )


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    """Python code that starts a process in another session; that process keeps stdout open."""
    monkeypatch.setattr(user_process, "USER", USER)
    file = tmp_path / "pid"
    yield (
        "import subprocess, time; child = subprocess.Popen(['sleep', '60'], start_new_session=True)"
        f"; open({str(file)!r}, 'w').write(str(child.pid)); "
    )
    os.kill(int(file.read_text()), signal.SIGKILL)


def test_the_end_of_the_output_is_returned_when_the_command_exits(daemon):
    command = [sys.executable, "-c", f"{daemon}print('x' * (2 << 20)); print('end')"]

    result = run_as_user(command, dict(os.environ), 30)

    assert (result.returncode, len(result.stdout)) == (0, MAX_OUTPUT_BYTES)
    assert result.stdout.endswith("x\nend\n")


def test_a_command_that_takes_too_long_is_killed(daemon):
    command = [sys.executable, "-c", f"{daemon}time.sleep(60)"]

    with pytest.raises(subprocess.TimeoutExpired):
        run_as_user(command, dict(os.environ), 2)


def test_a_dry_run_starts_nothing_and_reports_whether_the_release_is_missing(worker):
    present = worker.run(check=True)
    missing = worker.run(check=True, release="f" * 16)

    assert (present["output"], present["release_is_missing"]) == ([], False)
    assert missing["release_is_missing"]
    assert not worker.state.exists()


def test_a_missing_environment_is_an_error_with_the_command_that_creates_it(worker):
    result = worker.run(requirements="cd" * 32)

    assert result["msg"] == (
        "the Python environment of run mine is missing. Create it: ansible-playbook setup.yml"
    )
