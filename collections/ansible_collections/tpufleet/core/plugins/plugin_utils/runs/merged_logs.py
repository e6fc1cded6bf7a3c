"""The logs of many workers, merged into one in which equal lines appear once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...module_utils.worker.run import current_runs
from ..outputs.reader import clean
from ..view.folded_names import folded, natural_order
from .observation import is_fine, parse_process
from .status import answer_error


def log_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return the last log lines of a worker's active run, else of the run that ended last.

    Control characters are removed. If there are no lines, one line with the reason is returned.
    ``answer`` is the result of run_info.
    """
    if "runs" not in answer:
        return [answer_error(answer)]
    runs = current_runs(answer["runs"])
    lines = [clean(str(line)) for run in runs for line in run["log"]]
    return lines or ["no run has a log on this worker"]


def folded_logs(answers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Merge the workers' logs into one; each line starts with the names of all its workers.

    Failed workers come first. The lines of each worker keep their order. ``answers`` maps each
    worker to its result of run_info.
    """
    merged: list[tuple[tuple[str, int], list[str]]] = []
    for host in sorted(answers, key=lambda name: (is_healthy(answers[name]), natural_order(name))):
        count: Counter[str] = Counter()
        keys = []
        for line in log_lines(answers[host]):
            count[line] += 1
            keys.append((line, count[line]))
        merge(merged, keys, host)
    return [f"{folded(sorted(hosts, key=natural_order))}: {line}" for (line, _), hosts in merged]


def merge(
    merged: list[tuple[tuple[str, int], list[str]]], keys: Sequence[tuple[str, int]], host: str
) -> None:
    """Merge the log lines of a host into ``merged``; each host's lines keep their order.

    ``merged`` contains a pair for each line: its key, and the hosts that have the line. The key is
    the text of the line and its number among equal lines of the same host. ``keys`` lists the keys
    of the host's lines in order.

    Each line is searched for in ``merged`` after the host's previous line. If it is found, the
    host is added to its pair. Otherwise a new pair is inserted before the host's next line that is
    found, or at the end if none is found.
    """
    position = 0
    for number, key in enumerate(keys):
        positions = {
            other_key: index for index, (other_key, _) in enumerate(merged) if index >= position
        }
        if key in positions:
            position = positions[key]
            merged[position][1].append(host)
        else:
            later_positions = (
                positions[later] for later in keys[number + 1 :] if later in positions
            )
            position = next(later_positions, len(merged))
            merged.insert(position, (key, [host]))
        position += 1


def is_healthy(answer: Mapping[str, Any]) -> bool:
    """Return whether the worker answered and its latest runs are all fine (see ``is_fine``)."""
    runs = current_runs(answer.get("runs", []))
    return "runs" in answer and all(is_fine(parse_process("", run)) for run in runs)
