"""Proofs: commands that show that an environment works on a worker's devices.

A proof runs as the trainer's user and computes something on the devices. The built-in proofs are
roles/jax/files/prove_*.py; the variable ``env_proof`` may name another command. A proof succeeds if
it exits with 0 and its last line of output is a JSON object with the number of ``devices``.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .python_env import EnvError, error_summary
from .user_process import run_as_user

CHIP_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
VERSIONS = ("jax", "torch", "torch_xla", "torch_tpu")
_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Worker:
    """The properties of this worker that a proof needs.

    Args:
        platform: ``cpu``, ``tpu`` or ``cuda``.
        chips: the number of TPU chips of this worker. ``prove_worker`` uses only these chips.
        device_glob: the pattern of the accelerators' device files.
    """

    platform: str
    chips: int = 0
    device_glob: str = ""


def proof_environment(env: Path, worker: Worker) -> dict[str, str]:
    """Return environment variables with which a proof uses only this worker's devices.

    On a slice of several workers, libtpu would otherwise wait forever for the other workers.
    """
    variables = slice_environment(env, worker)
    variables["TPUFLEET_CHIPS"] = str(worker.chips)
    variables["TPUFLEET_DEVICE_GLOB"] = worker.device_glob
    if worker.platform == "tpu":
        variables["TPU_PROCESS_BOUNDS"] = "1,1,1"
        variables["TPU_CHIPS_PER_PROCESS_BOUNDS"] = CHIP_BOUNDS.get(worker.chips, "2,2,1")
        visible = range(worker.chips or 4)
        variables["TPU_VISIBLE_CHIPS"] = ",".join(str(chip) for chip in visible)
    return variables


def slice_environment(env: Path, worker: Worker) -> dict[str, str]:
    """Return the environment variables of a proof that uses all workers of the slice."""
    return {
        "PATH": f"{env}/bin:{_PATH}",
        "HOME": "/nonexistent",
        "JAX_PLATFORMS": worker.platform,
        "PJRT_DEVICE": worker.platform.upper(),
    }


def prove_worker(
    env: Path, name: str, command: Sequence[str], worker: Worker, devices: int, seconds: int
) -> dict:
    """Run a proof on this worker's devices and return its result.

    Args:
        env: the directory of the environment to prove.
        name: the value of ``env_proof``, for errors.
        command: the proof's command and its arguments.
        worker: this worker.
        devices: the minimum number of devices that the proof must find.
        seconds: the time limit.

    Raises EnvError, with the last lines of the proof's output if it failed.
    """
    timeout_error = (
        f"no result within {seconds} s. Another process may use the devices; to find it, run: "
        "ansible-playbook playbooks/doctor.yml -e tpu=NAME. If the disk is slow, raise "
        "jax_proof_seconds, then run: ansible-playbook setup.yml"
    )
    variables = proof_environment(env, worker)
    try:
        output = run_proof(command, variables, seconds, worker, timeout_error)
    except EnvError as error:
        raise EnvError(f"env_proof {name}: {error}") from None
    if output["devices"] < devices:
        raise EnvError(
            f"env_proof {name}: found {output['devices']} {worker.platform} devices, "
            f"expected {devices}. Reboot the worker (ansible WORKER -b -m reboot), then run: "
            "ansible-playbook setup.yml. If that does not help, recreate the TPU: ansible-playbook "
            "playbooks/delete.yml -e tpu=NAME && ansible-playbook playbooks/create.yml -e tpu=NAME"
        )
    versions = {key: str(output[key])[:99] for key in VERSIONS if key in output}
    hardware = {"platform": worker.platform, "devices": output["devices"]}
    return {"proof": name, **versions, **hardware}


def prove_slice(
    env: Path,
    command: Sequence[str],
    worker: Worker,
    rendezvous: tuple[str, int, int],
    seconds: int,
) -> dict:
    """Run a proof on all workers of a slice and return ``{devices, sum}``.

    ``env``, ``command`` and ``worker`` are described at ``prove_worker``. ``rendezvous`` has the
    coordinator (host:port), the number of processes and the id of this process. The processes wait
    for each other for at most ``seconds``. Each device adds 1 to ``sum``, so ``sum`` equals
    ``devices`` if the slice works. Raises EnvError.
    """
    variables = slice_environment(env, worker)
    variables["TPUFLEET_PROOF"] = json.dumps([*rendezvous, seconds])
    timeout_error = f"rendezvous failed: not all workers of the slice arrived within {seconds} s"
    return run_proof(command, variables, seconds + 15, worker, timeout_error)


def run_proof(
    command: Sequence[str],
    variables: Mapping[str, str],
    seconds: int,
    worker: Worker,
    timeout_error: str,
) -> dict:
    """Run a proof as the trainer's user; return the JSON object in its last line of output.

    Raises EnvError, with the message ``timeout_error`` if the proof takes longer than ``seconds``.
    """
    try:
        result = run_as_user(command, variables, seconds, worker.device_glob)
    except subprocess.TimeoutExpired as error:
        raise EnvError(timeout_error) from error
    if result.returncode != 0:
        raise EnvError(error_summary(result.stderr or result.stdout))
    last_line = (result.stdout.strip().splitlines() or [""])[-1]
    try:
        output = json.loads(last_line)
        if type(output["devices"]) is not int:
            raise ValueError(last_line)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise EnvError(
            "the proof's last line of output is not a JSON object with a number of devices "
            f"({last_line[:200]!r}). "
            'It must print such a line last: {"devices": 4}'
        ) from None
    return output
