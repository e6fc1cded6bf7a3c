"""Faults that tests inject into a run, each with a pattern that the watch's log must then match.

Where needed, the function that injects a fault also ends it. After each fault, the watch must
resume the run.
"""

import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import requests
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.lease import LEASE_S, MAX_SKEW_S

from harness.disturbed import BUCKET, TPU, DisturbedRun
from harness.process_tree import kill_tree
from localcloud import client
from localcloud.failure import CloudError

NO_LEASE_S = LEASE_S + MAX_SKEW_S + 30
"""Seconds after which the lease of a killed controller has expired, with some margin."""
HOME_ZONE, OTHER_ZONE = "us-central2-b", "europe-west4-b"


@dataclass(frozen=True)
class Fault:
    """One fault, which ``inject`` causes.

    The watch's log must match ``log_pattern``. ``new_attempt`` is whether the run can resume only
    as a new attempt; ``loses_machines`` is whether machines are lost with their files.
    """

    name: str
    inject: Callable[[DisturbedRun], None]
    log_pattern: str = ""
    new_attempt: bool = True
    loses_machines: bool = False


def _signal_one(number: str) -> Callable[[DisturbedRun], None]:
    return lambda run: run.signal_trainer(number, f"{TPU}-w1")


def _signal_all(number: str) -> Callable[[DisturbedRun], None]:
    return lambda run: run.signal_trainer(number, *run.workers())


def _suspend_all_between_uploads(run: DisturbedRun) -> None:
    """Suspend all trainers by SIGSTOP when none of them is uploading an object.

    While an upload is incomplete, the bucket's emulator responds to no client, not even the watch.
    Trainers that are suspended for 10 s (``heartbeat_timeout``) crash when they continue. If an
    upload is incomplete, resume them sooner, and try again.
    """
    for _ in range(5):
        _signal_all("STOP")(run)
        try:
            run.objects("fleet/", timeout_s=4)
        except requests.Timeout:
            _signal_all("CONT")(run)
        else:
            return
    raise AssertionError(
        "suspended all trainers 5 times, but each time an upload blocked the bucket. "
        "Run the test again"
    )


def _worker_off(run: DisturbedRun) -> None:
    run.fault("worker", f"{TPU}-w1", "power-off")


def _leader_off_and_on(run: DisturbedRun) -> None:
    run.fault("worker", f"{TPU}-w0", "power-off")
    run.watch()
    run.fault("worker", f"{TPU}-w0", "power-on")


def _maintenance(run: DisturbedRun) -> None:
    run.fault("maintenance", TPU, "--worker", "1")


def _no_capacity(run: DisturbedRun) -> None:
    # Let one creation fail in each of the two zones (--times 2). If the shortage lasted a number of
    # seconds instead (--for), it could be over before a slow watch tries to create the TPU.
    run.fault("capacity", "--times", "2")
    run.preempt()


def _api_fails(run: DisturbedRun) -> None:
    # Send the signal before the API fails, because sending a signal needs the API.
    run.signal_trainer("KILL", f"{TPU}-w1")
    run.fault("error", "*", "503", "--for", "45")
    assert not _api_answers(run)
    run.watch()


def _api_answers(run: DisturbedRun) -> bool:
    try:
        client.request(run.fleet.cloud, "GET", "/v2/projects/local-fleet/locations")
    except CloudError:
        return False
    return True


def _cut(run: DisturbedRun) -> None:
    run.fault("worker", f"{TPU}-w1", "cut")
    run.watch()
    time.sleep(35)  # wait until the rendezvous has failed
    run.fault("worker", f"{TPU}-w1", "reconnect")
    run.fleet.on(f"{TPU}-w1", "true")  # an open connection recovers only after some seconds


def _hang(run: DisturbedRun) -> None:
    run.fault("worker", f"{TPU}-w1", "hang")
    time.sleep(40)
    run.fault("worker", f"{TPU}-w1", "resume")


