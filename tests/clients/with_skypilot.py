"""Calls to a local cloud's API with SkyPilot's provisioner of TPU VMs.

Prints the results as JSON. Needs the environment of requirements/clients.lock and
requirements/clients-skypilot.lock, and the proxy of google_front.py.
"""

import json
import sys
from typing import Any

from sky.provision.gcp.instance_utils import GCPTPUVMInstance as Tpu

PROJECT, ZONE = "local-fleet", "us-central2-b"
# The fields that SkyPilot's template for clusters on Google Cloud sets for a TPU VM.
CONFIG = {
    "acceleratorType": "v4-16",
    "runtimeVersion": "tpu-vm-base",
    "metadata": {"ssh-keys": "me:ssh-ed25519 AAAA me"},
    "networkConfig": {"enableExternalIps": True},
    "schedulingConfig": {"preemptible": True},
}
ONE = {**CONFIG, "acceleratorType": "v4-8", "schedulingConfig": {"preemptible": False}}


def create(name: str, config: dict[str, Any]) -> tuple[Any, list[str]]:
    """Create one TPU VM as SkyPilot does for a cluster; return the errors and the TPU's name."""
    return Tpu.create_instances(
        name, PROJECT, ZONE, config, {}, count=1, total_count=1, include_head_node=True
    )


def listed(**filters: Any) -> dict[str, Any]:
    """Return the TPU VMs that SkyPilot finds with these filters: ``labels``, ``states``."""
    return Tpu.filter(PROJECT, ZONE, filters.get("labels"), filters.get("states"))


def wait(operation: dict[str, Any]) -> None:
    """Wait for an operation as SkyPilot does."""
    Tpu.wait_for_operation(operation, PROJECT, zone=ZONE)


def main() -> None:
    """Create, find, change, stop, start and delete TPU VMs, also with a queued resource."""
    errors, _ = create("cluster", CONFIG)
    (name,) = listed()
    info = Tpu.get_instance_info(PROJECT, ZONE, name)
    Tpu.add_network_tag_if_not_exist(PROJECT, ZONE, name, "mine")
    Tpu.set_labels(PROJECT, ZONE, name, {"team": "a"})
    found: dict[str, Any] = {
        "errors": errors,
        "addresses": [bool(it.internal_ip and it.external_ip) for it in info],
        "tags": listed(labels={"team": "a"})[name]["tags"],
        "vpc": Tpu.get_vpc_name(PROJECT, ZONE, name),
        "ready": len(listed(states=["READY"])),
    }
    wait(Tpu.terminate(PROJECT, ZONE, name))

    create("single", ONE)
    (name,) = listed()
    wait(Tpu.stop(PROJECT, ZONE, name))
    found["stopped"] = len(listed(states=["STOPPED"]))
    Tpu.start_instance(name, PROJECT, ZONE)
    found["started"] = len(listed(states=["READY"]))
    wait(Tpu.terminate(PROJECT, ZONE, name))

    errors, names = create("queue", {**CONFIG, "gcp_queued_resource": True})
    found["queued_errors"], found["queued"] = (
        errors,
        names == [it.rpartition("/")[2] for it in listed()],
    )
    strange = {**CONFIG, "networkConfig": {"network": "nowhere"}}
    errors, _ = create("strange", strange)
    found["unknown_network"] = [it["message"] for it in errors]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
