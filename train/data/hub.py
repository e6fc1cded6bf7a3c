"""Files of repositories of the Hugging Face hub."""

import re
from collections.abc import Sequence
from pathlib import Path

from train.run.contract import one_line
from train.strict import ConfigError

_PART = r"\w(?:[\w.-]{0,94}\w)?"
_ID = re.compile(
    rf"(?!.*(?:--|\.\.)){_PART}/{_PART}(?<!\.git)(?<!\.json)(?<!\.safetensors)", re.ASCII
)


def is_repository(place: str) -> bool:
    """Return whether this is an ``owner/name`` of the hub.

    It is not if there is a directory ``owner`` here, so that a mistyped path is never downloaded.
    """
    return _ID.fullmatch(place) is not None and not Path(place).parent.exists()


def download(repository: str, patterns: Sequence[str], key: str) -> Path:
    """Copy the files that match ``patterns`` to the hub's cache; return the copy's directory.

    Raises ConfigError, which begins with ``key``, if that fails.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=[*patterns]))
    except Exception as err:  # the library raises many types
        raise ConfigError(
            f"{key}: {repository} is no file or directory here, and cannot be downloaded from the "
            f"Hugging Face hub: {one_line(err)}"
        ) from err