def _full_disk(run: DisturbedRun) -> None:
    run.fault("worker", f"{TPU}-w1", "fill-disk")
    try:
        assert not run.can_write(f"{TPU}-w1"), "the disk is not full"
        run.watch()
    finally:
        run.fault("worker", f"{TPU}-w1", "free-disk")
    assert run.can_write(f"{TPU}-w1")


def _bucket_gone(run: DisturbedRun) -> None:
    run.bucket("stop")
    try:
        assert run.watch() != 0, "the watch could read run records, so the bucket was not stopped"
        time.sleep(15)
    finally:
        run.bucket("start")
    assert run.watch() == 0


def _lost_before_launch(playbook: str) -> Callable[[DisturbedRun], None]:
    """Return a fault that cuts a worker's network while a playbook launches the run again.

    ``playbook`` is playbooks/watch.yml or playbooks/restart.yml.
    """

    def inject(run: DisturbedRun) -> None:
        offset = len(run.watch_log())
        if playbook == "playbooks/watch.yml":
            run.signal_trainer("KILL", f"{TPU}-w1")
        launched = lambda: re.search(r"\$ ansible-playbook .*train\.yml", run.watch_log(offset))  # noqa: E731
        arguments = ("-e", f"run={run.run}") if "restart" in playbook else ()
        controller, deadline = run.begin(playbook, *arguments), time.monotonic() + NO_LEASE_S
        try:
            while not run.wait(launched, 1):
                if controller.poll() is not None:
                    assert time.monotonic() < deadline, "nothing was launched"
                    # Try again: a controller that an earlier fault killed may still have the lease.
                    controller = run.begin(playbook, *arguments)
            run.fault("worker", f"{TPU}-w1", "cut")
            controller.wait()
        finally:
            run.fault("worker", f"{TPU}-w1", "reconnect")
        assert run.record()["wanted"] == "running", "the lost worker stopped the run"

    return inject


def _hang_in_a_pass(run: DisturbedRun) -> None:
    run.fault("worker", f"{TPU}-w1", "hang")
    try:
        pass_count = len(run.passes)
        run.watch("-e", "watch_answer_seconds=15")
        assert f"{TPU}-w1 can't be reached" in run.watch_log() + run.passes[pass_count]
    finally:
        run.fault("worker", f"{TPU}-w1", "resume")


def _no_release(run: DisturbedRun) -> None:
    run.signal_trainer("KILL", f"{TPU}-w1")
    cache, hidden = _releases(), _releases().with_name("releases-away")
    cache.rename(hidden)
    try:
        # The watch notices the missing release only when it launches the run again. That may take
        # some passes, because it waits until all trainers have ended.
        message, pass_count = "waiting for a controller that has the release", len(run.passes)
        run.watch_until(lambda: message in "".join(run.passes[pass_count:]), 120)
        before = run.record()
        run.watch()
        assert message in run.passes[-1]
        assert run.record() == before
    finally:
        hidden.rename(cache)


def _releases() -> Path:
    return Path.home() / ".cache/tpufleet/releases"


def _same_name(run: DisturbedRun) -> None:
    other_zone = OTHER_ZONE if run.zone() == HOME_ZONE else HOME_ZONE
    nodes = f"/v2/projects/local-fleet/locations/{other_zone}/nodes"
    body = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    client.request(run.fleet.cloud, "POST", f"{nodes}?nodeId={TPU}", body)
    get_foreign = lambda: client.request(run.fleet.cloud, "GET", f"{nodes}/{TPU}")  # noqa: E731
    try:
        assert run.wait(lambda: get_foreign()["state"] == "READY", 300)
        before = get_foreign()
        run.watch()
        run.preempt()
        run.watch()
        after = get_foreign()
        assert (after["id"], after["state"]) == (before["id"], "READY")
        assert after.get("labels", {}) == before.get("labels", {})
    finally:
        client.request(run.fleet.cloud, "DELETE", f"{nodes}/{TPU}")


