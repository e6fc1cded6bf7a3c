"""Connection between the processes of a run, their device mesh, and their common decisions."""

import hashlib
import ipaddress
import os
import socket
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils, multihost_utils

from train.core import attention
from train.core.config import Config, ConfigError, check_batch_divisible
from train.core.sharding import BATCH_AXES
from train.run.contract import Contract

SHUTDOWN_TIMEOUT_SECONDS = 60
"""How long an exiting process waits for the others: enough for the last writes of process 0, but
short, because the wait delays the restart if another process has died."""

JOIN_TIMEOUT_SECONDS = 3600
"""How long a process waits for the others, which may still be downloading the corpus."""


def join(
    contract: Contract, heartbeat_timeout: int, join_timeout: int = JOIN_TIMEOUT_SECONDS
) -> None:
    """Connect this process to the others of the run, within ``join_timeout`` seconds.

    If JAX receives no heartbeat of a process for ``heartbeat_timeout`` seconds, all processes exit.

    A single process also connects, because the SIGTERM notifier that ``interrupted`` needs belongs
    to the coordination client. Install no Python handler for SIGTERM later: it would disable the
    notifier. On a TPU slice, libtpu numbers the processes, so ``jax.process_index()`` may differ
    from the process id in the environment (docs/own_trainer.md).
    """
    coordinator = contract.coordinator or f"127.0.0.1:{free_port()}"
    host = coordinator.rpartition(":")[0].strip("[]")
    _bypass_proxies(host)
    # The preemption service reports SIGTERM to ``interrupted``. The environment of a run disables
    # the service, because trainers that do not use it would ignore SIGTERM (docs/own_trainer.md).
    jax.config.update("jax_enable_preemption_service", True)
    jax.distributed.initialize(
        coordinator,
        contract.num_processes,
        contract.process_id,
        initialization_timeout=join_timeout,
        heartbeat_timeout_seconds=heartbeat_timeout,
        shutdown_timeout_seconds=SHUTDOWN_TIMEOUT_SECONDS,
        # The coordination service has no authentication, so do not listen on all interfaces.
        coordinator_bind_address=coordinator if _is_address(host) else None,
    )


def make_training_mesh(
    cfg: Config, devices: Sequence[jax.Device] | None = None
) -> jax.sharding.Mesh:
    """Create the mesh for training on ``devices`` (default: all) and make it the current mesh.

    Raises ConfigError if the batch, ``compute.fsdp`` or the attention does not fit the devices.
    """
    devices = jax.devices() if devices is None else devices
    attention.check(cfg)
    check_batch_divisible(cfg, len(devices), "devices")
    return make_mesh(devices, cfg.compute.fsdp)


def make_mesh(devices: Sequence[jax.Device], fsdp: int | None = None) -> jax.sharding.Mesh:
    """Create the mesh (data, fsdp) of ``devices`` and make it the current mesh.

    See ``device_grid`` for ``fsdp``.
    """
    mesh = jax.sharding.Mesh(
        device_grid(devices, fsdp), BATCH_AXES, axis_types=(jax.sharding.AxisType.Explicit,) * 2
    )
    jax.set_mesh(mesh)
    return mesh


