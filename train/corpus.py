"""From text to tokens on disk: ``prepare`` makes a directory of binary files, once a machine.

A prepared corpus is a directory named by its content, so that it never goes stale::

    train.bin  heldout.bin   one byte a token: ASCII, 0 to 127
    meta.json                what Meta says, its counts in tokens
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from train.config import ConfigError, DataConfig

VOCABULARY = 128
FORMAT = "1"
"""Part of the name of a prepared corpus: a change of what ``encode`` gives needs another one."""

PACKAGED = {"shakespeare": "shksprdata/texts/*_gut.txt"}
"""Corpora that come as a package: its requirements, with hashes, are ``corpora/<name>.txt``."""

UV_PLACES = (Path("/opt/tpufleet/bin/uv"), Path(sys.executable).parent / "uv")
"""Where uv is on a worker and in an environment of one's own, if it isn't on PATH."""

_CORPORA = Path(__file__).parent / "corpora"
_SHARED_DATA = Path("/var/lib/tpufleet/data")
_PLAIN = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-"})
_PLAIN |= {0x2014: "--", 0x2026: "...", 0x00C6: "AE", 0x00E6: "ae", 0x0152: "OE", 0x0153: "oe"}


class CorpusError(Exception):
    """Text that could not be had; the text is one line that says why and what helps."""


@dataclass(frozen=True)
class Meta:
    """What a prepared corpus is; ``fingerprint`` is the SHA-256 of its tokens, hexadecimal."""

    name: str
    vocabulary: int
    train: int
    heldout: int
    fingerprint: str


def prepare(cfg: DataConfig) -> Path:
    """Return the directory of the prepared corpus, making it where it isn't there yet.

    Several processes may do so at once: each works in a directory of its own, and the first that
    is done gives it its name. Raises ConfigError for a corpus or path that doesn't exist,
    CorpusError where a package could not be fetched.
    """
    root = Path(cfg.directory).expanduser() if cfg.directory else default_directory()
    if cfg.text is not None:
        paths = _files(cfg.text)
        texts = [path.read_bytes() for path in paths]
        return _publish(root, _stem(cfg.text), _digest(*texts), cfg.heldout, lambda: texts)
    if cfg.corpus not in PACKAGED:
        raise ConfigError(
            f"data.corpus: {cfg.corpus!r} is not known; known are {', '.join(PACKAGED)}; "
            "text files of your own go into data.text"
        )
    requirements = _CORPORA / f"{cfg.corpus}.txt"
    source = _digest(requirements.read_bytes())
    pattern = PACKAGED[cfg.corpus]
    return _publish(
        root, cfg.corpus, source, cfg.heldout, lambda: fetch_package(requirements, pattern)
    )


def default_directory() -> Path:
    """Where prepared corpora live: a worker's data directory, else the user's cache."""
    if os.access(_SHARED_DATA, os.W_OK | os.X_OK):
        return _SHARED_DATA
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tpufleet" / "data"


def read_meta(directory: Path) -> Meta:
    """Read a prepared corpus's ``meta.json``; raises CorpusError where a file is damaged."""
    remedy = "remove the directory, and it is prepared again"
    try:
        meta = Meta(**json.loads((directory / "meta.json").read_text()))
        sizes = {part: (directory / f"{part}.bin").stat().st_size for part in ("train", "heldout")}
    except (OSError, ValueError, TypeError) as err:
        raise CorpusError(f"{directory}: is no prepared corpus ({err}); {remedy}") from err
    for part, tokens in (("train", meta.train), ("heldout", meta.heldout)):
        if sizes[part] != tokens:
            raise CorpusError(
                f"{directory}/{part}.bin: {sizes[part]} bytes where meta.json says {tokens}; "
                + remedy
            )
    return meta


