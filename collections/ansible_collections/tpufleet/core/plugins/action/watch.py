"""The whole of tpufleet.core.watch: decide for each run, act by people's playbooks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible import context
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils import watch_decision as watch
from ..module_utils.run_record import RecordConflictError, RecordError, RecordStore, record_store
from ..module_utils.tpu_api import ApiSettings, TpuApi
from ..module_utils.tpu_errors import TpuApiError
from ..module_utils.tpu_nodes import parse_node
from ..module_utils.watch_view import commands, last_words, train_variables, view
from .run_record import plain

LEASE_SECONDS = 90
RENEW_SECONDS = 20
AT_ONCE = 8
ACTION_SECONDS = 3600
HOST_FACTS = ("tpu_name", "tpu_state", "tpu_worker_count", "tpu_health", "tpu_zone")


class ActionModule(ActionBase):
    """One pass over all runs that the records want."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Look, decide, remember, act; each run for itself."""
        result = super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "fleet_state": {"type": "str", "required": True},
                "answers": {"type": "dict", "required": True},
                "project": {"type": "path", "required": True},
                "releases": {"type": "path", "required": True},
                "log": {"type": "path", "required": True},
                "run": {"type": "str", "default": ""},
                "limits": {"type": "dict", "default": {}},
            }
        )
        task_vars = task_vars or {}
        self._options = options
        self._check = bool(self._task.check_mode)
        self._diary = Diary(Path(options["log"]), quiet=self._check)
        try:
            self._limits = watch.Limits(
                **{key: float(value) for key, value in options["limits"].items()}
            )
            api = plain(self._templar.template(task_vars.get("tpu_api") or {}))
            store = record_store(options["fleet_state"], api)
            leases = record_store(f"{options['fleet_state'].rstrip('/')}/watch", api)
            hosts = host_facts(task_vars)
            records = {run: store.read(run) for run in store.runs()}
            if options["run"]:
                records = {run: found for run, found in records.items() if run == options["run"]}
            listed = self._listed(api, records, hosts)
        except (RecordError, TpuApiError, TypeError) as error:
            raise AnsibleActionFail(str(error)) from None
        answers = plain(options["answers"])

        def one(run: str) -> dict[str, Any]:
            seen = view(run, records[run], hosts, answers, listed)
            try:
                return self._one(run, store, leases, records[run], seen)
            except (RecordError, OSError) as error:
                self._diary(f"run {run}: {error}")
                return {"run": run, "state": "unknown", "why": str(error), "failed": True}

        with ThreadPoolExecutor(AT_ONCE) as pool:
            done = list(pool.map(one, sorted(records)))
        failed = [each for each in done if each.get("failed")]
        return result | {
            "changed": any(each.get("action", "nothing") != "nothing" for each in done),
            "failed": bool(failed),
            "runs": done,
            "msg": "; ".join(f"run {each['run']}: {each['why']}" for each in failed) or "looked",
        }

    def _listed(
        self, api: Mapping[str, Any], records: Mapping[str, Any], hosts: Mapping[str, Any]
    ) -> dict[str, str] | None:
        """Ask the API itself once more if a wanted run's TPU seems to be lost."""
        wanted = [record for record in records.values() if record.get("wanted") == "running"]
        lost = [
            record
            for record in wanted
            if view("", record, hosts, {}).node in watch.DEAD and record.get("tpu")
        ]
        if not lost:
            return None
        nodes = TpuApi(ApiSettings.of(api)).list_nodes(api.get("zones") or ["-"]).nodes
        found = [parse_node(node) for node in nodes]
        return {node.name: node.state for node in found}

    def _one(
        self,
        run: str,
        store: RecordStore,
        leases: RecordStore,
        record: dict[str, Any],
        seen: watch.Seen,
    ) -> dict[str, Any]:
        decision = watch.decide(record, seen, time.time(), self._limits)
        told = {"run": run, "state": decision.state, "why": decision.why, "action": decision.action}
        line = f"run {run}: {decision.state}" + (f": {decision.why}" if decision.why else "")
        if decision.action == watch.NOTHING:
            if decision.news:
                self._diary(line)
            self._remember(run, store, record, decision, {}, line if decision.news else "")
            return told
        line += f": {decision.action}"
        if self._check:
            Display().display(f"  {line}")
            return told
        with self._leased(run, leases) as mine:
            if not mine:
                return told | {"action": "nothing", "why": "another controller is at it"}
            fields = {
                watch.GIVE_UP: {"wanted": "stopped", "given_up": decision.why},
                watch.RECORD_DONE: {"wanted": "done"},
            }.get(decision.action, {})
            if not self._remember(run, store, record, decision, fields, line):
                return told | {"action": "nothing", "why": "its record has just changed"}
            self._diary(line)
            return told | self._act(run, record, seen, decision.action)

    def _remember(
        self,
        run: str,
        store: RecordStore,
        record: Mapping[str, Any],
        decision: watch.Decision,
        fields: Mapping[str, Any],
        event: str,
    ) -> bool:
        """Write down what the watch knows; False if someone else has changed the record."""
        kept = decision.kept()
        if self._check or (record.get("watch") == kept and not fields):
            return True
        try:
            store.change(run, int(record.get("generation", 0)), {**fields, "watch": kept}, event)
        except RecordConflictError:
            return False
        return True

    @contextlib.contextmanager
    def _leased(self, run: str, leases: RecordStore) -> Iterator[bool]:
        """Have the run for oneself among all controllers, as long as one lives."""
        me = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"

        def take(until: float) -> bool:
            lease = leases.read(run)
            if lease.get("holder") != me and float(lease.get("until", 0)) > time.time():
                return False
            with contextlib.suppress(RecordConflictError):
                leases.change(
                    run, int(lease.get("generation", 0)), {"holder": me, "until": until}, ""
                )
                return True
            return False

        if not take(time.time() + LEASE_SECONDS):
            yield False
            return
        over = threading.Event()

        def renew() -> None:
            while not over.wait(RENEW_SECONDS):
                with contextlib.suppress(RecordError):
                    take(time.time() + LEASE_SECONDS)

        renewing = threading.Thread(target=renew, daemon=True)
        renewing.start()
        try:
            yield True
        finally:
            over.set()
            renewing.join()
            with contextlib.suppress(RecordError):
                take(0)

    def _act(
        self, run: str, record: Mapping[str, Any], seen: watch.Seen, action: str
    ) -> dict[str, Any]:
        """Run the action's playbooks, the next one only if the one before was fine."""
        with tempfile.TemporaryDirectory(prefix="tpufleet-watch-") as folder:
            code = Path(self._options["releases"]) / str(record.get("release"))
            starts = action in (watch.RECREATE, watch.LAUNCH, watch.RESTART)
            if starts and not code.is_dir():
                why = (
                    f"release {record.get('release')} is not on this controller ({code}): "
                    f"start the run from here once: ansible-playbook train.yml -e run={run} …"
                )
                self._diary(f"run {run}: {why}")
                return {"failed": True, "why": why}
            config = None
            if record.get("config") is not None:
                stem = Path(str(record.get("config_path") or "config.yml")).name
                config = Path(folder) / stem
                config.write_text(str(record["config"]), encoding="utf-8")
            variables = Path(folder) / "run.json"
            variables.touch(mode=0o600)
            variables.write_text(json.dumps(train_variables(run, record, code, config)))
            for words in commands(action, run, record, seen, str(variables)):
                failure = self._play(run, words)
                if failure:
                    return {"failed": True, "why": failure}
        return {}

    def _play(self, run: str, words: list[str]) -> str:
        """Run one playbook; what it says goes to the run's own file beside the log."""
        shown = [word for word in words if not word.startswith("@")]
        self._diary(f"run {run}: $ ansible-playbook {' '.join(shown).removesuffix(' -e')}")
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
                    cwd=self._options["project"],
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
            self._diary(f"run {run}: {words[0]} is through, {spent}")
            return ""
        why = f"{words[0]} failed after {spent}: {last_words(said)}"
        self._diary(f"run {run}: {why} (all it said: {output})")
        return why


class Diary:
    """The log of the watch: a line an event, time first, for people."""

    def __init__(self, path: Path, quiet: bool) -> None:
        self._path, self._quiet, self._lock = path.expanduser(), quiet, threading.Lock()
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
        folder = self._path.with_suffix(".d")
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '-', run)}.log"


def host_facts(task_vars: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Read the inventory's word on every host."""
    hostvars = task_vars["hostvars"]
    return {
        str(host): {
            fact: plain(hostvars[host][fact]) for fact in HOST_FACTS if fact in hostvars[host]
        }
        for host in task_vars["groups"]["all"]
        if host != "localhost"
    }
