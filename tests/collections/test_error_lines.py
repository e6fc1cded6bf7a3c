"""Every bad input is answered in three lines at the most: what, what was seen, the command.

Each case takes the words from the code that says them to a person, and shows them as the terminal
view does. What a wrapper that swallows TERM leaves is no error (tests/journey/test_kill.py), and
an interval can't overlap itself (test_run_schedule.py).
"""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.tpufleet.core.plugins.filter.runs import (
    attempt_words,
    launch_verdict,
    run_env,
    wait_outcome,
)
from ansible_collections.tpufleet.core.plugins.module_utils import run_checkpoints, run_unit
from ansible_collections.tpufleet.core.plugins.module_utils.fleet import expand
from ansible_collections.tpufleet.core.plugins.module_utils.python_env import EnvError, check_room
from ansible_collections.tpufleet.core.plugins.module_utils.release import ReleaseError
from ansible_collections.tpufleet.core.plugins.module_utils.run import (
    Places,
    RunError,
    command_words,
    state_in_words,
)
from ansible_collections.tpufleet.core.plugins.module_utils.run_plan import (
    Worker,
    find_config,
    parts,
    read_config,
    run_name,
    words,
)
from ansible_collections.tpufleet.core.plugins.module_utils.run_schedule import (
    ScheduleError,
    check,
)
from ansible_collections.tpufleet.core.plugins.module_utils.run_sweep import assigned, read_sweep
from ansible_collections.tpufleet.core.plugins.module_utils.tpu_api import ApiSettings, TpuApi
from ansible_collections.tpufleet.core.plugins.module_utils.tpu_errors import TpuApiError
from ansible_collections.tpufleet.core.plugins.module_utils.wheels import download
from ansible_collections.tpufleet.core.plugins.modules.python_toolchain import install_python
from ansible_collections.tpufleet.core.plugins.modules.run import mortal
from ansible_collections.tpufleet.core.plugins.plugin_utils.task_tally import (
    Failure,
    failure_lines,
    failure_text,
)

from tests.collections.modules.test_run_launch import LAUNCH
from tests.collections.running_modules import run_module
from tests.collections.scripted_api import Say, error
from tests.collections.test_bad_input import refusing
from tests.collections.test_fleet import DEMO
from tests.collections.test_inventory import ROOT
from tests.collections.test_playbooks import environment_of, play
from tests.collections.view.conftest import Stage
from tests.localcloud.api.local_api import LocalApi
from tests.train.trainer_processes import clean_environment

AT_MOST = 3
COMMAND = re.compile(
    r"(?:ansible-playbook (?:-\S+ \S+ )*(?:playbooks/)?\w+\.yml"
    r"|ansible [\w-]+ -"
    r"|ansible-inventory -"
    r"|gcloud [a-z]+"
    r"|python -m (?:train|localcloud) (?:--name \S+ )?\w+"
    r"|make env)"
)
SAYS_WHY = (
    AnsibleFilterError,
    EnvError,
    ReleaseError,
    RunError,
    ScheduleError,
    TpuApiError,
)
#: What a person typed or has, by what was wrong with it: the thing's name, and who says so.
CASES: dict[str, tuple[str, Callable[["Bad"], str]]] = {}


class Bad:
    """What the cases make their bad input of."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.folder: Path = request.getfixturevalue("tmp_path")
        self._fixture = request.getfixturevalue

    @property
    def cloud(self) -> LocalApi:
        return self._fixture("local_api")

    @property
    def scripted(self):
        return self._fixture("scripted")

    def file(self, text: str, name: str = "mine.yml") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def create(self, **change: str) -> str:
        """Ask the local cloud for a TPU as create.yml does, but for what is wrong."""
        cloud = self.cloud
        api = {
            "project": "local-fleet",
            "endpoint": cloud.endpoint,
            "credentials_file": str(cloud.credentials_file),
        }
        return failed(run_module("tpu_node", api=api | change.pop("api", {}), **DEMO | change))

    def train(self, *given: str) -> str:
        """Run the trainer by hand."""
        done = subprocess.run(
            [sys.executable, "-m", "train", "run", *given],
            cwd=ROOT,
            env=clean_environment() | {"TPUFLEET_RUN_DIR": str(self.folder / "run")},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        return done.stderr


def case(thing: str):
    def keep(tell: Callable[[Bad], str]) -> Callable[[Bad], str]:
        CASES[tell.__name__] = (thing, tell)
        return tell

    return keep


def failed(result: Mapping[str, Any]) -> str:
    """Show a module's failure as the view does, on the worker's own lines."""
    assert result.get("failed"), result
    return shown(failure_text(result))


def shown(text: str) -> str:
    return "\n".join(failure_lines([Failure("Do it", "pod-w1", "failed", text)]))


def refused(tell: Callable[..., object], *words: Any, **more: Any) -> str:
    """Show what a function of a module or an action plugin refuses."""
    with pytest.raises(SAYS_WHY) as caught:
        tell(*words, **more)
    return shown(str(caught.value))


def nowhere() -> str:
    """An address on loopback at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def viewed(said: str) -> str:
    """Keep of a playbook's output its failures, which stand before the recap."""
    lines = said.splitlines()
    first = next(n for n, line in enumerate(lines) if re.match("FAILED|UNREACHABLE", line))
    last = next(n for n, line in enumerate(lines) if n > first and re.match(r"\S+ : ok=", line))
    return "\n".join(lines[first:last])


