#!/usr/bin/python
"""Start or stop a run on a worker, or say what keeps it from starting."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run
short_description: Start or stop this worker's part of a run
description:
  - O(state=ready) looks only, and answers how the run stands here and what keeps it from starting.
  - O(state=launched) answers the same, and starts the run where nothing is in the way; its workers
    then wait for each other, so that none begins alone.
  - O(state=started) looks again, writes what the unit needs and starts it. A run that runs already
    as it is asked for is left alone; one that runs otherwise, or another run on the worker, is
    refused by name.
  - O(state=stopped) sends TERM to all of the run, gives it time to save, then KILL.
options:
  state:
    description: What to do.
    type: str
    choices: [ready, launched, started, stopped]
    required: true
  launch:
    description: What this worker's part of an attempt is. Not needed to stop a run.
    type: dict
    suboptions:
      attempt:
        description: Which launch of the run this is.
        type: int
        default: 0
      release:
        description: The release to run.
        type: str
        required: true
      lock_digest:
        description: SHA-256 of the lock file whose environment the run takes.
        type: str
        required: true
      config:
        description: The config's text; the worker gets it as a file. None for a trainer that takes
          none.
        type: str
      command:
        description:
          - The trainer's words, run without a shell in the release's directory, with the
            environment's programs first. C({run}), C({run_dir}), C({attempt}), C({coordinator}),
            C({num_processes}), C({process_id}), C({config}) and C({checkpoints}) are filled in.
        type: list
        elements: str
        required: true
      coordinator:
        description: C(host:port) of process 0.
        type: str
        required: true
      num_processes:
        description: How many processes the run has.
        type: int
        default: 1
      process_id:
        description: Which of them is this worker's.
        type: int
        default: 0
      peers:
        description: The names of the run's workers, by process.
        type: list
        elements: str
        default: []
      meet_seconds:
        description: How long the workers of an attempt wait for each other.
        type: int
        default: 120
      checkpoints:
        description: Where this run's checkpoints go.
        type: str
        required: true
      compile_cache:
        description:
          - Where JAX keeps what it compiled, a directory that all workers see or a gs:// address.
            Only process 0 writes there, so workers whose caches are their own compile all of it
            again at each launch. By default, and where the directory can't be made, one of the
            worker's own.
        type: str
        default: ""
      chip:
        description: Which one chip of the worker the run has; -1 for all of them. Runs of other
          chips are not in its way.
        type: int
        default: -1
      volatile_checkpoints:
        description: Whether several workers may have a checkpoint directory that they do not share.
        type: bool
        default: false
      finished_attempt:
        description: The attempt whose marker beside the checkpoints shows that this launch is done;
          then nothing is started. 0 for none.
        type: int
        default: 0
  env:
    description: More environment variables for the trainer.
    type: dict
    default: {}
  secrets:
    description: Environment variables that are in no log, each of at least 8 characters. They
      reach the trainer as a systemd credential.
    type: dict
    default: {}
    no_log: true
  token:
    description: The attempt's own secret, by which its workers know each other. Without one they
      don't wait for each other.
    type: str
  mortal:
    description: Whether this TPU may be taken away at any time (spot), with all that is on its
      disks. Checkpoints that lie there are refused.
    type: bool
    default: false
  device_glob:
    description: The accelerators' device files; empty where there is none.
    type: str
    default: ""
  root:
    description: Where the fleet lives on the worker.
    type: path
    default: /opt/tpufleet
extends_documentation_fragment:
  - tpufleet.core.run_name
  - tpufleet.core.run_places
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: tpufleet
"""

EXAMPLES = r"""
- name: Stop the run
  tpufleet.core.run:
    run: shakespeare
    state: stopped
  become: true
"""

RETURN = r"""
standing:
  description: C(running) and C(done) as asked for, C(other) if something else runs under the name,
    or C(absent).
  returned: state is ready or launched
  type: str
obstacles:
  description: What keeps the run from starting here.
  returned: state is ready or launched
  type: list
  elements: str
lacks:
  description: What is missing of the release, empty if it is whole.
  returned: state is ready or launched
  type: str
started:
  description: Whether this has started the run.
  returned: state is ready or launched
  type: bool
info:
  description: How the run stands afterwards.
  returned: always
  type: dict
"""

import re
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.done_marker import read_marker
from ..module_utils.worker.locks import RUNS, one_at_a_time
from ..module_utils.worker.python_env import EnvError, env_id, python_minor
from ..module_utils.worker.run import Launch, Places, RunError, check_name, chip_of, command_words
from ..module_utils.worker.run_checkpoints import dies_with_tpu, why
from ..module_utils.worker.run_state import RunState
from ..module_utils.worker.run_unit import (
    free_device,
    observe,
    obstacles,
    release_trouble,
    standing,
    start,
    stop,
    unit_states,
)

