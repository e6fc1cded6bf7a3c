"""Sentences for users about runs. Only this file formats states, reason codes and causes.

Programs compare states, reason codes and causes, never these sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...module_utils.worker.run_state import ReasonCode, RunState
from ..view.unreachable import unreachable_text
from .causes import Cause, CauseCode
from .event_kind import EventKind
from .history import Event
from .observation import ProcessStatus, process_of

if TYPE_CHECKING:
    from .judge import RunStatus, WorkerStatus

_STATES = {
    RunState.PARTLY_ENDED: "ended on some workers",
    RunState.WAITING_FOR_TPU: "waiting for its TPU",
    RunState.WAITING_FOR_WORKERS: "waiting for its workers",
    RunState.WAITING_FOR_RELEASE: "waiting for a controller that has the release",
    RunState.NAME_TAKEN: "a TPU of somebody else has the name of its TPU",
}
"""Texts of those states whose code does not say enough to users."""
_REASONS = {
    ReasonCode.SAVED: "interrupted, saved",
    ReasonCode.NOT_SAVED: "interrupted, not saved",
    ReasonCode.RENDEZVOUS_FAILED: "rendezvous failed",
    ReasonCode.CHECKPOINTS_NOT_SHARED: "checkpoints not shared",
    ReasonCode.BAD_CONFIG: "bad config",
    ReasonCode.LOSS_NOT_A_NUMBER: "loss is not a number",
    ReasonCode.NO_STEP: "crashed (exit 70: no step for too long)",
    ReasonCode.COMMAND_NOT_EXECUTABLE: "crashed (exit 126: the command can't be executed)",
    ReasonCode.COMMAND_NOT_FOUND: "crashed (exit 127: the command was not found)",
    ReasonCode.OUT_OF_MEMORY: "out of memory",
    ReasonCode.KILLED: "killed",
    ReasonCode.START_FAILED: "failed to start",
}
_CAUSES = {
    CauseCode.TPU_STATE: "its TPU is {tpu_state}",
    CauseCode.TPU_STATE_AGAIN: "its TPU is {tpu_state} again",
    CauseCode.TPU_UNHEALTHY: "its TPU is {health}",
    CauseCode.TPU_IN_MAINTENANCE: "its TPU is in maintenance",
    CauseCode.TPU_NAME_TAKEN: (
        "TPU {tpu} ({zone}) has another id than the record, and does not have this fleet's label. "
        "The watch leaves it alone"
    ),
    CauseCode.TPU_RECREATED: "its TPU was recreated",
    CauseCode.TPU_RECREATED_FOR: "its TPU is recreated for run {run}",
    CauseCode.ZONE_NOT_LISTED: (
        "its TPU is in {zone}, which the inventory does not list. Add the zone to zones in "
        "inventory/gcp/tpu.yml. If the TPU no longer exists, kill the run and launch it again"
    ),
    CauseCode.WORKERS_MISSING: "only {count} of its {of} workers are in the inventory",
    CauseCode.WORKERS_UNREACHABLE: "{hosts} can't be reached",
    CauseCode.WORKERS_UNREACHABLE_FOR: (
        "{hosts} unreachable for {seconds:.0f} s although the TPU is READY"
    ),
    CauseCode.WORKER_FAILED_FIRST: "{host} was the first to fail {count} times in a row",
    CauseCode.OTHER_RUN: "run {run} is on {host}",
    CauseCode.OTHER_RUN_LAUNCHED: "run {run} is launched on the same TPU",
    CauseCode.PROCESSES_DONE: "every process has exited with 0",
    CauseCode.PROCESSES_STILL_ACTIVE: "its desired state is stopped, but it is active on {hosts}",
    CauseCode.PROCESSES_PARTLY_ENDED: "it has ended on {hosts} and is active on {host}",
    CauseCode.LAUNCHED_RECENTLY: "it was launched {seconds:.0f} s ago and may still be starting",
    CauseCode.PROCESS_MISSING: "it has no process",
    CauseCode.DONE_MARKER: "its checkpoints have the done marker of its last attempt",
    CauseCode.HEARTBEAT_MISSING: "{host} has written no heartbeat for {seconds:.0f} s",
    CauseCode.OUTPUT_MISSING: "no worker has written to its log for {seconds:.0f} s",
    CauseCode.CONFIRMING: "confirming this with the API",
    CauseCode.LAUNCH_IN: "the next launch is in {seconds:.0f} s",
    CauseCode.RECREATE_IN: "the TPU is recreated in {seconds:.0f} s",
    CauseCode.RUN_CONTINUES: "the run continues on {host}",
    CauseCode.NO_WORKER_REACHABLE: "this controller cannot reach any other worker either",
    CauseCode.NO_BUCKET: (
        "its checkpoints are not in a bucket. The watch does not delete the TPU, because the data "
        "on the TPU's disks would be lost. If you need nothing from the disks, delete the TPU, and "
        "the watch recreates it: {delete}"
    ),
    CauseCode.NOT_OURS: (
        "the watch does not delete the TPU, because it does not have this fleet's label. If nobody "
        "needs it, delete it: {delete}"
    ),
    CauseCode.MULTISLICE: (
        "one queued resource created all its slices, and the watch can't recreate queued "
        "resources. Create the queued resource again, and the run resumes"
    ),
    CauseCode.RELEASE_MISSING: (
        "{path} is missing. Launch the run from this controller once, with all options of its last "
        "launch: ansible-playbook train.yml -e run={run} {options}"
    ),
    CauseCode.NEXT_PASS: "the next pass continues",
    CauseCode.ANSWERS_TOO_OLD: (
        "the last report of its workers is {seconds:.0f} s old, so the next pass gets a "
        "new one first"
    ),
    CauseCode.TPU_CHANGED: "its TPU is {tpu_state} now, so the next pass observes it again",
    CauseCode.RECORD_CHANGED: "its record has just changed",
    CauseCode.LEASE_HELD: "{error}",
    CauseCode.TOO_MANY_PREEMPTIONS: "it was preempted {count} times",
    CauseCode.TOO_MANY_REPLACEMENTS: "the TPU was recreated {count} times",
    CauseCode.TOO_MANY_CRASHES: "it failed {count} times without a new step",
    CauseCode.TOO_MANY_NANS: "the loss was not a number {count} times without a new step",
    CauseCode.REPLACE_BY_HAND: "replace its TPU, or launch the run on another TPU",
    CauseCode.COPY_CHECKPOINTS: (
        "replace its TPU, or launch the run on another TPU. Its checkpoints are not in a bucket: "
        "if they are on the TPU's disks, a new TPU starts at step 0, so copy them before you "
        "delete it: ansible-playbook playbooks/fetch.yml -e run={run} -e checkpoints=newest"
    ),
}
_LAUNCH_FIELDS = {"command": "command or set", "requirements": "environment"}
_EVENTS = {
    EventKind.LAUNCHED: "launched with release {release}",
    EventKind.LAUNCH_FAILED: "the launch failed: {text}",
    EventKind.FOUND_RUNNING: "found running",
    EventKind.STOPPED: "stopped",
    EventKind.RESTARTED: "restarted on request",
    EventKind.SETUP_STARTED: "its workers are being set up",
    EventKind.SETUP_DONE: "its workers are set up",
    EventKind.DONE: "done",
}


def process_text(process: ProcessStatus) -> str:
    """Format what a process is doing or how it ended, without its error message."""
    match process.state, process.reason_code:
        case RunState.WAITING, _:
            return f"waiting for {', '.join(process.waiting_for) or 'the other workers'}"
        case RunState.HUNG, _:
            return f"hung, no heartbeat for {process.heartbeat_age or 0:.0f} s"
        case RunState.TRAINING, _:
            has_phase = process.phase not in ("", "running")
            return process.phase if has_phase else state_text(RunState.TRAINING)
        case _, ReasonCode.PEER_ENDED:
            return f"ended because {peer_text(process)}"
        case _, ReasonCode.SIGNAL:
            return f"crashed (signal {process.signal})"
        case _, ReasonCode.EXIT_CODE:
            return f"crashed (exit {process.exit_code})"
        case state, reason:
            return _REASONS.get(reason) or state_text(state)


def peer_text(process: ProcessStatus) -> str:
    """Format which other worker made this process end, and how that worker ended."""
    if not process.peer:
        return "another worker ended"
    if process.peer_exit_code is None:
        return f"{process.peer} was lost"
    return f"{process.peer} ended with exit code {process.peer_exit_code}"


def process_line(process: ProcessStatus) -> str:
    """Format what a process is doing, with its worker and its error message."""
    return ": ".join(filter(None, (process.host, process_text(process), process.error)))


def progress_text(process: ProcessStatus) -> str:
    """Format the progress of a process: its step and loss, or the age of its last output."""
    text = process_text(process)
    step = process.reached_step
    if step is None:
        age = None if process.has_heartbeat else process.output_age
        return text if age is None else f"{text}, last output {age:.0f} s ago"
    total = f" of {process.steps}" if process.steps is not None else ""
    loss = f", loss {process.loss:.3f}" if process.loss is not None else ""
    return f"{text}: step {step}{total}{loss}"


def stopped_text(process: ProcessStatus) -> str:
    """Format how a stopped process ended, with its last step."""
    step = process.reached_step
    step_text = f" at step {step}" if step is not None else ""
    return f"{process_text(process)}{step_text}"


def run_text(run: RunStatus) -> str:
    """Format what a run as a whole is doing."""
    if run.state is RunState.WAITING_FOR_TPU:
        return f"its TPU is {run.tpu_state.lower()}"
    if run.state is RunState.STOPPED:
        return "stopped by kill.yml"
    if run.decided_by and run.decided_by.state is run.state:
        return process_text(run.decided_by)
    return state_text(run.state)


def worker_text(worker: WorkerStatus) -> str:
    """Format what a worker is doing."""
    if worker.process:
        return process_text(worker.process)
    if worker.tpu_state:
        return worker.tpu_state.lower()
    if worker.answer is not None:
        return "unreachable" if worker.answer.get("unreachable") else "unknown"
    return "idle"


def last_activity_text(run: RunStatus) -> str:
    """Format the age of a run's last heartbeat, or of its last output if it has no heartbeat."""
    if run.heartbeat_age is not None:
        return f"{run.heartbeat_age:.0f} s ago"
    return "-" if run.output_age is None else f"output {run.output_age:.0f} s ago"


