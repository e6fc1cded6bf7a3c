"""Checkpoints, saved with Orbax to a directory or gs:// prefix that all processes share.

The checkpoint of step s holds the state after s updates. It is a directory ``<s>/`` with Orbax's
files and ``manifest.json``, which is written last. The manifest identifies the run (model, corpus
fingerprint, optimizer) and lists the length of each file, so that damage is found before loading:
Orbax would raise for a truncated file in one process only and leave the others waiting.
"""

import json
import logging
import time
import zlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import batched
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from train.core.config import CheckpointConfig, Config, ConfigError
from train.core.step import State
from train.run import mesh
from train.storage import logged_errors, one_line, open_filesystem, write_atomically

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
OWNER = "run.json"
"""File beside the checkpoints with the run's name and identity, written before the first save.
Another run is refused in the same directory. A directory that has neither this file nor an intact
checkpoint may belong to another program, so nothing is removed there."""
ORBAX_METADATA = "_CHECKPOINT_METADATA"
"""File that Orbax writes into each checkpoint."""
ORBAX_TEMPORARY = ".orbax-checkpoint-tmp"
"""Suffix of a checkpoint's directory until Orbax has finished it; more characters follow."""
CHECKSUM_BYTES = 1 << 20
"""Files up to this size, such as Orbax's metadata, are also checked by CRC-32."""

BATCH_FILES = 64
"""Number of files that are read at once, and held in memory, to compute their CRC-32."""

DAMAGED = f"{MANIFEST} is damaged"
NONE, ALL_DAMAGED = -1, -2

SHARED_SECONDS = 60
"""How long a process waits to see a file of process 0: NFS caches that a file is missing, for up to
``acdirmax`` (60 seconds by default)."""

LAYOUT = "version 2 (separate q, k, v)"
"""Version of the parameters' names and shapes in a checkpoint; change it when model.py changes
the names or shapes. A checkpoint of another version is refused."""
DEFAULTS = json.loads(json.dumps(asdict(Config())))
"""Default of each option, used for options that did not exist when a checkpoint was saved. So the
default of a new option must be what the trainer did before the option existed. If a default changes
later, LAYOUT must change, too."""


@dataclass(frozen=True)
class Fault:
    """Why a checkpoint is not intact: ``text``. An unfinished one was never complete."""

    text: str
    is_unfinished: bool = False


