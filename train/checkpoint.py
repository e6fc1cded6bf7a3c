"""Checkpoints, saved with Orbax to a directory or gs:// prefix that all processes share.

The checkpoint of step s holds the state after s updates. It is a directory ``<s>/`` with Orbax's
files and ``manifest.json``, which is written last. The manifest identifies the run (model, corpus
fingerprint, optimizer) and lists the length of each file, so that damage is found before loading:
Orbax would raise for a truncated file in one process only and leave the others waiting.
"""

import json
import logging
import zlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import batched
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from train import mesh
from train.config import CheckpointConfig, Config, ConfigError, ModelConfig
from train.contract import open_filesystem
from train.corpus import Meta
from train.step import State

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
CHECKSUM_BYTES = 1 << 20
"""Files up to this size, such as Orbax's metadata, are also checked by CRC-32."""

BATCH_FILES = 64
"""Number of files that are read at once, and held in memory, to compute their CRC-32."""

DAMAGED = f"{MANIFEST} is damaged"
UNFINISHED = "its save was interrupted"
NONE, ALL_DAMAGED = -1, -2


@dataclass(frozen=True)
class Manifest:
    """Content of manifest.json: the run's identity (``of``), and length and CRC-32 of each file.

    ``files`` maps names to (bytes, CRC-32); the CRC-32 is None for files above CHECKSUM_BYTES.
    """

    of: dict[str, Any]
    files: dict[str, tuple[int, int | None]]

    @classmethod
    def parse(cls, text: str) -> "Manifest":
        """Parse the text of manifest.json; raises ValueError if it is invalid."""
        try:
            found = json.loads(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        of, files = (found.get(key) for key in ("of", "files")) if _is_object(found) else (0, 0)
        if not (_is_object(of) and _is_object(of.get("model", {})) and _is_object(files)):
            raise ValueError("not the manifest of a checkpoint")
        return cls(of, {name: _size_and_crc(name, entry) for name, entry in files.items()})


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _size_and_crc(name: str, entry: object) -> tuple[int, int | None]:
    """Return the bytes and CRC-32 of a manifest entry; raises ValueError if it is invalid."""
    inside = not name.startswith("/") and ".." not in name.split("/")
    match entry:
        case [int(size), int() | None as crc] if inside and size >= 0:
            return size, crc
    raise ValueError(f"invalid entry for {name!a}")


class Checkpoints:
    """Checkpoints of one run. Methods are collective: all processes must make the same calls."""

    def __init__(
        self,
        directory: Path | str,
        cfg: CheckpointConfig,
        identity: dict[str, Any],
        clean_up: bool = True,
    ) -> None:
        """Find the newest intact checkpoint, the same one in all processes.

        ``clean_up`` renames damaged and unfinished checkpoints and removes what killed saves left.
        Only the run itself may set it: another program could destroy a save in progress. Raises
        ConfigError if all checkpoints are damaged, or if processes find different ones.
        """
        self.directory, self._cfg, self._identity = str(directory), cfg, identity
        self._fs, self._root = open_filesystem(directory)
        self._bucket = "://" in self.directory
        step = mesh.from_process_0(
            self._newest_intact(clean_up) if jax.process_index() == 0 else NONE
        )
        if step == ALL_DAMAGED:
            raise ConfigError(
                f"{self.directory}: all checkpoints are damaged; restore a copy of an intact "
                "one, or move them all away to start at step 0"
            )
        mesh.check_equal(
            repr((step, self._manifest_if_any(step))),
            "find a different newest checkpoint than process 0; all must share the directory "
            + self.directory,
        )
        self.latest: int | None = None if step == NONE else step
        """Step of the newest checkpoint, saved or being saved, or the step given to ``select``."""
        self._saving: Future[None] | None = None
        self._background = ThreadPoolExecutor(1, "checkpoint")

    def save(self, step: int, state: State, wait: bool = False) -> None:
        """Save the state in the background, unless ``step`` is saved already.

        With ``wait``, return only when the save is complete. The state may be donated as soon as
        this returns. If a save fails in the background, the next ``save``, ``wait`` or ``close``
        raises its error.
        """
        if step != self.latest:
            self.wait()
            with _orbax():
                response = ocp.save_async(f"{self.directory}/{step}", state)
            self._saving = self._background.submit(self._finish, step, response)
            self.latest = step
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the save in progress, if any, is complete."""
        if self._saving:
            self._saving.result()

    def select(self, step: int) -> None:
        """Set ``latest`` to ``step``; raises ConfigError if it has no intact checkpoint."""
        if self._fault(step):
            steps = ", ".join(map(str, sorted(_steps(self._names()))))
            raise ConfigError(f"{self.directory}: no intact checkpoint of step {step}; has {steps}")
        self.latest = step

    def restore(self, step: int, abstract: State) -> State:
        """Load the checkpoint of a step, with the shapes and shardings of ``abstract``.

        The shardings may differ from those of the saved state. If the checkpoint is of another
        model, corpus or optimizer, raises ConfigError with the first difference.
        """
        try:
            found = Manifest.parse(self._manifest(step)).of
        except ValueError:
            raise ConfigError(f"{self.directory}/{step}: {DAMAGED}; choose another step") from None
        # The manifest lacks options that were added after the save; their defaults apply.
        found["model"] = asdict(ModelConfig()) | found.get("model", {})
        if difference := _difference(found, self._identity):
            raise ConfigError(
                f"{self.directory}/{step}: is a checkpoint of another run: {difference}; "
                "use another directory or run name, or remove it"
            )
        with _orbax():
            return ocp.load(f"{self.directory}/{step}", abstract)

    def close(self) -> None:
        """Wait until the save in progress is complete, and stop the background thread."""
        self.wait()
        self._background.shutdown()

    def _newest_intact(self, clean_up: bool) -> int:
        """Return the step of the newest intact checkpoint, NONE or ALL_DAMAGED."""
        names = self._names()
        damaged, unfinished = any(name.endswith(".damaged") for name in names), 0
        if clean_up:
            for name in names:
                if ".orbax-checkpoint-tmp" in name:
                    self._fs.rm(f"{self._root}/{name}", recursive=True)
        for step in sorted(_steps(names), reverse=True):
            fault = self._fault(step)
            if not fault:
                return step
            damaged |= fault != UNFINISHED
            unfinished += fault == UNFINISHED
            log.warning("%s/%d: %s: NOT USED", self.directory, step, fault)
            if clean_up:
                self._set_aside(step, "unfinished" if fault == UNFINISHED else "damaged")
        # A kill during the first save leaves one unfinished checkpoint; step 0 is the right start.
        return ALL_DAMAGED if damaged or unfinished > 1 else NONE

    def _manifest_if_any(self, step: int) -> str:
        """Return the text of a step's manifest, UNFINISHED if it is missing, or "" for step NONE.

        Comparing the texts shows whether all processes share the directory. Comparing all files
        would multiply the load on the storage by the number of processes.
        """
        try:
            return "" if step == NONE else self._manifest(step)
        except FileNotFoundError:
            return UNFINISHED

    def _fault(self, step: int) -> str:
        """Check a checkpoint against its manifest; return the first fault, or an empty string."""
        try:
            expected = Manifest.parse(self._manifest(step)).files
        except FileNotFoundError:
            return UNFINISHED
        except ValueError:
            return DAMAGED
        found = self._files(step)
        for name, (size, _) in expected.items():
            if name not in found:
                return f"{name} is missing"
            if found[name] != size:
                return f"{name} has {found[name]} bytes instead of {size}"
        crcs = {name: crc for name, (_, crc) in expected.items() if crc is not None}
        actual = self._crcs(step, crcs)
        wrong = [name for name in crcs if actual[name] != crcs[name]]
        return f"{wrong[0]} does not match its checksum" if wrong else ""

    def _set_aside(self, step: int, reason: str) -> None:
        path, aside = f"{self._root}/{step}", f"{self._root}/{step}.{reason}"
        if self._fs.exists(aside):
            self._fs.rm(aside, recursive=True)
        if self._bucket:  # a bucket cannot rename a prefix
            self._fs.copy(path, aside, recursive=True)
            self._fs.rm(path, recursive=True)
        else:
            self._fs.mv(path, aside, recursive=True)
        log.warning("%s/%d: set aside as %d.%s", self.directory, step, step, reason)

    def _finish(self, step: int, response: ocp.AsyncResponse[None]) -> None:
        """Wait until all processes have written; process 0 then writes the manifest and prunes."""
        response.result()
        if jax.process_index() == 0:
            found = self._files(step)
            crcs = self._crcs(step, [name for name in found if found[name] <= CHECKSUM_BYTES])
            files = {name: (size, crcs.get(name)) for name, size in found.items()}
            manifest = json.dumps({"of": self._identity, "files": files}, indent=1)
            final = f"{self._root}/{step}/{MANIFEST}"
            partial = final if self._bucket else f"{self._root}/{step}/.{MANIFEST}"
            self._fs.pipe_file(partial, manifest.encode())
            if partial != final:  # a local file is visible before it is complete
                self._fs.mv(partial, final)
            self._prune(step)

    def _prune(self, newest: int) -> None:
        """Remove checkpoints before ``newest``, except the last ``keep`` permanent ones."""
        steps = [step for step in _steps(self._names()) if step <= newest]
        kept = [step for step in sorted(steps) if step % self._cfg.every == 0]
        kept = kept if self._cfg.keep is None else kept[-self._cfg.keep :]
        for step in set(steps) - {newest, *kept}:
            # Remove the manifest first: a half-removed checkpoint must not look complete.
            if self._fs.exists(f"{self._root}/{step}/{MANIFEST}"):
                self._fs.rm(f"{self._root}/{step}/{MANIFEST}")
            self._fs.rm(f"{self._root}/{step}", recursive=True)

    def _manifest(self, step: int) -> str:
        return self._fs.cat_file(f"{self._root}/{step}/{MANIFEST}").decode(errors="replace")

    def _crcs(self, step: int, names: Iterable[str]) -> dict[str, int]:
        """Return the CRC-32 of each file by name, reading BATCH_FILES files at once."""
        found = {}
        for batch in batched(names, BATCH_FILES):
            paths = [f"{self._root}/{step}/{name}" for name in batch]
            contents = self._fs.cat_ranges(paths, None, None, on_error="raise")  # None: whole files
            found |= dict(zip(batch, map(zlib.crc32, contents), strict=True))
        return found

    def _files(self, step: int) -> dict[str, int]:
        """Return the length in bytes of each file of a checkpoint, except the manifest."""
        root = f"{self._root}/{step}/"
        found = self._fs.find(root, detail=True).items()
        sizes = {path.removeprefix(root): info["size"] for path, info in found}
        return {name: size for name, size in sorted(sizes.items()) if MANIFEST not in name}

    def _names(self) -> list[str]:
        """Return the names in the directory; none if it does not exist."""
        try:
            paths = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        return [path.rstrip("/").rpartition("/")[2] for path in paths]


def _orbax() -> ocp.Context:
    """Return an Orbax context that writes no array metadata files.

    Writing them takes half the time of a small save, because processes poll every quarter of a
    second for a directory that process 0 creates (orbax/checkpoint/_src/metadata/
    array_metadata_store.py). The files are not needed: the state has no random keys, and the arrays
    store their shapes.
    """
    context = ocp.Context()
    context.array.saving.array_metadata_store = None
    return context


def identity(cfg: Config, corpus: Meta) -> dict[str, Any]:
    """Return the options and the corpus fingerprint that a run and its checkpoint must share.

    Frozen parameters, adapters and the optimizer determine the structure of the saved state.
    Dropout does not, so it may change.
    """
    return {
        "model": {k: v for k, v in asdict(cfg.model).items() if k != "dropout"},
        "corpus": corpus.fingerprint,
        "optimizer": {"name": cfg.optimizer.name, "frozen": list(cfg.optimizer.frozen)},
        "lora": asdict(cfg.lora) | {"targets": list(cfg.lora.targets)},
    }


def _steps(names: list[str]) -> list[int]:
    return [int(name) for name in names if name.isdecimal()]


def _difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return the first key whose values differ, with both values; empty if all are equal."""
    for key in expected:
        there, here = found.get(key), expected[key]
        if isinstance(here, dict) and isinstance(there, dict):
            if inner := _difference(there, here):
                return f"{key}.{inner}"
        elif there != here:
            return f"{key} is {_short(there)} there and {_short(here)} here"
    return ""


def _short(value: Any) -> str:
    """Format a value for a message; SHA-256 digests are cut to 12 digits."""
    text = str(value)
    return text[:12] if len(text) == 64 else text
