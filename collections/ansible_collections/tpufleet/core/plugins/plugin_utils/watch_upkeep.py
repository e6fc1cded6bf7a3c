"""What a pass of the watch does besides runs: it deletes TPUs that are idle for longer than the
fleet allows, and lets go of kept releases."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..module_utils.fleet import expand
from ..module_utils.run_record import RecordConflictError, RecordStore
from ..module_utils.watch_idle import idle_since, in_use, superfluous
from .run_actor import Actor, Diary


def delete_idle(
    fleet: object,
    hosts: Mapping[str, Mapping[str, Any]],
    answers: Mapping[str, Mapping[str, Any]],
    runs: RecordStore,
    memory: RecordStore,
    actor: Actor,
    diary: Diary,
    check: bool,
) -> list[str]:
    """Delete the TPUs of ``fleet`` that have been idle for their ``idle_delete_after``; name them.

    ``memory`` has a record a TPU, since when it is idle. Raises TpuApiError for a bad fleet, and
    RecordError.
    """
    gone = []
    for tpu in expand(fleet or []):
        ids = {
            str(each.get("tpu_id")) for each in hosts.values() if each.get("tpu_name") == tpu.name
        }
        if tpu.idle_delete_after is None or len(ids) != 1:
            continue
        (node_id,) = ids
        kept, now = memory.read(tpu.name), time.time()
        # Read anew: a launch may have been recorded since the pass began.
        records = [runs.read(run) for run in runs.runs()]
        since = idle_since(kept, node_id, in_use(tpu.name, hosts, answers, records), now)
        if not check and (kept.get("id"), kept.get("since")) != (node_id, since):
            with contextlib.suppress(RecordConflictError):
                fields = {"id": node_id, "since": since}
                memory.change(tpu.name, int(kept.get("generation", 0)), fields, "")
        if not since or now - since < tpu.idle_delete_after:
            continue
        idle, allowed = now - since, tpu.idle_delete_after
        diary(f"TPU {tpu.name}: idle for {idle:.0f} s, {allowed} are allowed: delete")
        if not check and actor.delete(tpu.name):
            continue
        gone.append(tpu.name)
    return gone


def prune(releases: Path, records: list[Mapping[str, Any]]) -> list[str]:
    """Let go of kept releases that no run needs; name them."""
    found = {}
    if releases.is_dir():
        found = {each.name: each.stat().st_mtime for each in releases.iterdir() if each.is_dir()}
    gone = superfluous(found, records, time.time())
    for name in gone:
        shutil.rmtree(releases / name, ignore_errors=True)
    return gone
