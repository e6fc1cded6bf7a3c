"""Leases: one holder at a time, for a limited time, in directories and buckets."""

import itertools
import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import Bucket
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs import lease as leases_module
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.lease import (
    LEASE_S,
    MAX_SKEW_S,
    Lease,
    LeaseHeldError,
    Leases,
    seconds_since_boot,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_error import (
    RecordConflictError,
    RecordError,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import (
    RecordBucket,
    RecordFolder,
    after_change,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

START_TIME = 1e9


class Documents(RecordFolder):
    """Store in memory. ``failures`` has the error of each future change, or None for a success."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self.failures: list[Exception | None] = []
        self.changes = 0

    def read(self, run: str) -> dict[str, Any]:
        return self.stored.get(run, {})

    def change(self, run: str, generation: int, fields: Any, event: Any) -> dict[str, Any]:
        self.changes += 1
        if failure := self.failures.pop(0) if self.failures else None:
            raise failure
        self.stored[run] = after_change(self.read(run), run, generation, fields, event)
        return self.stored[run]


class Clock:
    """Simulated time, and leases of controllers whose clocks are ``skew`` seconds ahead of it."""

    def __init__(self) -> None:
        self.now = START_TIME

    def leases(self, documents: RecordFolder, skew: float = 0.0) -> Leases:
        return Leases(documents, clock=lambda: self.now + skew, monotonic=lambda: self.now)


@pytest.fixture
def documents() -> Documents:
    return Documents()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(documents: Documents, clock: Clock) -> Lease:
    """A lease that this controller holds."""
    return clock.leases(documents).acquire("x")


def test_a_lease_is_stored_with_its_holder_and_its_end(lease, documents):
    stored = documents.stored["x"]
    assert stored["until"] == START_TIME + LEASE_S
    host, pid, token = stored["holder"].rsplit(":", 2)
    assert host
    assert pid.isdecimal()
    assert len(token) == 8
    assert stored["history"] == []
    assert (lease.name, lease.fence, stored["generation"]) == ("x", 1, 1)


def test_seconds_since_boot_include_sleep_if_the_system_has_a_clock_for_it(monkeypatch):
    monkeypatch.setattr(time, "clock_gettime", lambda clock: clock)

    assert seconds_since_boot() == time.CLOCK_BOOTTIME
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    assert seconds_since_boot() == time.CLOCK_MONOTONIC


def test_a_lease_ends_exactly_when_its_time_is_over(lease, clock):
    clock.now = START_TIME + LEASE_S - 0.01
    assert lease.lost() == ""
    clock.now = START_TIME + LEASE_S
    assert lease.lost() == "the lease x could not be renewed in time"


def test_the_error_for_a_held_lease_names_the_holder_without_its_token(documents, clock):
    clock.leases(documents).acquire("x")
    host_and_pid = documents.stored["x"]["holder"].rpartition(":")[0]

    with pytest.raises(LeaseHeldError, match=f"^x: {host_and_pid} is acting on it.* within 150 s$"):
        clock.leases(documents).acquire("x")


def test_another_controller_gets_an_expired_lease_only_after_the_maximum_clock_skew(
    documents, clock, lease
):
    clock.now = START_TIME + LEASE_S + MAX_SKEW_S - 0.01
    with pytest.raises(LeaseHeldError):
        clock.leases(documents).acquire("x")
    clock.now = START_TIME + LEASE_S + MAX_SKEW_S
    assert clock.leases(documents).acquire("x").fence > lease.fence


@pytest.mark.parametrize("skew", [-MAX_SKEW_S, 0.0, MAX_SKEW_S])
def test_a_holder_loses_its_lease_before_another_gets_it_for_any_skew(
    lease, documents, clock, skew
):
    contender = clock.leases(documents, skew)

    while clock.now <= START_TIME + LEASE_S + 2 * MAX_SKEW_S:
        clock.now += 1
        try:
            contender.acquire("x")
            break
        except LeaseHeldError:
            continue
    else:
        pytest.fail("the lease never became free")

    assert lease.lost() == "the lease x could not be renewed in time"


def test_a_renewal_counts_from_its_request_and_not_from_its_late_answer(lease, documents, clock):
    change = documents.change

    def slow_change(*arguments: Any) -> dict[str, Any]:
        clock.now += LEASE_S + 1
        return change(*arguments)

    documents.change = slow_change
    lease.renew()

    assert lease.lost()


def test_a_released_lease_is_free_at_once_and_its_fence_increases(documents, clock, lease):
    documents.failures = [RecordError("the bucket does not answer")]
    lease.release()  # a failed release is no error
    lease.release()

    assert documents.stored["x"]["until"] == 0
    assert clock.leases(documents).acquire("x").fence > lease.fence


def test_an_expired_lease_is_neither_renewed_nor_released(lease, documents, clock):
    def too_late() -> None:
        clock.now += LEASE_S

    changes = documents.changes
    lease.keep_renewing(Rounds(too_late, nothing))
    lease.release()

    assert documents.changes == changes


@pytest.mark.parametrize(
    ("failure", "error", "message"),
    [
        (RecordConflictError("changed"), LeaseHeldError, "^x: another controller is acting on it"),
        (RecordError("the bucket does not answer"), RecordError, "does not answer"),
    ],
)
def test_a_lease_that_cannot_be_written_is_not_acquired(documents, clock, failure, error, message):
    documents.failures = [failure]

    with pytest.raises(error, match=message):
        clock.leases(documents).acquire("x")


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        (0, "free"),
        (START_TIME + LEASE_S + MAX_SKEW_S, "a:1 is acting"),
        *((until, "x: its file is invalid") for until in (1e12, -1, "soon", None)),
    ],
)
def test_a_stored_lease_whose_end_is_not_a_possible_time_is_an_error(
    documents, clock, until, expected
):
    documents.stored["x"] = {"holder": "a:1:b", "until": until, "generation": 1}

    with pytest.raises(RecordError) as caught:
        clock.leases(documents).acquire("x")
        raise RecordError("free")

    assert expected in str(caught.value)


def test_a_lease_that_ends_later_than_the_maximum_is_an_error(documents, clock):
    documents.stored["x"] = {"holder": "a:1:b", "until": START_TIME + 30 * 86400, "generation": 1}

    with pytest.raises(RecordError) as caught:
        clock.leases(documents).acquire("x")

    assert not isinstance(caught.value, LeaseHeldError)
    assert str(caught.value) == (
        "lease x: ends in 2592000 s (expected at most 150 s). Correct the clock of this controller "
        "or of a:1. If both clocks are right and the holder has ended, remove watch/runs/x.json "
        "from fleet_state"
    )


LEASE = {"holder": "a:1:b", "until": 0, "generation": 1}


@pytest.mark.parametrize(
    "document",
    [
        *([], "lease", 1),
        *({**LEASE, "generation": generation} for generation in (None, "1", True, 1.0)),
        *({**LEASE, "holder": holder} for holder in (None, 5, "{{ x }}")),
        {**LEASE, "until": float("nan")},
    ],
)
def test_a_document_that_is_not_a_lease_is_an_error_and_never_a_free_lease(
    documents, clock, document
):
    documents.stored["x"] = document

    with pytest.raises(RecordError, match="x: its file is invalid"):
        clock.leases(documents).acquire("x")


class Rounds(threading.Event):
    """Event whose ``wait`` calls the next callback and returns False; True if none is left."""

    def __init__(self, *callbacks: Any) -> None:
        super().__init__()
        self.callbacks, self.timeouts = list(callbacks), []

    def wait(self, timeout: float | None = None) -> bool:
        self.timeouts.append(timeout)
        if not self.callbacks:
            return True
        self.callbacks.pop(0)()
        return False


def nothing() -> None:
    """Do nothing: callback for a wait between two renewals of a lease."""


def test_a_lease_is_renewed_every_20_seconds(lease, documents, clock):
    def later() -> None:
        clock.now += 20

    rounds = Rounds(later, later)
    lease.keep_renewing(rounds)

    assert rounds.timeouts == [20.0, 20.0, 20.0]
    assert documents.stored["x"]["until"] == START_TIME + 40 + LEASE_S
    assert lease.lost() == ""


def test_a_failed_renewal_is_retried(lease, documents, clock):
    documents.failures = [RecordError("the bucket does not answer"), None]

    def later() -> None:
        clock.now += 50

    lease.keep_renewing(Rounds(later, nothing))

    assert documents.stored["x"]["until"] == START_TIME + 50 + LEASE_S
    assert lease.lost() == ""


def test_a_lease_that_another_has_taken_is_neither_renewed_nor_released(lease, documents):
    def take_over() -> None:
        documents.stored["x"] = {**documents.stored["x"], "holder": "other:1:aa", "generation": 9}

    lease.keep_renewing(Rounds(take_over, nothing, nothing))

    assert lease.lost() == "another controller took the lease x"
    lease.release()
    assert documents.stored["x"]["holder"] == "other:1:aa"


def test_a_renewal_whose_answer_was_lost_keeps_the_lease(lease, documents):
    def answer_lost() -> None:
        documents.stored["x"] = {**documents.stored["x"], "generation": 5}

    lease.keep_renewing(Rounds(answer_lost, nothing))

    assert lease.lost() == ""
    assert documents.stored["x"]["generation"] == 6


def test_a_failed_read_of_the_holder_does_not_lose_the_lease(lease, documents):
    read = documents.read

    def no_answer(run: str) -> dict[str, Any]:
        raise RecordError("the bucket does not answer")

    def conflict() -> None:
        documents.failures = [RecordConflictError("changed meanwhile")]
        documents.read = no_answer

    def answers() -> None:
        documents.read = read

    lease.keep_renewing(Rounds(conflict, answers))

    assert lease.lost() == ""


def test_a_lease_is_renewed_within_a_block_and_released_after_it(documents, monkeypatch):
    monkeypatch.setattr(leases_module, "RENEW_EVERY_S", 0.01)
    with Leases(documents).held("x") as lease:
        for _ in range(5000):
            if documents.changes < 3:
                threading.Event().wait(0.001)
        assert documents.changes >= 3
        assert lease.lost() == ""
        with pytest.raises(LeaseHeldError):
            Leases(documents).acquire("x")

    assert documents.stored["x"]["until"] == 0
    changes = documents.changes
    threading.Event().wait(0.05)
    assert documents.changes == changes


def test_a_lease_is_released_after_an_error(documents):
    with pytest.raises(KeyError), Leases(documents).held("x"):
        raise KeyError

    assert documents.stored["x"]["until"] == 0


TURNS, HELD_S = 8, 0.02


def take_turns_in_folder(folder: str, turns: int, log: str) -> None:
    take_turns(Leases(RecordFolder(folder)), turns, log)


def take_turns(leases: Leases, turns: int, log: str) -> None:
    """Hold the lease ``turns`` times; log the begin and end of each turn, and its fence.

    A fence is a number that is higher for each later holder of a lease.
    """
    while turns:
        try:
            with leases.held("runs-of-pod") as lease:
                began = time.monotonic_ns()
                time.sleep(HELD_S)  # long enough to notice a second holder
                ended = time.monotonic_ns()
            with Path(log).open("a") as stream:
                stream.write(f"{began} {ended} {lease.fence}\n")
            turns -= 1
        except LeaseHeldError:
            time.sleep(0.001)


def check_turns(log, count):
    turns = sorted(tuple(map(int, line.split())) for line in log.read_text().splitlines())
    assert len(turns) == count
    for (_, ended, fence), (began, _, next_fence) in itertools.pairwise(turns):
        assert ended <= began, "two processes held the lease at the same time"
        assert fence < next_fence


def test_two_processes_never_hold_a_lease_in_a_directory_at_once(tmp_path):
    context, log = multiprocessing.get_context("spawn"), tmp_path / "log"
    arguments = (str(tmp_path), TURNS, str(log))
    processes = [context.Process(target=take_turns_in_folder, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0, 0]
    check_turns(log, 2 * TURNS)


def test_two_controllers_never_hold_a_lease_in_a_bucket_at_once(emulator, tmp_path):
    def controller() -> Leases:
        return Leases(RecordBucket(Bucket("gs://fleet/watch/runs", address=emulator)))

    log = tmp_path / "log"
    threads = [
        threading.Thread(target=take_turns, args=(controller(), TURNS, str(log))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    check_turns(log, 3 * TURNS)


class TwoControllers(RuleBasedStateMachine):
    """Two controllers, whose clocks differ, acquire and release one lease in a random order.

    At most one of them holds the lease at any time, and each new lease has a larger fence.
    """

    def __init__(self) -> None:
        super().__init__()
        self.documents, self.clock = Documents(), Clock()
        self.controllers = [
            self.clock.leases(self.documents, skew) for skew in (0.0, MAX_SKEW_S - 1)
        ]
        self.held = [None, None]
        self.fences = [0]

    @rule(index=st.integers(0, 1))
    def acquire(self, index):
        if self.held[index] is None or self.held[index].lost():
            try:
                self.held[index] = self.controllers[index].acquire("x")
            except LeaseHeldError:
                return
            self.fences.append(self.held[index].fence)

    @rule(index=st.integers(0, 1))
    def renew(self, index):
        if self.held[index] and not self.held[index].lost():
            self.held[index].renew()

    @rule(index=st.integers(0, 1))
    def release(self, index):
        if self.held[index]:
            self.held[index].release()
            self.held[index] = None

    @rule(seconds=st.floats(0, 200))
    def wait(self, seconds):
        self.clock.now += seconds

    @invariant()
    def one_holds_it(self):
        assert sum(lease is not None and not lease.lost() for lease in self.held) <= 1
        assert self.fences == sorted(set(self.fences))


TestTwoControllers = TwoControllers.TestCase
TestTwoControllers.settings = settings(max_examples=60, stateful_step_count=30)
