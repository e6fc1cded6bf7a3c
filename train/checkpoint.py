"""The run's state in a directory that all processes see, local, shared or gs://, by Orbax.

A checkpoint of step s is the state after s updates: ``<s>/``, Orbax's files and, written when all
of those are there, ``manifest.json``. That says what the checkpoint is of (the model's shape, the
corpus's fingerprint) and how long each file is, so that a start sees damage before it loads: of a
file that is cut short, Orbax would tell one process and leave the others waiting for it.
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
from train.contract import files_at
from train.corpus import Meta
from train.step import State

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
SUMMED_BYTES = 1 << 20
"""Files up to this size are checked by their sum, too: those that say what the others mean."""

AT_ONCE = 64
"""How many of those are asked for at once, and held."""

DAMAGED = f"{MANIFEST} is damaged"
UNFINISHED = "its save was cut short"
NONE, NOT_SOUND = -1, -2


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is of, and its files: the length in bytes and CRC-32 of each by its name.

    A file that is too long to be summed has None for its CRC-32.
    """

    of: dict[str, Any]
    files: dict[str, tuple[int, int | None]]

    @classmethod
    def parse(cls, text: str) -> "Manifest":
        """Parse manifest.json. Raises ValueError for an invalid one."""
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
    """Read what a manifest says of a file. Raises ValueError."""
    inside = not name.startswith("/") and ".." not in name.split("/")
    match entry:
        case [int(size), int() | None as crc] if inside and size >= 0:
            return size, crc
    raise ValueError(f"what it says of {name!a} makes no sense")


class Checkpoints:
    """The checkpoints of one run. Every method is called by all processes alike."""

    def __init__(
        self,
        directory: Path | str,
        cfg: CheckpointConfig,
        identity: dict[str, Any],
        tidy: bool = True,
    ) -> None:
        """Find the last sound one, the same in all processes.

        With ``tidy``, what is damaged is set aside and what a killed save left is removed: for the
        run itself, not for a reader that may find one under way. Raises ConfigError where no sound
        one is left of those that were there, and where the processes see different ones.
        """
        self.directory, self._cfg, self._identity = str(directory), cfg, identity
        self._fs, self._root = files_at(directory)
        self._bucket = "://" in self.directory
        step = mesh.from_first(self._newest_sound(tidy) if jax.process_index() == 0 else NONE)
        if step == NOT_SOUND:
            raise ConfigError(
                f"{self.directory}: none of the checkpoints there is sound; put a copy of a sound "
                "one there, or move them all away to begin at step 0"
            )
        mesh.check_alike(
            repr((step, self._seen(step))),
            "find another last checkpoint than process 0; all must see one directory as "
            + self.directory,
        )
        self.latest: int | None = None if step == NONE else step
        """The last step that was saved, or is being saved."""
        self._saving: Future[None] | None = None
        self._background = ThreadPoolExecutor(1, "checkpoint")

    def save(self, step: int, state: State, wait: bool = False) -> None:
        """Save, in the background unless ``wait``; a step that is there already is left alone.

        The state may be donated as soon as this returns. What went wrong with the save before is
        raised here.
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
        """Wait for what is still being saved."""
        if self._saving:
            self._saving.result()

    def choose(self, step: int) -> None:
        """Take another step than the newest; raises ConfigError with those that are there."""
        if self._fault(step):
            there = ", ".join(map(str, sorted(_steps(self._names()))))
            raise ConfigError(f"{self.directory}: no sound checkpoint of step {step}; has {there}")
        self.latest = step

    def restore(self, step: int, abstract: State) -> State:
        """Load a step into the shapes and shardings of ``abstract``, whatever they were.

        Raises ConfigError, naming the first thing that differs, for a checkpoint of another model
        or corpus.
        """
        try:
            found = Manifest.parse(self._manifest(step)).of
        except ValueError:
            raise ConfigError(f"{self.directory}/{step}: {DAMAGED}; choose another step") from None
        # An option that a later release added is at its default in what was saved before.
        found["model"] = asdict(ModelConfig()) | found.get("model", {})
        if difference := _difference(found, self._identity):
            raise ConfigError(
                f"{self.directory}/{step}: is a checkpoint of another run: {difference}; "
                "take another directory or run name, or remove it"
            )
        with _orbax():
            return ocp.load(f"{self.directory}/{step}", abstract)

    def close(self) -> None:
        """Wait for what is still being saved."""
        self.wait()
        self._background.shutdown()

    def _newest_sound(self, tidy: bool) -> int:
        """Go from the newest back to the first sound one: its step, NONE or NOT_SOUND."""
        names = self._names()
        damaged, unfinished = any(name.endswith(".damaged") for name in names), 0
        if tidy:
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
            if tidy:
                self._set_aside(step, "unfinished" if fault == UNFINISHED else "damaged")
        # A kill during the first save leaves one unfinished at most: then step 0 is no loss.
        return NOT_SOUND if damaged or unfinished > 1 else NONE

    def _seen(self, step: int) -> str:
        """Give the manifest of the step that process 0 has found sound, as this process sees it.

        That tells whether all see one directory. For all of them to check its files would be as
        many times the storage's work as there are processes.
        """
        try:
            return "" if step == NONE else self._manifest(step)
        except FileNotFoundError:
            return UNFINISHED

    def _fault(self, step: int) -> str:
        """Say what is wrong with a checkpoint, by its manifest; empty if nothing is."""
        try:
            wanted = Manifest.parse(self._manifest(step)).files
        except FileNotFoundError:
            return UNFINISHED
        except ValueError:
            return DAMAGED
        found = self._files(step)
        for name, (size, _) in wanted.items():
            if name not in found:
                return f"{name} is missing"
            if found[name] != size:
                return f"{name} has {found[name]} bytes instead of {size}"
        summed = {name: crc for name, (_, crc) in wanted.items() if crc is not None}
        there = self._crcs(step, summed)
        wrong = [name for name in summed if there[name] != summed[name]]
        return f"{wrong[0]} is not what was written" if wrong else ""

    def _set_aside(self, step: int, how: str) -> None:
        path, aside = f"{self._root}/{step}", f"{self._root}/{step}.{how}"
        if self._fs.exists(aside):
            self._fs.rm(aside, recursive=True)
        if self._bucket:  # which knows no renaming of a whole prefix
            self._fs.copy(path, aside, recursive=True)
            self._fs.rm(path, recursive=True)
        else:
            self._fs.mv(path, aside, recursive=True)
        log.warning("%s/%d: set aside as %d.%s", self.directory, step, step, how)

    def _finish(self, step: int, response: ocp.AsyncResponse[None]) -> None:
        """Wait for all files of all processes; then the first one adds the manifest and tidies."""
        response.result()
        if jax.process_index() == 0:
            found = self._files(step)
            crcs = self._crcs(step, [name for name in found if found[name] <= SUMMED_BYTES])
            files = {name: (size, crcs.get(name)) for name, size in found.items()}
            manifest = json.dumps({"of": self._identity, "files": files}, indent=1)
            whole = f"{self._root}/{step}/{MANIFEST}"
            partial = whole if self._bucket else f"{self._root}/{step}/.{MANIFEST}"
            self._fs.pipe_file(partial, manifest.encode())
            if partial != whole:  # in a bucket nobody sees half of an object
                self._fs.mv(partial, whole)
            self._prune(step)

    def _prune(self, newest: int) -> None:
        """Keep the newest, and the last ``keep`` of those that were due by their step."""
        steps = [step for step in _steps(self._names()) if step <= newest]
        kept = [step for step in sorted(steps) if step % self._cfg.every == 0]
        kept = kept if self._cfg.keep is None else kept[-self._cfg.keep :]
        for step in set(steps) - {newest, *kept}:
            # First, so that one that is half removed is none.
            if self._fs.exists(f"{self._root}/{step}/{MANIFEST}"):
                self._fs.rm(f"{self._root}/{step}/{MANIFEST}")
            self._fs.rm(f"{self._root}/{step}", recursive=True)

    def _manifest(self, step: int) -> str:
        return self._fs.cat_file(f"{self._root}/{step}/{MANIFEST}").decode(errors="replace")

    def _crcs(self, step: int, names: Iterable[str]) -> dict[str, int]:
        """Give the CRC-32 of each file; a bucket gives many of them at once."""
        found = {}
        for some in batched(names, AT_ONCE):
            paths = [f"{self._root}/{step}/{name}" for name in some]
            contents = self._fs.cat_ranges(paths, None, None, on_error="raise")  # whole files
            found |= dict(zip(some, map(zlib.crc32, contents), strict=True))
        return found

    def _files(self, step: int) -> dict[str, int]:
        """List a checkpoint's files and their lengths in bytes, without the manifest."""
        root = f"{self._root}/{step}/"
        found = self._fs.find(root, detail=True).items()
        sizes = {path.removeprefix(root): info["size"] for path, info in found}
        return {name: size for name, size in sorted(sizes.items()) if MANIFEST not in name}

    def _names(self) -> list[str]:
        """List what lies in the directory; nothing, where gs:// has nothing below the prefix."""
        try:
            paths = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        return [path.rstrip("/").rpartition("/")[2] for path in paths]


