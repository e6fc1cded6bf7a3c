"""The action plugin of tpufleet.core.doctor.

It evaluates the inventory's variables itself, so an invalid variable is reported as a finding and
does not abort the other checks.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ..module_utils.cloud.errors import CloudError, NotConfigured, one_line
from ..module_utils.cloud.host_keys import KnownHostsFile
from ..module_utils.cloud.http import RetryPolicy
from ..module_utils.cloud.session import ApiSettings
from ..module_utils.schedule.run_schedule import PREFIX, Origin, ScheduleError
from ..module_utils.schedule.timers import keeper
from ..module_utils.worker.doctor_finding import (
    OK,
    PROBLEM,
    Finding,
    problem,
    to_dicts,
    unknown,
    verdict,
)
from ..plugin_utils.doctor.doctor_cloud import TPU_API, cloud_findings
from ..plugin_utils.doctor.doctor_controller import (
    key_finding,
    program_findings,
    secret_findings,
    version_findings,
)
from ..plugin_utils.doctor.doctor_fleet import (
    bucket_findings,
    fleet_finding,
    foreign_findings,
    grant_finding,
    quota_findings,
)
from ..plugin_utils.doctor.retention import retention_findings
from ..plugin_utils.doctor.ssh_connections import connection_findings, connection_of
from ..plugin_utils.doctor.watch import CHECK as WATCH
from ..plugin_utils.doctor.watch import watch_finding
from ..plugin_utils.fleet.cloud_tpus import open_source
from ..plugin_utils.fleet.inventory_groups import workers_of
from ..plugin_utils.fleet.ownership import FOREIGN_GROUP
from ..plugin_utils.fleet.source import INVENTORY_ERROR, zones_of
from ..plugin_utils.plain_values import plain
from ..plugin_utils.runs.typed_values import parse_env
from ..plugin_utils.runs.watch_heartbeat import (
    HeartbeatError,
    controller_name,
    read_heartbeats,
)

#: Fewer retries than in create.yml, so that errors appear soon.
_RETRY = RetryPolicy(tries=2, connect_tries=1, request_timeout=20)


class ActionModule(ActionBase):
    """Checks the controller, the cloud and the connections to workers."""

    _supports_check_mode = True
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run all checks, also after one of them has failed."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        self.validate_argument_spec(argument_spec={})
        self._vars = task_vars or {}
        self._invalid_variables: list[Finding] = []
        findings = list(self._check_all(datetime.now(UTC).date()))
        lines = [finding.line for finding in findings]
        output = {"changed": False, "findings": to_dicts(findings), "lines": lines}
        return result | output | {"msg": verdict(findings)}

    def _check_all(self, today: date) -> Iterator[Finding]:
        api = self._value("tpu_api", {})
        ssh = self._value("tpu_ssh", {})
        secrets, worker_env = self._variables("secrets"), self._variables("worker_environment")
        zones = zones_of(api)
        address = str(ssh.get("address") or "external")
        yield from version_findings()
        yield from program_findings(address)
        fleet, fleet_line = fleet_finding(self._value("tpu_fleet", []))
        yield from self._cloud(api, zones, fleet, today, worker_env)
        yield from self._invalid_variables
        yield fleet_line
        grant = grant_finding(self._value("grant_ends", ""), today)
        if grant:
            yield grant
        if "private_key_file" in ssh:
            yield key_finding(str(ssh["private_key_file"] or ""))
        else:
            yield unknown("ssh key", "can't be checked without the inventory")
        sources = self._vars.get("ansible_inventory_sources", ())
        yield from secret_findings(secrets, worker_env, sources, self._vars)
        groups, hostvars = self._vars.get("groups", {}), self._vars.get("hostvars", {})
        foreign = [hostvars[host] for host in groups.get(FOREIGN_GROUP, [])]
        yield from foreign_findings(foreign, {tpu.name: tpu.zones for tpu in fleet})
        if watch := self._watch(str(self._value("fleet_state", "")), api):
            yield watch
        yield from self._connections(address, str(ssh.get("known_hosts_file") or ""))

    def _cloud(
        self,
        api: Mapping[str, Any],
        zones: list[str],
        fleet: Any,
        today: date,
        worker_env: Mapping[str, str],
    ) -> Iterator[Finding]:
        fleet_zones = list(dict.fromkeys(zone for tpu in fleet for zone in tpu.zones))
        # The error of the inventory plugin, with the fix; empty if the plugin succeeded.
        inventory_error = str(self._value(INVENTORY_ERROR, ""))
        inventory_findings = [problem("inventory", inventory_error)] if inventory_error else []
        if not api.get("storage_endpoint"):
            # tpu_api does not contain the address of the local cloud's storage emulator. The
            # inventory passes it to the trainers as STORAGE_EMULATOR_HOST, so take it from there.
            emulator = worker_env.get("STORAGE_EMULATOR_HOST", "")
            api = {**api, "storage_endpoint": emulator}
        try:
            settings = ApiSettings.of(api)
        except NotConfigured as error:
            has_project = "endpoint" in api or not inventory_error
            yield from [problem("project", str(error))] if has_project else inventory_findings
            reason = "can't be checked without " + ("a project" if has_project else "the inventory")
            for check in ("credentials", "clock", "TPU API", "zones", "quota", "bucket"):
                yield unknown(check, reason)
            return
        findings = cloud_findings(settings, zones, fleet_zones)
        if not any(finding.state == PROBLEM for finding in findings):
            yield from inventory_findings
        yield from findings
        if any(finding.check == TPU_API and finding.state == OK for finding in findings):
            yield from quota_findings(open_source(api, retry=_RETRY), settings, fleet, zones, today)
        else:
            yield unknown("quota", "can't be checked, because the TPU API is not usable")
        yield from bucket_findings(settings, str(self._value("bucket", "")), fleet_zones)
        state = str(self._value("fleet_state", ""))
        if state.startswith("gs://"):
            yield from bucket_findings(settings, state, fleet_zones, has_records=True)
        outputs, days = self._value("outputs_location", ""), self._value("outputs_days", 0)
        yield from retention_findings(settings, str(outputs), days)

    def _connections(self, address: str, known_hosts_file: str) -> Iterator[Finding]:
        hostvars = self._vars.get("hostvars", {})
        workers = workers_of(self._vars.get("groups", {}))
        connections = [connection_of(str(host), hostvars[host]) for host in workers]
        try:
            known_hosts = KnownHostsFile(known_hosts_file).read() if known_hosts_file else {}
        except CloudError as error:
            yield problem("host keys", str(error), f"chmod 600 {known_hosts_file}")
            known_hosts = {}
        yield from connection_findings(connections, address, known_hosts)

    def _watch(self, fleet_state: str, api: Mapping[str, Any]) -> Finding | None:
        """Check the last passes of the watch, and whether the inventory has a timer for it."""
        if not fleet_state:
            return None
        name, scheduled_on, interval_s, logs = f"{PREFIX}watch", "", 0, ""
        with suppress(ScheduleError):
            timers = keeper()
            project = f"{self._vars.get('playbook_dir', '')}/.."
            own = Origin.of(project, self._vars.get("ansible_inventory_sources", ()))
            # Ignore a timer of another inventory or checkout, but not one of unknown origin (None):
            # it may be this inventory's timer, which run_schedule failed to change.
            if name in timers.names() and timers.origin(name) in (None, own):
                scheduled_on, logs = controller_name(socket.gethostname()), timers.logs(name)
                interval_s = timers.interval(name)
        try:
            heartbeats = read_heartbeats(fleet_state, api)
        except HeartbeatError as error:
            return unknown(WATCH, str(error)) if scheduled_on else None
        return watch_finding(heartbeats, scheduled_on, interval_s, logs, time.time())

    def _variables(self, name: str) -> dict[str, str]:
        """Return the trainers' environment variables in the inventory's variable ``name``.

        Adds a finding if they are invalid.
        """
        try:
            return parse_env(self._value(name, {}), name)
        except AnsibleError as error:
            fix = "$EDITOR inventory/*/group_vars/all"
            self._invalid_variables.append(problem(name, one_line(error.message), fix))
            return {}

    def _value(self, name: str, default: Any) -> Any:
        """Return the value of an inventory variable; add a finding if it can't be evaluated."""
        if name not in self._vars:
            return default
        try:
            value = plain(self._templar.template(self._vars[name]))
        except AnsibleError as error:
            reason = f"can't be evaluated: {one_line(error.message)}"
            self._invalid_variables.append(
                problem(f"variable {name}", reason, "$EDITOR inventory/*/group_vars/all")
            )
            return default
        return default if value is None else value
