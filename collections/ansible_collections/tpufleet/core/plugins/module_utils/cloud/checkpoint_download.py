"""Downloads of a run's checkpoints from a bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..worker.checkpoint_sound import Layout, files_of, no_finished_error
from ..worker.run import runs_trainer
from .download import download_all, missing_objects
from .errors import Forbidden, NotFound
from .storage import Bucket, StoredObject

Result = dict[str, Any]
TRAINER_DIRECTORIES = ("compiled/", "corpus/")
"""Directories beside the checkpoints that are not fetched: only the run itself uses them."""


def layout_of(command: Sequence[str], pattern: str) -> Layout:
    """Return the checkpoint layout of the trainer that ``command`` runs.

    ``pattern`` is the user's pattern of the checkpoints' paths (``Layout.pattern``), or empty.
    """
    return Layout(runs_trainer(command), in_bucket=True, pattern=pattern)


def fetch(bucket: Bucket, folder: Path, layout: Layout, newest: bool, check: bool) -> Result:
    """Download all checkpoints to ``folder``, or only the newest that is finished and readable.

    ``layout`` says which objects are checkpoints. With ``check``, nothing is downloaded. Returns
    the result of the module run_fetch. Raises CloudError, OSError.
    """
    objects = {
        stored.name: stored
        for stored in bucket.list()
        if stored.name and not stored.name.startswith(TRAINER_DIRECTORIES)
        # Skip the empty objects that consoles and gcsfuse create for directories.
        if not (stored.name.endswith("/") and not stored.size)
    }
    if newest:
        return _fetch_newest(bucket, folder, layout, objects, check)
    downloads, unsafe = missing_objects(folder, objects.values())
    outcome = {} if check else download_all(bucket, downloads)
    failed = unsafe | {downloads[path].name: error for path, error in outcome.items() if error}
    return fetched(
        [stored.name for stored in downloads.values() if stored.name not in failed],
        unreadable=[f"{name}: {error}" for name, error in sorted(failed.items())],
        missing="" if objects else f"{bucket.url}: there are no checkpoints",
    )


def fetched(
    files: Iterable[str] = (),
    passed_over: Sequence[str] = (),
    unreadable: Sequence[str] = (),
    missing: str = "",
) -> Result:
    """Return the result of the module run_fetch. The module documents the fields."""
    return {
        "changed": bool(files),
        "files": sorted(files),
        "passed_over": passed_over,
        "unreadable": unreadable,
        "missing": missing,
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
            downloads, unsafe = missing_objects(
                folder, [objects[name] for name in files_of(path, sizes)]
            )
            outcome = {} if check or unsafe else download_all(bucket, downloads)
            failed = unsafe | {
                downloads[file_path].name: error for file_path, error in outcome.items() if error
            }
            if not failed:
                return fetched([stored.name for stored in downloads.values()], passed_over)
            # Remove the downloaded part, because a partial checkpoint must not look complete.
            for file_path in outcome:
                file_path.unlink(missing_ok=True)
            name, error = next(iter(failed.items()))
            fault = f"{name.removeprefix(f'{path}/')}: {error}"
        passed_over.append(f"{path}: {fault}")
    return fetched((), passed_over, (), no_finished_error(bucket.url, layout, passed_over, sizes))