@dataclass(frozen=True)
class Manifest:
    """Content of manifest.json: the run's identity (``of``), and length and CRC-32 of each file.

    ``files`` maps names to (bytes, CRC-32); the CRC-32 is None for files above CHECKSUM_BYTES.
    A ``temporary`` checkpoint is removed after the next save.
    """

    of: dict[str, Any]
    files: dict[str, tuple[int, int | None]]
    temporary: bool = False

    @classmethod
    def parse(cls, text: str) -> "Manifest":
        """Parse the text of manifest.json; raises ValueError if it is invalid."""
        try:
            content = json.loads(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        match content:
            case {"of": dict(of), "files": dict(files)} if files:
                sizes = {name: _size_and_crc(name, entry) for name, entry in files.items()}
                return cls(of, sizes, content.get("temporary") is True)
        raise ValueError("the manifest has no files or no description of its run")


def _size_and_crc(name: str, entry: object) -> tuple[int, int | None]:
    """Return the bytes and CRC-32 of a manifest entry; raises ValueError if it is invalid."""
    is_inside = not name.startswith("/") and ".." not in name.split("/")
    match entry:
        case [int(size), int() | None as crc] if is_inside and size >= 0:
            return size, crc
    raise ValueError(f"invalid entry for {name!a}")


class Checkpoints:
    """Checkpoints of one run. All its processes must call the same methods in the same order."""

    def __init__(
        self,
        directory: Path | str,
        cfg: CheckpointConfig,
        identity: dict[str, Any],
        run: str | None = None,
    ) -> None:
        """Find the newest intact checkpoint, which must be the same one in all processes.

        ``identity`` is the result of the function ``identity`` for this run. If ``run``, the run's
        name, is given, damaged checkpoints are renamed, and remains of interrupted saves are
        removed. Only training may pass ``run``, because other commands could destroy a save in
        progress. Raises ConfigError if the directory belongs to another run, if all checkpoints are
        damaged, or if the processes, each of which saves a part, do not share the directory.
        """
        self.directory, self._cfg, self._identity = str(directory), cfg, identity
        self._fs, self._root = open_filesystem(directory)
        self._bucket = "://" in self.directory
        self._regular_steps: dict[int, bool] = {}
        if run is not None:
            self._check_owner(run)
        step = mesh.from_process_0(self._newest_intact(run) if jax.process_index() == 0 else NONE)
        if step == ALL_DAMAGED:
            raise ConfigError(
                f"{self.directory}: each checkpoint is damaged or was written by another program. "
                "Restore a copy of an intact one, or move all checkpoints away to start at step 0"
            )
        mesh.check_equal(
            repr((step, self._shared_text(step, 0 if run is None else SHARED_SECONDS))),
            f"do not find the files of process 0 in {self.directory}. Choose a directory that all "
            "processes share",
        )
        self.latest: int | None = None if step == NONE else step
        """Step of the newest checkpoint (complete or being saved) or the selected one; or None."""
        self._saving: Future[None] | None = None
        self._background = ThreadPoolExecutor(1, "checkpoint")

    def save(self, step: int, state: State, wait: bool = False) -> None:
        """Save the state in the background, unless ``step`` is saved already.

        The state may be donated as soon as this method returns. If the previous save failed, its
        error is logged. In this case, or if ``wait`` is true, this method returns only when the new
        save is complete, and raises the error if that fails. The methods ``wait`` and ``close``
        also raise the error of a failed save.
        """
        if step != self.latest:
            try:
                self.wait()
            except Exception as err:  # storage clients raise their own error types
                log.error(
                    "%s/%d: could not be saved: %s; saving step %d instead",
                    self.directory,
                    self.latest,
                    one_line(err),
                    step,
                )
                wait = True
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
        """Set ``latest`` to ``step``; raises ConfigError if no intact checkpoint has this step."""
        if self._fault(step):
            steps = ", ".join(map(str, sorted(_steps(self._names()))))
            raise ConfigError(f"{self.directory}: no intact checkpoint of step {step}; has {steps}")
        self.latest = step

    def restore(self, abstract: State) -> State:
        """Load the checkpoint of ``latest``, with the shapes and shardings of ``abstract``.

        ``abstract`` is a state of jax.ShapeDtypeStruct, or a part of a state; arrays outside this
        part are not read. The shardings may differ from those of the saved state. If the checkpoint
        is of another model, corpus or optimizer, raises ConfigError with the first difference.
        """
        path = f"{self.directory}/{self.latest}"
        saved = Manifest.parse(self._manifest(self.latest)).of
        if difference := _difference(saved, self._identity, DEFAULTS):
            raise ConfigError(
                f"{path}: is a checkpoint of another run: {difference}. "
                "Use the values of the checkpoint, another directory or another run name"
            )
        devices = jax.tree.leaves(abstract)[0].sharding.mesh.devices
        with _orbax(broadcast=has_separate_copies(devices)):
            return ocp.load(path, abstract)

    def close(self) -> None:
        """Wait until the save in progress is complete, and stop the background thread."""
        self.wait()
        self._background.shutdown()

    def _check_owner(self, run: str) -> None:
        """Raise ConfigError if the file OWNER of the checkpoint directory names another run."""
        try:
            owner = json.loads(self._read(OWNER))["run"]
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return
        if owner != run:
            raise ConfigError(
                f"{self.directory}: has the checkpoints of the run {_short(owner)}, not of {run}. "
                f"Use another directory or run name. To continue that run, remove {OWNER} there"
            )

    def _newest_intact(self, run: str | None) -> int:
        """Return the step of the newest intact checkpoint, NONE or ALL_DAMAGED (see __init__)."""
        names = self._names()
        intact = NONE
        faults: dict[int, Fault] = {}
        for step in sorted(_steps(names), reverse=True):
            if not (fault := self._fault(step)):
                intact = step
                break
            faults[step] = fault
            log.warning("%s/%d: not used, because %s", self.directory, step, fault.text)
        unfinished = [step for step, fault in faults.items() if fault.is_unfinished]
        damaged = [name for name in names if name.endswith(".damaged")]
        # A kill during the first save leaves one unfinished checkpoint and no intact one. Such a
        # checkpoint does not count as damaged: the run starts at step 0.
        is_owned = intact != NONE or OWNER in names
        is_first_save = is_owned and len(faults) == len(unfinished) == 1
        if intact == NONE and (damaged or (faults and not is_first_save)):
            intact = ALL_DAMAGED
        if run is not None:
            for step in faults.keys() - set(unfinished) if is_owned else ():
                self._set_aside(step)
            temporary = [name for name in names if ORBAX_TEMPORARY in name and is_owned]
            for name in [*temporary, *(unfinished if intact != ALL_DAMAGED else [])]:
                self._fs.rm(f"{self._root}/{name}", recursive=True)
            if intact != ALL_DAMAGED and OWNER not in names:
                self._write(OWNER, json.dumps({"run": run} | self._identity))
        return intact

    def _shared_text(self, step: int, seconds: float) -> str:
        """Return a text that all processes compare, to check that they share the directory.

        The text is the manifest of ``step``, or "" if it is missing. If there is no checkpoint
        (``step`` is NONE), it is the content of the file OWNER, for which this method waits up to
        ``seconds``. The other files are not compared, because each process would read all of them.
        """
        end = time.monotonic() + seconds
        while True:
            try:
                return self._read(OWNER) if step == NONE else self._manifest(step)
            except FileNotFoundError:
                if step != NONE or time.monotonic() >= end:
                    return ""
            time.sleep(1)

    def _fault(self, step: int) -> Fault | None:
        """Compare a checkpoint with its manifest; return the first fault, None if it is intact."""
        try:
            expected = Manifest.parse(self._manifest(step)).files
        except FileNotFoundError:
            return Fault("its save was interrupted", is_unfinished=True)
        except ValueError:
            return Fault(DAMAGED)
        sizes = self._files(step)
        for name, (size, _) in expected.items():
            if name not in sizes:
                return Fault(f"{name} is missing")
            if sizes[name] != size:
                return Fault(f"{name} has {sizes[name]} bytes instead of {size}")
        crcs = {name: crc for name, (_, crc) in expected.items() if crc is not None}
        actual = self._crcs(step, crcs)
        wrong = [name for name in crcs if actual[name] != crcs[name]]
        return Fault(f"{wrong[0]} does not match its checksum") if wrong else None

    def _set_aside(self, step: int) -> None:
        path, aside = f"{self._root}/{step}", f"{self._root}/{step}.damaged"
        if self._fs.exists(aside):
            self._fs.rm(aside, recursive=True)
        if self._bucket:  # a bucket can't rename a prefix: copy and remove
            self._fs.copy(path, aside, recursive=True)
            self._fs.rm(path, recursive=True)
        else:
            self._fs.mv(path, aside, recursive=True)
        log.warning("%s/%d: renamed to %d.damaged", self.directory, step, step)

    def _finish(self, step: int, response: ocp.AsyncResponse[None]) -> None:
        """Wait until all processes have written their part; process 0 then completes the save.

        If the save fails, process 0 removes its files, unless some of them have disappeared.
        ``response`` is what Orbax returned for the save.
        """
        try:
            response.result()
            if jax.process_index() == 0:
                self._complete(step)
        except FileNotFoundError:
            # Another attempt may have removed the files and be saving this step: remove nothing.
            raise
        except Exception:
            if jax.process_index() == 0:
                self._remove_remains(step)
            raise

    def _complete(self, step: int) -> None:
        """Write the manifest, and remove old checkpoints; a failure to remove is only logged."""
        sizes = self._files(step)
        # Another attempt may have deleted the files, if it regarded the save as interrupted.
        if ORBAX_METADATA not in sizes:
            raise FileNotFoundError(
                f"{self.directory}/{step}: files disappeared during the save. Another attempt "
                "of this run may have removed them. Stop that attempt"
            )
        crcs = self._crcs(step, [name for name in sizes if sizes[name] <= CHECKSUM_BYTES])
        files = {name: (size, crcs.get(name)) for name, size in sizes.items()}
        manifest = Manifest(self._identity, files, step % self._cfg.every != 0)
        self._write(f"{step}/{MANIFEST}", json.dumps(asdict(manifest), indent=1))
        with logged_errors(f"{self.directory}: old checkpoints cannot be removed"):
            self._prune(step)

    def _remove_remains(self, step: int) -> None:
        """Remove the files of a failed save, which may fill the disk; a failure is only logged.

        A step with a manifest stays: it is complete, or another attempt of this run has saved it.
        """
        with logged_errors(f"{self.directory}/{step}: the failed save cannot be removed"):
            names = self._names()
            remains = [name for name in names if name.startswith(f"{step}{ORBAX_TEMPORARY}")]
            # Do not use exists() here: it returns False if the storage fails, too.
            if str(step) in names and MANIFEST not in _names(self._fs, f"{self._root}/{step}"):
                remains.append(str(step))
            for name in remains:
                self._fs.rm(f"{self._root}/{name}", recursive=True)

    def _prune(self, newest: int) -> None:
        """Remove the checkpoints before ``newest``, except the last ``keep`` regular ones.

        A checkpoint is regular if it is complete and not temporary. If ``keep`` is None, all
        regular checkpoints remain. ``newest`` counts as one of the ``keep`` if it is regular.
        """
        steps = [step for step in _steps(self._names()) if step <= newest]
        retained = [step for step in sorted(steps) if self._is_regular(step)]
        retained = retained if self._cfg.keep is None else retained[-self._cfg.keep :]
        for step in set(steps) - {newest, *retained}:
            # Remove the manifest first: a half-removed checkpoint must not look complete.
            if self._fs.exists(f"{self._root}/{step}/{MANIFEST}"):
                self._fs.rm(f"{self._root}/{step}/{MANIFEST}")
            self._fs.rm(f"{self._root}/{step}", recursive=True)

    def _is_regular(self, step: int) -> bool:
        """Return whether a checkpoint is regular: it has a manifest that is not ``temporary``."""
        if step not in self._regular_steps:
            try:
                self._regular_steps[step] = not Manifest.parse(self._manifest(step)).temporary
            except FileNotFoundError:
                return False
            except ValueError:
                return True
        return self._regular_steps[step]

    def _write(self, name: str, text: str) -> None:
        write_atomically(f"{self.directory}/{name}", text)

    def _read(self, name: str) -> str:
        return self._fs.cat_file(f"{self._root}/{name}").decode(errors="replace")

    def _manifest(self, step: int) -> str:
        return self._read(f"{step}/{MANIFEST}")

    def _crcs(self, step: int, names: Iterable[str]) -> dict[str, int]:
        """Return the CRC-32 of each file by name, reading BATCH_FILES files at once."""
        crcs = {}
        for batch in batched(names, BATCH_FILES):
            paths = [f"{self._root}/{step}/{name}" for name in batch]
            # Read whole files: start and end are None.
            contents = self._fs.cat_ranges(paths, None, None, on_error="raise")
            crcs |= dict(zip(batch, map(zlib.crc32, contents), strict=True))
        return crcs

    def _files(self, step: int) -> dict[str, int]:
        """Return the length in bytes of each file of a checkpoint, except the manifest."""
        root = f"{self._root}/{step}/"
        entries = self._fs.find(root, detail=True).items()
        sizes = {path.removeprefix(root): info["size"] for path, info in entries}
        return {name: size for name, size in sorted(sizes.items()) if MANIFEST not in name}

    def _names(self) -> list[str]:
        return _names(self._fs, self._root)


def has_separate_copies(devices: np.ndarray) -> bool:
    """Return whether the state has several copies, and no process holds parts of two copies.

    ``devices`` is the mesh's array of devices (data, fsdp). The devices of each row together hold
    one copy of the state.
    """
    processes = [{device.process_index for device in row} for row in devices]
    return len(processes) > 1 and len(set.union(*processes)) == sum(map(len, processes))


def _orbax(broadcast: bool = False) -> ocp.Context:
    """Return an Orbax context that writes no array metadata files.

    Writing these files takes half the time of a small save, because processes poll every quarter of
    a second for a directory that process 0 creates (orbax/checkpoint/_src/metadata/
    array_metadata_store.py). The files are not needed: the state has no random keys, and the arrays
    store their shapes.

    With ``broadcast``, only the processes of the first copy of the state read a checkpoint, and
    send it to the others. Orbax requires ``has_separate_copies`` for this.
    """
    context = ocp.Context()
    context.array.saving.array_metadata_store = None
    context.array.loading.use_load_and_broadcast = broadcast
    context.pytree.loading.partial_load = True
    return context


def identity(cfg: Config, fingerprint: str) -> dict[str, Any]:
    """Return the options and the corpus's fingerprint that a run and its checkpoint must share.

    Frozen parameters, adapters and the optimizer determine the structure of the saved state.
    Dropout does not, so it may change. If ``lora.rank`` is 0, the other LoRA options may change.
    """
    lora = asdict(cfg.lora) | {"targets": list(cfg.lora.targets)}
    return {
        "parameters": LAYOUT,
        "model": {k: v for k, v in asdict(cfg.model).items() if k != "dropout"},
        "corpus": fingerprint,
        "optimizer": {"name": cfg.optimizer.name, "frozen": list(cfg.optimizer.frozen)},
        "lora": lora if cfg.lora.rank else {"rank": 0},
    }


def exist(directory: Path | str) -> bool:
    """Return whether a directory or gs:// prefix has a checkpoint, intact or not."""
    return bool(_steps(_names(*open_filesystem(directory))))


def _names(filesystem: Any, root: str) -> list[str]:
    """Return the names in the directory ``root``; none if it does not exist."""
    try:
        paths = filesystem.ls(root, detail=False)
    except FileNotFoundError:
        return []
    return [path.rstrip("/").rpartition("/")[2] for path in paths]


def _steps(names: list[str]) -> list[int]:
    return [int(name) for name in names if name.isdecimal()]


def _difference(saved: dict[str, Any], expected: dict[str, Any], defaults: dict[str, Any]) -> str:
    """Describe the first key of ``expected`` whose value in ``saved`` differs; "" if none does.

    A key that is missing in ``saved`` has its value in ``defaults``. The description shows both
    values.
    """
    for key in expected:
        default = defaults.get(key)
        saved_value, expected_value = saved.get(key, default), expected[key]
        if isinstance(expected_value, dict) and isinstance(saved_value, dict):
            if inner := _difference(saved_value, expected_value, default or {}):
                return f"{key}.{inner}"
        elif saved_value != expected_value:
            return f"{key} is {_short(saved_value)} there, but {_short(expected_value)} in this run"
    return ""


def _short(value: Any) -> str:
    """Format a value for a message; SHA-256 digests are cut to 12 digits."""
    text = str(value)
    return text[:12] if len(text) == 64 else text