# --- the cloud ------------------------------------------------------------------------------------


@case("mine")
def wrong_project(bad: Bad) -> str:
    words = "Permission denied on resource project mine"
    bad.scripted.answerer = refusing(403, words, zones_too=False, zone_is=False)
    return failed(run_module("tpu_node", api=bad.scripted.api, **DEMO))


@case("YOUR-PROJECT")
def project_not_filled_in(bad: Bad) -> str:
    return failed(run_module("tpu_node", api={"project": "YOUR-PROJECT"}, **DEMO))


@case("us-east9-z")
def wrong_zone(bad: Bad) -> str:
    return bad.create(zone="us-east9-z")


@case("us-central2")
def region_for_a_zone(bad: Bad) -> str:
    return refused(expand, [DEMO | {"zone": "us-central2"}])


@case("v4-17")
def wrong_type(bad: Bad) -> str:
    return bad.create(accelerator_type="v4-17")


@case("ubuntu")
def wrong_runtime(bad: Bad) -> str:
    return bad.create(runtime_version="ubuntu")


@case("'Demo'")
def wrong_name(bad: Bad) -> str:
    return refused(expand, [DEMO | {"name": "Demo"}])


@case("acelerator_type")
def unknown_key_of_the_fleet(bad: Bad) -> str:
    return refused(expand, [DEMO | {"acelerator_type": "v4-8"}])


@case("credentials")
def expired_credentials(bad: Bad) -> str:
    bad.scripted.answerer = lambda asked: error(401, "expired")
    return failed(run_module("tpu_node", api=bad.scripted.api, **DEMO))


@case("none.json")
def missing_credentials(bad: Bad) -> str:
    api = bad.scripted.api | {"credentials_file": str(bad.folder / "none.json")}
    return failed(run_module("tpu_node", api=api, **DEMO))


@case("no answer from")
def api_that_is_down(bad: Bad) -> str:
    environment = environment_of(bad.cloud)
    (bad.cloud.state / "endpoint").write_text(nowhere())
    said = play(environment, "playbooks/plan.yml").stderr
    return "\n".join(line for line in said.splitlines() if line.strip())


@case("us-east1-d")
def zone_that_does_not_answer(bad: Bad) -> str:
    bad.scripted.script = [Say({"nodes": [], "unreachable": ["us-east1-d"]})]
    return refused(TpuApi(ApiSettings.of(bad.scripted.api)).list_nodes)


# --- a worker made ready --------------------------------------------------------------------------


@case("Mars/Olympus")
def wrong_time_zone(bad: Bad) -> str:
    return failed(run_module("host_clock", check=True, timezone="Mars/Olympus"))


@case("nosuch")
def package_that_does_not_exist(bad: Bad) -> str:
    """The role's own answer to the words that ansible.builtin.apt has for it."""
    tasks = yaml.safe_load((ROOT / "roles/base/tasks/main.yml").read_text())
    [says] = [task for task in tasks if task["name"].startswith("Say why the packages")]
    words = json.dumps({"__base_installed": {"msg": "No package matching 'nosuch' is available"}})
    told = Stage(bad.folder).play(
        yaml.safe_dump([says], width=1000), "--limit", "pod-w1", "-e", words
    )
    return viewed(told.text)


@case("apple==1.0")
def requirement_that_does_not_exist(bad: Bad) -> str:
    return wheels(bad, {"PIP_NO_INDEX": "1"})