def _hostile_record(run: DisturbedRun) -> None:
    owned = run.log.with_name("owned")
    lookup = f"{{{{ lookup('ansible.builtin.pipe', 'touch {owned}') }}}}"
    uri = f"{BUCKET}/checkpoints/hostile"
    fields = {"run": "hostile", "checkpoints": uri, "release": lookup, "tpu": lookup}
    run.put_object("fleet/runs/hostile.json", json.dumps({**run.record(), **fields}).encode())
    run.signal_trainer("KILL", f"{TPU}-w1")
    try:
        assert run.watch() != 0
        assert "run 'hostile': invalid record: release" in run.passes[-1]
        assert not owned.exists()
    finally:
        run.delete_object("fleet/runs/hostile.json")


def _truncated(run: DisturbedRun) -> None:
    _signal_all("KILL")(run)
    before = _damaged_objects(run)
    truncate_newest(run)
    run.watch_until(lambda: _damaged_objects(run) != before, 300)


def _damaged_objects(run: DisturbedRun) -> set[tuple[str, str]]:
    """Return name and generation of each object in the checkpoints renamed to STEP.damaged."""
    objects = run.objects(f"checkpoints/{run.run}/")
    return {(item["name"], item["generation"]) for item in objects if ".damaged/" in item["name"]}


def _not_shared(run: DisturbedRun) -> None:
    """Check that train.yml refuses a second run whose checkpoint directory is not shared.

    Stops ``run`` before the check, so that the TPU is free, and restarts it afterwards.
    """
    # Not in the cloud's directory: git ignores it, so a release would contain no files.
    code = run.fleet.beside / "code-not-shared"
    code.mkdir(exist_ok=True)
    (code / "trainer.py").touch()
    run_option = ("-e", f"run={run.run}")
    variables = (
        f"run=apart-{run.run}",
        "command='python3 trainer.py'",
        f"code={code}",
        f"tpu={TPU}",
    )
    launch = [
        argument
        for variable in (*variables, "checkpoints=/dev/shm/apart")
        for argument in ("-e", variable)
    ]
    run.fleet.must_play("playbooks/kill.yml", *run_option)
    try:
        played = run.fleet.play("train.yml", *launch)
        assert "is not the same directory" in " ".join(played.output.split()), played.output
        assert played.code != 0
    finally:
        run.fleet.must_play("playbooks/restart.yml", *run_option, "-e", "even_if_stopped=true")


def _controller_killed(run: DisturbedRun) -> None:
    offset = len(run.watch_log())
    run.signal_trainer("KILL", f"{TPU}-w1")
    controller = run.begin()
    has_launched = lambda: "$ ansible-playbook train.yml" in run.watch_log(offset)  # noqa: E731
    while not has_launched() and controller.poll() is None:
        time.sleep(0.1)
        if controller.poll() is not None and not has_launched():
            controller = run.begin()
    time.sleep(2)
    kill_tree(controller.pid)
    controller.wait()


def _two_controllers(run: DisturbedRun) -> None:
    run.signal_trainer("KILL", f"{TPU}-w1")
    before = run.attempt()
    for _ in range(3):
        controllers = [run.begin(), run.begin()]
        for controller in controllers:
            controller.wait()
        if run.attempt() > before:
            break
    assert run.attempt() == before + 1, "two controllers launched the run twice"


def _other_zone(run: DisturbedRun) -> None:
    run.fault("capacity", "--zone", HOME_ZONE)
    run.fleet.must_play("playbooks/delete.yml", "-e", f"tpu={TPU}", "-e", "yes=true")


