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
  - What the lock file pins is downloaded by the TPU's leader, which makes the environment. Its
    other workers take that as it is, bytecode and all, where their interpreter is the same one;
    else they take what it downloaded and make it themselves. Who downloads checks the lock's
    hashes.
  - Environments that nothing uses are removed, but the newest. What a process or a run in being
    uses never is.
options:
  turn:
    description: With V(leader), the environment is made but not proven, and only on a worker that
      has no leader to take it from; to be run first.
    type: str
    choices: [leader, all]
    default: all
  keep:
    description: How many environments to keep beside the current one and those in use.
    type: int
    default: 2
  runs:
    description: Where units find what they need.
    type: path
    default: /etc/tpufleet/runs
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
  source:
    description: Where wheels come from. V(controller) for workers that have no way out. The
      controller downloads them then, and sends them to the leader.
    type: str
    choices: [registry, controller]
    default: registry
  pack:
    description: A tar file of wheels on the worker; the controller's part puts it there.
    type: path
  cache:
    description: Where the controller keeps what it downloads. Of the controller's part.
    type: path
    default: ~/.cache/tpufleet
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
needs:
  description: For what the controller is to send wheels.
  returned: where they are missing and O(source=controller)
  type: dict
removed:
  description: The environments that went, since nothing uses them.
  returned: success
  type: list
proof:
  description: What JAX said of itself and of this worker's devices; empty if the proof was put off.
  returned: success
  type: dict
