"""The whole of tpufleet.core.run_fetch: it reads the bucket from the controller."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.checkpoint_sound import files_of, newest_sound
from ..module_utils.gcs import SCHEME, Objects
from ..module_utils.run import RunError, check_name
from ..module_utils.run_record import RecordError
from ..module_utils.tpu_errors import TpuApiError
from ..plugin_utils.runs.store import RunStore
from .run_record import plain

AT_ONCE = 8
PIECE = 8 << 20
TRAINERS_OWN = ("compiled/", "corpus/")
"""What lies beside checkpoints and is of no use but to the next attempt."""


class ActionModule(ActionBase):
    """Brings checkpoints out of a bucket."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Read where they are, choose, and bring what is not here."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "run": {"type": "str", "required": True},
                "fleet_state": {"type": "str", "required": True},
                "to": {"type": "path", "required": True},
                "which": {"type": "str", "choices": ["newest", "all"], "default": "all"},
            }
        )
        told = (task_vars or {}).get("tpu_api")
        api = plain(self._templar.template(told)) if told else {}
        try:
            run = check_name(options["run"])
            record = RunStore.of(options["fleet_state"], api).read(run)
            place = record.launch.checkpoints if record else ""
            if not place.startswith(SCHEME):
                return {"changed": False, "place": "", "files": [], "passed_over": []}
            bucket, folder = Objects.of(place, api), Path(options["to"]) / "checkpoints"
            newest = options["which"] == "newest"
            return {"place": place} | fetch(bucket, folder, newest, self._task.check_mode)
        except (RunError, RecordError, TpuApiError) as error:
            raise AnsibleActionFail(str(error)) from None
        except OSError as error:
            raise AnsibleActionFail(f"{error.filename}: {error.strerror}") from None


def fetch(bucket: Objects, folder: Path, newest: bool, check: bool) -> dict[str, Any]:
    """Bring what is below a bucket's address here. Raises RunError, TpuApiError, OSError."""
    sizes = {name: n for name, n in bucket.sizes().items() if not name.startswith(TRAINERS_OWN)}
    names, wrong = sorted(sizes), []
    if newest:
        step, wrong = newest_sound(sizes, bucket.content)
        if step is None:
            why = "; ".join(wrong) or "there is none"
            raise RunError(f"no sound checkpoint in {bucket.url}: {why}")
        names = files_of(step, sizes)
    elif not names:
        raise RunError(f"there are no checkpoints in {bucket.url}")
    for name in names:
        if name.endswith("/") or ".." in Path(name).parts or Path(name).is_absolute():
            raise RunError(f"{bucket.url}/{name} is no name for a file here: fetch it by hand")
    missing = [name for name in names if size_of(folder / name) != sizes[name]]
    if not check:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda name: bring(bucket, name, sizes[name], folder / name), missing))
    return {"changed": bool(missing), "files": missing, "passed_over": wrong}


def bring(bucket: Objects, name: str, size: int, target: Path) -> None:
    """Write one object to a file, which is there whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.part")
    with partial.open("wb") as stream:
        for start in range(0, size, PIECE):
            stream.write(bucket.content(name, start, min(PIECE, size - start)))
        length = stream.tell()
    if length != size:
        raise RunError(f"{bucket.url}/{name} gave {length} bytes instead of {size}: fetch it again")
    partial.replace(target)


def size_of(path: Path) -> int:
    """Give a file's length, -1 where there is none."""
    return path.stat().st_size if path.is_file() else -1
