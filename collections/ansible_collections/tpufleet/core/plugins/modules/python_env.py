#!/usr/bin/python
"""Module tpufleet.core.python_env: install a Python environment and check that it works."""

from __future__ import annotations

DOCUMENTATION = r"""
module: python_env
short_description: Install a Python environment from a lock file, and prove that it works
description:
  - An environment is installed once and never changed. Its name is computed from the lock file and
    the version of Python. An incomplete environment is installed again.
  - The proof is a command that shows that the environment works on the devices of this worker. It
    runs as the trainer's user and with a time limit. If it succeeds, its result is stored in a file
    beside the environment. It then runs again only if O(proof) changes or the environment is
    installed again. While a process holds a device, the proof does not run, and the module warns.
  - The TPU's leader downloads the packages of the lock file and installs the environment. The other
    workers copy the environment if they have the same interpreter; otherwise they copy the
    downloads and install the environment from these. A worker whose copy fails gets the packages as
    the leader does. Every installation checks the lock file's hashes.
  - Environments that no process and no active run uses are removed, except the current one and the
    O(keep) newest others.
  - With O(leader_only), no proof runs and no environment is removed.
extends_documentation_fragment:
  - tpufleet.core.wheels
  - tpufleet.core.diff_mode
options:
  keep:
    description: The number of the newest environments to keep besides the current one, whether in
      use or not. Older environments in use are kept, too.
    type: int
    default: 2
  proof:
    description: The name of the proof, for its result and errors. This is the value of
      C(env_proof), which is V(jax), V(torch_xla), V(torch_tpu), V(none) or a command of the user.
      The command to run is in O(proof_command).
    type: str
    default: jax
  proof_command:
    description: The proof's command as a list of words. It must exit with 0, and its last line of
      output must be a JSON object with the number of devices, such as C({"devices":4}). Required
      unless O(leader_only) is set.
    type: list
    elements: str
    default: []
  platform:
    description: The platform that the proof uses. The proof gets it in C(JAX_PLATFORMS) and
      C(PJRT_DEVICE).
    type: str
    choices: [cpu, tpu, cuda]
    default: cpu
  devices:
    description: The minimum number of devices that the proof must find.
    type: int
    default: 1
  chips:
    description: The number of TPU chips of this worker. The proof uses only these.
    type: int
    default: 0
  device_glob:
    description: The glob pattern of the accelerators' device files.
    type: str
    default: ""
  proof_seconds:
    description: How long the proof may take, in seconds.
    type: int
    default: 120
author: tpufleet
"""

EXAMPLES = r"""
- name: Install the environment of the lock file
  tpufleet.core.python_env:
    lock: "{{ lookup('ansible.builtin.file', 'requirements/worker-cpu.lock') }}"
    proof_command:
      - python
      - -c
      - "{{ lookup('ansible.builtin.file', 'roles/jax/files/prove_jax.py') }}"
  become: true
"""

RETURN = r"""
id:
  description: The name of the environment.
  returned: success
  type: str
path:
  description: The path of the environment.
  returned: success
  type: str
needs:
  description: Internal. The minor version of Python, the machine type and the glibc version for
    which the controller must send wheels. The action plugin sends them and calls the module again.
  returned: wheels are missing and O(source=controller)
  type: dict
removed:
  description: Names of the removed environments; in check mode, of those that would be removed.
  returned: success, unless O(leader_only) is set
  type: list
proof:
  description: The new or stored result of the proof, with its name, package versions, platform and
    number of devices. Empty if there is no result.
  returned: success
  type: dict
"""

