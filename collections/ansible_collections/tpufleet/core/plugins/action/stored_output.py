"""The action plugin of tpufleet.core.stored_output: read or copy what a run has written."""

from __future__ import annotations

import filecmp
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from ..module_utils.worker.os_errors import os_error_text
from ..module_utils.worker.output_stream import FILES
from ..module_utils.worker.run import RunError, check_name
from ..plugin_utils.outputs.objects import OutputError, OutputStore, trim
from ..plugin_utils.outputs.reader import (
    MAX_PARALLEL,
    StoredProcess,
    contents,
    joined_content,
    log_tail,
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
        _, options = self.validate_argument_spec(
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
        api = options["api"]
        result: dict[str, Any] = {"changed": False, "location": "", "attempt": None}
        result |= {"answers": {}, "files": [], "workers": []}
        try:
            record = RunStore.of(options["fleet_state"], api).read(check_name(options["run"]))
            if record is None:
                return result
            outputs = RunOutputs(options["directory"], options["cache"], api)
            store = outputs.store_of(record.launch)
            result["workers"] = [name for name in record.launch.placement if name]
            files: list[str] = []
            target = Target(Path(options["to"]), self._task.check_mode) if options["to"] else None
            if target and options["bundle"]:
                files += write_record(record, target)
            objects = store.list(record.run)
            processes = stored_processes(objects)
            if not processes:
                return result | {"location": store.location, "files": files, "changed": bool(files)}
            summary = cached_summary(store, record.run, objects, outputs.summaries)
            last_attempt = summary.attempts[-1].number
            last_processes = [process for process in processes if process.attempt == last_attempt]
            with ThreadPoolExecutor(MAX_PARALLEL) as pool:
                tails = pool.map(
                    lambda process: log_tail(store, process, options["lines"]), last_processes
                )
                logs = {
                    process.process_id: tail
                    for process, tail in zip(last_processes, tails, strict=True)
                }
            if target:
                files = copy(store, processes, target) + files
            trim(outputs.segments)
        except (RecordError, RunError, OutputError) as error:
            # Return the error instead of raising it: Ansible ignores failed_when if a plugin
            # raises.
            return {"failed": True, "msg": str(error)}
        except OSError as error:
            return {"failed": True, "msg": os_error_text(error)}
        location = f"{store.location}/{record.run}"
        return result | {
            "changed": bool(files),
            "location": location,
            "attempt": last_attempt,
            "answers": stored_answers(record.run, summary, logs),
            "files": files,
            "warnings": summary.warnings(record.run),
            "msg": f"run {record.run}: the output of attempt {last_attempt} is in {location}",
        }


@dataclass(frozen=True)
class Target:
    """The directory to which the output is copied. With ``check_mode``, nothing is written."""

    directory: Path
    check_mode: bool

    def write(self, name: Path, content: Iterable[bytes]) -> list[str]:
        """Write a file unless it already has this content.

        Returns a list with the file's name, or an empty list if the file is unchanged. Raises
        OutputError, OSError.
        """
        path = self.directory / name
        if self.check_mode:
            return [] if _has_content(path, content) else [str(name)]
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.part")
        with partial.open("wb") as stream:
            stream.writelines(content)
        if path.is_file() and filecmp.cmp(partial, path, shallow=False):
            partial.unlink()
            return []
        partial.replace(path)
        return [str(name)]


def _has_content(path: Path, content: Iterable[bytes]) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return all(stream.read(len(part)) == part for part in content) and not stream.read(1)


def copy(store: OutputStore, processes: Sequence[StoredProcess], target: Target) -> list[str]:
    """Copy the output of all attempts to ATTEMPT/PROCESS below the target directory.

    Returns the names of the files that were missing or different. Raises OutputError, OSError.
    """
    files = []
    for process in processes:
        folder = Path(str(process.attempt), str(process.process_id))
        for name, file_name in FILES.items():
            segments = getattr(process, name)
            if segments:
                content = joined_content(contents(store, segments))
                files += target.write(folder / file_name, content)
        for stored in filter(None, (process.start, process.exit)):
            name = stored.name.rpartition("/")[2]
            # Pass an iterator: in check mode, write() does not read the content of missing files.
            files += target.write(folder / name, map(store.read, [stored]))
    return files


def write_record(record: RunRecord, target: Target) -> list[str]:
    """Write the run's record without environment variables. Raises OSError."""
    fields = {name: value for name, value in record.fields().items() if name != "env"}
    return target.write(Path("record.json"), [json.dumps(fields, indent=1).encode()])
