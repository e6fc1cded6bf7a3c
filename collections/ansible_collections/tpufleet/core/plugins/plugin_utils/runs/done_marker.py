"""The done marker: an object beside a run's checkpoints that says that the run is done.

Process 0 writes it. The watch reads it before it recreates the TPU, launches the run or gives up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...module_utils.cloud import errors
from ...module_utils.cloud.storage import SCHEME, SMALL_OBJECT_RETRY, Bucket
from ...module_utils.worker.contract import DONE_MARKER
from ...module_utils.worker.done_marker import MAX_BYTES, DoneMarker, parse_text


def read_done_marker(checkpoints: str, run: str, api: Mapping[str, Any]) -> DoneMarker | None:
    """Return the done marker that a run's last attempt wrote; None if there is no marker.

    Args:
        checkpoints: path or URI of the run's own checkpoints. For a path the result is None,
            because only workers can read a path. They check the marker at the next launch.
        run: the run's name; a marker of another run is ignored.
        api: the inventory's variable ``tpu_api``.

    Raises CloudError if the bucket does not answer. A bucket that does not exist, or that this
    controller may not read, counts as a bucket without a marker.
    """
    if not checkpoints.startswith(SCHEME):
        return None
    try:
        bucket = Bucket.of(checkpoints, api, retry=SMALL_OBJECT_RETRY)
        text = bucket.content(DONE_MARKER, 0, MAX_BYTES + 1)
    except (errors.NotFound, errors.Forbidden, errors.InvalidRequest, errors.NotConfigured):
        return None
    return parse_text(text, run)
