"""Process that follows metrics.jsonl and sends its lines to TensorBoard and W&B.

report.py starts it as ``python -m train.mirror`` and writes one line of JSON, the job, to its
standard input. When standard input closes, which happens however the trainer exits, the process
sends the remaining lines and exits. It does not import JAX, so it occupies no device.
"""

import hashlib
import json
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

POLL_SECONDS = 1.0
"""Interval between two reads at the end of the file."""

FLUSH_SECONDS = 5
"""Minimum interval between flushes of an event file; in a bucket each uploads the whole file."""

type Sink = tuple[str, Callable[[dict[str, float]], None], Callable[[], None]]
"""Destination of metrics: name, function that adds a step's metrics, function that closes it."""


def main(order: TextIO) -> None:
    """Read the job from the first line of ``order``; send metrics until ``order`` is closed."""
    # The fleet sends SIGTERM to the whole process group, but this process must outlive the trainer.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    job = json.loads(order.readline())
    sinks = [sink for make in (tensorboard, wandb) if (sink := _open_sink(make, job))]
    for record in follow(Path(job["metrics"]), job["step"], lambda: _ended(order)):
        for sink in list(sinks):
            if not _survives(sink[0], lambda sink=sink, record=record: sink[1](record)):
                sinks.remove(sink)
    for name, _, end in sinks:
        _survives(name, end)


def follow(path: Path, step: int, ended: Callable[[], bool]) -> Iterator[dict[str, float]]:
    """Yield the metrics of steps after ``step``, as lines are completed, until ``ended()``.

    ``ended`` is called at the end of the file, and must wait a while before it returns False.
    """
    with path.open(encoding="utf-8") as file:
        begun, last = "", False
        while True:
            begun += file.readline()
            if begun.endswith("\n"):
                record = json.loads(begun)
                begun = ""
                if record["step"] > step:
                    yield record
            elif last:
                return
            else:
                last = ended()


def tensorboard(job: dict[str, Any]) -> Sink | None:
    """Return a sink that writes event files, without TensorFlow; None if not configured."""
    if not job["tensorboard"]:
        return None
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import directory_check

    directory_check(job["tensorboard"])
    # The default file name has only host and second, so another attempt could overwrite the file.
    writer = EventsWriter(f"{job['tensorboard']}/events", f".{os.getpid()}")
    # This event makes TensorBoard drop the steps of earlier attempts that this attempt repeats.
    begin = SessionLog(status=SessionLog.START)
    writer.write_event(Event(step=job["step"] + 1, wall_time=time.time(), session_log=begin))
    written = -math.inf

    def add(record: dict[str, float]) -> None:
        nonlocal written
        values = [Summary.Value(tag=k, simple_value=v) for k, v in _values(record).items()]
        summary = Summary(value=values)
        writer.write_event(Event(step=record["step"], wall_time=record["time"], summary=summary))
        if time.monotonic() >= written + FLUSH_SECONDS:
            writer.flush()
            written = time.monotonic()

    return "TensorBoard", add, writer.close


def wandb(job: dict[str, Any]) -> Sink | None:
    """Return a sink for a W&B run, offline without an API key; None if not configured."""
    if not job["wandb"]:
        return None
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    mode = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False) else "offline")
    run = wandb.init(
        project=job["wandb"],
        name=job["run"],
        id=hashlib.sha256(job["identity"].encode()).hexdigest()[:16],
        resume="allow",
        mode=mode,
        dir=job["wandb_directory"],
        config=job["config"],
        settings=wandb.Settings(console="off", silent=True),
    )
    # Plot over our own step: W&B's step cannot go back, but a new attempt repeats steps.
    run.define_metric("*", step_metric="step")

    def add(record: dict[str, float]) -> None:
        run.log({"step": record["step"], **_values(record)})

    return "W&B", add, run.finish


def _values(record: dict[str, float]) -> dict[str, float]:
    numbers = {k: v for k, v in record.items() if k not in ("step", "time")}
    return {k: v for k, v in numbers.items() if v is not None}


def _open_sink(make: Callable[[dict[str, Any]], Sink | None], job: dict[str, Any]) -> Sink | None:
    sinks: list[Sink | None] = []
    _survives(make.__name__, lambda: sinks.append(make(job)))
    return sinks[0] if sinks else None


def _survives(name: str, do: Callable[[], None]) -> bool:
    """Call ``do`` and return True; on an error, print one line and return False."""
    try:
        do()
    except Exception as err:  # any error of a library or the network
        why = f"{type(err).__name__}: {' '.join(str(err).split())[:300]}"
        print(f"{name}: {why}; the run continues without it", file=sys.stderr, flush=True)  # noqa: T201
        return False
    return True


def _ended(order: TextIO) -> bool:
    """Wait up to POLL_SECONDS, and return whether standard input has ended."""
    return bool(select.select([order], [], [], POLL_SECONDS)[0])


if __name__ == "__main__":
    main(sys.stdin)
