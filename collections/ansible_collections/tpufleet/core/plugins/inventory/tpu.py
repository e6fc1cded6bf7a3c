"""The inventory plugin tpufleet.core.tpu, which lists Cloud TPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
name: tpu
short_description: The workers of Google Cloud TPUs as inventory hosts
description:
  - Lists every TPU of the configured zones through the Cloud TPU API v2. Each worker is a host,
    named C(<tpu>-w<index>). If several zones have a TPU of the same name, the zone is added to the
    names of their hosts and groups.
  - A TPU that is not READY, or whose workers do not have the addresses or host names that
    O(address) needs, is one host with the name of the TPU. This host has no address. Besides the
    groups of O(groups) and O(keyed_groups), it is only in C(state_<state>) and, if the TPU is
    foreign, in C(foreign), so that playbooks skip it. The internal addresses of its workers are in
    C(tpu_internal_ips), which is empty if the TPU was preempted or is being deleted.
  - Groups are C(tpu) (the workers of all READY TPUs), C(tpu_<name>), C(leaders) (worker 0 of each
    TPU), C(zone_<zone>), C(type_<accelerator type>), C(state_<state>) and C(foreign) (the hosts of
    foreign TPUs). Ansible replaces characters that are invalid in group names.
  - Variables of a worker are C(tpu_name), C(tpu_id), C(tpu_zone), C(tpu_accelerator_type),
    C(tpu_generation), C(tpu_topology), C(tpu_state), C(tpu_health), C(tpu_spot) (whether the TPU
    may be preempted), C(tpu_worker_id), C(tpu_worker_count), C(tpu_chips) (the number of chips of
    this worker, or of the whole TPU if the TPU is one host), C(tpu_internal_ip),
    C(tpu_external_ip), C(tpu_leader_ip), C(tpu_device_glob), C(tpu_data_disks), C(tpu_labels),
    C(tpu_queued_resource), and the variables with which Ansible connects.
  - Variables of the group C(all) are C(tpu_api) (the value of the modules' option
    O(tpufleet.core.tpu_node#module:api)), C(tpu_ssh) (C(user), C(private_key_file),
    C(known_hosts_file), C(address), C(os_login)), C(fleet_name), C(tpu_partial),
    C(tpu_unreachable), and all of O(vars).
  - A zone that does not respond is an error unless O(allow_partial=true).
  - The TPUs that one queued resource created together (multislice) are slices of one run. They are
    in the group C(multislice_<queued resource>), and their workers have C(tpu_multislice) (the
    queued resource, empty for a single TPU), C(tpu_slice_id), C(tpu_slice_count) and
    C(tpu_slice_leader_ip) (the internal address of the leader of slice 0). TPUs that were created
    separately never train one run together, whatever their names are.
author: tpufleet maintainers
requirements: [google-auth, requests]
extends_documentation_fragment:
  - tpufleet.core.tpu_inventory
  - constructed
  - inventory_cache
notes:
  - The values of O(vars) may be templates, as may O(project), O(fleet_name), O(down_hint), and the
    options for endpoints, files and the ssh user. Templates can use C(inventory_dir),
    C(inventory_file), extra variables and the variables in O(vars). Values from the API are never
    evaluated as templates.
"""

EXAMPLES = r"""
# inventory/tpu.yml: all TPUs of a project, listed with application-default credentials
plugin: tpufleet.core.tpu
project: my-tpu-project
zones: ["-"]

---
# two zones, internal addresses, a key of your own, more groups, and the zone in the hosts' names
plugin: tpufleet.core.tpu
project: my-tpu-project
zones: [us-central2-b, europe-west4-a]
address: internal
ssh_user: tpu
ssh_private_key_file: ~/.ssh/tpu
hostnames: ["inventory_hostname ~ '-' ~ tpu_zone"]
filters: ["tpu_labels.owner | default('') == 'ada'"]
compose:
  ansible_port: "2222 if tpu_labels.sshd | default('') == 'high' else 22"
groups:
  spot: tpu_spot
keyed_groups:
  - prefix: owner
    key: tpu_labels.owner | default('nobody')
  - prefix: chips
    key: tpu_chips | string
cache: true
cache_plugin: ansible.builtin.jsonfile
cache_connection: ~/.cache/tpufleet
cache_timeout: 60
"""

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleError, AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable

