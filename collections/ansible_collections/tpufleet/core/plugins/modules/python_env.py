#!/usr/bin/python
"""Make a Python environment from a lock file, once, and prove that JAX runs in it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: python_env
short_description: Make a worker's Python environment from a lock file, and prove that JAX sees its
  devices
description:
  - An environment is made once under a name that its lock file and Python's version give, and never
    changed. One that an interruption left unfinished is made anew.
  - The proof runs JAX on this worker alone, bounded in time, as the trainer's user, and is kept
    beside the environment. Where a process holds the device it is put off, not forced.
options:
  lock:
    description: The lock file's text, in pip's format with hashes.
    type: str
    required: true
  platform:
    description: What JAX is to find here.
    type: str
    choices: [cpu, tpu, cuda]
    default: cpu
  devices:
    description: How many devices JAX must find at the least.
    type: int
    default: 1
  chips:
    description: How many TPU chips this worker has; bounds the proof.
    type: int
    default: 0
  device_glob:
    description: The accelerators' device files, to see who holds them.
    type: str
    default: ""
  proof_seconds:
    description: How long the proof may take.
    type: int
    default: 120
  user:
    description: Who runs the trainer.
    type: str
    default: tpufleet
  needed_mb:
    description: Free disk space to ask for before anything is made. By default a measure of the
      platform's.
    type: int
  env:
    description: More environment variables for uv, such as an index of one's own.
    type: dict
    default: {}
  root:
    description: Where the fleet lives on the worker.
    type: path
    default: /opt/tpufleet
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: tpufleet
"""

EXAMPLES = r"""
- name: Have the environment that the lock file names
  tpufleet.core.python_env:
    lock: "{{ lookup('ansible.builtin.file', 'requirements/worker-cpu.lock') }}"
  become: true
"""

RETURN = r"""
id:
  description: The environment's name.
  returned: success
  type: str
path:
  description: Where it is.
  returned: success
  type: str
proof:
  description: What JAX said of itself and of this worker's devices; empty if the proof was put off.
  returned: success
  type: dict
"""

import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.devices import holders
from ..module_utils.locks import SETUP, one_at_a_time
from ..module_utils.python_env import (
    NEEDED_MB,
    EnvError,
    check_room,
    env_id,
    install_env,
    is_complete,
    lock_digest,
    packages,
    prove,
    python_minor,
)


def read_proof(path: Path) -> dict | None:
    """Read an earlier proof."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def certify(options: dict, env: Path) -> dict:
    """Run the proof and compare it with what is wanted. Raises EnvError."""
    proof = prove(
        env, options["platform"], options["chips"], options["proof_seconds"], options["user"]
    )
    if proof["devices"] < options["devices"]:
        raise EnvError(
            f"JAX {proof['jax']} finds {proof['devices']} {proof['platform']} devices, "
            f"{options['devices']} are expected: reboot the worker, or make the TPU anew"
        )
    return proof


def main() -> None:
    """Make the environment if it isn't there, prove it if that wasn't done."""
    module = AnsibleModule(
        argument_spec={
            "lock": {"type": "str", "required": True},
            "platform": {"type": "str", "choices": ["cpu", "tpu", "cuda"], "default": "cpu"},
            "devices": {"type": "int", "default": 1},
            "chips": {"type": "int", "default": 0},
            "device_glob": {"type": "str", "default": ""},
            "proof_seconds": {"type": "int", "default": 120},
            "user": {"type": "str", "default": "tpufleet"},
            "needed_mb": {"type": "int"},
            "env": {"type": "dict", "default": {}},
            "root": {"type": "path", "default": "/opt/tpufleet"},
        },
        supports_check_mode=True,
    )
    options, root = module.params, Path(module.params["root"])
    python = root / "bin/python"
    if module.check_mode and not python.exists():
        module.exit_json(
            changed=True, id="", path="", proof={}, diff={"before": "", "after": "an environment\n"}
        )
    try:
        env = root / "envs" / env_id(lock_digest(options["lock"]), python_minor(python))
        kept = env.with_name(f"{env.name}.proof.json")
        missing, proof = not is_complete(env), read_proof(kept)
        held = holders(options["device_glob"]) if options["device_glob"] else []
        unproven = proof is None and not held
        if held and proof is None:
            module.warn(f"JAX is not proven yet: {held[0]}")
        if not module.check_mode:
            with one_at_a_time(SETUP):
                missing = not is_complete(env)
                if missing:
                    check_room(env, options["needed_mb"] or NEEDED_MB[options["platform"]])
                    uv, cache = root / "bin/uv", root / "cache"
                    install_env(env, options["lock"], python, uv, cache, options["env"])
            if unproven:
                proof = certify(options, env)
                kept.write_text(json.dumps(proof) + "\n", encoding="utf-8")
    except EnvError as error:
        module.fail_json(msg=str(error))
    except KeyError as error:
        module.fail_json(
            msg=f"there is no user {options['user']} ({error}): setup.yml --tags base makes it"
        )
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    after = f"{env}\n" + "".join(f"{name}\n" for name in packages(options["lock"]))
    module.exit_json(
        changed=missing or unproven,
        id=env.name,
        path=str(env),
        proof=proof or {},
        diff={"before": "" if missing else after, "after": after},
    )


if __name__ == "__main__":
    main()