def encode(text: str) -> bytes:
    """Turn text into tokens, one a byte: ASCII as it is, and the nearest ASCII for the rest.

    Accents are dropped, typographic quotes and dashes made plain, line ends made ``\\n``; what
    has no likeness becomes ``?``.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_PLAIN)
    if text.isascii():
        return text.encode("ascii")
    decomposed = unicodedata.normalize("NFKD", text)
    kept = "".join(c for c in decomposed if not unicodedata.combining(c))
    return kept.encode("ascii", errors="replace")


def decode(tokens: bytes) -> str:
    """Turn tokens back into text; those that are no text character are shown as escapes."""
    return tokens.decode("ascii", errors="backslashreplace")


def fetch_package(requirements: Path, pattern: str) -> list[bytes]:
    """Install the one package of a requirements file, checked by hash, and read its text files.

    Files come in the order of their names. Raises CorpusError with uv's last words.
    """
    with tempfile.TemporaryDirectory(prefix="tpufleet-corpus-") as target:
        # --no-cache: the trainer's user has no home on a worker, and this runs once there.
        command = [find_uv(), "pip", "install", "--quiet", "--no-cache", "--no-deps"]
        command += ["--python", sys.executable, "--target", target]
        command += ["--require-hashes", "-r", str(requirements)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = " ".join(done.stderr.split())[-400:]
            raise CorpusError(f"{requirements.stem}: uv could not install the corpus: {why}")
        paths = sorted(Path(target).glob(pattern))
        if not paths:
            raise CorpusError(f"{requirements.stem}: the package holds no {pattern}")
        return [path.read_bytes() for path in paths]


def find_uv() -> str:
    """Find uv on PATH, where a worker has it, or beside this Python; raises CorpusError."""
    beside = next((str(place) for place in UV_PLACES if os.access(place, os.X_OK)), None)
    found = shutil.which("uv") or beside
    if found is None:
        places = " or ".join(map(str, UV_PLACES))
        raise CorpusError(f"uv: not found on PATH, nor as {places}; needed to fetch a corpus")
    return found


def _files(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    inside = str(path.relative_to(path.anchor))
    found = [path] if path.is_file() else sorted(Path(path.anchor or ".").glob(inside))
    paths = [path for path in found if path.is_file()]
    if not paths:
        raise ConfigError(f"data.text: no file matches {pattern}")
    if unreadable := [path for path in paths if not os.access(path, os.R_OK)]:
        raise ConfigError(f"data.text: {unreadable[0]} cannot be read")
    return paths


def _stem(pattern: str) -> str:
    """A word for the directory's name; the digest behind it is what tells corpora apart."""
    word = "".join(c if c.isalnum() else "-" for c in Path(pattern).stem).strip("-")
    return word[:40] or "text"


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _publish(
    root: Path, name: str, source: str, heldout: float, read: Callable[[], list[bytes]]
) -> Path:
    key = _digest(FORMAT.encode(), source.encode(), repr(heldout).encode())[:16]
    directory = root / f"{name}-{key}"
    if (directory / "meta.json").exists():
        return directory
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root) as made:
            _write(Path(made) / "corpus", name, read(), heldout)
            try:
                (Path(made) / "corpus").rename(directory)
            except OSError:
                if not (directory / "meta.json").exists():  # else another process was first
                    raise
    except OSError as err:
        raise CorpusError(f"data.directory: {directory} cannot be written: {err.strerror}") from err
    return directory


def _write(directory: Path, name: str, texts: list[bytes], heldout: float) -> None:
    tokens = b"\n\n".join(encode(text.decode("utf-8", errors="replace")) for text in texts)
    cut = len(tokens) - int(len(tokens) * heldout)
    directory.mkdir()
    (directory / "train.bin").write_bytes(tokens[:cut])
    (directory / "heldout.bin").write_bytes(tokens[cut:])
    meta = Meta(name, VOCABULARY, cut, len(tokens) - cut, _digest(tokens[:cut], tokens[cut:]))
    (directory / "meta.json").write_text(json.dumps(asdict(meta), indent=1) + "\n")
