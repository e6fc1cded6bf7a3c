"""Files of repositories of the Hugging Face hub."""

import re
from collections.abc import Sequence
from pathlib import Path

from train.storage import converted_errors

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

    If the download fails, raises the errors of ``storage.converted_errors``, whose messages begin
    with ``key``.
    """
    from huggingface_hub import snapshot_download

    name, _, revision = repository.partition("@")
    with converted_errors(
        f"{key}: {repository} is no file or directory here, and cannot be downloaded from the "
        "Hugging Face hub"
    ):
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=[*patterns]))
