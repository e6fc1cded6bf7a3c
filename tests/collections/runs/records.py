"""Run records for tests of the watch; a controller can cache their release and lock file."""

import hashlib
import tempfile
from pathlib import Path
from typing import Any

from ansible_collections.tpufleet.core.plugins.module_utils.worker.release import release_id
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.code_tree import stage
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record import (
    RunRecord,
    parse_record,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.release_cache import (
    cache_lock,
    cache_release,
    cached_release_path,
)

from harness import valid_record

ZONE = "us-central2-b"
LOCK_TEXT = b"jax==0.7.0"
LOCK = hashlib.sha256(LOCK_TEXT).hexdigest()


def _staged(folder: Path) -> str:
    """Stage code with one file; return the id of its release."""
    (folder / "code").mkdir()
    (folder / "code/train.py").write_text("print('hello')\n")
    return release_id(stage(folder / "code", [], folder / "staged"))


with tempfile.TemporaryDirectory() as _folder:
    RELEASE = _staged(Path(_folder))


def keep_release(state_dir: Path) -> Path:
    """Cache the release and lock file of run_record() in a controller's state directory."""
    with tempfile.TemporaryDirectory() as folder:
        _staged(Path(folder))
        cache_release(Path(folder) / "staged", cached_release_path(state_dir, RELEASE))
    cache_lock(state_dir, LOCK_TEXT)
    return state_dir


def record_fields(run: str = "mine", **fields: Any) -> dict[str, Any]:
    """Return the stored fields of a run on the TPU ``pod`` with id 7."""
    return valid_record.record_fields(
        run,
        **{
            "release": RELEASE,
            "requirements": LOCK,
            "generation": 1,
            "nodes": [{"name": "pod", "zone": ZONE, "id": "7"}],
            "workers": 1,
        }
        | fields,
    )


def run_record(run: str = "mine", **fields: Any) -> RunRecord:
    """Return a valid record with the fields of record_fields."""
    return parse_record(run, record_fields(run, **fields))