"""

import json
import shutil
from functools import partial
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.devices import holders
from ..module_utils.worker.env_copy import NoCopyError, begun, take_env
from ..module_utils.worker.env_install import (
    UV_CACHE,
    drop_unused,
    install_from_index,
    install_from_wheels,
    take_cache,
)
from ..module_utils.worker.env_use import active_runs, prunable, used_by_processes, used_by_runs
from ..module_utils.worker.from_leader import FromLeaderError, LeaderAwayError, has_leader
from ..module_utils.worker.locks import SETUP, one_at_a_time
from ..module_utils.worker.python_env import (
    COMPLETE,
    NEEDED_MB,
    EnvError,
    check_room,
    env_id,
    is_complete,
    lock_digest,
    packages,
    prove,
    python_minor,
)
from ..module_utils.worker.wheels import NotHereError, drop, have_sent, wheels_folder

ALONE = "this worker downloaded for itself"


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


def have_env(options: dict, env: Path, python: Path) -> str:
    """Have the environment: the leader's own if it serves here, else one made here.

    Gives what a person should know. Raises EnvError, NotHereError, OSError.
    """
    check_room(env, options["needed_mb"] or NEEDED_MB[options["platform"]])
    leader, of_another_build, word = has_leader(), False, ""
    if leader and not options["pack"]:
        try:
            take_env(env, python)
            return ""
        except LeaderAwayError as error:
            leader, word = False, f"{error}: {ALONE}"
        except FromLeaderError as error:
            word = f"{error}: {ALONE}"
        except NoCopyError:
            of_another_build = True  # its wheels serve here
    shutil.rmtree(begun(env), ignore_errors=True)
    if options["source"] == "registry":
        return from_index(options, env, python, of_another_build) or word
    folder = wheels_folder(cache_of(options), options["lock"], python_minor(python))
    pack = Path(options["pack"]) if options["pack"] else None
    said = have_sent(folder, options["lock"], pack, leader, python_minor(python))
    word = said if leader else word
    uv = Path(options["root"]) / "bin/uv"
    install_from_wheels(env, options["lock"], python, uv, folder, options["env"])
    return word


def from_index(options: dict, env: Path, python: Path, leaders_first: bool) -> str:
    """Make the environment of what an index gives; ``leaders_first``, of what the leader has
    downloaded if that serves.

    Gives what a person should know. Raises EnvError, OSError.
    """
    uv, cache, word = Path(options["root"]) / "bin/uv", cache_of(options) / UV_CACHE, ""
    make = partial(install_from_index, env, options["lock"], python, uv, options["env"], cache)
    if leaders_first:
        try:
            take_cache(cache)
            make(offline=True)
            return ""
        except FromLeaderError as error:
            word = f"{error}: {ALONE}"
        except EnvError:
            word = f"what the leader downloaded does not serve this worker's Python: {ALONE}"
    make()
    return word


def cache_of(options: dict) -> Path:
    """Name the directory of what was downloaded, which a leader serves."""
    return Path(options["root"]) / "cache"


def tidy(options: dict, env: Path) -> list[str]:
    """Remove what nothing uses any more; name it. What was downloaded stays where others take it
    from."""
    cache = cache_of(options)
    used = used_by_processes() | used_by_runs(Path(options["runs"]), active_runs())
    gone = prunable(env.parent, env.name, used, options["keep"])
    for old in gone:
        listed = old / "requirements.lock"
        if listed.is_file():
            drop(cache, listed.read_text(encoding="utf-8"))
        # Unnamed first: a removal that is cut short leaves nothing that looks like one.
        (old / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(old)
        old.with_name(f"{old.name}.proof.json").unlink(missing_ok=True)
    if has_leader():
        drop(cache, options["lock"])
        shutil.rmtree(cache / UV_CACHE, ignore_errors=True)
    else:
        drop_unused(cache / UV_CACHE)
    for left in (*env.parent.glob(".*.cache"), *env.parent.glob(".*.taken")):
        shutil.rmtree(left, ignore_errors=True)
    return [old.name for old in gone]


def main() -> None:
    """Make the environment if it isn't there, prove it if that wasn't done."""
    module = AnsibleModule(
        argument_spec={
            "lock": {"type": "str", "required": True},
            "turn": {"type": "str", "choices": ["leader", "all"], "default": "all"},
            "source": {"type": "str", "choices": ["registry", "controller"], "default": "registry"},
            "pack": {"type": "path"},
            "cache": {"type": "path", "default": "~/.cache/tpufleet"},
            "env": {"type": "dict", "default": {}},
            "root": {"type": "path", "default": "/opt/tpufleet"},
            "keep": {"type": "int", "default": 2},
            "runs": {"type": "path", "default": "/etc/tpufleet/runs"},
            "platform": {"type": "str", "choices": ["cpu", "tpu", "cuda"], "default": "cpu"},
            "devices": {"type": "int", "default": 1},
            "chips": {"type": "int", "default": 0},
            "device_glob": {"type": "str", "default": ""},
            "proof_seconds": {"type": "int", "default": 120},
            "user": {"type": "str", "default": "tpufleet"},
            "needed_mb": {"type": "int"},
        },
        supports_check_mode=True,
    )
    options, root = module.params, Path(module.params["root"])
    python, gone = root / "bin/python", []
    if options["turn"] == "leader" and (module.check_mode or has_leader()):
        module.exit_json(changed=False, id="", path="", proof={})
    if module.check_mode and not python.exists():
        module.exit_json(
            changed=True, id="", path="", proof={}, diff={"before": "", "after": "an environment\n"}
        )
    try:
        env = root / "envs" / env_id(lock_digest(options["lock"]), python_minor(python))
        kept = env.with_name(f"{env.name}.proof.json")
        missing = not is_complete(env)
        proof = None if missing else read_proof(kept)
        if not module.check_mode and missing:
            with one_at_a_time(SETUP):
                missing = not is_complete(env)
                if missing:
                    kept.unlink(missing_ok=True)
                word = have_env(options, env, python) if missing else ""
            if word:
                module.warn(word)
        if options["turn"] == "leader":
            module.exit_json(changed=missing, id=env.name, path=str(env), proof={})
        held = holders(options["device_glob"]) if options["device_glob"] else []
        unproven = proof is None and not held
        if held and proof is None:
            module.warn(f"JAX is not proven yet: {held[0]}")
        if not module.check_mode:
            with one_at_a_time(SETUP):
                gone = tidy(options, env)
            if unproven:
                proof = certify(options, env)
                kept.write_text(json.dumps(proof) + "\n", encoding="utf-8")
    except EnvError as error:
        module.fail_json(msg=str(error))
    except NotHereError as error:
        module.exit_json(changed=False, id="", path="", proof={}, needs=error.needs)
    except KeyError as error:
        module.fail_json(
            msg=f"there is no user {options['user']} ({error}): "
            "ansible-playbook setup.yml --tags base makes it"
        )
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    if gone:
        module.log(f"removed environments that nothing uses: {', '.join(gone)}")
    after = f"{env}\n" + "".join(f"{name}\n" for name in packages(options["lock"]))
    module.exit_json(
        changed=bool(missing or unproven or gone),
        removed=gone,
        id=env.name,
        path=str(env),
        proof=proof or {},
        diff={"before": "" if missing else after, "after": after},
    )


if __name__ == "__main__":
    main()
