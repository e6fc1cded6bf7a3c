"""The worker's part of kept modules: run one from where its code is kept, or say that it isn't.

The controller sends this file's text to the worker's Python, with a call of :func:`run` behind it.
Python 3.9 and the standard library alone: nothing else of the collection is there yet.
"""

import sys

if __name__ == "__main__":
    # For a script on its standard input Python begins where it is: in the login user's home, out of
    # which root must import nothing. So this comes before any other import, __future__ too.
    sys.path[:] = [path for path in sys.path if path not in ("", ".")]

import importlib
import json
import os
from pathlib import Path

KEPT = 3
LONGEST_S = 7200
"""What a module may take; the longest, making an environment, takes minutes."""


def run(
    place: str,
    name: str,
    params: str,
    packed: str,
    secrets: "tuple[str, ...] | None" = None,  # a text: Python 3.9 can't work it out
) -> None:
    """Run the module ``name`` from the code in ``place``.

    ``params`` is JSON. Arguments that are checked go to the module by ``worker_module``, with the
    ``secrets`` among them; without those it reads them from its standard input, run as Python's
    ``-m`` would (docs.ansible.com, "Verifying your module code"). ``packed`` is the code itself,
    zipped and in base64, or nothing: then a worker that hasn't got it answers
    ``kept_modules: missing``.
    """
    code, tell = Path(place), as_json
    try:
        if not code.is_dir():
            if not packed:
                raise FileNotFoundError(place)
            unpack(code, packed)
        os.utime(code)
    except OSError:
        tell({"changed": False, "kept_modules": "missing"})
        return
    sys.path.insert(0, place)
    try:
        if secrets is None:
            as_script(place, name, params)
        else:
            collection = name.partition(".modules.")[0]
            door = importlib.import_module(f"{collection}.module_utils.worker.worker_module")
            door.arguments, door.secrets = json.loads(params)["ANSIBLE_MODULE_ARGS"], secrets
            tell = door.tell
            importlib.import_module(name).main()
    except Exception as error:
        import traceback

        told = {"failed": True, "msg": f"{type(error).__name__}: {error}"}
        tell({**told, "exception": traceback.format_exc()})
        sys.exit(1)


def as_json(told: dict) -> None:
    """Answer on a line of its own, whatever a login shell has written before."""
    sys.stdout.write("\n" + json.dumps(told) + "\n")


def as_script(place: str, name: str, params: str) -> None:
    """Run a module that reads its arguments by itself."""
    import io
    import runpy

    sys.argv = [name]
    sys.stdin = io.TextIOWrapper(io.BytesIO(params.encode()))
    known = {"_module_fqn": name, "_modlib_path": place}
    runpy.run_module(name, init_globals=known, run_name="__main__", alter_sys=True)


def unpack(code: Path, packed: str) -> None:
    """Put the code in place, whole or not at all, and let the oldest go. Raises OSError."""
    import io
    import shutil
    import tempfile
    import zipfile
    from base64 import b64decode

    code.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=".", dir=code.parent))
    try:
        with zipfile.ZipFile(io.BytesIO(b64decode(packed))) as pack:
            pack.extractall(new)
        new.rename(code)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        if not code.is_dir():  # else another controller was quicker
            raise
    tidy(code.parent)


def tidy(folder: Path) -> None:
    """Remove the code that was used longest ago, and what an unpacking that was killed has left;
    never what a module may still import from."""
    import shutil
    import time

    last_use = {path: path.stat().st_mtime for path in folder.iterdir()}
    half = {path for path in last_use if path.name.startswith(".")}
    kept = sorted(last_use.keys() - half, key=last_use.__getitem__, reverse=True)
    for path in {*half, *kept[KEPT:]}:
        if time.time() - last_use[path] > LONGEST_S:
            gone = folder / f".{path.name.lstrip('.')}.{os.getpid()}"  # out of sight first
            path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