from ..module_utils.cloud.errors import CloudError, NoAnswer, NotConfigured, one_line
from ..module_utils.cloud.fleet_name import parse_fleet_name
from ..module_utils.cloud.host_keys import KnownHost, KnownHostsFile, alias_of
from ..module_utils.cloud.nodes import Node
from ..module_utils.cloud.session import API_SETTINGS, ApiSettings
from ..module_utils.cloud.tpu_api import Listing
from ..plugin_utils.fleet.cloud_tpus import open_source
from ..plugin_utils.fleet.hosts import (
    Host,
    HostOptions,
    build_hosts,
    check_unique_names,
    is_reachable,
    node_variables,
)
from ..plugin_utils.fleet.inert_text import trust_inert
from ..plugin_utils.fleet.ownership import FOREIGN_GROUP, is_ours
from ..plugin_utils.fleet.slices import Slice, slices_of
from ..plugin_utils.fleet.source import INVENTORY_ERROR, Source

#: Ansible's exit status if an inventory or playbook can't be read.
_PARSER_ERROR = 4
_PLUGIN_KEY = re.compile(r"(?m)^[\s{,]*[\"']?plugin[\"']?\s*:\s*[\"']?tpufleet\.core\.tpu\b")
_TEMPLATED = (
    "down_hint",
    "fleet_name",
    *API_SETTINGS,
    "ssh_user",
    "ssh_private_key_file",
    "known_hosts_file",
)


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    """Inventory plugin that lists TPUs from the API or the cache; their workers become hosts."""

    NAME = "tpufleet.core.tpu"

    def verify_file(self, path: str) -> bool:
        """Return whether the file is YAML and its key ``plugin`` names this plugin."""
        if not super().verify_file(path) or not path.endswith((".yml", ".yaml")):
            return False
        return bool(_PLUGIN_KEY.search(Path(path).read_text(encoding="utf-8", errors="replace")))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Add the TPUs' workers to the inventory, or fail with a one-line error.

        After an exception Ansible tries its other inventory plugins on the file, and their errors
        hide the cause. So if a failed inventory is fatal anyway (any_unparsed_is_failed, as in this
        project's ansible.cfg), this method prints the error and exits the process. Otherwise it
        raises AnsibleParserError.
        """
        super().parse(inventory, loader, path, cache)
        self._values: dict[str, str] = {}
        self._user_vars: dict[str, Any] = {}
        try:
            self._read_config_data(path)
            self._add_tpus(path, use_cache=cache)
        except (CloudError, AnsibleError) as error:
            text = one_line(error.message if isinstance(error, AnsibleError) else error)
            if "on_error" in self._options and self.get_option("on_error") == "report":
                self._report(text)
                return
            if constants.INVENTORY_ANY_UNPARSED_IS_FAILED:
                self.display.error(f"inventory {path}: {text}", wrap_text=False)
                raise SystemExit(_PARSER_ERROR) from None
            raise AnsibleParserError(text) from None

    def _report(self, error: str) -> None:
        """Set the error, and the API settings if known, as variables of the group ``all``."""
        # Set all API settings or none: if only the endpoint were missing, playbooks would call
        # Google's API, even if the inventory is for another endpoint.
        has_api = set(API_SETTINGS) <= set(self._values)
        known = {name: self._values[name] for name in API_SETTINGS} if has_api else {}
        self._set_shared_variables(known, Listing([]))
        self.inventory.set_variable("all", INVENTORY_ERROR, error)

    def _ssh_settings(self) -> dict[str, Any]:
        """Return the value of the inventory variable ``tpu_ssh``.

        If the template of an option was invalid, this option and those after it have no value yet.
        They are missing from the result.
        """
        options = {
            "user": "ssh_user",
            "private_key_file": "ssh_private_key_file",
            "known_hosts_file": "known_hosts_file",
        }
        known = {name: self._values[key] for name, key in options.items() if key in self._values}
        return known | {name: self.get_option(name) for name in ("address", "os_login")}

    def _add_tpus(self, path: str, *, use_cache: bool) -> None:
        self._evaluate_options(path)
        settings = ApiSettings.of(self._values)
        parse_fleet_name(self._values["fleet_name"])
        options = HostOptions(
            address=self.get_option("address"),
            ssh_user=self._values["ssh_user"],
            ssh_private_key_file=self._values["ssh_private_key_file"],
            known_hosts_file=self._values["known_hosts_file"],
            accept_new=self.get_option("host_keys") == "accept-new",
        )
        if self.get_option("os_login") and not options.ssh_user:
            raise NotConfigured(
                "ssh_user is missing, which os_login needs. Set it to your POSIX user name, which "
                "this command prints: gcloud compute os-login describe-profile "
                "--format='value(posixAccounts[0].username)'"
            )
        source = open_source(self._values)
        try:
            listing = self._list_tpus(path, settings, source, use_cache=use_cache)
        except NoAnswer as error:
            hint = self._values["down_hint"]
            raise NoAnswer(f"{error}: {hint}" if hint else error) from None
        nodes = [source.parse(entry) for entry in listing.entries]
        slices = slices_of(nodes)
        selected = self._filter_nodes(nodes, slices)
        known = self._known_hosts(selected, options, source)
        result = build_hosts(selected, options, known, slices)
        self._set_shared_variables(asdict(settings), listing)
        name = trust_inert(self._values["fleet_name"])
        self.inventory.set_variable("all", "fleet_name", name)
        self._add_hosts(result.hosts)
        for warning in result.warnings:
            self.display.warning(warning)

    # --- options ---------------------------------------------------------------------------------

    def _evaluate_options(self, path: str) -> None:
        """Evaluate the templates in the options of the inventory file ``path``.

        Stores the variables of the option ``vars`` in ``_user_vars``, and the other options in
        ``_values``.
        """
        directory = path.rsplit("/", 1)[0] if "/" in path else "."
        variables: dict[str, Any] = {
            "inventory_dir": directory,
            "inventory_file": path,
            **(self._vars or {}),
        }
        for name, value in (self.get_option("vars") or {}).items():
            variables[name] = self._user_vars[name] = self._template(
                f"vars.{name}", value, variables
            )
        for option in _TEMPLATED:
            value = self._template(option, self.get_option(option), variables)
            self._values[option] = str("" if value is None else value).strip()

    def _template(self, name: str, value: Any, variables: dict[str, Any]) -> Any:
        self.templar.available_variables = variables
        try:
            return self.templar.template(value)
        except AnsibleError as error:
            hint = self._values.get("down_hint")
            if hint and name == "endpoint":
                raise AnsibleParserError(hint) from None
            raise AnsibleParserError(
                f"the option {name} can't be evaluated: {error.message}"
            ) from None

    # --- listing ---------------------------------------------------------------------------------

    def _list_tpus(
        self, path: str, settings: ApiSettings, source: Source, *, use_cache: bool
    ) -> Listing:
        zones = [str(zone) for zone in self.get_option("zones")]
        query = {"endpoint": settings.address, "project": settings.project, "zones": zones}
        caching = bool(self.get_option("cache"))
        key = self.get_cache_key(path)
        if caching and use_cache:
            cached = self._cache.get(key)
            is_same_query = isinstance(cached, Mapping) and cached.get("asked") == query
            entries = cached.get("entries") if is_same_query else None
            if isinstance(entries, list):
                return Listing(entries)
        listing = source.list(zones, allow_partial=self.get_option("allow_partial"))
        if caching and not listing.unreachable:
            self._cache[key] = {
                "asked": query,
                "entries": [dict(entry) for entry in listing.entries],
            }
        return listing

    def _filter_nodes(self, nodes: list[Node], slices: Mapping[str, Slice]) -> list[Node]:
        """Return the TPUs for which all filters are true.

        ``slices`` maps each TPU's key (Node.key) to its slice.
        """
        selected = nodes
        for expression in self.get_option("filters"):
            undecided = []
            matching = []
            for node in selected:
                self.templar.available_variables = node_variables(node, slices[node.key])
                try:
                    value = self.templar.evaluate_expression(expression)
                except AnsibleError as error:
                    undecided.append((node, one_line(error.message)))
                    continue
                if not isinstance(value, bool):
                    raise NotConfigured(
                        f"filters: {expression!r} returns {value!r:.60} for TPU {node.where}, "
                        "expected true or false"
                    )
                if value:
                    matching.append(node)
            if undecided:
                self._report_undecided(expression, undecided)
            selected = matching
        return selected

    def _report_undecided(self, expression: str, undecided: list[tuple[Node, str]]) -> None:
        node, reason = undecided[0]
        others = f" and {len(undecided) - 1} others" if len(undecided) > 1 else ""
        text = f"filters: {expression!r} can't be evaluated for TPU {node.where}{others}: {reason}"
        if self.get_option("strict"):
            raise NotConfigured(text)
        self.display.warning(f"{text}. The inventory omits these TPUs")

    def _known_hosts(
        self, nodes: list[Node], options: HostOptions, source: Source
    ) -> dict[str, KnownHost]:
        """Return the workers' ssh host keys; fetch and store the keys of new TPUs."""
        if not options.known_hosts_file:
            return {}
        file = KnownHostsFile(options.known_hosts_file)
        known = file.read()
        with_names = options.address == "iap"
        new = [
            node
            for node in nodes
            if is_reachable(node)
            and any(
                alias not in known or (with_names and not known[alias].host_name)
                for alias in (alias_of(node.key, worker) for worker in range(len(node.endpoints)))
            )
        ]
        if not new:
            return known
        with ThreadPoolExecutor(max_workers=min(8, len(new))) as pool:
            hosts_by_node = pool.map(
                lambda node: self._read_host_keys(source, node, with_names), new
            )
            new_hosts = [host for hosts in hosts_by_node for host in hosts]
        file.add(new_hosts)
        return file.read()

    def _read_host_keys(self, source: Source, node: Node, with_names: bool) -> list[KnownHost]:
        try:
            return source.host_keys(node, with_names=with_names)
        except CloudError as error:
            # Continue without the host keys: the option ``host_keys`` decides whether ssh then
            # refuses the connection.
            self.display.warning(str(error))
            return []

    # --- Ansible's inventory ---------------------------------------------------------------------

    def _set_shared_variables(self, settings: Mapping[str, str], listing: Listing) -> None:
        shared = {
            **self._user_vars,
            "tpu_api": {**settings, "zones": [str(zone) for zone in self.get_option("zones")]},
            "tpu_ssh": self._ssh_settings(),
            "tpu_partial": bool(listing.unreachable),
        }
        for name, value in shared.items():
            self.inventory.set_variable("all", name, trust_inert(value))
        self.inventory.set_variable("all", "tpu_unreachable", list(listing.unreachable))
        if listing.unreachable:
            zones = ", ".join(listing.unreachable)
            self.display.warning(
                f"the inventory omits the TPUs of {zones}, because these zones did not respond "
                "(allow_partial is set). Run the command again to list them"
            )

    def _add_hosts(self, hosts: tuple[Host, ...]) -> None:
        named_hosts = [(self._host_name(host), host) for host in hosts]
        check_unique_names(named_hosts)
        safe_names: dict[str, str] = {
            name: self.inventory.add_group(name) for name in ("tpu", "leaders", FOREIGN_GROUP)
        }
        strict = self.get_option("strict")
        compose, groups, keyed = (
            self.get_option(option) for option in ("compose", "groups", "keyed_groups")
        )
        for name, host in named_hosts:
            self.inventory.add_host(name)
            for variable, value in host.variables.items():
                self.inventory.set_variable(name, variable, value)
            is_own = is_ours(host.node.labels, self._values["fleet_name"])
            for group in (*host.groups, *(() if is_own else (FOREIGN_GROUP,))):
                if group not in safe_names:
                    safe_names[group] = self.inventory.add_group(self._sanitize_group_name(group))
                self.inventory.add_child(safe_names[group], name)
            if compose or groups or keyed:
                variables = {**host.variables, "inventory_hostname": name}
                self._set_composite_vars(compose, variables, name, strict=strict)
                self._add_host_to_composed_groups(groups, variables, name, strict=strict)
                self._add_host_to_keyed_groups(keyed, variables, name, strict=strict)

    def _host_name(self, host: Host) -> str:
        expressions = self.get_option("hostnames")
        if not expressions:
            return host.name
        self.templar.available_variables = {**host.variables, "inventory_hostname": host.name}
        for expression in expressions:
            try:
                name = self.templar.evaluate_expression(expression)
            except AnsibleError as error:
                if self.get_option("strict"):
                    raise AnsibleParserError(
                        f"hostnames: {expression!r} can't be evaluated for {host.name}: "
                        f"{error.message}"
                    ) from None
                continue
            if isinstance(name, str) and name:
                return str(name)
        return host.name