SHORTEST_SECRET = 8


def places_of(params: dict) -> Places:
    """Read where things lie."""
    return Places(Path(params["root"]), Path(params["state_dir"]), Path(params["etc"]))


def launch_of(params: dict, places: Places) -> Launch:
    """Read what is to be launched."""
    asked = params["launch"]
    return Launch(
        run=check_name(params["run"]),
        attempt=asked["attempt"],
        release=asked["release"],
        python_env=env_id(asked["lock_digest"], minor_of(places.root / "bin/python")),
        config=asked["config"],
        command=command_words(asked["command"]),
        env=pairs(params["env"]),
        secrets=pairs(params["secrets"]),
        coordinator=asked["coordinator"],
        num_processes=asked["num_processes"],
        process_id=asked["process_id"],
        checkpoints=asked["checkpoints"],
        peers=tuple(asked["peers"]),
        token=params["token"] or "",
        meet_seconds=asked["meet_seconds"],
        compile_cache=asked["compile_cache"],
        chip=asked["chip"],
        volatile_checkpoints=asked["volatile_checkpoints"],
        finished_attempt=asked["finished_attempt"],
    )


def minor_of(python: Path) -> int:
    """Tell the minor version of the fleet's Python by the name that it leads to; where that doesn't
    say, by asking it, which takes as long as all the rest here. Raises EnvError.
    """
    named = re.fullmatch(r"python3\.(\d+)", python.resolve().name)
    return int(named[1]) if named and python.exists() else python_minor(python)


def pairs(variables: dict) -> tuple[tuple[str, str], ...]:
    """Give variables in an order that is always the same."""
    return tuple(sorted((str(name), str(value)) for name, value in variables.items()))


def check_secrets(secrets: dict) -> None:
    """Raise RunError for a short secret.

    AnsibleModule masks every secret wherever it is found in an answer, also within numbers and
    words.
    """
    short = [name for name, value in pairs(secrets) if 0 < len(value) < SHORTEST_SECRET]
    if short:
        raise RunError(
            f"secrets: {', '.join(short)} has fewer than {SHORTEST_SECRET} characters, which "
            "would also mask other text. Set what is not secret with env instead: "
            "ansible-playbook train.yml -e env='\"NAME=VALUE\"'"
        )


def mortal(params: dict) -> list[str]:
    """Refuse checkpoints that are gone when the TPU is."""
    asked = params["launch"]
    leader = asked["coordinator"].rpartition(":")[0].strip("[]")
    why = dies_with_tpu(asked["checkpoints"], leader) if params["mortal"] else None
    if not why:
        return []
    return [
        f"{why}, and this TPU may be taken away: "
        "ansible-playbook train.yml -e checkpoints=gs://BUCKET/PREFIX, "
        "or -e volatile_checkpoints=true if losing them is fine"
    ]


def ready(params: dict, places: Places) -> dict:
    """Look only."""
    answer = {"changed": False, "started": False, "obstacles": [], "lacks": "", "info": {}}
    try:
        launch = launch_of(params, places)
    except EnvError as error:
        return {**answer, "standing": "absent", "obstacles": [str(error)]}
    units = unit_states([launch.run], others=True)
    seen = observe(launch.run, places, unit=units[launch.run])
    found = standing(launch, seen)
    if found == "absent" and launch.finished_attempt:
        try:
            marker = read_marker(launch.checkpoints, launch.run, launch.variables())
        except (OSError, ValueError) as error:
            what = why(error) if isinstance(error, OSError) else "the answers make no sense"
            cannot_tell = f"{launch.checkpoints}: cannot read whether the run is done: {what}"
            return {**answer, "standing": found, "info": seen, "obstacles": [cannot_tell]}
        found = "done" if marker and marker.attempt == launch.finished_attempt else found
    if found not in ("running", "done"):
        in_the_way = obstacles(launch, places, params["device_glob"], units)
        answer["obstacles"] = in_the_way + mortal(params)
        answer["lacks"] = release_trouble(launch, places)
    return {**answer, "standing": found, "info": seen}


def launched(params: dict, places: Places, check: bool) -> dict:
    """Start the run where nothing is in the way; else answer what is."""
    answer = ready(params, places)
    if answer["standing"] != "absent" or answer["obstacles"] or answer["lacks"]:
        return answer
    begun = begin(launch_of(params, places), places, params["device_glob"], check, answer["info"])
    return {**answer, **begun, "started": True}