import json
import shutil
from functools import partial
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.contract import ROOT, USER
from ..module_utils.worker.devices import holders
from ..module_utils.worker.env_copy import OtherPythonError, copy_env, partial_copy
from ..module_utils.worker.env_install import (
    UV_CACHE,
    copy_cache,
    install_from_index,
    install_from_wheels,
    remove_unused,
)
from ..module_utils.worker.env_proof import Worker, prove_worker
from ..module_utils.worker.from_leader import FromLeaderError, LeaderUnreachableError, has_leader
from ..module_utils.worker.locks import SETUP, one_at_a_time
from ..module_utils.worker.os_errors import os_error_text
from ..module_utils.worker.python_env import (
    COMPLETE,
    EnvError,
    check_free_space,
    env_id,
    is_complete,
    lock_digest,
    needed_mb,
    packages,
    prunable,
    python_minor,
    used_by_processes,
    used_by_runs,
)
from ..module_utils.worker.run import RunError, WorkerPaths
from ..module_utils.worker.units import active_runs
from ..module_utils.worker.wheels import (
    OPTIONS,
    WheelsMissingError,
    provide_wheels,
    remove_wheels,
    wheels_folder,
)

UV = Path(ROOT) / "bin/uv"
CACHE = Path(ROOT) / "cache"
"""The directory of downloads, which the workers of a TPU can copy from the leader."""
SELF_DOWNLOADED = "This worker downloaded the packages itself"


def read_proof(path: Path, name: str) -> dict | None:
    """Return the result of the proof ``name`` in a file; None if the file has no such result."""
    try:
        proof = json.loads(path.read_text(encoding="utf-8"))
        return proof if proof.get("proof") == name else None
    except (OSError, ValueError, AttributeError):
        return None


def run_proof(options: dict, env: Path) -> dict:
    """Run the program that proves the environment on this worker's devices; return its result.

    ``options`` are the module's options. Raises EnvError.
    """
    worker = Worker(*(options[name] for name in ("platform", "chips", "device_glob")))
    command, min_devices = options["proof_command"], options["devices"]
    return prove_worker(
        env, options["proof"], command, worker, min_devices, options["proof_seconds"]
    )


def provide_env(options: dict, env: Path, python: Path) -> str:
    """Copy the environment from the leader, or install it here.

    ``options`` are the module's options. Returns a warning if copying failed, otherwise an empty
    string. Raises EnvError, WheelsMissingError, OSError.
    """
    check_free_space(env, needed_mb(options["lock"]))
    leader, is_other_python, warning = has_leader(), False, ""
    if leader and not options["pack"]:
        try:
            copy_env(env, python)
            return ""
        except LeaderUnreachableError as error:
            leader, warning = False, f"{error}. {SELF_DOWNLOADED}"
        except FromLeaderError as error:
            warning = f"{error}. {SELF_DOWNLOADED}"
        except OtherPythonError:
            # The leader's environment does not work here, but its downloaded packages may.
            is_other_python = True
    shutil.rmtree(partial_copy(env), ignore_errors=True)
    if options["source"] == "registry":
        return from_index(options, env, python, is_other_python) or warning
    folder = wheels_folder(CACHE, options["lock"], python_minor(python))
    pack = Path(options["pack"]) if options["pack"] else None
    wheels_warning = provide_wheels(folder, options["lock"], pack, leader, python_minor(python))
    warning = wheels_warning if leader else warning
    install_from_wheels(env, options["lock"], python, UV, folder, options["env"])
    return warning


def from_index(options: dict, env: Path, python: Path, leaders_first: bool) -> str:
    """Install the environment from a package index.

    ``options`` are the module's options. With ``leaders_first``, first tries to install from the
    leader's downloads, and returns a warning if that failed. Otherwise returns an empty
    string. Raises EnvError, OSError.
    """
    cache, warning = CACHE / UV_CACHE, ""
    install = partial(install_from_index, env, options["lock"], python, UV, options["env"], cache)
    if leaders_first:
        try:
            copy_cache(cache)
            install(offline=True)
            return ""
        except FromLeaderError as error:
            warning = f"{error}. {SELF_DOWNLOADED}"
        except EnvError:
            warning = f"the leader's downloads do not fit this worker's Python. {SELF_DOWNLOADED}"
    install()
    return warning


def unused_environments(options: dict, env: Path) -> list[Path]:
    """List the environments to remove. Raises RunError if it is unknown which runs are active."""
    used = used_by_processes() | used_by_runs(WorkerPaths().etc / "runs", active_runs())
    return prunable(env.parent, env.name, used, options["keep"])


