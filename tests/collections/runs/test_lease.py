"""One holder of a lease at a time, in directories and buckets, whatever the controllers' clocks."""

import itertools
import multiprocessing
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import Bucket
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs import lease as leases_module
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.lease import (
    LEASE_S,
    MAX_SKEW_S,
    LeaseHeldError,
    Leases,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.run_record import (
    RecordError,
    RecordFolder,
    after_change,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.run_record_gcs import RecordBucket
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.localcloud.test_bucket import endpoint, place  # noqa: F401
from tests.localcloud.test_bucket import pytestmark as needs_bucket

TURNS, HELD_S = 8, 0.02


def take_turns(folder: str, turns: int, log: str) -> None:
    """Hold the lease so many times; write down when each began and ended, and its fence."""
    leases = Leases(RecordFolder(folder))
    _take_turns(leases, turns, log)


def _take_turns(leases: Leases, turns: int, log: str) -> None:
    while turns:
        try:
            with leases.held("runs-of-pod") as lease:
                began = time.monotonic_ns()
                time.sleep(HELD_S)  # long enough for a second holder to show
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
        assert ended <= began, "two held the lease at the same time"
        assert fence < next_fence


def test_two_processes_never_hold_a_lease_in_a_directory_at_once(tmp_path):
    context, log = multiprocessing.get_context("spawn"), tmp_path / "log"
    arguments = (str(tmp_path), TURNS, str(log))
    processes = [context.Process(target=take_turns, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0, 0]
    check_turns(log, 2 * TURNS)


@needs_bucket
def test_two_controllers_never_hold_a_lease_in_a_bucket_at_once(endpoint, tmp_path):  # noqa: F811
    def controller() -> Leases:
        return Leases(RecordBucket(Bucket("gs://local-fleet/watch/runs", address=endpoint)))

    log = tmp_path / "log"
    threads = [
        threading.Thread(target=_take_turns, args=(controller(), TURNS, str(log))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    check_turns(log, 3 * TURNS)


class Clocks:
    """One true time, and a controller's clocks that it shows."""

    def __init__(self, skew: float = 0.0) -> None:
        self.true, self.skew = 1e9, skew

    def leases(self, documents, skew: float | None = None) -> Leases:
        skew = self.skew if skew is None else skew
        return Leases(documents, clock=lambda: self.true + skew, monotonic=lambda: self.true)


@pytest.fixture
def documents(tmp_path):
    return RecordFolder(str(tmp_path))


def test_who_has_the_lease_is_named_and_how_long_to_wait(documents):
    leases = Leases(documents)
    lease = leases.acquire("runs-of-pod")

    with pytest.raises(LeaseHeldError, match=r"^runs-of-pod: \S+:\d+ is acting on it. Wait"):
        leases.acquire("runs-of-pod")
    lease.release()
    leases.acquire("runs-of-pod")


@pytest.mark.parametrize("skew", [-MAX_SKEW_S, 0.0, MAX_SKEW_S])
def test_a_lease_is_lost_by_its_holder_before_another_gets_it_whatever_the_skew(documents, skew):
    clocks = Clocks()
    lease = clocks.leases(documents).acquire("runs-of-pod")
    contender = clocks.leases(documents, skew)

    for _ in range(1000):
        clocks.true += 1
        try:
            contender.acquire("runs-of-pod")
            break
        except LeaseHeldError:
            continue

    assert clocks.true - 1e9 <= LEASE_S + 2 * MAX_SKEW_S + 1
    assert lease.lost() == "the lease runs-of-pod could not be renewed in time"


def test_a_renewal_holds_the_lease_and_a_failed_or_late_one_loses_it(documents):
    clocks = Clocks()
    lease = clocks.leases(documents).acquire("runs-of-pod")
    for _ in range(10):
        clocks.true += LEASE_S - 1
        lease.renew()
        assert lease.lost() == ""

    clocks.true += LEASE_S
    assert lease.lost()


def test_a_renewal_that_begins_in_time_but_is_answered_late_counts_from_its_beginning(documents):
    clocks = Clocks()
    lease = clocks.leases(documents).acquire("runs-of-pod")
    change = documents.change

    def slowly(*args):
        clocks.true += LEASE_S + 1
        return change(*args)

    documents.change = slowly
    lease.renew()

    assert lease.lost()


def test_a_holder_that_another_has_overtaken_loses_the_lease_at_its_next_renewal(
    documents, monkeypatch
):
    monkeypatch.setattr(leases_module, "RENEW_EVERY_S", 0.01)
    with Leases(documents).held("runs-of-pod") as lease:
        there = documents.read("runs-of-pod")
        other = {"holder": "other:1:aa", "until": time.time() + 60}
        documents.change("runs-of-pod", there["generation"], other, {})
        deadline = time.monotonic() + 20
        while not lease.lost() and time.monotonic() < deadline:
            time.sleep(0.01)

        assert lease.lost() == "another controller took the lease runs-of-pod"
    assert documents.read("runs-of-pod")["holder"] == "other:1:aa"  # and it is not released


def test_a_renewal_whose_answer_was_lost_keeps_the_lease(documents, monkeypatch):
    monkeypatch.setattr(leases_module, "RENEW_EVERY_S", 0.01)
    change, renewed = documents.change, []

    def answer_lost(*args):
        told = change(*args)
        renewed.append(told)
        if len(renewed) == 2:  # the first is the acquisition
            raise RecordError("the answer was lost")
        return told

    documents.change = answer_lost
    with Leases(documents).held("runs-of-pod") as lease:
        deadline = time.monotonic() + 20
        while len(renewed) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lease.lost() == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"holder": "{{ x }}", "until": 0},
        {"holder": "a:1:b", "until": "soon"},
        {"holder": "a:1:b", "until": float("nan")},
        {"holder": 5, "until": 1},
        {"until": 1},
    ],
)
def test_a_document_that_is_not_a_lease_is_an_error_and_never_a_free_lease(documents, fields):
    documents.change("runs-of-pod", 0, fields, {})

    with pytest.raises(RecordError, match="runs-of-pod: not a lease"):
        Leases(documents).acquire("runs-of-pod")


class TwoControllers(RuleBasedStateMachine):
    """Two controllers with different clocks, at any pace: one holder at a time, fences grow."""

    def __init__(self) -> None:
        super().__init__()
        self.documents, self.clocks = Memory(), Clocks()
        self.controllers = [
            self.clocks.leases(self.documents, skew) for skew in (0.0, MAX_SKEW_S - 1)
        ]
        self.held = [None, None]
        self.fences = [0]

    @rule(who=st.integers(0, 1))
    def acquire(self, who):
        if self.held[who] is None or self.held[who].lost():
            try:
                self.held[who] = self.controllers[who].acquire("x")
            except LeaseHeldError:
                return
            self.fences.append(self.held[who].fence)

    @rule(who=st.integers(0, 1))
    def renew(self, who):
        if self.held[who] and not self.held[who].lost():
            self.held[who].renew()

    @rule(who=st.integers(0, 1))
    def release(self, who):
        if self.held[who]:
            self.held[who].release()
            self.held[who] = None

    @rule(seconds=st.floats(0, 200))
    def wait(self, seconds):
        self.clocks.true += seconds

    @invariant()
    def one_holds_it(self):
        assert sum(lease is not None and not lease.lost() for lease in self.held) <= 1
        assert self.fences == sorted(set(self.fences))


class Memory(RecordFolder):
    """Documents in memory, changed as in a directory."""

    def __init__(self) -> None:
        self._kept = {}

    def read(self, run):
        return self._kept.get(run, {})

    def change(self, run, generation, fields, event):
        after = after_change(self.read(run), run, generation, fields, event)
        self._kept[run] = after
        return after


TestTwoControllers = TwoControllers.TestCase
TestTwoControllers.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
