"""Jinja filters of the playbooks; each filter is a function in plugin_utils."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..plugin_utils.doctor.summary import doctor_summary
from ..plugin_utils.fleet.chip_hosts import chip_hosts
from ..plugin_utils.fleet.fleet_addresses import fleet_addresses
from ..plugin_utils.fleet.inventory_groups import (
    foreign_tpus,
    foreign_workers_of_runs,
    group_of,
    status_hosts,
    unknown_tpu_text,
    unmanaged_tpus,
    workers_of,
    workers_pattern,
)
from ..plugin_utils.fleet.ssh_config import ssh_config
from ..plugin_utils.outputs.uncollected import uncollected
from ..plugin_utils.runs.answers import active_runs, by_host, has_run, stopped_lines, stray_lines
from ..plugin_utils.runs.judge import finished_runs, tpu_states
from ..plugin_utils.runs.launch import launch_for
from ..plugin_utils.runs.launch_outcome import attempt_text, failures
from ..plugin_utils.runs.merged_logs import folded_logs, log_lines
from ..plugin_utils.runs.record_change import no_record, unknown_run_text
from ..plugin_utils.runs.release_cache import local_state_dir
from ..plugin_utils.runs.status_table import run_status
from ..plugin_utils.runs.typed_values import checkpoint_choice, parse_env, truncated_value_error
from ..plugin_utils.setup.files_checksum import files_checksum
from ..plugin_utils.setup.mounts import disk_mounts, mount_exports, mount_units
from ..plugin_utils.setup.own_lock import own_lock, stale_lock
from ..plugin_utils.setup.user_path import find_links, user_path

FILTERS: tuple[Callable[..., Any], ...] = (
    active_runs,
    attempt_text,
    by_host,
    checkpoint_choice,
    chip_hosts,
    disk_mounts,
    doctor_summary,
    files_checksum,
    find_links,
    finished_runs,
    fleet_addresses,
    folded_logs,
    foreign_tpus,
    foreign_workers_of_runs,
    group_of,
    has_run,
    launch_for,
    local_state_dir,
    log_lines,
    mount_exports,
    mount_units,
    no_record,
    own_lock,
    parse_env,
    run_status,
    ssh_config,
    stale_lock,
    status_hosts,
    stopped_lines,
    stray_lines,
    tpu_states,
    truncated_value_error,
    uncollected,
    unknown_run_text,
    unknown_tpu_text,
    unmanaged_tpus,
    user_path,
    workers_of,
    workers_pattern,
)


class FilterModule:
    """The filter plugin that registers the filters with Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {function.__name__: function for function in FILTERS} | {"run_failures": failures}
