"""The unit's program: an attempt starts and ends on all workers together.

Each worker is a real process of the program ``attempt``, on loopback."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.contract import (
    ATTEMPT_PORTS,
    rendezvous_port,
)

from harness.unit_program import unit_program
from harness.valid_record import launch_spec
from tests.localcloud.api.local_api import wait_for

NAMES = ["pod-w0", "pod-w1", "pod-w2"]
TOUCH = "import pathlib, time; pathlib.Path('began').touch(); {}"
STAY = TOUCH.format("time.sleep(60)")
SAVE = (
    "import pathlib, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
    "pathlib.Path('began').touch()\n"
    "time.sleep(60)"
)
CRASH_ON_GO = (
    "import pathlib, sys, time\n"
    "pathlib.Path('began').touch()\n"
    "while not pathlib.Path('go').exists(): time.sleep(0.05)\n"
    "sys.exit(1)"
)
RELEASE = launch_spec().release
ALONE = {"TPUFLEET_RENDEZVOUS_TOKEN": ""}
"""The environment of a process that needs no rendezvous."""


@pytest.fixture
def attempt() -> int:
    """The number of an attempt. It determines the rendezvous port, which is free."""
    numbers = random.sample(range(ATTEMPT_PORTS), ATTEMPT_PORTS)
    return next(number for number in numbers if is_free(rendezvous_port(number)))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


class Workers:
    """Processes of one attempt; the trainer of each is a short Python program."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self.folder, self.attempt = folder, attempt
        self.started: dict[int, subprocess.Popen[bytes]] = {}

    def start(
        self,
        number: int,
        program: str,
        inside: tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
        python_env: str = "e",
        launch: str = "",
        **differs: Any,
    ) -> None:
        """Start the program of a worker's unit.

        Args:
            number: the worker's number.
            program: the trainer, as Python code.
            inside: a command that runs the unit's program, such as ``unshare``; empty for none.
            environ: additional environment variables of the unit's program.
            python_env: the name of the Python environment in launch.json.
            launch: the content of launch.json; if empty, it is made from the other arguments.
            differs: fields that replace those of the launch.
        """
        home = self.folder / str(number)
        spec = launch_spec(
            **{
                "attempt": self.attempt,
                "workers": 3,
                "coordinator_host": "127.0.0.1",
                "placement": NAMES if number == 0 else NAMES[:1],
                "rendezvous_seconds": 15,
                "command": [sys.executable, "-c", program],
            }
            | differs
        )
        command, variables = unit_program(home, spec, number, python_env, launch)
        self.started[number] = subprocess.Popen(
            [*inside, *command],
            env=variables | {"TPUFLEET_RENDEZVOUS_TOKEN": "secret"} | dict(environ or {}),
            stdin=subprocess.DEVNULL,
        )

    def code(self, number: int) -> int:
        return self.started[number].wait(60)

    def began(self, number: int) -> bool:
        return self.home(number, "began").exists()

    def home(self, number: int, name: str) -> Path:
        """Return a path in the directory in which the trainer is started."""
        return self.folder / str(number) / "releases" / RELEASE / name

    def all_began(self) -> None:
        wait_for(lambda: all(self.began(number) for number in self.started))

    def report(self, number: int) -> dict:
        path = self.folder / str(number) / "run/rendezvous.json"
        return json.loads(path.read_text()) if path.exists() else {}


@pytest.fixture
def workers(tmp_path, attempt):
    started_workers = Workers(tmp_path, attempt)
    yield started_workers
    for process in started_workers.started.values():
        if process.poll() is None:
            process.kill()
            process.wait()


