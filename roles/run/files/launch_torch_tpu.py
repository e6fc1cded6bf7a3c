"""Environment variables that TorchTPU (torch_tpu) needs; they are equal on all workers of a run.

TorchTPU itself can set them only on Kubernetes and on a single host (torch.tpu.distributed,
set_tpu_launch_env). This module reads them from the TPU VM's metadata server.
"""

import ipaddress
import re
import sys

from worker.bucket_objects import ask

ATTRIBUTES = "http://169.254.169.254/computeMetadata/v1/instance/attributes/"
SECONDS = 10
BASE_PORT = 8070  # TorchTPU's default port of the first chip; later chips use the next ports
_BOUNDS = re.compile(r"^(CHIPS_PER_HOST_BOUNDS|HOST_BOUNDS): '(\d+),(\d+),(\d+)'$", re.MULTILINE)


def torch_tpu_variables(placement, count, attributes=ATTRIBUTES):
    """Return the environment variables that TorchTPU needs for ``count`` chips on each worker.

    ``placement`` says which worker of the run this is. ``attributes`` is the URL of the TPU's
    attributes on the metadata server. If they can't be read or do not match ``placement``, writes a
    message to stderr and returns no variables.
    """
    try:
        tpu_env, endpoints, index = (
            ask("GET", attributes + name, {"Metadata-Flavor": "Google"}, seconds=SECONDS).decode()
            for name in ("tpu-env", "worker-network-endpoints", "agent-worker-number")
        )
        hosts = addresses(endpoints)
        if (len(hosts), index.strip()) != (placement.workers, str(placement.worker)):
            raise ValueError(
                f"this is worker {placement.worker} of {placement.workers} of the run, but worker "
                f"{index.strip()[:9]} of {len(hosts)} of the TPU; both must be the same"
            )
        topology = shape(tpu_env)
    except (OSError, ValueError) as error:
        sys.stderr.write(
            f"tpufleet_launch: cannot set TorchTPU's variables ({error}). A trainer that uses "
            "TorchTPU needs them: ansible-playbook train.yml "
            "-e env='\"TORCH_TPU_TOPOLOGY=… TORCH_TPU_SLICEBUILDER_ADDRESSES=…\"'\n"
        )
        return {}
    return {
        "TPU_WORKER_HOSTNAMES": ",".join(hosts),
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": ",".join(
            f"{host}:{BASE_PORT + chip}" for host in hosts for chip in range(count)
        ),
        "TORCH_TPU_TOPOLOGY": topology,
        "TORCH_TPU_DEVICES_PER_HOST": str(count),
    }


def addresses(endpoints):
    """Return the workers' addresses from the attribute ``worker-network-endpoints``, in order.

    Raises ValueError if an entry has no IPv4 address.
    """
    hosts = [entry.rpartition(":")[2] for entry in endpoints.strip().split(",")]
    return [str(ipaddress.IPv4Address(entry)) for entry in hosts]


def shape(tpu_env):
    """Return the number of chips of the whole slice along x, y and z, such as ``2,2,4``.

    ``tpu_env`` is the metadata attribute ``tpu-env``. Raises ValueError if the bounds
    of a host (in chips) or of the slice (in hosts) are missing.
    """
    bounds = {match[1]: match.groups()[1:] for match in _BOUNDS.finditer(tpu_env)}
    if len(bounds) != 2:
        raise ValueError(
            "the metadata attribute tpu-env has no valid CHIPS_PER_HOST_BOUNDS or HOST_BOUNDS"
        )
    pairs = zip(*bounds.values())  # noqa: B905 - Python 3.9
    return ",".join(str(int(chips) * int(hosts)) for chips, hosts in pairs)
