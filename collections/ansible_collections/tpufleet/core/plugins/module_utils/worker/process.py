"""One process of a launch: its environment variables, its identity, and the text of its files.

The functions have no side effects; worker/run_start.py writes the files and starts the process.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .contract import MEGASCALE_PORT, METRICS_PORT
from .launch_spec import VARIABLE, LaunchSpec
from .run import RunError, WorkerPaths, env_variables

MAX_LAUNCH_BYTES = 1 << 24
"""Maximum size of ``launch.json`` in bytes.

One character of the config may need twelve bytes in JSON.
"""
MIN_SECRET = 8
"""Minimum length of a secret in characters.

Ansible masks a secret wherever its text occurs, so a short secret would mask parts of words.
"""
MAX_NUMBER_DIGITS = 20
"""A secret of at most this many digits would mask parts of other numbers, such as times."""
ALLOWED = "TPUFLEET_NOT_SECRET"
"""Environment variable that lists the variables that look like secrets but are not secret."""
_SECRET_NAME = re.compile(
    r"(^|_)((API)?KEY|TOKEN|SECRET|PASS|PAT|AUTH)(_|$)|PASSW(OR)?D|PASSPHRASE", re.IGNORECASE
)
_FILE_NAME = re.compile(r"_(DIR|FILE|PATH)$", re.IGNORECASE)
VAULT = "ansible-vault create INVENTORY/group_vars/all/secrets.yml"
"""Command that creates the encrypted file of secrets; INVENTORY is the inventory's directory.

