"""Stored output as workers write it, for tests."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.tpufleet.core.plugins.module_utils.cloud.http import RetryPolicy
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import Bucket
from ansible_collections.tpufleet.core.plugins.module_utils.worker.output_stream import (
    SEGMENT_BYTES,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.objects import (
    OutputBucket,
    OutputDirectory,
    OutputStore,
)

from harness.emulated_storage import BUCKET, put_object

START_TIME = 1795272000.0
"""When the first attempt of a stored run began, in unix seconds."""
QUICK = RetryPolicy(tries=2, connect_tries=1, first_wait=0.01)
EXITS: dict[str, dict[str, Any]] = {
    "finished": {"result": "success", "code": "exited", "status": "0"},
    "crashed": {"result": "exit-code", "code": "exited", "status": "1"},
    "killed": {"result": "exit-code", "code": "exited", "status": "75"},
}


def line(step: int, **fields: Any) -> dict[str, Any]:
    """Return the metrics of a step that took one second; ``fields`` has further fields."""
    loss = {"loss": 5 / step, "tokens_per_second": 1000.0}
    return {"step": step, "time": START_TIME + 10 + step, **loss, **fields}


def jsonl(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(entry)}\n" for entry in lines).encode()


def segments(name: str, content: bytes, size: int) -> dict[str, bytes]:
    """Cut the content of a log or of metrics into objects of at most ``size`` bytes, as workers do.

    The cuts are at line ends; a longer line is cut anywhere. ``name`` is ``log`` or ``metrics``.
    """
    objects: dict[str, bytes] = {}
    while content:
        cut = content.rfind(b"\n", 0, size) + 1
        cut = cut if len(content) > size and cut else size
        objects[f"{name}/{len(objects) * SEGMENT_BYTES:012d}"] = content[:cut]
        content = content[cut:]
    return objects


def attempt(
    number: int = 1,
    process_id: int = 0,
    *,
    run: str = "mine",
    began: float = START_TIME,
    log: bytes = b"",
    metrics: bytes = b"",
    end: Mapping[str, Any] | None = None,
    size: int = SEGMENT_BYTES,
) -> dict[str, bytes]:
    """Return the stored objects of one process of an attempt, by name.

    ``end`` is how the process ended: one of the values of EXITS above, or None if this is unknown.
    ``size`` is the maximum size of a segment of ``log`` or ``metrics`` in bytes.
    """
    start = {
        "run": run,
        "attempt": number,
        "process_id": process_id,
        "worker": f"pod-w{process_id}",
        "began": began,
    }
    objects = {"start.json": json.dumps(start).encode()}
    objects |= segments("log", log, size) | segments("metrics", metrics, size)
    if end is not None:
        exit_record = {"attempt": number, "time": began + 1000, **end}
        objects["exit.json"] = json.dumps(exit_record).encode()
    return {f"{run}/{number}/{process_id}/{name}": content for name, content in objects.items()}


def in_directory(folder: Path, objects: Mapping[str, bytes]) -> OutputDirectory:
    store = OutputDirectory(folder)
    for name, content in objects.items():
        store.write(name, content)
    return store


def in_bucket(address: str, prefix: str, cache: Path, objects: Mapping[str, bytes]) -> OutputBucket:
    for name, content in objects.items():
        put_object(address, f"{prefix}/{name}", content)
    return OutputBucket(Bucket(f"gs://{BUCKET}/{prefix}", address=address, retry=QUICK), cache)


def content_of(store: OutputStore) -> dict[str, bytes]:
    return {stored.name: store.read(stored) for stored in store.list("mine")}
