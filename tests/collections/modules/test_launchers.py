"""The program tpufleet_launch with JAX, PyTorch and PyTorch/XLA trainers, as real processes."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.playbooks import ROOT
from harness.scripted_api import Reply, Request, error
from tests.localcloud.api.local_api import wait_for

sys.path.insert(0, str(ROOT / "roles/run/files"))
from launch_torch import Placement
from launch_torch_tpu import torch_tpu_variables

LAUNCH = (sys.executable, "-I", str(ROOT / "roles/run/files/tpufleet_launch"))
"""The command in the first line (shebang) of the program."""
SHOW_ENVIRONMENT = """
import json, os, pathlib
pathlib.Path(os.environ["RANK"]).write_text(json.dumps(dict(os.environ)))
"""
COUNT_TERM = """
import os, pathlib, signal, sys, time
count = 0
def note(*_):
    global count
    count += 1
signal.signal(signal.SIGTERM, note)
rank = os.environ["RANK"]
pathlib.Path(rank).touch()
while not count:
    time.sleep(0.05)
time.sleep(2)  # a second TERM would arrive now
pathlib.Path("terms-" + rank).write_text(str(count))
sys.exit(75)
"""
EXITS = """
import os, signal, sys, time
code = int(sys.argv[1 + int(os.environ["RANK"])])
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
JAX_TRAINER = """
import json, pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
import jax
import neighbour
from jax.experimental.multihost_utils import process_allgather
total = process_allgather(jax.numpy.ones(1) + jax.process_index()).sum()
found = [__name__, sys.argv[1:], jax.process_count(), float(total), neighbour.__file__]
path = pathlib.Path("found-%d" % jax.process_index())
path.with_suffix(".new").write_text(json.dumps(found))
path.with_suffix(".new").rename(path)
signal.pause()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def contract(workers: int = 1, worker: int = 0, port: int = 0) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "TPUFLEET_COORDINATOR": f"127.0.0.1:{port or 8476}",
        "TPUFLEET_NUM_PROCESSES": str(workers),
        "TPUFLEET_PROCESS_ID": str(worker),
    }


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of a test; their process groups are killed after it."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        finally:
            process.communicate()


def launch(
    folder: Path, *arguments: str, environ: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*LAUNCH, *arguments],
        cwd=folder,
        env=contract() if environ is None else environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=90)
    return process.returncode, out, errors


@pytest.mark.parametrize(
    ("variables", "device"),
    [
        ({}, "CPU"),
        ({"TPU_VISIBLE_CHIPS": "0"}, "TPU"),
        ({"TPU_VISIBLE_CHIPS": "0", "JAX_PLATFORMS": "cpu"}, "CPU"),
        ({"TPU_VISIBLE_CHIPS": "0", "PJRT_DEVICE": "CPU"}, "CPU"),
    ],
)
def test_xla_sets_the_device_and_is_replaced_by_the_command(tmp_path, variables, device):
    program = "import os, sys; print(os.getpid(), os.environ['PJRT_DEVICE'], *sys.argv[1:])"
    arguments = ("xla", "--", "python", "-c", program, "--", "a b")

    process = launch(tmp_path, *arguments, environ=contract() | variables)

    assert ended(process) == (0, f"{process.pid} {device} -- a b\n", "")


@pytest.mark.parametrize(
    ("environment", "appended"), [({}, ""), ({"LD_LIBRARY_PATH": "/a"}, ":/a")]
)
def test_xla_lets_the_loader_find_the_library_of_uv_s_python(tmp_path, environment, appended):
    (tmp_path / "uv/bin").mkdir(parents=True)
    (tmp_path / "uv/bin/python3.12").touch()
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").symlink_to(tmp_path / "uv/bin/python3.12")
    environ = contract() | environment | {"VIRTUAL_ENV": str(tmp_path / "env")}
    show = ("xla", "--", "sh", "-c", "echo $LD_LIBRARY_PATH")

    without = ended(launch(tmp_path, *show, environ=environ))
    (tmp_path / "uv/lib").mkdir()
    (tmp_path / "uv/lib/libpython3.12.so.1.0").touch()
    beside = ended(launch(tmp_path, *show, environ=environ))

    assert without == (0, f"{appended[1:]}\n", "")
    assert beside == (0, f"{tmp_path}/uv/lib{appended}\n", "")


def test_jax_connects_the_processes_before_a_trainer_starts_as_a_module_or_a_script(
    tmp_path, started
):
    folders = (tmp_path, tmp_path / "sub")
    for folder in folders:
        folder.mkdir(exist_ok=True)
        (folder / "trainer.py").write_text(JAX_TRAINER)
        (folder / "neighbour.py").touch()
    port = free_port()
    on_cpu = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_PREEMPTION_SERVICE": "false"}
    for worker, program in enumerate((("-m", "trainer"), ("-X", "dev", "-u", "sub/trainer.py"))):
        command = ("jax", "--", "python", *program, "--steps", "3")
        started.append(launch(tmp_path, *command, environ=contract(2, worker, port) | on_cpu))
    files = [tmp_path / f"found-{worker}" for worker in range(2)]
    wait_for(lambda: all(file.exists() for file in files))
    for process in started:
        process.terminate()

    for process, file, folder in zip(started, files, folders, strict=True):
        code, _, errors = ended(process)
        assert code == 75, errors
        *found, neighbour = json.loads(file.read_text())
        assert found == ["__main__", ["--steps", "3"], 2, 3.0]
        assert neighbour == str(folder / "neighbour.py")


def test_an_exception_in_one_jax_process_ends_it_while_the_others_wait_for_it(tmp_path, started):
    (tmp_path / "trainer.py").write_text(
        "import jax\n"
        "from jax.experimental.multihost_utils import process_allgather\n"
        "if jax.process_index() == 1:\n"
        "    raise ValueError('the shapes differ')\n"
        "process_allgather(jax.numpy.ones(1))\n"
    )
    port = free_port()
    for worker in range(2):
        environ = contract(2, worker, port) | {"JAX_PLATFORMS": "cpu"}
        command = ("jax", "--", "python", "trainer.py")
        started.append(launch(tmp_path, *command, environ=environ))

    _, errors = started[1].communicate(timeout=120)  # less than the 300 s of JAX's shutdown barrier

    assert started[1].returncode == 1
    assert "ValueError: the shapes differ" in errors


def test_jax_starts_the_trainer_of_one_worker_unchanged(tmp_path):
    program = "import os, sys; print(os.getpid(), 'jax' in sys.modules)"

    process = launch(tmp_path, "jax", "--", "python", "-c", program)

    assert ended(process) == (0, f"{process.pid} False\n", "")


def test_torch_starts_a_rank_for_each_chip_and_numbers_the_ranks_of_all_workers(tmp_path):
    environ = contract(2, 1, 9000) | {"OMP_NUM_THREADS": "7", "TPU_VISIBLE_CHIPS": "0,1"}
    command = ("torch", "--", "python", "-c", SHOW_ENVIRONMENT)

    assert ended(launch(tmp_path, *command, environ=environ)) == (0, "", "")

    assert {file.name for file in tmp_path.iterdir()} == {"2", "3"}
    for local in range(2):
        variables = json.loads((tmp_path / str(2 + local)).read_text())
        expected = {
            "RANK": str(2 + local),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "NNODES": "2",
            "NODE_RANK": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "9000",
        }
        assert variables.items() >= (environ | expected).items()


def test_torch_is_replaced_by_the_only_rank_of_a_worker_without_chips(tmp_path):
    program = "import os; print(os.getpid(), os.environ['RANK'], os.environ['WORLD_SIZE'])"
    command = ("torch", "--", "python", "-c", program)

    process = launch(tmp_path, *command, environ=contract(3, 2))

    assert ended(process) == (0, f"{process.pid} 2 3\n", "")


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ((0, 0, 0), 0),
        ((75, 75, 75), 75),
        ((0, 75, 0), 1),
        ((0, 3, 75), 3),
        ((75, -signal.SIGABRT, 0), -signal.SIGABRT),
        ((0, 0, -(signal.SIGRTMIN + 1)), -(signal.SIGRTMIN + 1)),
    ],
)
def test_the_exit_code_of_torch_follows_from_the_exit_codes_of_its_ranks(tmp_path, codes, code):
    arguments = ("torch", "--processes", "3", "--", "python", "-c", EXITS, *map(str, codes))

    exit_code, _, errors = ended(launch(tmp_path, *arguments))

    assert exit_code == code
    assert bool(errors) == (code not in (0, 75))


def test_torch_ends_the_other_ranks_when_one_has_failed(tmp_path, started):
    others_wait = "if rank == '1' and len(os.listdir()) == 3:\n        sys.exit(9)\n    time.sleep"
    program = COUNT_TERM.replace("time.sleep", others_wait, 1)
    started.append(launch(tmp_path, "torch", "--processes", "3", "--", "python", "-c", program))

    code, _, errors = ended(started[0])

    assert code == 9
    assert "rank 1 of this worker exited with 9" in errors
    assert [(tmp_path / f"terms-{rank}").read_text() for rank in (0, 2)] == ["1", "1"]


def test_each_rank_receives_one_sigterm(tmp_path, started):
    arguments = ("torch", "--processes", "2", "--", "python", "-c", COUNT_TERM)
    started.append(launch(tmp_path, *arguments))
    wait_for(lambda: all((tmp_path / rank).exists() for rank in "01"))

    os.killpg(started[0].pid, signal.SIGTERM)

    assert ended(started[0]) == (75, "", "")
    assert [(tmp_path / f"terms-{rank}").read_text() for rank in range(2)] == ["1", "1"]


def test_a_stop_during_the_start_of_the_ranks_ends_all_of_them(tmp_path, started):
    stops_all = "test $RANK = 0 && { trap '' TERM; kill -TERM 0; }; exec sleep 60"
    arguments = ("torch", "--processes", "100", "--", "sh", "-c", stops_all)
    started.append(launch(tmp_path, *arguments))

    assert ended(started[0]) == (75, "", "")
    with pytest.raises(ProcessLookupError):
        wait_for(lambda: os.killpg(started[0].pid, 0))


NOT_PYTHON = "expected a Python module or script, not {!r}. Write: tpufleet_launch jax -- python -m"
NOT_FOUND = "tpufleet_launch: pyhton: No such file or directory. Name a program"
OUTSIDE = {"PATH": os.environ["PATH"]}
"""Environment variables of a user who starts a launcher outside of a run."""
IN_A_RUN = "Use tpufleet_launch in the command of a run: ansible-playbook train.yml -e command="


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "error"),
    [
        ("jax -- ./train.sh", contract(2), 2, NOT_PYTHON.format("./train.sh")),
        ("jax -- python -c pass", contract(2), 2, NOT_PYTHON.format("python -c pass")),
        ("jax -- python -u", contract(2), 2, NOT_PYTHON.format("python -u")),
        ("jax -- python -m", contract(2), 2, NOT_PYTHON.format("python -m")),
        ("xla -- pyhton train.py", contract(), 127, NOT_FOUND),
        ("torch --processes 2 -- pyhton train.py", contract(), 127, NOT_FOUND),
        ("jax -- python a.py", OUTSIDE, 2, IN_A_RUN),
        ("torch -- python a.py", OUTSIDE, 2, IN_A_RUN),
        ("torch", contract(), 2, "no command. Write it after --: tpufleet_launch torch -- python"),
        ("torch --processes 0 -- python", contract(), 2, "a number from 1 to 9999, not '0'"),
        ("tourch -- python", contract(), 2, "invalid choice: 'tourch'"),
    ],
)
def test_a_wrong_command_line_is_refused_with_the_expected_form(
    tmp_path, arguments, environ, code, error
):
    exit_code, _, errors = ended(launch(tmp_path, *arguments.split(), environ=environ))

    assert exit_code == code
    assert error in errors


def test_help_shows_each_launcher_with_an_example(tmp_path):
    code, out, _ = ended(launch(tmp_path, "--help"))

    assert code == 0
    for launcher in ("jax", "torch", "xla"):
        assert f"tpufleet_launch {launcher} -- python" in out
        assert ended(launch(tmp_path, launcher, "--help"))[0] == 0


@pytest.fixture
def metadata(scripted) -> tuple[str, dict[str, str | None]]:
    """The address of a fake metadata server, and its attributes: those of worker 1 of a v4-16."""
    attributes = {
        "tpu-env": "ACCELERATOR_TYPE: 'v4-16'\nCHIPS_PER_HOST_BOUNDS: '2,2,1'\n"
        "HOST_BOUNDS: '1,1,2'\nWORKER_ID: '1'\n",
        "worker-network-endpoints": "unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3",
        "agent-worker-number": "1",
    }

    def respond(request: Request) -> Reply:
        attribute = attributes.get(request.path.rpartition("/")[2])
        return error(404, "not found") if attribute is None else Reply(attribute.encode())

    scripted.handler = respond
    return f"{scripted.endpoint}/attributes/", attributes


def test_torch_tpu_gets_the_same_addresses_and_the_whole_topology_on_every_worker(metadata):
    address, _ = metadata

    assert torch_tpu_variables(Placement("10.0.0.2", 8476, 2, 1), 2, address) == {
        "TPU_WORKER_HOSTNAMES": "10.0.0.2,10.0.0.3",
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": (
            "10.0.0.2:8070,10.0.0.2:8071,10.0.0.3:8070,10.0.0.3:8071"
        ),
        "TORCH_TPU_TOPOLOGY": "2,2,2",
        "TORCH_TPU_DEVICES_PER_HOST": "2",
    }


@pytest.mark.parametrize(
    ("placement", "changed", "error"),
    [
        ((1, 0), {}, "this is worker 0 of 1 of the run, but worker 1 of 2 of the TPU"),
        ((2, 0), {}, "this is worker 0 of 2 of the run, but worker 1 of 2 of the TPU"),
        ((2, 1), {"worker-network-endpoints": "10.0.0.2,$(reboot)"}, "$(reboot)"),
        ((2, 1), {"tpu-env": "HOST_BOUNDS: '1,1,2'\n"}, "no valid CHIPS_PER_HOST_BOUNDS"),
        ((2, 1), {"tpu-env": None}, "404"),
    ],
)
def test_torch_tpu_gets_no_variables_if_the_tpu_does_not_match_the_run(
    metadata, placement, changed, error, capfd
):
    address, attributes = metadata
    attributes.update(changed)

    assert torch_tpu_variables(Placement("10.0.0.2", 8476, *placement), 4, address) == {}
    assert error in capfd.readouterr().err
