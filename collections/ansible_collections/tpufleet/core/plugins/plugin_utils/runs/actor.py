"""Execution of the decisions of the watch and of restart.yml, by calls of playbooks."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible import context

from ...module_utils.worker.node_identity import NodeIdentity
from ..view import play_result
from .event_kind import RECREATIONS, Action, EventKind
from .lease import Claim
from .observation import Observation
from .playbook_process import run_process
from .release_cache import cached_lock_path, cached_release_path
from .watch_log import WatchLog

if TYPE_CHECKING:
    from .record import RunRecord

CREATE, DELETE, SETUP = "playbooks/create.yml", "playbooks/delete.yml", "setup.yml"
PUSH, TRAIN, KILL = "playbooks/push.yml", "train.yml", "playbooks/kill.yml"
ACTION_S = 1200.0
"""Time limit of one playbook, in seconds."""
CREATE_S = 60
"""How long create.yml waits for a TPU to become READY, in seconds. Later passes check again."""


@dataclass(frozen=True)
class Play:
    """One call of ansible-playbook: the playbooks and their extra variables."""

    playbooks: tuple[str, ...]
    variables: Mapping[str, Any]


@dataclass(frozen=True)
class Actor:
    """Carries out actions on runs and TPUs by running playbooks.

    Args:
        project: the root directory of the project.
        state_dir: this controller's local state directory, with cached releases and lock files.
        fleet_state: the location of the run records.
        log: the log of the watch.
        deadline: when the last playbook must have ended, as a value of ``time.monotonic()``.
    """

    project: Path
    state_dir: Path
    fleet_state: str
    log: WatchLog
    deadline: float

    def act(
        self,
        record: RunRecord,
        observed: Observation,
        action: Action,
        fence: int,
        claim: Claim,
        add_event: Callable[[EventKind], None] = lambda _kind: None,
    ) -> str:
        """Run the playbooks of an action until one fails; return the error, empty if all succeed.

        Args:
            record: the record of the run.
            observed: the observed state of the run.
            action: what to do.
            fence: the fencing number of the watch's lease (lease.py).
            claim: the right to act on the run, checked before and during each playbook.
            add_event: adds an event to the run's history. It is called with SETUP_STARTED before
                setup.yml and with SETUP_DONE after it.
        """
        for play in plays_of(action, record, observed, self.state_dir, self.fleet_state, fence):
            if SETUP in play.playbooks:
                add_event(EventKind.SETUP_STARTED)
            if error := self._play(f"run {record.run}", record.run, play, claim):
                return error
            if SETUP in play.playbooks:
                add_event(EventKind.SETUP_DONE)
        return ""

    def delete(self, node: NodeIdentity, claim: Claim) -> str:
        """Delete the TPU with this name, zone and id. Return the error; empty on success.

        ``claim`` is the right to act on the TPU.
        """
        play = Play((DELETE,), delete_variables(node))
        return self._play(f"TPU {node.name} ({node.zone})", node.name, play, claim)

    def _play(self, subject: str, name: str, play: Play, claim: Claim) -> str:
        """Call ansible-playbook and append its output to the file ``log.output_of(name)``.

        Returns the error; empty if the call succeeds. ``subject`` is the start of each line in the
        log, such as ``run a``. ``name`` is the name of the run or TPU.
        """
        playbooks = " ".join(play.playbooks)
        if blocker := claim.lost() or claim.blocker():
            self.log(f"{subject}: {playbooks} was not started: {blocker}")
            return blocker
        time_limit = min(ACTION_S, self.deadline - time.monotonic())
        if time_limit <= 0:
            return (
                f"{playbooks} was not started, because the watch's pass has reached its time "
                "limit. The next pass continues"
            )
        arguments = [*play.playbooks, "-e", json.dumps(dict(play.variables))]
        self.log(f"{subject}: $ ansible-playbook {playbooks} -e '{arguments[-1]}'")
        began_at = time.monotonic()

        def reason_to_stop() -> str:
            return claim.lost() or (
                f"its time limit of {time_limit:.0f} s has passed" if elapsed() > time_limit else ""
            )

        def elapsed() -> float:
            return time.monotonic() - began_at

        output = self.log.output_of(name)
        with (
            output.open("a", encoding="utf-8") as stream,
            tempfile.TemporaryDirectory(prefix="tpufleet-") as directory,
        ):
            result = Path(directory) / "result.json"
            command = [*ansible_playbook(), *arguments]
            env = child_environment(result)
            code, stop_reason = run_process(command, self.project, env, stream, reason_to_stop)
            error = stop_reason or play_error(code, result, output)
        if not error:
            self.log(f"{subject}: {playbooks} succeeded, {elapsed():.0f} s")
            return ""
        message = f"{playbooks} failed after {elapsed():.0f} s: {error}"
        self.log(f"{subject}: {message} (its output: {output})")
        return message


def plays_of(
    action: Action,
    record: RunRecord,
    observed: Observation,
    state_dir: Path,
    fleet_state: str,
    fence: int,
) -> list[Play]:
    """Return the calls of ansible-playbook for an action, in order.

    A launch calls only train.yml if all workers report that they are set up for this version and
    have the run's environment. Otherwise it calls setup.yml and push.yml before train.yml.
    RECREATE and REPLACE do not launch the run: the watch does so with LAUNCH when the new TPU is
    READY. For ``state_dir`` and ``fleet_state`` see Actor, for the other arguments Actor.act.
    """
    # Playbooks that stop a run, delete a TPU or start an attempt fail if the fencing number in the
    # run's record is greater than ``fence``: a later holder of the lease has already acted on the
    # run.
    fence_variables = {"run": record.run, "fence": fence, "fleet_state": fleet_state}
    launch_variables = (
        relaunch_variables(record, state_dir, fleet_state, observed.address) | fence_variables
    )
    kill = Play((KILL,), {"tpu": observed.address, "record": False} | fence_variables)
    processes = observed.processes
    is_set_up = processes and all(
        process.is_set_up and process.has_environment for process in processes
    )
    launch = [Play((TRAIN,), launch_variables)]
    if not is_set_up:
        launch = [Play((SETUP,), launch_variables), Play((PUSH, TRAIN), launch_variables)]
    if action in RECREATIONS:
        return _recreation(action, record, observed, fence_variables)
    if action == Action.LAUNCH:
        return launch
    if action == Action.RESTART:
        return [kill, *launch]
    return [kill] if action == Action.STOP else []


def _recreation(
    action: Action, record: RunRecord, observed: Observation, fence_variables: Mapping[str, Any]
) -> list[Play]:
    """Return the calls of ansible-playbook that recreate the run's TPU.

    For REPLACE, the first call deletes the observed TPU. It selects the TPU by id, so that it never
    deletes another one. ``fence_variables`` are extra variables: run, fence and fleet_state.
    """
    existing = [NodeIdentity(tpu.name, tpu.zone, tpu.id) for tpu in observed.tpus]
    to_delete = existing if action == Action.REPLACE else []
    plays = [Play((DELETE,), {**delete_variables(node), **fence_variables}) for node in to_delete]
    (node,) = existing or record.launch.nodes[:1]
    create = {"tpu": node.name, "node_id": node.id, "create_seconds": CREATE_S}
    return [*plays, Play((CREATE,), {**create, **fence_variables})]


def delete_variables(node: NodeIdentity) -> dict[str, Any]:
    """Return the extra variables with which delete.yml deletes only the TPU with this id."""
    return {"tpu": node.name, "zone": node.zone, "node_id": node.id, "yes": True}


def ansible_playbook() -> list[str]:
    """Return the command ansible-playbook with the inventory and vault options of this playbook.

    A vault password that the user typed can't be passed on.
    """
    tool = Path(sys.executable).with_name("ansible-playbook")
    sources: Sequence[str] = context.CLIARGS.get("inventory") or ()
    inventories = [option for source in sources for option in ("-i", str(source))]
    files: Sequence[str] = context.CLIARGS.get("vault_password_files") or ()
    ids: Sequence[str] = context.CLIARGS.get("vault_ids") or ()
    vault_options = [option for file in files for option in ("--vault-password-file", str(file))]
    vault_options += [
        option
        for vault_id in map(_vault_id, ids)
        if vault_id
        for option in ("--vault-id", vault_id)
    ]
    return [str(tool if tool.exists() else "ansible-playbook"), *inventories, *vault_options]


def _vault_id(option: str) -> str:
    """Return a ``--vault-id`` option (``NAME@FILE``) in which the path of FILE is absolute.

    Returns an empty text if the option asks the user for the password (``NAME@prompt``).
    """
    name, separator, source = option.rpartition("@")
    if source == "prompt" or source.startswith("prompt_"):
        return ""
    return f"{name}{separator}{Path(source).expanduser().absolute()}"


def child_environment(result: Path) -> dict[str, str]:
    """Return environment variables that make a playbook write its result to the file ``result``."""
    return {
        **os.environ,
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_FORCE_COLOR": "0",
        "ANSIBLE_STDOUT_CALLBACK": "tpufleet.core.view",
        play_result.VARIABLE: str(result),
    }


def play_error(code: int, result: Path, output: Path) -> str:
    """Return why a playbook failed; empty if it succeeded.

    A playbook without a valid result file has failed, whatever its exit code.

    Args:
        code: the exit code of ansible-playbook.
        result: the file to which the callback plugin wrote the result of the playbook.
        output: the file with what the playbook printed, for the error.
    """
    try:
        error = play_result.read_error(result)
    except play_result.ResultError as invalid:
        return f"exit code {code}, {invalid}. See its output: tail {output}"
    return "" if code == 0 else error or f"exit code {code}. See its output: tail {output}"


def relaunch_variables(
    record: RunRecord, state_dir: Path, fleet_state: str, tpu: str
) -> dict[str, Any]:
    """Return the extra variables for setup.yml, push.yml and train.yml to relaunch a run.

    ``state_dir`` is the local state directory with the cached release. ``tpu`` is the value of
    ``-e tpu=`` that selects the run's TPU now.
    """
    launch = record.launch
    variables: dict[str, Any] = {
        "run": record.run,
        "tpu": tpu,
        "relaunch": True,
        "code": str(cached_release_path(state_dir, launch.release)),
        "jax_lock": str(cached_lock_path(state_dir, launch.requirements)),
        "jax_requirements": launch.jax_requirements,
        "fleet_state": fleet_state,
        "wait": "started",
    }
    if launch.chip >= 0:
        variables |= {"per_chip": True, "chip": launch.chip}
    return variables