def device_grid(devices: Sequence[jax.Device], fsdp: int | None) -> np.ndarray:
    """Return the devices as an array (data, fsdp) with fast links along the ``fsdp`` axis.

    ``fsdp`` is the length of the ``fsdp`` axis; None means all devices of a slice. The devices
    along that axis are neighbors: a box in the slice's torus. If ``fsdp`` is not a product of whole
    axes of the torus, the box covers only part of an axis.

    Only the ``data`` axis extends over several TPU slices, because it communicates once per step,
    and slices are connected only by the slower data center network.

    Raises ConfigError if ``fsdp`` does not divide the devices of a slice.
    """
    is_tpu = devices[0].platform == "tpu"
    # Use slice indexes only on TPUs: CPU devices of several hosts also have different indexes,
    # although they have no slices.
    slices = len({getattr(device, "slice_index", 0) for device in devices}) if is_tpu else 1
    slice_devices = len(devices) // slices
    fsdp = fsdp or slice_devices
    if slice_devices % fsdp:
        raise ConfigError(
            f"compute.fsdp: {fsdp} does not divide the number of devices"
            f"{' of a slice' if slices > 1 else ''} ({slice_devices})"
        )
    data = slice_devices // fsdp
    if not is_tpu:
        return np.array(devices).reshape(data, fsdp)
    if slices == 1:
        return mesh_utils.create_device_mesh((data, fsdp), devices, allow_split_physical_axes=True)
    return mesh_utils.create_hybrid_device_mesh(
        (data, fsdp), (slices, 1), devices, allow_split_physical_axes=True
    )


def check_equal(value: str, difference: str) -> None:
    """Raise ConfigError in every process unless ``value`` is the same in all processes.

    ``difference`` is the rest of the error "processes 1, 3 ...": how these processes differ from
    process 0, and the fix.
    """
    digest = np.frombuffer(hashlib.sha256(value.encode()).digest(), np.uint32)
    digests = multihost_utils.process_allgather(digest).reshape(-1, digest.size)
    others = [i for i, other in enumerate(digests) if (other != digests[0]).any()]
    if others:
        raise ConfigError(f"processes {', '.join(map(str, others))} {difference}")


def from_process_0(number: int | bool) -> int:
    """Return the ``number`` that process 0 passes; all processes must call this."""
    return int(multihost_utils.broadcast_one_to_all(np.int64(number)))


_any = jax.jit(jnp.any)


class SaveRequest:
    """Agreement of all processes to save at the same step when any of them requests it.

    Requests are collected every ``DELAY_CALLS`` training calls. Processes read whether any process
    has requested a save as many calls later. By then this has been computed, so devices never wait
    for it.
    """

    DELAY_CALLS = 8

    def __init__(self, mesh: jax.sharding.Mesh) -> None:
        self._sharding = jax.NamedSharding(mesh, jax.P(BATCH_AXES))
        self._pending: jax.Array | None = None

    def cancel(self) -> None:
        """Discard save requests that have not caused a save yet, because a save was just made.

        All processes must call this at the same step.
        """
        self._pending = None

    def should_save(self, call_number: int, is_requested: bool) -> bool:
        """Return whether to save now.

        Every process must call this before each training call. ``call_number`` is the number of
        that call; ``is_requested`` says whether this process requests a save.
        """
        if call_number % self.DELAY_CALLS:
            return False
        is_agreed = self._pending is not None and bool(self._pending)
        local_requests = np.full(self._sharding.mesh.size, is_requested)
        requests = jax.make_array_from_callback(
            local_requests.shape, self._sharding, lambda i: local_requests[i]
        )
        # Dispatch this computation now and read its result in a later call. A computation that is
        # dispatched in the later call would have to wait for all training steps before it.
        self._pending = _any(requests)
        return is_agreed


def interrupted(call: int) -> bool:
    """Return whether any process has received SIGTERM; True at the same call in all processes.

    Every process must call this before every training call (``compute.steps_per_call`` steps), with
    consecutive numbers ``call``. After a SIGTERM, JAX selects a number that no process has reached
    yet, and returns True only for that number.
    """
    return multihost_utils.reached_preemption_sync_point(call)


def free_port() -> int:
    """Return a free TCP port of the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _bypass_proxies(host: str) -> None:
    """Make gRPC connect to the coordinator directly, even if the environment sets a proxy."""
    if any(os.environ.get(f"{kind}_proxy") for kind in ("grpc", "https", "http")):
        # gRPC reads only the lower-case names of the proxy variables.
        excluded = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy", "")  # noqa: SIM112
        os.environ["no_grpc_proxy"] = ",".join(filter(None, [excluded, host]))  # noqa: SIM112


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