If the file exists, the command fails and says to use ``ansible-vault edit``.
"""


@dataclass(frozen=True)
class Process:
    """One process of a launch, with the values that are specific to its worker.

    Args:
        spec: the launch, which all processes of the attempt share.
        process_id: the number of the process, from 0.
        python_env: the name of the Python environment on this worker.
        worker_env: environment variables for trainers on this worker, from the inventory. The
            variables of the launch override them.
        secrets: environment variables that are passed to the trainer as a systemd credential.
        token: the secret by which the processes of this attempt authenticate to each other. Without
            a token there is no rendezvous.
    """

    spec: LaunchSpec
    process_id: int
    python_env: str
    worker_env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    token: str = ""

    def variables(self) -> dict[str, str]:
        """Return the trainer's variables, except secrets and the variables of the run contract."""
        platform = {"JAX_PLATFORMS": "cpu"} if self.spec.jax_requirements == "worker-cpu" else {}
        slices = slice_variables(self.spec, self.process_id)
        variables = {**platform, **self.worker_env, **self.spec.env, **slices}
        flags = variables.get("LIBTPU_INIT_ARGS", "")
        return {**variables, **chip_variables(self.spec.chip, flags)}

    def identity(self) -> str:
        """Return a digest that is equal for equal launches on this worker.

        The number, the ports and the rendezvous token of an attempt do not change the digest.
        """
        content = {
            "definition": self.spec.definition(),
            "coordinator_host": self.spec.coordinator_host,
            "process_id": self.process_id,
            "python_env": self.python_env,
            "variables": {**self.variables(), **self.secrets},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def slice_variables(spec: LaunchSpec, process_id: int) -> dict[str, str]:
    """Return the variables with which libtpu connects slices over the data center network.

    Returns no variables for a single slice.
    """
    if spec.slices < 2:
        return {}
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": f"{spec.coordinator_host}:{MEGASCALE_PORT}",
        "MEGASCALE_NUM_SLICES": str(spec.slices),
        "MEGASCALE_SLICE_ID": str(process_id * spec.slices // spec.workers),
    }


def chip_variables(chip: int, flags: str) -> dict[str, str]:
    """Return the variables that restrict a process to ``chip``; none if ``chip`` is negative.

    ``flags`` are the flags of libtpu that the launch sets.
    """
    if chip < 0:
        return {}
    return {
        "TPU_VISIBLE_CHIPS": str(chip),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "LIBTPU_INIT_ARGS": f"{flags} --runtime_metric_service_port={METRICS_PORT + chip}".strip(),
    }


def contract_variables(process: Process, paths: WorkerPaths) -> dict[str, str]:
    """Return the variables of the run contract (docs/own_trainer.md)."""
    spec, run_dir = process.spec, paths.run_dir(process.spec.run)
    variables = {
        "TPUFLEET_RUN": spec.run,
        "TPUFLEET_RUN_DIR": str(run_dir),
        "TPUFLEET_ATTEMPT": str(spec.attempt),
        "TPUFLEET_COORDINATOR": spec.coordinator,
        "TPUFLEET_NUM_PROCESSES": str(spec.workers),
        "TPUFLEET_PROCESS_ID": str(process.process_id),
        "TPUFLEET_CHECKPOINTS": spec.checkpoints,
    }
    if spec.config is not None:
        variables["TPUFLEET_CONFIG"] = str(run_dir / "config.yml")
    return variables


def environment(
    process: Process,
    paths: WorkerPaths,
    trust: Mapping[str, str],
    compile_cache: str = "",
    image_path: str = "",
) -> dict[str, str]:
    """Return all environment variables of a run's unit; those of the run contract have precedence.

    ``trust`` are variables with the paths of the system's CA certificates. ``compile_cache`` is
    where JAX stores compiled programs; empty for a directory on this worker. ``image_path`` is the
    PATH in the run's image; empty if the run has no image. In an image, the image's programs and CA
    certificates are used instead of the worker's.
    """
    rendezvous = process.spec.workers > 1 and process.token
    programs = {**env_variables(paths, process.python_env), **trust}
    if image_path:
        worker_only = {*trust, "VIRTUAL_ENV"}
        programs = {name: value for name, value in programs.items() if name not in worker_only}
        programs["PATH"] = image_path
    return {
        "HOME": str(paths.home),
        **programs,
        "JAX_COMPILATION_CACHE_DIR": compile_cache or str(paths.state / "jax-cache"),
        **process.variables(),
        **contract_variables(process, paths),
        **({"TPUFLEET_RENDEZVOUS_TOKEN": process.token} if rendezvous else {}),
    }


def environment_file(variables: Mapping[str, str]) -> str:
    """Format variables for systemd's EnvironmentFile= (systemd.exec(5)).

    Raises RunError for a name or a value that systemd would silently ignore.
    """
    lines = []
    for name, value in sorted(variables.items()):
        if not VARIABLE.fullmatch(name):
            raise RunError(f"{name!r} is not a valid name of an environment variable")
        if any((ord(char) < 32 and char not in "\t\n") or ord(char) == 127 for char in value):
            raise RunError(f"the environment variable {name} has a control character in its value")
        escaped = re.sub(r'(["\\`$])', r"\\\1", value)
        lines.append(f'{name}="{escaped}"\n')
    return "".join(lines)


def secrets_file(process: Process) -> str:
    """Format the secrets as JSON for the unit's program (roles/run/files/attempt).

    Raises RunError for an invalid environment variable, without showing its value.
    """
    for name, value in process.secrets.items():
        if not VARIABLE.fullmatch(name):
            raise RunError(f"{name!r} in secrets is not a valid name of an environment variable")
        if "\0" in value:
            raise RunError(f"the secret {name} has a NUL in its value")
    return json.dumps(dict(process.secrets)) + "\n"


def secret_lines(secrets: Mapping[str, object]) -> set[str]:
    """Return every line of the secrets, for Ansible to mask in output.

    Ansible masks only whole values, so it would not mask one line of a secret with several
    lines. Omits lines that are shorter than MIN_SECRET.
    """
    lines = (line.strip() for value in secrets.values() for line in str(value).splitlines())
    return {line for line in lines if len(line) >= MIN_SECRET}


def unmaskable_secrets(secrets: Mapping[str, object]) -> str:
    """Return an error that names the secrets that can't be masked; empty if there are none.

    Masking replaces every line of a secret in all output. If a secret is short or has a line that
    is a number, parts of other text would be replaced, too.
    """
    short, numbers = [], []
    for name, value in sorted(secrets.items()):
        if 0 < len(str(value)) < MIN_SECRET:
            short.append(name)
        elif any(map(_is_number, secret_lines({name: value}))):
            numbers.append(name)
    problems = {
        f"has fewer than {MIN_SECRET} characters": short,
        "is a number, or has a line that is one": numbers,
    }
    return "; ".join(
        f"{', '.join(names)} {problem}" for problem, names in problems.items() if names
    )


def _is_number(text: str) -> bool:
    digits = text.strip("+-").replace(".", "", 1)
    return digits.isdecimal() and len(digits) <= MAX_NUMBER_DIGITS


def check_secrets(secrets: Mapping[str, object]) -> None:
    """Raise RunError if masking a secret in logs would also mask parts of other text."""
    if problem := unmaskable_secrets(secrets):
        raise RunError(
            f"secrets: {problem}. Ansible masks a secret's value everywhere in its output, also "
            "inside other words or numbers. Choose another value, or if it is not secret, use env: "
            "ansible-playbook train.yml -e env='\"NAME=VALUE\"'"
        )


def looks_secret(name: str) -> bool:
    """Return whether a variable with this name, such as API_KEY, probably contains a secret."""
    return bool(_SECRET_NAME.search(name)) and not _FILE_NAME.search(name)


def unmasked_secrets(variables: Mapping[str, object]) -> str:
    """Return an error that names the variables that look like secrets; empty if none does.

    ``variables`` are variables that are not masked in logs. Ignores a variable if its value is
    empty or can't be masked (``unmaskable_secrets``), if its name says that the value is a path
    (such as KEY_FILE), or if ``TPUFLEET_NOT_SECRET`` lists it.
    """
    allowed = [ALLOWED, *str(variables.get(ALLOWED, "")).replace(",", " ").split()]
    names = ", ".join(
        sorted(
            name
            for name, value in variables.items()
            if looks_secret(name) and name not in allowed
            if str(value) and not unmaskable_secrets({name: value})
        )
    )
    return f"looks like it contains secrets ({names}), but is not kept secret" if names else ""


def check_no_secrets(variables: Mapping[str, object], option: str) -> None:
    """Raise RunError if ``unmasked_secrets`` finds a variable that looks like a secret.

    ``option`` names the option that sets the variables, for the error.
    """
    if problem := unmasked_secrets(variables):
        raise RunError(
            f"{option}: {problem}. Set {ALLOWED} in {option} to the names that are not secret, "
            f"separated by commas. Move the others to secrets, in a vault: {VAULT} "
            "(INVENTORY is the inventory in use, such as inventory/gcp)"
        )


def launch_file(process: Process, image: Mapping[str, Any] | None = None) -> str:
    """Format ``launch.json``, with the launch and the values that are specific to this worker.

    ``image`` is the result of ``Image.for_attempt``, for the program roles/run/files/attempt.
    Raises RunError for a launch of more than MAX_LAUNCH_BYTES.
    """
    content = {
        "spec": process.spec.to_json(),
        "process_id": process.process_id,
        "python_env": process.python_env,
        "identity": process.identity(),
        **({"image": image} if image else {}),
    }
    text = json.dumps(content, indent=1) + "\n"
    if len(text) > MAX_LAUNCH_BYTES:
        raise RunError(
            f"run {process.spec.run}: the launch is too long ({len(text)} bytes, at most "
            f"{MAX_LAUNCH_BYTES}). Move part of the command or config to a file of your code, then "
            "launch the run again: "
            f"ansible-playbook train.yml -e run={process.spec.run} -e config=FILE"
        )
    return text


def launch_summary(content: Mapping) -> dict:
    """Return the main fields of ``launch.json``; empty if it has no launch.

    Omits environment variables and the config, which may contain secrets, and the field
    ``identity``. That digest covers secrets, so a short secret could be guessed from it.
    """
    spec = content.get("spec")
    if not isinstance(spec, Mapping):
        return {}
    spec_fields = ("attempt", "release", "command", "checkpoints", "chip", "workers")
    worker_fields = {name: content.get(name) for name in ("process_id", "python_env")}
    return {**{name: spec.get(name) for name in spec_fields}, **worker_fields}
