"""A lease has one holder at a time, in directories and buckets, even if clocks differ."""

import itertools
import multiprocessing
import threading
import time
from pathlib import Path

from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import Bucket
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.lease import (
    MAX_SKEW_S,
    LeaseHeldError,
    Leases,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import (
    RecordBucket,
    RecordFolder,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.collections.runs.test_lease_terms import Clock, Documents

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