@case("apple")
def index_that_is_down(bad: Bad) -> str:
    return wheels(bad, {"UV_INDEX_URL": f"{nowhere()}/simple", "PIP_RETRIES": "0"})


def wheels(bad: Bad, env: Mapping[str, str]) -> str:
    lock = f"apple==1.0 --hash=sha256:{'0' * 64}\n"
    home = bad.folder / "pip"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    return refused(download, bad.folder / "wheels/a", lock, [str(home / "bin/pip")], env)


@case("/")
def disk_with_no_room(bad: Bad) -> str:
    return refused(check_room, Path("/nowhere"), 10**12)


@case("Python")
def python_too_old_and_its_mirror_down(bad: Bad) -> str:
    uv = Path(sys.prefix) / "bin/uv"
    return refused(install_python, uv, bad.folder, "3.12", nowhere(), {"UV_HTTP_RETRIES": "0"})


@case("elsewhere")
def nfs_server_that_is_no_host(bad: Bad) -> str:
    tasks = yaml.safe_load((ROOT / "roles/nfs/tasks/main.yml").read_text())
    first = yaml.safe_dump(tasks[:1], width=1000)
    words = ("--limit", "pod-w1", "-e", "nfs_server=elsewhere", "-e", "nfs_path=/mnt/shared")
    return viewed(Stage(bad.folder).play(first, *words).text)


@case("pod-w1")
def worker_that_is_down(bad: Bad) -> str:
    stage = Stage(bad.folder)
    port = nowhere().rpartition(":")[2]
    hosts = f"pod-w1 ansible_host=127.0.0.1 ansible_port={port} tpu_name=pod\n"
    (bad.folder / "hosts.ini").write_text(hosts)
    return viewed(stage.play("- name: Ask\n  ansible.builtin.ping:\n").text)


# --- runs -----------------------------------------------------------------------------------------


@case("mine.yml")
def missing_config(bad: Bad) -> str:
    return refused(find_config, "mine.yml", [bad.folder])


@case("line 2")
def config_that_is_no_yaml(bad: Bad) -> str:
    return refused(read_config, bad.file("steps: [\n"), strict=True)


@case("mine.yml")
def config_without_settings(bad: Bad) -> str:
    return refused(read_config, bad.file("- a\n"), strict=True)


@case("'steps'")
def override_that_is_none(bad: Bad) -> str:
    return refused(words, None, "steps")


@case("'a b/c'")
def run_name_with_odd_characters(bad: Bad) -> str:
    return refused(run_name, "a b/c", None, ())


@case("line 3")
def sweep_with_a_mistake(bad: Bad) -> str:
    return refused(read_sweep, bad.file("- set: {seed: 1}\n- name: b\n  sett: {seed: 2}\n"))


@case("mine.yml")
def sweep_that_is_no_list(bad: Bad) -> str:
    return refused(read_sweep, bad.file("set: {seed: 1}\n"))


@case("2 runs")
def sweep_with_more_runs_than_tpus(bad: Bad) -> str:
    file = bad.file("- set: {seed: 1}\n- set: {seed: 2}\n")
    return refused(assigned, read_sweep(file), ["pod"], file)


@case("READY")
def no_worker_to_run_on(bad: Bad) -> str:
    return refused(parts, [], "mine")


@case("pod")
def part_of_a_slice(bad: Bad) -> str:
    return refused(parts, [Worker("pod-w0", "pod", 0, 2, "10.0.0.2")], "mine")


@case("env")
def environment_that_cannot_be_read(bad: Bad) -> str:
    return refused(run_env, ["A B"])


@case("command")
def command_that_is_no_words(bad: Bad) -> str:
    return refused(command_words, "python 'x")


def ended(run: str, status: str, log: str) -> str:
    """Say how an attempt ended on a worker, as train.yml does at its end."""
    end = {"status": status, "code": "exited", "result": "exit-code", "time": 7.0}
    state = state_in_words({"ActiveState": "failed"}, None, end)
    info = {"active": False, "state": state, "heartbeat": None, "exit": end, "log": [log]}
    answers = {"pod-w1": {"info": info}}
    return shown(attempt_words(wait_outcome(answers), run, answers))


