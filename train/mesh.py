"""Processes and devices: joining the others, and one mesh over all devices of all processes."""

import hashlib
import ipaddress
import logging
import os
import socket

import jax
import numpy as np
from jax.experimental import multihost_utils

from train.config import Config, ConfigError, check_share
from train.contract import Contract

log = logging.getLogger(__name__)

HEARTBEAT_TIMEOUT_SECONDS = 10
SHUTDOWN_TIMEOUT_SECONDS = 60
"""Room for process 0's passage at the end, and no more: a dead peer must not hold up a restart."""


def join(contract: Contract) -> None:
    """Connect to the run's other processes; a single one becomes a run of one.

    That one connects too is for its SIGTERM notifier, which lets ``interrupted`` work: nothing
    may install a Python handler of that signal afterwards, or it falls silent. On a TPU slice
    libtpu numbers the processes, so that ``jax.process_index()`` need not be the contract's.
    """
    coordinator = contract.coordinator or f"127.0.0.1:{free_port()}"
    host = coordinator.rpartition(":")[0].strip("[]")
    _keep_from_proxies(host)
    if contract.num_processes > 1:
        _warn_of_loopback_name(host)
    jax.distributed.initialize(
        coordinator,
        contract.num_processes,
        contract.process_id,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
        shutdown_timeout_seconds=SHUTDOWN_TIMEOUT_SECONDS,
        # The service has no authentication: it listens where the fleet said, not everywhere.
        coordinator_bind_address=coordinator if _is_address(host) else None,
    )


def make(cfg: Config) -> jax.sharding.Mesh:
    """Make the mesh of all devices, with one axis ``data``, the one in use from here on.

    Raises ConfigError where the devices can't share the batch evenly.
    """
    check_share(cfg, jax.device_count(), "devices")
    # Not jax.make_mesh: it refuses CPU devices of several hosts, which it takes for TPU slices.
    mesh = jax.sharding.Mesh(
        np.array(jax.devices()), ("data",), axis_types=(jax.sharding.AxisType.Explicit,)
    )
    jax.set_mesh(mesh)
    return mesh


def check_alike(described: str, what: str) -> None:
    """Raise ConfigError, in every process, unless all processes describe the run the same way.

    ``what`` completes "processes 1, 3 ...": how they differ from process 0, and what mends it.
    """
    digest = np.frombuffer(hashlib.sha256(described.encode()).digest(), np.uint32)
    digests = multihost_utils.process_allgather(digest).reshape(-1, digest.size)
    others = [i for i, other in enumerate(digests) if (other != digests[0]).any()]
    if others:
        raise ConfigError(f"processes {', '.join(map(str, others))} {what}")


def interrupted(call: int) -> bool:
    """Whether a process got SIGTERM, told to all processes at one and the same call.

    To be asked by every process before every call, with numbers that leave none out: the others
    are told to stop at a number that none has reached yet, and only there.
    """
    return multihost_utils.reached_preemption_sync_point(call)


def free_port() -> int:
    """Find a port of the loopback address that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _keep_from_proxies(host: str) -> None:
    """Have gRPC, which honours the variables of the way out, connect to the coordinator itself."""
    if any(os.environ.get(f"{kind}_proxy") for kind in ("grpc", "https", "http")):
        # gRPC knows these in lower case only.
        without = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy", "")  # noqa: SIM112
        os.environ["no_grpc_proxy"] = ",".join(filter(None, [without, host]))  # noqa: SIM112


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _warn_of_loopback_name(coordinator_host: str) -> None:
    """Say what a later failure to connect would not: gloo offers peers this machine's own name."""
    name = socket.gethostname()
    try:
        coordinator, own = (socket.gethostbyname(host) for host in (coordinator_host, name))
    except OSError as err:
        log.warning("%s or %s: cannot be resolved: %s", coordinator_host, name, err)
        return
    if own.startswith("127.") and not coordinator.startswith("127."):
        log.warning(
            "this machine's name %s resolves to %s, where processes on other machines cannot "
            "reach it; mend /etc/hosts if they fail to connect",
            name,
            own,
        )
