"""Proofs of environments, run as processes, with small fakes of the PyTorch packages."""

import json
import os
import pwd
import sys
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import user_process
from ansible_collections.tpufleet.core.plugins.module_utils.worker.env_proof import (
    Worker,
    proof_environment,
    prove_slice,
    prove_worker,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.python_env import EnvError
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import WorkerPaths
from ansible_collections.tpufleet.core.plugins.modules import python_env as env_module
from ansible_collections.tpufleet.core.plugins.modules import slice_proof
from ansible_collections.tpufleet.core.plugins.modules.python_env import read_proof

from harness.playbooks import ROOT
from tests.collections.modules.test_launchers import free_port
from tests.collections.running_modules import call_module
from tests.collections.runs.test_playbook_process import is_running
from tests.localcloud.api.local_api import wait_for

TORCH = """
import os
class Tensor:
    def __init__(self, value): self.value = value
    def __matmul__(self, other): return Tensor(128**3 * self.value)
    def sum(self): return self
    def item(self): return self.value
def ones(*shape, device):
    chip = os.environ.get("TPU_VISIBLE_CHIPS")
    print("noise of", device, chip)
    return Tensor(0 if chip in os.environ.get("BROKEN", "").split() else 1)
"""
TORCH_XLA = "import torch_xla.runtime\ndef device_count(): return 4\n"
RUNTIME = "import os\ndef device_type(): return os.environ['FOUND']\n"
as_root = pytest.mark.skipif(os.getuid() != 0, reason="proofs change their user")


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment whose Python also finds the fake packages, in ``tmp_path``/packages."""
    monkeypatch.setattr(user_process, "USER", pwd.getpwuid(os.getuid()).pw_name)
    program = tmp_path / "env/bin/python"
    program.parent.mkdir(parents=True)
    packages = tmp_path / "packages"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    for name, text in {
        "torch/__init__.py": TORCH,
        "torch_xla/__init__.py": TORCH_XLA,
        "torch_xla/runtime.py": RUNTIME,
        "torch-2.9.1.dist-info/METADATA": "Name: torch\nVersion: 2.9.1\n",
        "torch_xla-2.9.0.dist-info/METADATA": "Name: torch_xla\nVersion: 2.9.0\n",
        "torch_tpu-0.2.0.dist-info/METADATA": "Name: torch_tpu\nVersion: 0.2.0\n",
    }.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    return tmp_path / "env"


def script(name: str, **variables: str) -> list[str]:
    """Return the command of a proof that sets ``variables``, which the fake packages read."""
    assignments = [f"{key}={value}" for key, value in variables.items()]
    text = (ROOT / f"roles/jax/files/prove_{name}.py").read_text()
    return ["env", *assignments, "python", "-c", text]


def run_proof(env: Path, name: str, command: list[str], worker: Worker, devices: int = 1) -> dict:
    return prove_worker(env, name, command, worker, devices, 60)


def cpu() -> Worker:
    return Worker("cpu")


def tpu(chips: int = 4, device_glob: str = "") -> Worker:
    return Worker("tpu", chips, device_glob)


@pytest.mark.parametrize(
    ("chips", "bounds", "visible"),
    [(1, "1,1,1", "0"), (4, "2,2,1", "0,1,2,3"), (8, "2,4,1", "0,1,2,3,4,5,6,7")],
)
def test_a_proof_is_limited_to_its_worker(env, chips, bounds, visible):
    variables = proof_environment(env, tpu(chips))

    assert variables["TPU_PROCESS_BOUNDS"] == "1,1,1"
    assert variables["TPU_CHIPS_PER_PROCESS_BOUNDS"] == bounds
    assert variables["TPU_VISIBLE_CHIPS"] == visible
    assert not any(name.startswith("TPU_") for name in proof_environment(env, cpu()))


def test_a_proof_may_use_only_the_platform_of_its_worker(env):
    variables = proof_environment(env, tpu())

    assert (variables["JAX_PLATFORMS"], variables["PJRT_DEVICE"]) == ("tpu", "TPU")


@as_root
def test_jax_is_proven_by_its_devices(env):
    proof = run_proof(env, "jax", script("jax"), cpu())

    assert proof.pop("jax")
    assert proof == {"proof": "jax", "platform": "cpu", "devices": 1}


@as_root
def test_a_slice_is_proven_by_a_sum_over_its_devices(env):
    place_in_slice = (f"127.0.0.1:{free_port()}", 1, 0)

    output = prove_slice(env, script("slice"), cpu(), place_in_slice, 60)

    assert output == {"devices": 1, "sum": 1.0}


@as_root
@pytest.mark.parametrize(
    ("name", "worker", "package"),
    [
        ("torch_xla", tpu(), "2.9.0"),
        ("torch_xla", cpu(), "2.9.0"),
        ("torch_tpu", tpu(), "0.2.0"),
    ],
    ids=["torch_xla on tpu", "torch_xla on cpu", "torch_tpu"],
)
def test_pytorch_is_proven_on_the_devices_of_the_worker(env, name, worker, package):
    command = script(name, FOUND=worker.platform.upper())

    assert run_proof(env, name, command, worker, devices=4) == {
        "proof": name,
        "torch": "2.9.1",
        name: package,
        "platform": worker.platform,
        "devices": 4,
    }


@as_root
@pytest.mark.parametrize(
    ("name", "worker", "error"),
    [
        ("torch_xla", tpu(), "torch_xla uses a cpu, expected a tpu"),
        ("torch_tpu", tpu(), "sum 0, expected 2097152; .* on chip 2"),
        ("torch_tpu", cpu(), r"this worker has none\. Set env_proof: none"),
    ],
    ids=["another platform", "a chip that is broken", "no chips"],
)
def test_pytorch_that_does_not_compute_on_all_devices_is_refused(env, name, worker, error):
    with pytest.raises(EnvError, match=error):
        run_proof(env, name, script(name, FOUND="CPU", BROKEN="2"), worker)


@as_root
def test_torch_xla_with_another_torch_is_refused_before_it_is_imported(env):
    torch = env.parent / "packages/torch-2.9.1.dist-info/METADATA"
    torch.write_text("Name: torch\nVersion: 2.15.0\n")
    (env.parent / "packages/torch_xla/__init__.py").write_text("raise ImportError")

    with pytest.raises(EnvError, match=r"torch 2\.15\.0\. Require torch==2\.9\.\*"):
        run_proof(env, "torch_xla", script("torch_xla"), tpu())


@as_root
def test_the_proof_none_counts_the_device_files(env, tmp_path):
    for name in ("0", "1", "vfio"):
        (tmp_path / name).touch()
    worker = tpu(2, f"{tmp_path}/[0-9v]*")

    proof = run_proof(env, "none", script("none"), worker, devices=2)

    assert proof == {"proof": "none", "platform": "tpu", "devices": 2}
    with pytest.raises(EnvError, match="env_proof none: found 2 tpu devices, expected 4"):
        run_proof(env, "none", script("none"), worker, devices=4)
    assert run_proof(env, "none", script("none"), cpu())["devices"] == 1


@as_root
def test_a_command_of_the_user_is_a_proof(env):
    command = "python -c 'import torch' && echo noise && echo '{\"devices\": 3}'"

    assert run_proof(env, command, ["sh", "-c", command], tpu(), devices=2) == {
        "proof": command,
        "platform": "tpu",
        "devices": 3,
    }


@as_root
@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("echo no memory >&2; exit 3", "no memory"),
        ("echo no memory; exit 3", "no memory"),
        ("true", "not a JSON object with a number of devices"),
        ("echo '[1]'", "not a JSON object with a number of devices"),
        ("echo '{\"devices\": true}'", "not a JSON object with a number of devices"),
        ("no-such-program here", "not found"),
    ],
)
def test_a_proof_that_fails_shows_the_end_of_its_output(env, command, error):
    with pytest.raises(EnvError, match=f"^env_proof .*{error}"):
        run_proof(env, command, ["sh", "-c", command], cpu())


@as_root
def test_a_proof_that_takes_too_long_is_ended_with_its_children(env, tmp_path):
    command = f"sleep 60 & echo $! > {tmp_path}/child; wait"

    with pytest.raises(EnvError, match="no result within 1 s"):
        prove_worker(env, "sleep", ["sh", "-c", command], cpu(), 1, 1)

    child = int((tmp_path / "child").read_text())
    # The child was sent SIGKILL, but on a busy machine it may take a moment to end.
    wait_for(lambda: not is_running(child) or None)


@pytest.mark.parametrize(
    ("content", "name", "is_valid"),
    [
        ('{"proof": "none", "devices": 4}', "none", True),
        ('{"proof": "none", "devices": 4}', "jax", False),
        ('{"jax": "0.12.0", "devices": 4}', "jax", False),
        ("[]", "jax", False),
        ("", "jax", False),
    ],
)
def test_an_environment_is_proven_again_for_another_proof(tmp_path, content, name, is_valid):
    (tmp_path / "env.proof.json").write_text(content)

    proof = read_proof(tmp_path / "env.proof.json", name)

    assert proof == (json.loads(content) if is_valid else None)


def test_the_warning_about_a_skipped_proof_suggests_a_setup_that_does_not_skip_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    monkeypatch.setattr(env_module, "WorkerPaths", lambda: WorkerPaths(tmp_path))
    monkeypatch.setattr(env_module, "holders", lambda _glob: ["pid 5 holds /dev/accel0"])

    call_module("python_env", check=True, lock="", device_glob="/dev/accel*")

    warning = " ".join(capsys.readouterr().err.split())
    assert "env_proof jax did not run, because pid 5 holds /dev/accel0" in warning
    assert "ansible-playbook setup.yml -e renew=true" in warning


def test_the_error_about_devices_in_use_says_how_to_end_a_run_or_a_stray(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(slice_proof, "holders", lambda _glob: ["pid 5 holds /dev/accel0"])
    place = {"coordinator": "127.0.0.1:1", "processes": 1, "process": 0}

    result = call_module("slice_proof", lock="", command=["true"], device_glob="/dev/a*", **place)

    assert "the slice cannot be checked now (pid 5 holds /dev/accel0)" in result["msg"]
    assert "playbooks/kill.yml -e run=NAME" in result["msg"]
    assert "playbooks/kill.yml -e strays=true" in result["msg"]
