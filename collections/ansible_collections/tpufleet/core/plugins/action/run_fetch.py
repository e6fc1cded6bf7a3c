"""The action plugin of tpufleet.core.run_fetch: download a run's checkpoints from its bucket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.cloud.download import download_all, missing
from ..module_utils.cloud.errors import CloudError, Forbidden, NotFound
from ..module_utils.cloud.storage import SCHEME, Bucket, StoredObject
from ..module_utils.worker.checkpoint_sound import Layout, files_of, none_finished
from ..module_utils.worker.run import TRAINER, RunError, check_name
from ..plugin_utils.runs.record_error import RecordError
from ..plugin_utils.runs.store import STORE_OPTIONS, RunStore

Result = dict[str, Any]
TRAINERS_OWN = ("compiled/", "corpus/")
"""Directories beside the checkpoints that are not fetched: only the run itself uses them."""


class ActionModule(ActionBase):
    """Downloads a run's checkpoints from a bucket."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Download the requested checkpoints, except files that the controller already has."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "run": {"type": "str", "required": True},
                **STORE_OPTIONS,
                "to": {"type": "path", "required": True},
                "which": {"type": "str", "choices": ["newest", "all"], "default": "all"},
                "pattern": {"type": "str", "default": ""},
            }
        )
        api = options["api"]
        try:
            run = check_name(options["run"])
            record = RunStore.of(options["fleet_state"], api).read(run)
            place = record.launch.checkpoints if record else ""
            if record is None or not place.startswith(SCHEME):
                return {"changed": False, "place": "", "files": [], "passed_over": []}
            is_own = record.launch.command[: len(TRAINER)] == TRAINER
            layout = Layout(is_own, in_bucket=True, pattern=options["pattern"])
            folder, newest = Path(options["to"]) / "checkpoints", options["which"] == "newest"
            located: Result = {"changed": False, "place": place, "files": []}
            try:
                bucket = Bucket.of(place, api)
                return located | fetch(bucket, folder, layout, newest, self._task.check_mode)
            except CloudError as error:  # return the error, so that the play copies the logs first
                return located | {"passed_over": [], "unreadable": [], "missing": str(error)}
        except (RunError, RecordError, CloudError) as error:
            raise AnsibleActionFail(str(error)) from None
        except OSError as error:
            raise AnsibleActionFail(f"{error.filename}: {error.strerror}") from None


def fetch(bucket: Bucket, folder: Path, layout: Layout, newest: bool, check: bool) -> Result:
    """Download all checkpoints to ``folder``, or only the newest that is finished and readable.

    ``layout`` says which objects are checkpoints. With ``check``, nothing is downloaded. Returns
    ``files`` (the downloaded objects), ``passed_over`` (newer checkpoints, each with the reason to
    skip it), ``unreadable`` (objects that can't be downloaded, with errors) and ``missing`` (the
    error if there is no checkpoint to download; else empty). Raises CloudError, OSError.
    """
    objects = {
        stored.name: stored
        for stored in bucket.list()
        if stored.name and not stored.name.startswith(TRAINERS_OWN)
        # Skip the empty objects that consoles and gcsfuse create for directories.
        if not (stored.name.endswith("/") and not stored.size)
    }
    if newest:
        return _fetch_newest(bucket, folder, layout, objects, check)
    wanted, unsafe = missing(folder, objects.values())
    outcome = {} if check else download_all(bucket, wanted)
    failed = unsafe | {wanted[path].name: error for path, error in outcome.items() if error}
    files = sorted(stored.name for stored in wanted.values() if stored.name not in failed)
    return {
        "changed": bool(files),
        "files": files,
        "passed_over": [],
        "unreadable": [f"{name}: {error}" for name, error in sorted(failed.items())],
        "missing": "" if objects else f"{bucket.url}: there are no checkpoints",
    }


def _fetch_newest(
    bucket: Bucket,
    folder: Path,
    layout: Layout,
    objects: Mapping[str, StoredObject],
    check: bool,
) -> Result:
    def read(name: str) -> bytes:
        try:
            return bucket.content(name, generation=objects[name].generation)
        except (Forbidden, NotFound) as error:
            raise OSError(str(error)) from None

    sizes = {name: stored.size for name, stored in objects.items()}
    passed_over: list[str] = []
    for path in layout.checkpoints(sizes):
        fault = layout.fault(path, sizes, read)
        if not fault:
            wanted, unsafe = missing(folder, [objects[name] for name in files_of(path, sizes)])
            outcome = {} if check or unsafe else download_all(bucket, wanted)
            failed = unsafe | {wanted[at].name: error for at, error in outcome.items() if error}
            if not failed:
                files = sorted(stored.name for stored in wanted.values())
                return {
                    "changed": bool(files),
                    "files": files,
                    "passed_over": passed_over,
                    "unreadable": [],
                    "missing": "",
                }
            for at in outcome:  # a partial checkpoint must not look complete
                at.unlink(missing_ok=True)
            name, error = next(iter(failed.items()))
            fault = f"{name.removeprefix(f'{path}/')}: {error}"
        passed_over.append(f"{path}: {fault}")
    return {
        "changed": False,
        "files": [],
        "passed_over": passed_over,
        "unreadable": [],
        "missing": none_finished(bucket.url, layout, passed_over, sizes),
    }
