"""Start several processes (ranks) of a PyTorch trainer on one worker, in place of torchrun.

If a process fails, torchrun exits with 1 and hides the process's exit code, so a trainer that has
saved after SIGTERM would count as crashed.
"""

import os
import signal
import subprocess
import sys
import time
from typing import NamedTuple

from trainer_end import ShutdownSchedule, die_of
from worker.contract import DONE, SAVED

_STOP = {signal.SIGTERM, signal.SIGINT}


class Placement(NamedTuple):
    """The address of process 0 of a run, the number of its workers, and this worker's number."""

    host: str
    port: int
    workers: int
    worker: int

    @classmethod
    def of(cls, environ):
        """Parse the run contract's variables in ``environ``. Raises KeyError, ValueError."""
        host, _, port = environ["TPUFLEET_COORDINATOR"].rpartition(":")
        workers = int(environ["TPUFLEET_NUM_PROCESSES"])
        worker = int(environ["TPUFLEET_PROCESS_ID"])
        if not host or not 0 <= worker < workers:
            raise ValueError(
                "TPUFLEET_COORDINATOR has no host, or TPUFLEET_PROCESS_ID is not between 0 and "
                "TPUFLEET_NUM_PROCESSES - 1"
            )
        return cls(host.strip("[]"), int(port), workers, worker)


def torch_variables(placement, local_rank, count, environ):
    """Return the environment variables that torchrun would set for a rank.

    ``placement`` says which worker of the run this is. The rank is number ``local_rank`` of the
    ``count`` ranks on this worker. ``environ`` has the variables of this process.
    """
    variables = {
        "RANK": placement.worker * count + local_rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": placement.workers * count,
        "LOCAL_WORLD_SIZE": count,
        "NNODES": placement.workers,
        "NODE_RANK": placement.worker,
        "MASTER_ADDR": placement.host,
        "MASTER_PORT": placement.port,
    }
    if count > 1 and "OMP_NUM_THREADS" not in environ:
        # Share the cores among the ranks: by default, each rank starts a thread for every core.
        variables["OMP_NUM_THREADS"] = max(1, (os.cpu_count() or 1) // count)
    return {name: str(value) for name, value in variables.items()}


class Ranks:
    """The ranks of this worker: child processes in the process group of this process.

    systemd and the program ``attempt`` send SIGTERM to the whole group. This process does not
    forward SIGTERM, because a second one would interrupt the ranks while they save.

    ``command`` is the trainer's command, ``environments`` has the variables of each rank.
    """

    def __init__(self, command, environments):
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP | {signal.SIGCHLD})
        self.shutdown = ShutdownSchedule(self.send)
        self.first_failed = None
        self.running = {}
        self.codes = {}
        for number, environment in enumerate(environments):
            self.running[number] = subprocess.Popen(
                command,
                env=environment,
                preexec_fn=accept_signals,  # noqa: PLW1509 - this process has no threads
            )

    def wait(self):
        """Wait for all ranks and return the result of ``exit_code``."""
        if signal.sigpending() & _STOP:
            # SIGTERM or SIGINT came while ranks were being started, so some have not received it.
            # Kill all ranks; they have not trained yet, so nothing is lost.
            self.send(signal.SIGKILL)
            return SAVED
        while self.running:
            self.shutdown.send_due()
            due = min(self.shutdown.term_at, self.shutdown.kill_at) - time.monotonic()
            received = signal.sigtimedwait(_STOP | {signal.SIGCHLD}, max(0.01, min(due, 60)))
            if received and received.si_signo in _STOP:
                self.shutdown.has_received_term = True
            self.collect()
        return self.exit_code()

    def collect(self):
        """Record which ranks have exited, and plan when to end the others."""
        for number, rank in list(self.running.items()):
            if rank.poll() is None:
                continue
            del self.running[number]
            code = self.codes[number] = rank.returncode
            if code == DONE:
                continue
            self.shutdown.plan(code)
            if code != SAVED and self.first_failed is None:
                self.first_failed = number
                report(f"rank {number} of this worker {ending(code)}")

    def send(self, number):
        """Send a signal to all ranks that are still running."""
        for rank in self.running.values():
            rank.send_signal(number)

    def exit_code(self):
        """Return the exit code of the first rank that failed; if none failed, that of all ranks.

        If some ranks exited with SAVED and the others with 0, returns 1. If a signal ended the
        first rank that failed, ends this process by the same signal.
        """
        if self.first_failed is not None:
            code = self.codes[self.first_failed]
            if code < 0:
                die_of(-code)
            return code
        codes = set(self.codes.values())
        if len(codes) == 1:
            return codes.pop()
        saved = [number for number, code in sorted(self.codes.items()) if code == SAVED]
        report(
            f"only the ranks {', '.join(map(str, saved))} of this worker exited with {SAVED}, the "
            "others with 0. Let all ranks stop after the same step"
        )
        return 1


def accept_signals():
    """Unblock, in a new rank, the signals that this launcher blocks."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP | {signal.SIGCHLD})


def ending(code):
    """Describe the end of a process with this return code, such as "exited with 1"."""
    return f"exited with {code}" if code >= 0 else f"was ended by signal {-code}"


def report(text):
    """Write a line to the run's log."""
    sys.stderr.write(f"tpufleet_launch: {text}\n")
