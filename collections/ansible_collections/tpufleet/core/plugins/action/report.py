"""The action plugin of tpufleet.core.report: write and publish the HTML report on runs."""

from __future__ import annotations

import contextlib
import gzip
import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.cloud.errors import CloudError, Forbidden, NotConfigured, NotFound
from ..module_utils.cloud.storage import Bucket
from ..plugin_utils.outputs.objects import OutputError, trim
from ..plugin_utils.outputs.run_outputs import RunOutputs
from ..plugin_utils.outputs.summary import RunOutput
from ..plugin_utils.outputs.summary_cache import cached_summary
from ..plugin_utils.plain_values import plain
from ..plugin_utils.replaced_file import replace_file
from ..plugin_utils.report.report_page import page
from ..plugin_utils.report.report_runs import run_views
from ..plugin_utils.runs.judge import zone_check
from ..plugin_utils.runs.record import RunRecord
from ..plugin_utils.runs.record_error import RecordError
from ..plugin_utils.runs.store import STORE_OPTIONS, RunStore

MAX_PARALLEL = 2
"""Number of runs whose output is read in parallel; each needs memory for all of its steps."""
_OBJECT_METADATA = {
    "contentType": "text/html; charset=utf-8",
    "contentEncoding": "gzip",
    "cacheControl": "no-cache",
}
_AS_OF = re.compile(r'<p class="dim">As of .*?</p>')


class ActionModule(ActionBase):
    """Writes one HTML page about the runs."""

    _supports_check_mode = True
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read the run records and the stored output; write the page atomically."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "path": {"type": "path", "required": True},
                **STORE_OPTIONS,
                "directory": {"type": "str", "required": True},
                "cache": {"type": "path", "required": True},
                "answers": {"type": "dict", "required": True},
                "tpu_states": {"type": "dict", "default": {}},
                "zones": {"type": "list", "elements": "str", "default": ["-"]},
                "unreachable": {"type": "list", "elements": "str", "default": []},
                "run": {"type": "str", "default": ""},
                "publish": {"type": "str", "default": ""},
            }
        )
        api = options["api"]
        try:
            stored = RunStore.of(options["fleet_state"], api).read_all(archived=True)
        except RecordError as error:
            raise AnsibleActionFail(str(error)) from None
        records = {
            run: record for run, record in stored.usable.items() if options["run"] in ("", run)
        }
        outputs, output_warnings = read_outputs(
            RunOutputs(options["directory"], options["cache"], api), records.values()
        )
        now = time.time()
        views = run_views(
            {run: record.fields() for run, record in records.items()},
            plain(options["answers"]),
            outputs,
            plain(options["tpu_states"]),
            now,
            options["run"],
            zone_check(options["zones"], options["unreachable"]),
        )
        if options["run"] and not views:
            raise AnsibleActionFail(
                f"there is no run {options['run']}. List the runs: "
                "ansible-playbook playbooks/status.yml"
            )
        fleet = str(api.get("project") or "the fleet")
        text = page(views, fleet, now)
        path = Path(options["path"])
        try:
            before = path.read_text("utf-8", errors="replace") if path.is_file() else ""
            if not self._task.check_mode:
                replace_file(path, text.encode(), 0o644)
        except OSError as error:
            raise AnsibleActionFail(
                f"can't write {path}: {error.strerror}. Choose another file: "
                "ansible-playbook playbooks/report.yml -e report=FILE"
            ) from None
        url, changed = "", _differs(before, text)
        if options["publish"]:
            try:
                url, is_new = _publish(text, options["publish"], api, is_dry=self._task.check_mode)
            except CloudError as error:
                raise AnsibleActionFail(str(error)) from None
            changed = changed or is_new
        runs = [view.name for view in views]
        warnings = [unusable.error for unusable in stored.unusable] + output_warnings
        output = {"changed": changed, "path": str(path), "url": url, "runs": runs, "msg": str(path)}
        return result | output | {"warnings": warnings}


def _differs(before: str, after: str) -> bool:
    """Return whether two pages differ in more than the time of the report."""
    return _AS_OF.sub("", before) != _AS_OF.sub("", after)


def _publish(text: str, location: str, api: Mapping[str, Any], *, is_dry: bool) -> tuple[str, bool]:
    """Store the page as the object ``location`` (gs://bucket/name).

    Returns its URL for browsers, and whether the page differs from the one published before. If
    ``is_dry``, nothing is stored. Readers need the permission to read the bucket's objects. Raises
    CloudError.
    """
    folder, _, name = location.rpartition("/")
    if not location.startswith("gs://") or not name.endswith(".html"):
        raise NotConfigured(
            f"publish={location!r:.200}: expected gs://BUCKET/NAME.html. Use: "
            "ansible-playbook playbooks/report.yml -e publish=gs://BUCKET/report.html"
        )
    bucket, before = Bucket.of(folder, api), b""
    with contextlib.suppress(NotFound, Forbidden):
        before = bucket.content(name)
    if not is_dry:
        bucket.upload(name, gzip.compress(text.encode("utf-8")), _OBJECT_METADATA)
    return bucket.browser_url(name), _differs(before.decode("utf-8", errors="replace"), text)


def read_outputs(
    outputs: RunOutputs, records: Iterable[RunRecord]
) -> tuple[dict[str, RunOutput], list[str]]:
    """Return the stored output of runs by name, and a list of errors and warnings.

    Errors are about output that can't be read, warnings about output that has too many lines and is
    therefore read only in part.
    """

    def summarize(record: RunRecord) -> RunOutput | str:
        try:
            store = outputs.store_of(record.launch)
            return cached_summary(store, record.run, store.list(record.run), outputs.summaries)
        except OutputError as error:
            return str(error)

    all_records = list(records)
    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        names = (record.run for record in all_records)
        results = dict(zip(names, pool.map(summarize, all_records), strict=True))
    trim(outputs.segments)
    summaries = {run: output for run, output in results.items() if isinstance(output, RunOutput)}
    errors = {error for error in results.values() if isinstance(error, str)}
    summary_warnings = [
        warning for run, summary in summaries.items() for warning in summary.warnings(run)
    ]
    return summaries, sorted(errors) + summary_warnings
