"""What the watch and restart do about a run: the playbooks that a person would type, one after the
other, with a line each in a log."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from ansible import context
from ansible.utils.display import Display

from ..module_utils import watch_decision as watch
from ..module_utils.watch_view import DELETE, commands, last_words, train_variables

ACTION_SECONDS = 3600
LEFT_BEHIND_SECONDS = 86400
"""Older than any pass at work: what one that was killed had in use."""


class Actor:
    """Acts from ``project``, with the releases that are kept in ``releases`` and the records in
    ``fleet_state``."""

    def __init__(self, project: Path, releases: Path, fleet_state: str, diary: Diary) -> None:
        self._project, self._releases, self._diary = project, releases, diary
        self._fleet_state = fleet_state

    def act(
        self,
        run: str,
        record: Mapping[str, Any],
        seen: watch.Seen,
        action: str,
        only_if_wanted: bool = True,
    ) -> str:
        """Run the action's playbooks, the next only if the one before was fine; say why not."""
        if why := self.lacks(run, record, action):
            self._diary(f"run {run}: {why}")
            return why
        code = self._code(record)
        with self._diary.scratch() as folder:
            config = None
            if record.get("config") is not None:
                stem = Path(str(record.get("config_path") or "config.yml")).name
                config = Path(folder) / stem
                config.write_text(str(record["config"]), encoding="utf-8")
            told = train_variables(run, record, code, config, self._fleet_state)
            told |= {"only_if_wanted": only_if_wanted}
            variables = Path(folder) / "run.json"
            variables.touch(mode=0o600)
            variables.write_text(json.dumps(told))
            for words in commands(action, run, record, seen, str(variables)):
                failure = self._play(run, words)
                if failure:
                    return failure
        return ""

    def lacks(self, run: str, record: Mapping[str, Any], action: str) -> str:
        """Say what keeps this controller from an action that launches; empty if nothing does."""
        starts = action in (watch.RECREATE, watch.REPLACE, watch.LAUNCH, watch.RESTART)
        if not starts or self._code(record).is_dir():
            return ""
        return (
            f"release {record.get('release')} is not on this controller ({self._code(record)}): "
            f"start the run from here once: ansible-playbook train.yml -e run={run} …"
        )

    def _code(self, record: Mapping[str, Any]) -> Path:
        return self._releases.expanduser() / str(record.get("release"))

    def delete(self, tpu: str) -> str:
        """Delete a TPU; say why not."""
        return self._play(tpu, [DELETE, "-e", f"tpu={tpu}", "-e", "yes=true"], "TPU")

    def _play(self, run: str, words: list[str], kind: str = "run") -> str:
        """Run playbooks by one command; what it says goes to the run's own file beside the log."""
        played = " ".join(takewhile(lambda word: not word.startswith("-"), words))
        shown = [word for word in words if not word.startswith("@")]
        self._diary(f"{kind} {run}: $ ansible-playbook {' '.join(shown).removesuffix(' -e')}")
        tool = Path(sys.executable).with_name("ansible-playbook")
        inventories = [
            word
            for source in context.CLIARGS.get("inventory") or ()
            for word in ("-i", str(source))
        ]
        began = time.monotonic()
        output = self._diary.beside(run)
        with output.open("a+", encoding="utf-8") as stream:
            start = stream.seek(0, os.SEEK_END)
            try:
                done = subprocess.run(
                    [str(tool if tool.exists() else "ansible-playbook"), *inventories, *words],
                    cwd=self._project,
                    env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"},
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    timeout=ACTION_SECONDS,
                    check=False,
                )
                code = done.returncode
            except subprocess.TimeoutExpired:
                code = -1
            stream.seek(start)
            said = stream.read()
        spent = f"{time.monotonic() - began:.0f} s"
        if code == 0:
            self._diary(f"{kind} {run}: {played} is through, {spent}")
            return ""
        why = f"{played} failed after {spent}: {last_words(said)}"
        self._diary(f"{kind} {run}: {why} (all it said: {output})")
        return why


class Diary:
    """The log of the watch: a line an event, time first, for people."""

    def __init__(self, path: Path, quiet: bool) -> None:
        # Playbooks are told by files beside it, and have the project for their directory.
        self._path, self._quiet = path.expanduser().absolute(), quiet
        self._lock = threading.Lock()
        if not quiet:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def __call__(self, line: str) -> None:
        """Write a line and show it."""
        text = " ".join(line.split())
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self._lock:
            Display().display(f"  {text}")
            if not self._quiet:
                with self._path.open("a", encoding="utf-8") as stream:
                    stream.write(f"{stamp} {text}\n")

    def beside(self, run: str) -> Path:
        """Give the file of what a run's playbooks say."""
        return self._folder() / f"{re.sub(r'[^A-Za-z0-9_.-]', '-', run)}.log"

    @contextmanager
    def scratch(self) -> Iterator[str]:
        """Give a directory for what playbooks are told, which goes afterwards; what passes that
        were killed have left there goes now."""
        for old in self._folder().glob(".told-*"):
            with suppress(FileNotFoundError):  # another's, that has just gone
                if time.time() - old.stat().st_mtime > LEFT_BEHIND_SECONDS:
                    shutil.rmtree(old, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".told-", dir=self._folder()) as folder:
            yield folder

    def _folder(self) -> Path:
        folder = self._path.with_suffix(".d")
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder
