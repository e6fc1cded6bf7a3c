"""The worker's part of kept modules: run one from where its code is kept, or say that it isn't.

The controller sends this file's text to the worker's Python, with a call of :func:`run` behind it.
Python 3.9 and the standard library alone: nothing else of the collection is there yet.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import shutil
import sys
import tempfile
import traceback
import zipfile
from base64 import b64decode
from pathlib import Path

KEPT = 3


def run(place: str, name: str, params: str, packed: str) -> None:
    """Run the module ``name`` as Python's ``-m`` would, from the code in ``place``.

    ``params`` is JSON, which the module reads from its standard input
    (docs.ansible.com, "Verifying your module code"). ``packed`` is the code itself, zipped and in
    base64, or nothing: then a worker that hasn't got it answers ``kept_modules: missing``.
    """
    code = Path(place)
    try:
        if not code.is_dir():
            if not packed:
                raise FileNotFoundError(place)
            unpack(code, b64decode(packed))
    except OSError:
        sys.stdout.write(json.dumps({"changed": False, "kept_modules": "missing"}) + "\n")
        return
    sys.path.insert(0, place)
    sys.argv = [name]
    sys.stdin = io.TextIOWrapper(io.BytesIO(params.encode()))
    known = {"_module_fqn": name, "_modlib_path": place}
    try:
        runpy.run_module(name, init_globals=known, run_name="__main__", alter_sys=True)
    except Exception as error:
        told = {"failed": True, "msg": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps({**told, "exception": traceback.format_exc()}) + "\n")
        sys.exit(1)


def unpack(code: Path, packed: bytes) -> None:
    """Put the code in place, whole or not at all, and let the oldest go. Raises OSError."""
    code.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=".", dir=code.parent))
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as pack:
            pack.extractall(new)
        new.rename(code)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        if not code.is_dir():  # else another controller was quicker
            raise
    there = [path for path in code.parent.iterdir() if not path.name.startswith(".")]
    for old in sorted(there, key=os.path.getmtime, reverse=True)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
