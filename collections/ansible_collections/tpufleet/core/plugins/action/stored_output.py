"""The action plugin of tpufleet.core.stored_output: read or copy what a run has written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from ..module_utils.worker.output_stream import FILES
from ..module_utils.worker.run import RunError, check_name
from ..plugin_utils.outputs.objects import OutputError, OutputStore, trim
from ..plugin_utils.outputs.reader import (
    AT_ONCE,
    StoredProcess,
    contents,
    log_tail,
    pieces,
    stored_processes,
)
from ..plugin_utils.outputs.run_outputs import RunOutputs
from ..plugin_utils.outputs.stored_answers import stored_answers
from ..plugin_utils.outputs.summary_cache import cached_summary
from ..plugin_utils.runs.record import RunRecord
from ..plugin_utils.runs.record_error import RecordError
from ..plugin_utils.runs.store import STORE_OPTIONS, RunStore


class ActionModule(ActionBase):
    """Reads the stored output of one run."""

    _supports_check_mode = True
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return how the last attempt ended, with log lines; copy the output if requested."""
        super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(
            argument_spec={
                "run": {"type": "str", "required": True},
                **STORE_OPTIONS,
                "directory": {"type": "str", "required": True},
                "cache": {"type": "path", "required": True},
                "lines": {"type": "int", "default": 0},
                "to": {"type": "path"},
                "bundle": {"type": "bool", "default": False},
            }
        )
        api = given["api"]
        nothing: dict[str, Any] = {"changed": False, "location": "", "attempt": None}
        nothing |= {"answers": {}, "files": [], "workers": []}
        try:
            record = RunStore.of(given["fleet_state"], api).read(check_name(given["run"]))
            if record is None:
                return nothing
            outputs = RunOutputs(given["directory"], given["cache"], api)
            store = outputs.store_of(record.launch)
            nothing["workers"] = [name for name in record.launch.placement if name]
            objects = store.list(record.run)
            processes = stored_processes(objects)
            if not processes:
                return nothing | {"location": store.location}
            found = cached_summary(store, record.run, objects, outputs.summaries)
            newest = found.attempts[-1].number
            last = [each for each in processes if each.attempt == newest]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                tails = pool.map(lambda each: log_tail(store, each, given["lines"]), last)
                logs = {each.process_id: tail for each, tail in zip(last, tails, strict=True)}
            files: list[str] = []
            if given["to"] and not self._task.check_mode:
                files = copy(store, processes, Path(given["to"]))
                files += write_record(record, Path(given["to"])) if given["bundle"] else []
            trim(outputs.segments)
        except (RecordError, RunError, OutputError) as error:
            # Return the error: Ansible ignores failed_when if a plugin raises.
            return {"failed": True, "msg": str(error)}
        except OSError as error:
            return {"failed": True, "msg": f"{error.filename}: {error.strerror}"}
        return nothing | {
            "changed": bool(files),
            "location": f"{store.location}/{record.run}",
            "attempt": newest,
            "answers": stored_answers(record.run, found, logs),
            "files": files,
            "warnings": found.warnings(record.run),
            "msg": f"{record.run}: attempt {newest} is read from {store.location}/{record.run}",
        }


def copy(store: OutputStore, processes: Sequence[StoredProcess], to: Path) -> list[str]:
    """Copy the output of all attempts to ATTEMPT/PROCESS below ``to``; return the files' names.

    Raises OutputError, OSError.
    """
    files = []
    for each in processes:
        folder = Path(str(each.attempt), str(each.process_id))
        for name, streamed in FILES.items():
            segments = getattr(each, name)
            if segments:
                files.append(write(to, folder / streamed, pieces(contents(store, segments))))
        for stored in filter(None, (each.start, each.exit)):
            name = stored.name.rpartition("/")[2]
            files.append(write(to, folder / name, [store.read(stored)]))
    return files


def write(to: Path, name: Path, content: Iterable[bytes]) -> str:
    """Write a file below ``to``; return its name. Raises OutputError, OSError."""
    path = to / name
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    with partial.open("wb") as stream:
        stream.writelines(content)
    partial.replace(path)
    return str(name)


def write_record(record: RunRecord, to: Path) -> list[str]:
    """Write the run's record without environment variables. Raises OSError."""
    shown = {name: value for name, value in record.fields().items() if name != "env"}
    return [write(to, Path("record.json"), [json.dumps(shown, indent=1).encode()])]
