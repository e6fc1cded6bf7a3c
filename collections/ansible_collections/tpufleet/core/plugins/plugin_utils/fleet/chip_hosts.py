"""Inventory hosts for single chips, for ``train.yml -e per_chip=true``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

#: Variables that a chip's host inherits from its worker's host.
INHERITED_VARIABLES = (
    "ansible_host",
    "ansible_port",
    "ansible_user",
    "ansible_ssh_private_key_file",
    "ansible_ssh_common_args",
    "ansible_control_path",
    "ansible_connection",
    "ansible_python_interpreter",
    "tpu_name",
    "tpu_id",
    "tpu_zone",
    "tpu_worker_id",
    "tpu_worker_count",
    "tpu_leader_ip",
    "tpu_spot",
    "tpu_device_glob",
)


def chip_hosts(
    hostvars: Mapping[str, Mapping[str, Any]], workers: Sequence[str], only: Any = None
) -> list[dict[str, Any]]:
    """Return one host (a mapping with its name and variables) for each chip of the workers.

    Raises AnsibleFilterError if ``only`` is not a number, if a worker has no chips, if a worker
    does not have the chip ``only``, or if a TPU has several workers, because the chips of such a
    TPU can't run separate processes.

    Args:
        hostvars: the inventory variables of each host.
        workers: the hosts of the workers.
        only: the number of one chip, to return only this chip of each worker; None or empty for
            all chips.
    """
    if only not in (None, "") and not re.fullmatch(r"[0-9]{1,9}", str(only)):
        raise AnsibleFilterError(f"chip: expected a chip's number, such as 0 ({only!r:.40})")
    hosts = []
    for worker in workers:
        host = hostvars[worker]
        chips, count = int(host.get("tpu_chips") or 0), int(host.get("tpu_worker_count") or 1)
        if count > 1:
            raise AnsibleFilterError(
                f"TPU {host.get('tpu_name')}: per_chip needs a TPU with one worker (it has "
                f"{count}). Choose another: -e tpu=NAME"
            )
        requested = range(chips) if only in (None, "") else [int(only)]
        missing = [chip for chip in requested if chip >= chips]
        if not chips or missing:
            raise AnsibleFilterError(
                f"{worker} has no chip {missing[0]}: it has {chips} chips, numbered from 0"
                if chips
                else f"{worker} has no TPU chips. Choose another TPU: -e tpu=NAME"
            )
        inherited = {name: host[name] for name in INHERITED_VARIABLES if name in host}
        hosts += [
            {"name": f"{worker}-c{chip}", **inherited, "tpu_chip": chip, "tpu_chip_of": worker}
            for chip in requested
        ]
    return hosts