@case("pod-w1")
def command_that_does_not_exist(bad: Bad) -> str:
    place = bad.folder / "runs/mine"
    place.mkdir(parents=True)
    command = {"argv": ["no-such-program"], "cwd": str(bad.folder), "run_dir": str(bad.folder)}
    (place / "command").write_text(json.dumps(command))
    done = subprocess.run(
        [sys.executable, str(ROOT / "roles/run/files/attempt"), "begin", "mine"],
        env={
            "PATH": os.environ["PATH"],
            "TPUFLEET_ETC": str(bad.folder),
            "TPUFLEET_RUN": "mine",
            "TPUFLEET_ATTEMPT": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    log = (bad.folder / "log").read_text()
    assert done.returncode != 0
    return ended("mine", str(done.returncode), log.splitlines()[-1])


@case("pod-w1")
def bad_config_on_the_workers(bad: Bad) -> str:
    said = bad.train(str(bad.file("stepz: 1\n"))).splitlines()[-1]
    return ended("mine", "2", said)


@case("pod-w1")
def worker_that_is_down_at_launch(bad: Bad) -> str:
    part = {"run": "mine", "process_id": 1, "tpu": "pod"}
    said = "Failed to connect to the host via ssh: ssh: connect to host 10.0.0.3 port 22: refused"
    verdict = launch_verdict({"pod-w1": {"unreachable": True, "msg": said}}, {"pod-w1": part})
    return shown(f"nothing of run mine was started: {verdict['problems']['mine'][0]}")


@case("rrrrrrrrrrrrrrrr")
def release_that_fails_its_manifest(bad: Bad) -> str:
    places = Places(bad.folder, bad.folder, bad.folder)
    places.release(LAUNCH.release).mkdir(parents=True)
    return shown(run_unit.release_trouble(LAUNCH, places))


@case("other")
def worker_that_another_run_holds(bad: Bad) -> str:
    places = Places(bad.folder, bad.folder, bad.folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_unit, "active_runs", lambda: ["other"])
        patch.setattr(run_unit, "unit_state", lambda run: {"ActiveState": "active"})
        patch.setattr(run_unit.run_checkpoints, "trouble", lambda *_: None)
        patch.setattr(run_unit, "read_certificate", lambda root: {})
        patch.setattr(run_unit, "is_complete", lambda env: True)
        return shown("; ".join(run_unit.obstacles(LAUNCH, places)))


@case("checkpoints")
def checkpoints_that_die_with_the_leader(bad: Bad) -> str:
    params = {"mortal": True, "checkpoints": "/opt", "coordinator": "10.0.0.2:8479"}
    return shown("; ".join(mortal(params)))


@case("gs://fleet/a")
def bucket_without_the_right_to_write(bad: Bad) -> str:
    bad.scripted.answerer = lambda asked: error(403, "no storage.objects.create access")
    emulator = {"STORAGE_EMULATOR_HOST": bad.scripted.endpoint}
    return shown(run_checkpoints.trouble("gs://fleet/a", emulator) or "")


@case("'soon'")
def schedule_that_makes_no_sense(bad: Bad) -> str:
    return refused(check, "watch", "", "", "soon")


@case("watch")
def schedule_with_two_times(bad: Bad) -> str:
    return refused(check, "watch", "", "2026-12-31 18:00", "1m")


# --- the trainer ----------------------------------------------------------------------------------


@case("stepz")
def unknown_key(bad: Bad) -> str:
    return bad.train(str(bad.file("stepz: 1\n")))


@case("data: short")
def corpus_shorter_than_a_window(bad: Bad) -> str:
    return bad.train(*short(bad), "model.context=4096")


@case("model.vocabulary")
def vocabulary_that_does_not_fit(bad: Bad) -> str:
    return bad.train(*short(bad), "model.context=8", "model.vocabulary=3")


@case("batch")
def batch_that_is_not_divisible(bad: Bad) -> str:
    return bad.train(*short(bad), "model.context=8", "batch=3", "compute.accumulate=2")


@case("/dev/null/c")
def checkpoints_that_cannot_be_written(bad: Bad) -> str:
    return bad.train(*short(bad), "model.context=8", "checkpoint.directory=/dev/null/c")


def short(bad: Bad) -> list[str]:
    text = bad.file("a few words, " * 9, "short.txt")
    return [
        str(bad.file("steps: 1\n")),
        f"data.text={text}",
        f"data.directory={bad.folder}/data",
        "evaluate.every=0",
    ]


# --- the bar --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_three_lines_name_the_thing_and_the_command(name: str, request: pytest.FixtureRequest):
    thing, tell = CASES[name]
    said = tell(Bad(request))
    assert 1 <= len(said.splitlines()) <= AT_MOST, said
    assert thing in said
    assert COMMAND.search(said), said
    assert "Traceback" not in said