def age_text(seconds: float) -> str:
    """Format a duration in the largest unit that gives at least 2: ``90 s``, ``5 min``, ``2 h``."""
    seconds = max(0.0, seconds)
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def answer_error(answer: Mapping[str, Any], tpu: str = "") -> str:
    """Format Ansible's message about a worker whose task failed or did not run, as one line.

    For an unreachable worker, the line ends with the doctor command for ``tpu``, if ``tpu`` is set.
    """
    text = " ".join(str(answer.get("msg") or "no answer").split()).removeprefix("Task failed: ")
    if answer.get("unreachable"):
        return f"can't be reached: {unreachable_text(text, tpu)}"
    return text


def state_text(state: RunState) -> str:
    """Format a run state, without its cause."""
    return _STATES.get(state) or state.value.replace("_", " ")


def cause_text(cause: Cause) -> str:
    """Format a cause of a decision of the watch as text for users."""
    try:
        if cause.code is CauseCode.PROCESS:
            return process_line(process_of(cause))
        return _CAUSES[cause.code].format_map(cause.values)
    except (KeyError, ValueError, TypeError):
        # Values in the run record do not fit the sentence for this code: show only the code.
        return cause.code.value


def pass_text(state: RunState, causes: Iterable[Cause], action: str = "", error: str = "") -> str:
    """Format the outcome of a watch pass for one run: its state, the causes, action and error."""
    reasons = "; ".join(filter(None, (*map(cause_text, causes), error)))
    return ": ".join(filter(None, (state_text(state), reasons, action)))


def changed_launch_text(run: str, fields: Iterable[str], *, check: bool) -> str:
    """Format a warning that a launch differs in ``fields`` from the last launch of the run.

    In check mode (``check``), the warning suggests restart.yml, which repeats the recorded launch.
    Otherwise this launch has replaced the last one in the record, so restart.yml cannot repeat it.
    """
    names = " and ".join(_LAUNCH_FIELDS.get(name, name) for name in fields)
    fix = "If you did not intend this, launch the run again with the earlier settings"
    if check:
        fix = (
            "To resume the run as it was: "
            f"ansible-playbook playbooks/restart.yml -e run={run} -e even_if_stopped=true"
        )
    return f"run {run}: this launch differs from the last one in {names}. {fix}"


def event_text(event: Event) -> str:
    """Format an event of a run's history."""
    if event.kind is EventKind.WATCH and event.state:
        return pass_text(event.state, event.causes, event.action)
    return _EVENTS.get(event.kind, "").format(release=event.release, text=event.text)
