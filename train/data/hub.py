"""Files of repositories of the Hugging Face hub."""

import re
from collections.abc import Sequence
from pathlib import Path

from train.storage import failure

_NAME = r"\w(?:[\w.-]{0,94}\w)?"
_ID = re.compile(
    rf"(?!.*(?:--|\.\.)){_NAME}/{_NAME}(?<!\.git)(?<!\.json)(?<!\.safetensors)(?:@[\w./-]+)?",
    re.ASCII,
)


def is_repository(name: str) -> bool:
    """Return whether ``name`` is a repository of the Hugging Face hub, ``owner/name[@revision]``.

    Returns False if the current directory contains ``owner``, so that a mistyped path is never
    downloaded.
    """
    return _ID.fullmatch(name) is not None and not Path(name.partition("@")[0]).parent.exists()


def download(repository: str, patterns: Sequence[str], key: str) -> Path:
    """Copy the files that match ``patterns`` to the hub's cache; return the copy's directory.

    If the download fails, raises the error of ``storage.failure``, whose message begins with
    ``key``.
    """
    from huggingface_hub import snapshot_download

    name, _, revision = repository.partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=[*patterns]))
    except Exception as err:  # huggingface_hub raises many error types
        error_prefix = (
            f"{key}: {repository} is no file or directory here, and cannot be downloaded from"
        )
        raise failure(f"{error_prefix} the Hugging Face hub", err) from err
