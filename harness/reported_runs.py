"""Made-up runs of every kind with realistic curves, for tests of the HTML report."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import RunState
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_view import (
    Attempt,
    Event,
    RunView,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observation import ProcessStatus

NOW = 1795272600.0
HOUR = 3600.0
TRACEBACK = """\
2026-11-21 14:02:11 step 41,310 loss 2.7712 1.09M tokens/s
Traceback (most recent call last):
  File "/opt/tpufleet/releases/11fb70639a58a9c0/train/run.py", line 214, in main
    state, metrics = step(state, batch)
jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to \
allocate 2.31G. That was not possible. There are 1.87G free.""".splitlines()


def curves(
    seed: int, steps: int, begin: float, end: float, points: int
) -> dict[str, list[tuple[float, float]]]:
    """Return made-up curves of ``points`` points over ``steps`` steps, by name.

    A curve is a list of (step, value). ``begin`` and ``end`` are the times of the first and the
    last step in unix seconds, and ``seed`` selects the random numbers.
    """
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    rate = 1.1e6  # tokens per second
    floor, interval = 2.2 + rng.random() * 0.5, steps / points
    xs = [interval * (number + 0.5) for number in range(points)]
    loss = [(x, floor + 8.4 * (1 + x / 40) ** -0.42 + rng.gauss(0, 0.03)) for x in xs]
    speed = [
        (x, rate * (1 + rng.gauss(0, 0.01)) * (0.6 if rng.random() < 0.004 else 1)) for x in xs
    ]
    return {
        "loss": loss,
        "heldout": [(x, y + 0.08) for x, y in loss[:: max(points // 40, 1)]],
        "rate": speed,
        "mfu": [(x, y / rate * 0.47) for x, y in speed],
        "memory": [(x, 27.4 + 0.3 * math.tanh(x / interval / 100)) for x in xs],
        "times": [(x, begin + (end - begin) * x / steps) for x in xs],
    }


def run(
    name: str,
    state: RunState,
    *,
    seed: int = 0,
    steps: int = 100_000,
    share: float = 1.0,
    hours: float = 14.0,
    ended: float = NOW,
    points: int = 1000,
) -> RunView:
    """Return a run of one attempt that trained ``share`` of its steps in ``hours``.

    ``ended`` is when the attempt ended, in unix seconds. For ``seed`` and ``points`` see
    ``curves``.
    """
    start, last = ended - hours * HOUR, int(steps * share)
    run_curves = curves(seed, last, start, ended, points)
    wall = hours * HOUR
    causes = {
        "training": 0.91 * wall,
        "saves": 0.012 * wall,
        "compile": 140.0,
        "launch": 12.0,
        "setup": 85.0,
        "boot": 190.0,
        "capacity": 0.05 * wall,
    }
    ending = {RunState.DONE: "done", RunState.FAILED: "crash"}.get(state, "")
    return RunView(
        name,
        "running" if state is RunState.TRAINING else state.value,
        "pod",
        "11fb70639a58a9c0",
        curves=run_curves,
        last={
            "step": float(last),
            "loss": run_curves["loss"][-1][1],
            "heldout_loss": run_curves["heldout"][-1][1],
            "tokens_per_second": run_curves["rate"][-1][1],
            "mfu": run_curves["mfu"][-1][1],
            "device_memory_gib": 27.7,
        },
        steps=steps,
        events=[Event(start - 6, "launch", "launched with release 11fb70639a58a9c0")],
        attempts=[Attempt(1, start, ended, ending, ending)],
        goodput=causes["training"] / sum(causes.values()),
        goodput_by_cause=causes,
        state=state.value,
        state_code=state,
        config="shakespeare.yml",
        changed=ended,
    )


def preempted_run(name: str) -> RunView:
    """Return a run in its sixth attempt: its TPU was preempted five times."""
    view = run(name, RunState.TRAINING, seed=5, share=0.62, hours=31)
    attempts, events, start = [], [], NOW - 31 * HOUR
    for number, hours in enumerate((7.0, 2.5, 9.0, 0.6, 4.0, 5.4), start=1):
        first_step = int(62_000 * (start - NOW + 31 * HOUR) / (31 * HOUR))
        is_last = number == 6
        end = NOW if is_last else start + hours * HOUR
        ending = "" if is_last else "preempted"
        attempts.append(Attempt(number, start, end, ending, ending, first_step))
        events.append(Event(start - 5, "launch", "launched with release 11fb70639a58a9c0"))
        if not is_last:
            events.append(Event(end + 20, "preempted", "preempted: its TPU is PREEMPTED: recreate"))
        start = end + 0.45 * HOUR
    causes = {
        "training": 90_000.0,
        "saves": 1_900.0,
        "redone": 5_200.0,
        "compile": 700.0,
        "launch": 160.0,
        "setup": 480.0,
        "boot": 1_150.0,
        "capacity": 12_010.0,
    }
    workers = [
        ProcessStatus(
            f"pod-w{index}",
            RunState.TRAINING,
            attempt=6,
            step=62_000,
            steps=100_000,
            heartbeat_age=1.2 + index,
        )
        for index in range(4)
    ]
    goodput = causes["training"] / sum(causes.values())
    return replace(
        view,
        attempts=attempts,
        events=events,
        workers=workers,
        goodput=goodput,
        goodput_by_cause=causes,
    )


def crashed_run(name: str) -> RunView:
    """Return a run that ended with an error, whose TPU is gone."""
    view = run(name, RunState.FAILED, seed=7, share=0.41, hours=5, ended=NOW - 2 * HOUR)
    crash = Event(NOW - 2 * HOUR, "crash", "failed: pod-w2: crashed (exit 1): RESOURCE_EXHAUSTED")
    return replace(
        view,
        wanted="running",
        state="crashed (exit 1)",
        reason="pod-w2: RESOURCE_EXHAUSTED: Error allocating device buffer",
        log=TRACEBACK,
        log_from="pod-w2, attempt 1",
        events=[*view.events, crash],
    )


def swept_runs(name: str, count: int = 20) -> list[RunView]:
    """Return ``count`` finished runs of a sweep over learning rates and widths."""
    views = []
    for number in range(count):
        rate, width = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)[number % 5], (256, 512, 768, 1024)[number // 5]
        view = run(
            f"{name}-{number}",
            RunState.DONE,
            seed=100 + number,
            steps=20_000,
            hours=3,
            ended=NOW - 30 * HOUR - 60 * number,
        )
        overrides = {"optimizer.learning_rate": f"{rate:g}", "model.width": str(width)}
        views.append(replace(view, overrides=overrides, config="sweep.yml", tpu=f"sweep-{number}"))
    return views


def old_runs(count: int, points: int = 1000) -> list[RunView]:
    """Return ``count`` runs of 100,000 steps that ended days ago.

    Each curve has ``points`` points.
    """
    return [
        run(
            f"ablation-{number:03}",
            RunState.DONE if number % 9 else RunState.STOPPED,
            seed=1000 + number,
            ended=NOW - (3 + number * 1.7) * 24 * HOUR,
            points=points,
        )
        for number in range(count)
    ]


def runs_of_every_kind() -> list[RunView]:
    """Return made-up runs in different states and a sweep, the most recently changed first."""
    views = [
        run("shakespeare-large", RunState.TRAINING, seed=1, share=0.37, hours=6),
        preempted_run("openwebtext-1.5b"),
        replace(
            run("finetune-lora", RunState.TRAINING, seed=3, share=0.02, hours=0.4),
            state="waiting for its TPU",
            state_code=RunState.WAITING_FOR_TPU,
        ),
        crashed_run("wide-heads"),
        run("shakespeare", RunState.DONE, seed=4, hours=2, ended=NOW - 26 * HOUR),
        *swept_runs("lr-width"),
    ]
    return sorted(views, key=lambda view: view.changed, reverse=True)
