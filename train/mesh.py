"""Processes and devices: joining the others, and one mesh over all devices of all processes."""

import copy
import hashlib
import ipaddress
import logging
import os
import socket
import time
from collections.abc import Sequence
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import compiler, distributed
from jax.experimental import mesh_utils, multihost_utils

from train import attention
from train.config import Config, ConfigError, check_share
from train.contract import Contract
from train.sharding import BATCH

log = logging.getLogger(__name__)

HEARTBEAT_TIMEOUT_SECONDS = 10
LISTENING_SECONDS = 60
"""How long to look out for process 0 before JAX does it by itself, for five minutes."""
SHUTDOWN_TIMEOUT_SECONDS = 60
"""Room for the last writes of process 0, and no more: a dead peer must not hold up a restart."""


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
    if contract.process_id:
        listens(host, int(coordinator.rpartition(":")[2]), LISTENING_SECONDS)
    # The fleet turns it off for trainers that do not ask for it.
    jax.config.update("jax_enable_preemption_service", True)
    jax.distributed.initialize(
        coordinator,
        contract.num_processes,
        contract.process_id,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
        shutdown_timeout_seconds=SHUTDOWN_TIMEOUT_SECONDS,
        # The service has no authentication: it listens where the fleet said, not everywhere.
        coordinator_bind_address=coordinator if _is_address(host) else None,
    )
    if jax.default_backend() == "cpu":
        _let_all_keep_what_they_compile()


def listens(host: str, port: int, seconds: float) -> bool:
    """Wait until somebody listens there; tell whether that came true in time.

    gRPC, by which JAX's processes meet, waits a second after a try that found nobody
    (its doc/connection-backoff.md), and process 0 is hardly ever the first.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            socket.create_connection((host, port), timeout=1).close()
            return True
        except OSError:
            time.sleep(0.02)
    return False


def _let_all_keep_what_they_compile() -> None:
    """Have every process write to the compile cache, where JAX lets process 0 alone.

    On CPU the key of a program holds the process's own topology: what process 0 wrote is found by
    no other, which would compile anew at each start. JAX 0.12 has no option for it
    (jax/_src/compiler.py, _cache_write); test_other_processes tells when this stops working.
    """
    state = copy.copy(distributed.global_state)
    state.process_id = 0
    compiler.distributed = SimpleNamespace(global_state=state)


def make(cfg: Config, devices: Sequence[jax.Device] | None = None) -> jax.sharding.Mesh:
    """Make the mesh of all devices (or of those given), the one in use from here on.

    Its axes are those of sharding.py: ``fsdp`` is the inner one, of neighbours. Raises ConfigError
    where the devices can't share the batch or the parameters evenly, or lack what the config asks.
    """
    devices = jax.devices() if devices is None else devices
    attention.check(cfg)
    check_share(cfg, len(devices), "devices")
    fsdp = cfg.compute.fsdp or len(devices)
    if len(devices) % fsdp:
        raise ConfigError(
            f"compute.fsdp: must divide the number of devices ({len(devices)}), not {fsdp}"
        )
    mesh = jax.sharding.Mesh(
        arranged(devices, fsdp), BATCH, axis_types=(jax.sharding.AxisType.Explicit,) * 2
    )
    jax.set_mesh(mesh)
    return mesh


def arranged(devices: Sequence[jax.Device], fsdp: int) -> np.ndarray:
    """Put devices into an array (data, fsdp) along the ways that they are connected by.

    Several TPU slices are connected by the data center's network alone: the ``data`` axis goes
    over them, whose one sum a step it can bear.
    """
    data = len(devices) // fsdp
    if devices[0].platform != "tpu":
        # Not jax.make_mesh: it takes CPU devices of several hosts for slices.
        return np.array(devices).reshape(data, fsdp)
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    if slices == 1:
        return mesh_utils.create_device_mesh((data, fsdp), devices)
    if data % slices:
        raise ConfigError(
            f"compute.fsdp: must divide the devices of a slice ({len(devices) // slices}), "
            f"not {fsdp}"
        )
    return mesh_utils.create_hybrid_device_mesh((data // slices, fsdp), (slices, 1), devices)


def check_alike(described: str, what: str) -> None:
    """Raise ConfigError, in every process, unless all processes describe the run the same way.

    ``what`` completes "processes 1, 3 ...": how they differ from process 0, and what mends it.
    """
    digest = np.frombuffer(hashlib.sha256(described.encode()).digest(), np.uint32)
    digests = multihost_utils.process_allgather(digest).reshape(-1, digest.size)
    others = [i for i, other in enumerate(digests) if (other != digests[0]).any()]
    if others:
        raise ConfigError(f"processes {', '.join(map(str, others))} {what}")


def from_first(number: int | bool) -> int:
    """Give every process the number that process 0 has."""
    return int(multihost_utils.broadcast_one_to_all(np.int64(number)))


class Wish:
    """Something that any process may wish for, and all then do at one and the same call.

    Nothing waits: what is asked at one call is answered ``LATER`` calls on, when it is long known.
    """

    LATER = 8

    def __init__(self, mesh: jax.sharding.Mesh) -> None:
        self._sharding = jax.NamedSharding(mesh, jax.P(BATCH))
        self._asked: jax.Array | None = None

    def granted(self, call: int, wished: bool) -> bool:
        """Whether it is time; to be asked by every process, before every call, by its number."""
        if call % self.LATER:
            return False
        answer = self._asked is not None and bool(self._asked)
        mine = np.full(self._sharding.mesh.size, wished and not answer)
        own = jax.make_array_from_callback(mine.shape, self._sharding, lambda i: mine[i])
        # Dispatched when the answer is due, it would stand behind all steps in flight.
        self._asked = _any(own)
        return answer


@jax.jit
def _any(wishes: jax.Array) -> jax.Array:
    return jnp.any(wishes)


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
