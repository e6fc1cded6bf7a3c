"""Safetensors files of a model: one file, a directory, or a repository of the Hugging Face hub."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from train.data import hub
from train.data.config import DataConfig
from train.data.corpus import data_directory
from train.data.files import download
from train.storage import parse_location
from train.strict import ConfigError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Index of a model in several files: it lists each tensor's file."""

CONFIG = "config.json"
DOWNLOADED = (CONFIG, INDEX, "model*.safetensors")

DTYPES = ("BF16", "F16", "F32", "F64")


class Tensors:
    """Tensors of ``init_from``, read one at a time."""

    def __init__(self, init_from: str, data: DataConfig) -> None:
        """Open the files and read the names and shapes of their tensors.

        A gs:// location is first downloaded to ``weights`` in the directory that
        ``corpus.data_directory`` returns for ``data``. Raises ConfigError if a file is missing or
        invalid, and the errors of ``storage.converted_errors`` if it cannot be downloaded.
        """
        self.path = _located(init_from, data)
        """Local path of ``init_from``: a file or a directory."""
        self.directory = self.path if self.path.is_dir() else self.path.parent
        self.files = _files(self.path)
        self.config = _content(self.directory / CONFIG)
        """Content of config.json, None without one."""
        self.metadata: dict[str, str] = {}
        self._opened: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in self.files:
            self._open(path)

    def _open(self, path: Path) -> None:
        try:
            file = safe_open(path, "np")
            tensors = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as err:
            reason = getattr(err, "strerror", None) or " ".join(str(err).split())
            raise ConfigError(
                f"init_from: {path} cannot be read as a safetensors file: {reason}. Replace the "
                "file, or set init_from to another one"
            ) from err
        self.metadata |= file.metadata() or {}
        for name, tensor in tensors.items():
            if tensor.get_dtype() not in DTYPES:
                raise ConfigError(
                    f"init_from: {path}: {name} is {tensor.get_dtype()}, which is not supported; "
                    f"supported: {', '.join(DTYPES)}"
                )
            self._opened[name] = file
            self.shapes[name] = tuple(tensor.get_shape())

    def read(self, name: str) -> np.ndarray:
        """Return a tensor in the dtype of its file."""
        return self._opened[name].get_tensor(name)


def _located(init_from: str, data: DataConfig) -> Path:
    """Return the local path of ``init_from``.

    Downloads a gs:// location to ``weights`` in the data directory. Downloads ``owner/name`` from
    the Hugging Face hub, unless a directory ``owner`` exists.
    """
    path = parse_location(init_from, "init_from")
    if isinstance(path, str):
        is_file = path.endswith(".safetensors")
        directory, _, name = path.rpartition("/") if is_file else (path, "", "")
        patterns = [CONFIG, name] if is_file else DOWNLOADED
        copies = data_directory(data) / "weights"
        return download(directory, patterns, copies, "init_from") / name
    if hub.is_repository(init_from):
        return hub.download(init_from, DOWNLOADED, "init_from")
    if not path.exists():
        raise ConfigError(
            f"init_from: {path} does not exist. Put {CONFIG} and {WEIGHTS} of a model there, or "
            "set init_from to another directory or to owner/name on the Hugging Face hub"
        )
    return path


def _files(path: Path) -> list[Path]:
    """Return the safetensors files of a model; raises ConfigError if a directory has none.

    ``path`` is a file or a directory. If a directory has both WEIGHTS and INDEX, WEIGHTS is used,
    as in transformers.
    """
    if not path.is_dir():
        return [path]
    if (path / WEIGHTS).exists():
        return [path / WEIGHTS]
    index = _content(path / INDEX)
    if index is None:
        raise ConfigError(
            f"init_from: {path} has no {WEIGHTS} and no {INDEX}. Put {CONFIG} and {WEIGHTS} of a "
            "model there, or set init_from to another directory"
        )
    files = index.get("weight_map")
    names = [*files.values()] if isinstance(files, dict) else []
    if not names or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        raise ConfigError(
            f"init_from: {path / INDEX}: weight_map must map names of weights to file names in "
            "the same directory"
        )
    return [path / name for name in sorted(set(names))]


_NAME = re.compile(r"[\w.-]+\.safetensors")


def _content(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file, None if it does not exist."""
    try:
        return parsed(path.read_bytes(), f"init_from: {path}")
    except FileNotFoundError:
        return None
    except OSError as err:
        raise ConfigError(f"init_from: {path} cannot be read: {err.strerror}") from err


def parsed(text: str | bytes, source: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises ConfigError, whose message begins with ``source``, for any other text.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise ConfigError(f"{source} is not JSON: {err}") from err
    if not isinstance(content, dict):
        raise ConfigError(f"{source} must be a JSON object")
    return content
