"""A process that follows metrics.jsonl and brings its lines to TensorBoard and W&B.

``python -m train.mirror``, started by report.py: one line of JSON on standard input says what to
do, and the end of standard input, which comes with the run's end however that happens, says to
finish. It has no JAX in it, and so holds no device.
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

LOOK_SECONDS = 1.0
"""Between two looks at the file."""

ADD_SECONDS = 5
"""The least between two writings out of an event file, which in a bucket are whole uploads."""

type Sink = tuple[str, Callable[[dict[str, float]], None], Callable[[], None]]
"""A name, what takes a step's figures, and what ends it."""


def main(order: TextIO) -> None:
    """Do what the first line of ``order`` says, until its end."""
    # The fleet's TERM goes to the whole group; this process ends by itself, after the trainer.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    job = json.loads(order.readline())
    sinks = [sink for make in (tensorboard, wandb) if (sink := _made(make, job))]
    for record in follow(Path(job["metrics"]), job["step"], lambda: _ended(order)):
        for sink in list(sinks):
            if not _tried(sink[0], lambda sink=sink, record=record: sink[1](record)):
                sinks.remove(sink)
    for name, _, end in sinks:
        _tried(name, end)


def follow(path: Path, step: int, ended: Callable[[], bool]) -> Iterator[dict[str, float]]:
    """Give the whole lines of steps behind ``step``, and those that come, until ``ended``.

    ``ended`` is asked at each end of the file, and waits a while before it says no.
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
    """Write event files, readable without TensorFlow."""
    if not job["tensorboard"]:
        return None
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import directory_check

    directory_check(job["tensorboard"])
    # By host and second alone, an attempt that follows at once would write over the file.
    writer = EventsWriter(f"{job['tensorboard']}/events", f".{os.getpid()}")
    # What an attempt before this one did beyond its checkpoint is done again: TensorBoard drops it.
    begin = SessionLog(status=SessionLog.START)
    writer.write_event(Event(step=job["step"] + 1, wall_time=time.time(), session_log=begin))
    written = -math.inf

    def add(record: dict[str, float]) -> None:
        nonlocal written
        values = [Summary.Value(tag=k, simple_value=v) for k, v in _figures(record).items()]
        summary = Summary(value=values)
        writer.write_event(Event(step=record["step"], wall_time=record["time"], summary=summary))
        if time.monotonic() >= written + ADD_SECONDS:
            writer.flush()
            written = time.monotonic()

    return "TensorBoard", add, writer.close


def wandb(job: dict[str, Any]) -> Sink | None:
    """Log to Weights & Biases; without a key into files that ``wandb sync`` sends later."""
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
    # By the run's own steps: those that an attempt does again come a second time.
    run.define_metric("*", step_metric="step")

    def add(record: dict[str, float]) -> None:
        run.log({"step": record["step"], **_figures(record)})

    return "W&B", add, run.finish


def _figures(record: dict[str, float]) -> dict[str, float]:
    numbers = {k: v for k, v in record.items() if k not in ("step", "time")}
    return {k: v for k, v in numbers.items() if v is not None}


def _made(make: Callable[[dict[str, Any]], Sink | None], job: dict[str, Any]) -> Sink | None:
    made: list[Sink | None] = []
    _tried(make.__name__, lambda: made.append(make(job)))
    return made[0] if made else None


def _tried(name: str, do: Callable[[], None]) -> bool:
    """Do it; what goes wrong is one line, and the end of this sink alone."""
    try:
        do()
    except Exception as err:  # any library's, any network's
        why = f"{type(err).__name__}: {' '.join(str(err).split())[:300]}"
        print(f"{name}: {why}; the run goes on without it", file=sys.stderr, flush=True)  # noqa: T201
        return False
    return True


def _ended(order: TextIO) -> bool:
    """Wait a while, and say whether standard input has come to its end."""
    return bool(select.select([order], [], [], LOOK_SECONDS)[0])


if __name__ == "__main__":
    main(sys.stdin)