def trainer_of(process: subprocess.Popen[bytes]) -> int:
    """Return the PID of a unit's trainer."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0])


def stop(workers: Workers) -> None:
    """Send SIGTERM to the units and their trainers, as systemd does."""
    trainers = [trainer_of(process) for process in workers.started.values()]
    for process in workers.started.values():
        process.terminate()
    for trainer in trainers:
        os.kill(trainer, signal.SIGTERM)


def test_if_worker_0_is_missing_none_starts_and_it_is_named(workers):
    workers.start(1, TOUCH.format(""), rendezvous_seconds=1)

    assert workers.code(1) == 76
    assert "cannot connect to pod-w0 (127.0.0.1:" in workers.report(1)["error"]


@pytest.mark.parametrize(
    ("differs", "difference"),
    [
        ({"release": "f" * 16}, f"release: pod-w1 has {'f' * 16}, pod-w0 has {RELEASE}"),
        ({"python_env": "other"}, "environment: pod-w1 has other, pod-w0 has e"),
        ({"run": "yours"}, "run: pod-w1 has yours, pod-w0 has mine"),
    ],
)
def test_a_worker_with_a_different_launch_prevents_the_start_of_all_workers(
    workers, differs, difference
):
    workers.start(0, TOUCH.format(""))
    workers.start(1, TOUCH.format(""), **differs)

    assert [workers.code(0), workers.code(1)] == [76, 76]
    assert (
        workers.report(0)["error"]
        == workers.report(1)["error"]
        == f"the workers differ in {difference}"
    )


def test_a_worker_without_the_token_counts_as_missing_and_then_none_starts_and_all_name_it(workers):
    for number, token in enumerate(("secret", "guess", "secret")):
        environ = {"TPUFLEET_RENDEZVOUS_TOKEN": token}
        workers.start(number, TOUCH.format(""), rendezvous_seconds=3, environ=environ)

    assert [workers.code(0), workers.code(2)] == [76, 76]
    assert workers.report(0)["error"] == workers.report(2)["error"] == "pod-w1 did not arrive"
    assert not any(workers.began(number) for number in range(3))


needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason="it needs root, to mount")


@pytest.fixture
def shared(tmp_path):
    """A checkpoint path below a shared directory; the directory of the run does not exist yet."""
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared/checkpoints/mine"


def unshared(shared: Path) -> dict[str, Any]:
    """Return the fields of a launch whose checkpoint directory must be proven to be shared."""
    return {"checkpoints": str(shared), "volatile_checkpoints": False}


def with_own_directory(folder: Path, shared: Path) -> tuple[str, ...]:
    """Return a command prefix that mounts a private directory over the shared one."""
    own_dir = folder / "own"
    own_dir.mkdir(parents=True, exist_ok=True)
    mount = f'mount --bind {own_dir} {shared.parent.parent} && exec "$@"'
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh")


@needs_mounts
@pytest.mark.parametrize("apart", [(1,), (1, 2)])
def test_no_worker_starts_if_the_checkpoints_are_not_shared(workers, shared, tmp_path, apart):
    for number in range(3):
        workers.start(
            number,
            TOUCH.format(""),
            with_own_directory(tmp_path / f"disk{number}", shared) if number in apart else (),
            **unshared(shared),
            environ={"TPUFLEET_RENDEZVOUS_SHARED_SECONDS": "0.5"},
        )

    assert [workers.code(number) for number in range(3)] == [78, 78, 78]
    assert not any(workers.began(number) for number in range(3))
    names = ", ".join(f"pod-w{number}" for number in apart)
    for number in range(3):
        report = workers.report(number)
        assert report["reason"] == "checkpoints_not_shared"
        assert f"{shared} is not the same directory on {names} as on pod-w0" in report["error"]
        assert "-e bucket=gs://" in report["error"]
    assert not list(shared.parent.parent.iterdir())


def test_workers_that_share_their_checkpoints_start_when_all_have_arrived(workers, shared):
    for number in (2, 0):
        workers.start(number, TOUCH.format(""), **unshared(shared))
    wait_for(lambda: workers.report(0).get("waiting_for") == ["pod-w1"])
    assert not workers.began(0)
    assert not workers.began(2)

    workers.start(1, TOUCH.format(""), **unshared(shared))

    assert [workers.code(number) for number in range(3)] == [0, 0, 0]
    workers.all_began()
    # Worker 0 has removed the file that it wrote to check that the directory is shared.
    assert not list(shared.parent.parent.iterdir())


@needs_mounts
def test_a_worker_that_dies_during_the_check_prevents_the_start(workers, shared, tmp_path):
    for number in range(3):
        workers.start(
            number,
            TOUCH.format(""),
            with_own_directory(tmp_path / "disk", shared) if number == 2 else (),
            **unshared(shared),
            environ={"TPUFLEET_RENDEZVOUS_SHARED_SECONDS": "60"},
        )
    # Wait until worker 0 has written the file that the other workers look for.
    wait_for(lambda: list(shared.parent.parent.iterdir()))

    workers.started[2].kill()

    assert [workers.code(0), workers.code(1)] == [76, 76]
    assert workers.report(1)["error"] == "lost the connection to pod-w2"


def test_the_token_is_not_in_the_trainer_s_environment(workers):
    program = "import os, sys; sys.exit(any('RENDEZVOUS' in name for name in os.environ))"

    workers.start(0, program, workers=1, placement=NAMES[:1])

    assert workers.code(0) == 0


def test_secrets_reach_a_trainer_through_a_shell_wrapper_but_no_command_line(workers, tmp_path):
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    secrets = {"KEY": "sesame", "TPUFLEET_RUN": "other", "LD_PRELOAD": "/x.so"}
    (credentials / "secrets").write_text(json.dumps(secrets))
    inner = "import json, os; print(json.dumps(dict(os.environ)))"
    wrapper = (
        f"import subprocess, sys; open('env', 'w').write(subprocess.check_output("
        f"['sh', '-c', 'exec \"$0\" -c \"$1\"', sys.executable, {inner!r}], text=True))"
    )
    workers.start(0, wrapper, environ={**ALONE, "CREDENTIALS_DIRECTORY": str(credentials)})
    assert workers.code(0) == 0

    variables = json.loads((workers.home(0, "env")).read_text())
    assert (variables["KEY"], variables["TPUFLEET_RUN"]) == ("sesame", "mine")
    assert "LD_PRELOAD" not in variables


@pytest.mark.skipif(os.geteuid() != 0, reason="only root enters an image without its unit")
def test_an_image_cannot_hide_the_secrets_of_its_run(workers, tmp_path):
    (tmp_path / "secrets").write_text('{"KEY": "sesame"}')
    image = f"docker.io/library/x@sha256:{'ab' * 32}"
    command = [sys.executable, "-c", "import os, sys; sys.exit(os.environ.get('KEY') != 'sesame')"]
    spec = launch_spec(image=image, command=command, starts_in_image=True).to_json()
    of_image = {"root": "/", "directory": "/", "env": {"CREDENTIALS_DIRECTORY": "/no-such"}}
    launch = {"spec": spec, "process_id": 0, "python_env": "e", "image": of_image}

    workers.start(
        0,
        "",
        environ={**ALONE, "CREDENTIALS_DIRECTORY": str(tmp_path)},
        launch=json.dumps(launch),
    )

    assert workers.code(0) == 0, (tmp_path / "0/run/log").read_text()


def test_modules_on_the_trainers_path_do_not_replace_those_of_the_unit(workers, tmp_path):
    for name in ("json", "worker", "attempt_rendezvous"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        (tmp_path / "mine" / name / "__init__.py").write_text("raise SystemExit(42)\n")
    path = str(tmp_path / "mine")

    workers.start(
        0,
        f"import os, sys; sys.exit(os.environ['PYTHONPATH'] != {path!r})",
        environ={**ALONE, "PYTHONPATH": path},
    )

    assert workers.code(0) == 0


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"spec": {"run": 1}}', "[" * 100000])
def test_a_launch_that_cannot_be_read_is_explained_in_the_log(workers, content):
    workers.start(0, TOUCH.format(""), environ=ALONE, launch=content)

    assert workers.code(0) == 1
    log = (workers.folder / "0/run/log").read_text()
    assert "etc/runs/mine/launch.json: cannot be read" in log
    assert "Launch the run again: ansible-playbook train.yml -e run=mine" in log


@pytest.mark.parametrize("failing", [0, 1])
def test_a_trainer_that_crashes_ends_the_others_and_is_named_by_them(workers, failing):
    for number in range(3):
        crash = TOUCH.format("time.sleep(1); raise SystemExit(9)")
        workers.start(number, crash if number == failing else STAY)

    others = [number for number in range(3) if number != failing]
    assert workers.code(failing) == 9
    assert [workers.code(number) for number in others] == [77, 77]
    for number in others:
        report = workers.report(number)
        assert (report["peer"], report["peer_exit_code"]) == (f"pod-w{failing}", 9)


def test_a_worker_that_is_killed_outright_ends_the_others(workers):
    for number in range(3):
        workers.start(number, STAY)
    workers.all_began()

    workers.started[1].kill()

    assert [workers.code(0), workers.code(2)] == [77, 77]
    report = workers.report(2)
    assert (report["peer"], report["peer_exit_code"]) == ("pod-w1", None)


@pytest.mark.parametrize("code", ["75", "0"])
def test_a_trainer_that_saves_or_exits_with_0_when_a_peer_ends_is_interrupted(workers, code):
    for number in range(3):
        workers.start(number, CRASH_ON_GO if number == 1 else SAVE.replace("75", code))
    workers.all_began()
    workers.home(1, "go").touch()

    assert [workers.code(number) for number in (0, 1, 2)] == [75, 1, 75]


def test_stopped_workers_report_the_exit_of_their_own_trainer(workers):
    """Worker 0's trainer ends last, after its unit has learned that the other trainers ended."""
    late = (
        "import pathlib, signal, time\n"
        "def end(*_):\n"
        "    time.sleep(1.5)\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path('began').touch()\n"
        "time.sleep(60)"
    )
    for number in range(3):
        workers.start(number, late if number == 0 else STAY)
    workers.all_began()

    stop(workers)

    assert [workers.code(number) for number in range(3)] == [-signal.SIGTERM] * 3


def test_a_trainer_that_exits_with_0_after_sigterm_is_interrupted_and_not_done(workers):
    workers.start(0, SAVE.replace("75", "0"), environ=ALONE)
    workers.all_began()

    stop(workers)

    assert workers.code(0) == 75


def test_a_trainer_that_is_done_leaves_the_others_alone(workers):
    for number in range(3):
        workers.start(number, TOUCH.format("" if number == 0 else "time.sleep(2)"))

    assert [workers.code(number) for number in range(3)] == [0, 0, 0]


def test_a_unit_ends_with_the_signal_that_ended_its_trainer(workers):
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    workers.start(0, crash, environ=ALONE)

    assert workers.code(0) == -signal.SIGSEGV


def test_sigterm_during_the_rendezvous_ends_the_wait(workers):
    workers.start(0, STAY)
    wait_for(lambda: workers.report(0))

    workers.started[0].terminate()

    assert workers.code(0) == 75
    assert not workers.began(0)