def truncate_newest(run: DisturbedRun) -> None:
    """Truncate the largest object of the newest finished checkpoint to half of its size."""
    prefix = f"checkpoints/{run.run}/"
    objects = run.objects(prefix)
    finished = rf"{re.escape(prefix)}(\d+)/manifest\.json"
    matches = (re.fullmatch(finished, item["name"]) for item in objects)
    step = max(int(match[1]) for match in matches if match)
    files = [item for item in objects if item["name"].startswith(f"{prefix}{step}/")]
    largest = max(files, key=lambda item: int(item["size"]))
    content = run.read_object(largest["name"])
    run.put_object(largest["name"], content[: len(content) // 2])


# After TERM, the watch logs "launch" if all trainers have ended. If one takes too long to end, the
# watch logs "restart".
_AFTER_TERM = r"interrupted.*: launch|ended on some workers.*: restart"
FAULTS = (
    Fault("TERM to one trainer", _signal_one("TERM"), _AFTER_TERM),
    Fault("KILL to one trainer", _signal_one("KILL"), r"killed: launch"),
    Fault("TERM to all trainers", _signal_all("TERM"), _AFTER_TERM),
    Fault("KILL to all trainers", _signal_all("KILL"), r"killed: launch"),
    Fault("a worker powered off", _worker_off, r"unreachable: .*: replace", loses_machines=True),
    Fault("the leader powered off, and on again", _leader_off_and_on, r": launch"),
    Fault("maintenance with a new address", _maintenance, r": launch"),
    Fault("preempted without warning", DisturbedRun.preempt, r"preempted: .*: recreate",
          loses_machines=True),
    Fault("preempted with a warning", lambda run: run.preempt(20), r"preempted: .*: recreate",
          loses_machines=True),
    Fault("no capacity for a while", _no_capacity, r"create.yml failed", loses_machines=True),
    Fault("the API failing", _api_fails, r": launch"),
    Fault("a worker's network cut and back", _cut, r": launch"),
    # The watch logs "launch" if all trainers of the run have ended, and "restart" if it must first
    # stop a trainer that is still running.
    Fault("a worker that hangs for a while", _hang, r": (launch|restart)"),
    Fault("trainers stopped by SIGSTOP", _suspend_all_between_uploads, r"hung: .*: restart"),
    Fault("a full disk", _full_disk, new_attempt=False),
    Fault("the bucket gone and back", _bucket_gone, new_attempt=False),
    Fault("the newest checkpoint truncated", _truncated, r": launch"),
    Fault("the controller killed in the middle of watch", _controller_killed, r": launch"),
    Fault("two controllers at once", _two_controllers, r": launch"),
    Fault("a worker lost between check and start, by watch",
          _lost_before_launch("playbooks/watch.yml"), r": launch"),
    Fault("a worker lost between check and start, by restart",
          _lost_before_launch("playbooks/restart.yml"), r"restarted on request"),
    Fault("a worker that hangs during a pass", _hang_in_a_pass, new_attempt=False),
    Fault("checkpoints that are not shared", _not_shared, r"restarted on request"),
    Fault("a controller without the release", _no_release, r": launch"),
    Fault("two TPUs of one name", _same_name, r"preempted: .*: recreate", loses_machines=True),
    Fault("a hostile record", _hostile_record, r"killed: launch"),
    Fault("every TPU deleted, no capacity in its zone", _other_zone, r"preempted: .*: recreate",
          loses_machines=True),
)  # fmt: skip
SOME = (
    "KILL to one trainer",
    "the bucket gone and back",
    "the newest checkpoint truncated",
    "the controller killed in the middle of watch",
    "preempted without warning",
)
"""Five faults: in a trainer, the bucket, a checkpoint, the controller and the machines."""


def select_faults(selection: str, seed: int) -> list[Fault]:
    """Return the faults to inject, in order.

    ``selection`` is one of:

    - ``some``: the faults named in SOME,
    - ``alone``: every fault once, in the order of FAULTS,
    - ``order``: every fault once, in an order that ``seed`` determines,
    - ``all``: first the faults of ``alone``, then those of ``order``,
    - another text: the faults whose names contain this text.
    """
    if selection == "some":
        return [fault for name in SOME for fault in FAULTS if fault.name == name]
    if selection == "alone":
        return list(FAULTS)
    if selection in ("order", "all"):
        order = random.Random(seed).sample(FAULTS, len(FAULTS))  # noqa: S311
        return order if selection == "order" else [*FAULTS, *order]
    matching = [fault for fault in FAULTS if selection in fault.name]
    if not matching:
        names = ", ".join(fault.name for fault in FAULTS)
        raise ValueError(
            f"unknown fault {selection!r}; use some, alone, order, all, or one of {names}"
        )
    return matching
