"""Plot of the loss, from the metrics.jsonl of one or several runs."""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

from train.config import ConfigError
from train.contract import finite_or_none

MAX_POINTS = 1000
"""Maximum points per curve; with more steps, each point is the mean of several."""


def draw(run_dirs: Sequence[Path], picture: Path) -> None:
    """Plot loss over steps, one curve per run, as the SVG or PNG file ``picture``.

    Held-out losses are points on the same axes. Raises ConfigError if the file has another suffix,
    a run has no metrics, or matplotlib is not installed.
    """
    if picture.suffix not in (".svg", ".png"):
        raise ConfigError(f"--to: must end in .svg or .png, not {picture}")
    curves = {directory: read(directory) for directory in run_dirs}
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "needs the package matplotlib, which is not installed; install it, or for workers add "
            "it to a lock file and set jax_lock to that file (docs/setup.md)"
        )
    # Do not use pyplot: it has global state and may need a display.
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="step", ylabel="loss (nats per token)")
    for i, (directory, records) in enumerate(curves.items()):
        trained = [(r["step"], r["loss"]) for r in records if finite_or_none(r["loss"])]
        axes.plot(*_columns(_thinned(trained)), color=f"C{i}", lw=1, label=directory.name)
        heldout = [(r["step"], r["heldout_loss"]) for r in records if r.get("heldout_loss")]
        if heldout:
            label = f"{directory.name}, held out"
            axes.plot(*_columns(heldout), "o--", color=f"C{i}", ms=3, lw=0.8, label=label)
    axes.grid(alpha=0.3)
    axes.legend()
    picture.parent.mkdir(parents=True, exist_ok=True)
    partial = picture.with_name(f".{picture.name}")
    # Write no date and no random ids, so that the same metrics give the same file.
    with rc_context({"svg.hashsalt": "loss"}):
        metadata = {"Date": None} if picture.suffix == ".svg" else {"Software": None}
        figure.savefig(partial, format=picture.suffix[1:], dpi=120, metadata=metadata)
    partial.replace(picture)


def read(run_dir: Path) -> list[dict[str, float]]:
    """Return the complete lines of a run's metrics.jsonl; raises ConfigError if it has none."""
    path = run_dir / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        records = [json.loads(line) for line in lines if line.endswith("\n")]
    except (OSError, ValueError) as err:
        why = getattr(err, "strerror", None) or "is damaged"
        raise ConfigError(f"{path}: cannot be plotted: {why}") from err
    if not records:
        raise ConfigError(f"{path}: contains no steps yet")
    return records


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    n = -(-len(points) // MAX_POINTS)
    groups = [points[i : i + n] for i in range(0, len(points), n)] if n > 1 else []
    means = [tuple(sum(column) / len(group) for column in _columns(group)) for group in groups]
    return means or points


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