def remove_unused_files(options: dict, to_remove: list[Path], env: Path) -> None:
    """Remove the environments ``to_remove`` and unused downloads.

    A leader keeps the downloads of its environments, because the other workers copy them.
    """
    for unused in to_remove:
        lock_file = unused / "requirements.lock"
        if lock_file.is_file():
            remove_wheels(CACHE, lock_file.read_text(encoding="utf-8"))
        # Remove the marker first, so that a partly removed environment counts as incomplete.
        (unused / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(unused)
        unused.with_name(f"{unused.name}.proof.json").unlink(missing_ok=True)
    if has_leader():
        remove_wheels(CACHE, options["lock"])
        shutil.rmtree(CACHE / UV_CACHE, ignore_errors=True)
    else:
        remove_unused(CACHE / UV_CACHE)
    for leftover in (*env.parent.glob(".*.cache"), *env.parent.glob(".*.taken")):
        shutil.rmtree(leftover, ignore_errors=True)


def main() -> None:
    """Run the module: install the environment if missing; prove it if not yet proven."""
    module = AnsibleModule(
        argument_spec={
            **OPTIONS,
            "keep": {"type": "int", "default": 2},
            "proof": {"type": "str", "default": "jax"},
            "proof_command": {"type": "list", "elements": "str", "default": []},
            "platform": {"type": "str", "choices": ["cpu", "tpu", "cuda"], "default": "cpu"},
            "devices": {"type": "int", "default": 1},
            "chips": {"type": "int", "default": 0},
            "device_glob": {"type": "str", "default": ""},
            "proof_seconds": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    options, paths = module.params, WorkerPaths()
    python = paths.root / "bin/python"
    if options["leader_only"] and (module.check_mode or has_leader()):
        module.exit_json(changed=False, id="", path="", proof={})
    if module.check_mode and not python.exists():
        module.exit_json(
            changed=True, id="", path="", proof={}, diff={"before": "", "after": "an environment\n"}
        )
    try:
        env = paths.python_env(env_id(lock_digest(options["lock"]), python_minor(python)))
        proof_file = env.with_name(f"{env.name}.proof.json")
        is_missing = not is_complete(env)
        proof = None if is_missing else read_proof(proof_file, options["proof"])
        if not module.check_mode and is_missing:
            with one_at_a_time(SETUP):
                is_missing = not is_complete(env)
                if is_missing:
                    proof_file.unlink(missing_ok=True)
                warning = provide_env(options, env, python) if is_missing else ""
            if warning:
                module.warn(warning)
        if options["leader_only"]:
            module.exit_json(changed=is_missing, id=env.name, path=str(env), proof={})
        device_holders = holders(options["device_glob"]) if options["device_glob"] else []
        needs_proof = proof is None and not device_holders
        if device_holders and proof is None:
            module.warn(
                f"env_proof {options['proof']} did not run, because {device_holders[0]}. When no "
                "run is active, run: ansible-playbook setup.yml -e renew=true"
            )
        if module.check_mode:
            unused = unused_environments(options, env)
        else:
            with one_at_a_time(SETUP):
                unused = unused_environments(options, env)
                remove_unused_files(options, unused, env)
            if needs_proof:
                proof = run_proof(options, env)
                proof_file.write_text(json.dumps(proof) + "\n", encoding="utf-8")
    except (EnvError, RunError) as error:
        module.fail_json(msg=str(error))
    except WheelsMissingError as error:
        module.exit_json(changed=False, id="", path="", proof={}, needs=error.needs)
    except KeyError as error:
        module.fail_json(
            msg=f"the user {USER} does not exist ({error}). "
            "Create it: ansible-playbook setup.yml --tags base"
        )
    except OSError as error:
        module.fail_json(msg=os_error_text(error))
    removed = [path.name for path in unused]
    if removed and not module.check_mode:
        module.log(f"removed unused environments: {', '.join(removed)}")
    after = f"{env}\n" + "".join(f"{name}\n" for name in packages(options["lock"]))
    module.exit_json(
        changed=bool(is_missing or needs_proof or removed),
        removed=removed,
        id=env.name,
        path=str(env),
        proof=proof or {},
        diff={"before": "" if is_missing else after, "after": after},
    )


if __name__ == "__main__":
    main()