def started(params: dict, places: Places, check: bool) -> dict:
    """Start the run if it doesn't run. Raises RunError with all that is in the way."""
    launch = launch_of(params, places)
    seen = observe(launch.run, places)
    if standing(launch, seen) == "running" and seen["attempt"] == launch.attempt:
        return {"changed": False, "info": seen}
    if seen["active"]:
        raise RunError(
            f"run {launch.run} is {seen['state']} here, attempt {seen['attempt']}: "
            f"ansible-playbook playbooks/kill.yml -e run={launch.run} first"
        )
    in_the_way = obstacles(launch, places, params["device_glob"])
    lacks = "" if check else release_trouble(launch, places)  # a dry run has pushed nothing
    if in_the_way or lacks:
        raise RunError("; ".join(in_the_way + ([lacks] if lacks else [])))
    return begin(launch, places, params["device_glob"], check, seen)


def begin(launch: Launch, places: Places, device_glob: str, check: bool, seen: dict) -> dict:
    """Start what nothing is in the way of; ``seen`` is how the run stood before."""
    unit = None
    if not check:
        start(launch, places, device_glob)
        unit = {"ActiveState": "active"}  # or systemd had refused (systemd.service(5), Type=exec)
    return {
        "changed": True,
        "info": observe(launch.run, places, unit=unit),
        "diff": {"before": f"{seen['state']}\n", "after": f"running, attempt {launch.attempt}\n"},
    }


def stopped(params: dict, places: Places, check: bool) -> dict:
    """Stop the run if it runs; nothing to stop is fine, but a device that is held still is not."""
    run = check_name(params["run"])
    seen = observe(run, places)
    if not seen["active"]:
        chip = chip_of(seen["launched"])
        left, taken = free_device(params["device_glob"], check=check, chip=chip)
        if left:
            raise RunError(f"run {run} does not run here, but {left[0]}: end it, then try again")
        return {"changed": taken, "info": seen}
    left = [] if check else stop(run, params["device_glob"], chip_of(seen["launched"]))
    if left:
        raise RunError(f"run {run} is stopped, but {left[0]}: end it, then run this again")
    after = seen if check else observe(run, places, unit={"ActiveState": "inactive"})
    if after["state"] == RunState.LOST:
        after = observe(run, places)  # nothing was left to record the end, so ask systemd
    return {
        "changed": True,
        "info": after,
        "diff": {
            "before": f"{seen['state']}\n",
            "after": "stopped\n" if check else f"{after['state']}\n",
        },
    }


def main() -> None:
    """Do what the state asks for."""
    module = AnsibleModule(
        argument_spec={
            "run": {"type": "str", "required": True},
            "state": {
                "type": "str",
                "choices": ["ready", "launched", "started", "stopped"],
                "required": True,
            },
            "launch": {
                "type": "dict",
                "options": {
                    "attempt": {"type": "int", "default": 0},
                    "release": {"type": "str", "required": True},
                    "lock_digest": {"type": "str", "required": True},
                    "config": {"type": "str"},
                    "command": {"type": "list", "elements": "str", "required": True},
                    "coordinator": {"type": "str", "required": True},
                    "num_processes": {"type": "int", "default": 1},
                    "process_id": {"type": "int", "default": 0},
                    "peers": {"type": "list", "elements": "str", "default": []},
                    "meet_seconds": {"type": "int", "default": 120},
                    "checkpoints": {"type": "str", "required": True},
                    "compile_cache": {"type": "str", "default": ""},
                    "chip": {"type": "int", "default": -1},
                    "volatile_checkpoints": {"type": "bool", "default": False},
                    "finished_attempt": {"type": "int", "default": 0},
                },
            },
            "env": {"type": "dict", "default": {}},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "token": {"type": "str", "no_log": True},
            "mortal": {"type": "bool", "default": False},
            "device_glob": {"type": "str", "default": ""},
            "root": {"type": "path", "default": "/opt/tpufleet"},
            "state_dir": {"type": "path", "default": "/var/lib/tpufleet"},
            "etc": {"type": "path", "default": "/etc/tpufleet"},
        },
        required_if=[("state", state, ["launch"]) for state in ("ready", "launched", "started")],
        supports_check_mode=True,
    )
    params, places = module.params, places_of(module.params)
    try:
        check_secrets(params["secrets"])
        with one_at_a_time(RUNS):
            if params["state"] == "ready":
                result = ready(params, places)
            elif params["state"] == "launched":
                result = launched(params, places, module.check_mode)
            elif params["state"] == "started":
                result = started(params, places, module.check_mode)
            else:
                result = stopped(params, places, module.check_mode)
    except (RunError, EnvError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