def _orbax() -> ocp.Context:
    """Orbax, without the file in which each process notes its arrays' shapes and kinds of keys.

    For that file processes wait for process 0, and look for its directory every quarter of a second
    (orbax/checkpoint/_src/metadata/array_metadata_store.py): half the time of a small save. A state
    has no random keys, and the shapes stand in the arrays themselves.
    """
    context = ocp.Context()
    context.array.saving.array_metadata_store = None
    return context


def identity(cfg: Config, corpus: Meta) -> dict[str, Any]:
    """Say what a checkpoint belongs to: two that differ here must not be mixed.

    Dropout may: it is a matter of training, and shapes nothing. What is learned, and by which
    optimizer, shapes the state.
    """
    return {
        "model": {k: v for k, v in asdict(cfg.model).items() if k != "dropout"},
        "corpus": corpus.fingerprint,
        "optimizer": {"name": cfg.optimizer.name, "frozen": list(cfg.optimizer.frozen)},
        "lora": asdict(cfg.lora) | {"targets": list(cfg.lora.targets)},
    }


def _steps(names: list[str]) -> list[int]:
    return [int(name) for name in names if name.isdecimal()]


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Name the first key whose values differ, with both; empty if there is none."""
    for key in wanted:
        there, here = found.get(key), wanted[key]
        if isinstance(here, dict) and isinstance(there, dict):
            if inner := _difference(there, here):
                return f"{key}.{inner}"
        elif there != here:
            return f"{key} is {_short(there)} there and {_short(here)} here"
    return ""


def _short(value: Any) -> str:
    """A value as it stands in a message: twelve digits of a digest are enough."""
    text = str(value)
    return text[:12] if len(text) == 64 else text
