"""Calls to a local cloud's API with google-cloud-tpu.

Usage: ``with_google_cloud_tpu.py ENDPOINT CERT KEY``. Prints the results as JSON.
Needs the environment of requirements/clients.lock.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.api_core import exceptions
from google.cloud import tpu_v1, tpu_v2, tpu_v2alpha1
from google.protobuf import field_mask_pb2

# Do not import tests.clients.grpc_bridge: this file runs as a script, and only its own directory
# is in sys.path, not the repository's root.
from grpc_bridge import Bridge

HERE = "projects/local-fleet/locations/us-central2-b"
DISK = "projects/local-fleet/zones/us-central2-b/disks/data"
PATIENCE_S = 60


def refused(call: Callable[[], Any]) -> str:
    """Return the name of the exception that the client raises, or ``accepted``."""
    try:
        call()
    except exceptions.GoogleAPICallError as error:
        return type(error).__name__
    return "accepted"


def stable(tpu: Any) -> dict[str, Any]:
    """Create, change, stop, start and delete a TPU with v2; send two invalid requests."""
    node = tpu_v2.Node(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base")
    operation = tpu.create_node(parent=HERE, node_id="one", node=node)
    pending = operation.operation.done
    made = operation.result(PATIENCE_S)
    metadata = operation.metadata
    labelled = tpu_v2.Node(name=made.name, labels={"team": "a"})
    mask = field_mask_pb2.FieldMask(paths=["labels"])
    changed = tpu.update_node(node=labelled, update_mask=mask).result(PATIENCE_S)
    stopped = tpu.stop_node(tpu_v2.StopNodeRequest(name=made.name)).result(PATIENCE_S)
    tpu.start_node(tpu_v2.StartNodeRequest(name=made.name)).result(PATIENCE_S)
    keys = tpu.get_guest_attributes(tpu_v2.GetGuestAttributesRequest(name=made.name))
    listed = [(it.name.rpartition("/")[2], it.state.name) for it in tpu.list_nodes(parent=HERE)]
    strange = tpu_v2.Node(node)
    strange.network_config.network = "nowhere"

    def create(node_id: str, wanted: Any) -> Callable[[], Any]:
        return lambda: tpu.create_node(parent=HERE, node_id=node_id, node=wanted)

    found = {
        "pending": pending,
        "version": metadata.api_version,
        "labels": dict(changed.labels),
        "stopped": stopped.state.name,
        "keys": len(keys.guest_attributes),
        "listed": listed,
        "network": made.network_config.network,
        "unknown_network": refused(create("two", strange)),
        "bad_id": refused(create("My_TPU", node)),
        "types": len(list(tpu.list_accelerator_types(parent=HERE))) > 0,
        "runtimes": len(list(tpu.list_runtime_versions(parent=HERE))) > 0,
    }
    tpu.delete_node(name=made.name).result(PATIENCE_S)
    found["left"] = len(list(tpu.list_nodes(parent=HERE)))
    return found


def alpha(tpu: Any) -> dict[str, Any]:
    """Use features that only v2alpha1 has: tiers, more node fields, disks added to a TPU."""
    node = tpu_v2alpha1.Node(
        accelerator_type="v4-8",
        runtime_version="tpu-ubuntu2204-base",
        autocheckpoint_enabled=True,
        boot_disk_config=tpu_v2alpha1.BootDiskConfig(
            customer_encryption_key=tpu_v2alpha1.CustomerEncryptionKey(kms_key_name="mine"),
            enable_confidential_compute=True,
        ),
    )
    queued = tpu_v2alpha1.QueuedResource
    tiers = {
        "best": queued(best_effort=queued.BestEffort()),
        "reserved": queued(guaranteed=queued.Guaranteed(reserved=True)),
    }
    found: dict[str, Any] = {}
    for name, request in tiers.items():
        spec = queued.Tpu.NodeSpec(parent=HERE, node_id=name, node=node)
        request.tpu = queued.Tpu(node_spec=[spec])
        operation = tpu.create_queued_resource(
            parent=HERE, queued_resource=request, queued_resource_id=name
        )
        answer = operation.result(PATIENCE_S)
        found[name] = (
            type(answer).to_dict(answer, including_default_value_fields=False)["tpu"] != {}
        )
        found[f"{name}_version"] = operation.metadata.api_version
    operation = tpu.create_node(parent=HERE, node_id="one", node=node)
    made = operation.result(PATIENCE_S)
    made.data_disks.append(tpu_v2alpha1.AttachedDisk(source_disk=DISK, mode="READ_ONLY"))
    mask = field_mask_pb2.FieldMask(paths=["data_disks"])
    attached = tpu.update_node(node=made, update_mask=mask).result(PATIENCE_S)
    event = tpu_v2alpha1.SimulateMaintenanceEventRequest(name=made.name, worker_ids=["0"])
    tpu.simulate_maintenance_event(event).result(PATIENCE_S)
    requests = {it.name.rpartition("/")[2]: it for it in tpu.list_queued_resources(parent=HERE)}
    return {
        **found,
        "version": operation.metadata.api_version,
        "autocheckpoint": made.autocheckpoint_enabled,
        "confidential": made.boot_disk_config.enable_confidential_compute,
        "created_by": made.api_version.name,
        "disks": [disk.source_disk for disk in attached.data_disks],
        "best_effort": "best_effort" in requests["best"],
        "guaranteed_reserved": requests["reserved"].guaranteed.reserved,
    }


def old(tpu: Any) -> dict[str, Any]:
    """List TPUs (created with the other versions), types and software versions with v1."""
    return {
        "nodes": sorted(it.name.rpartition("/")[2] for it in tpu.list_nodes(parent=HERE)),
        "types": len(list(tpu.list_accelerator_types(parent=HERE))) > 0,
        "versions": len(list(tpu.list_tensor_flow_versions(parent=HERE))) > 0,
    }


def main(endpoint: str, certificate: Path, key: Path) -> None:
    """Use the client of each version of the API, each through its own gRPC bridge."""
    pem = (key.read_bytes(), certificate.read_bytes())
    found = {}
    for package, use in ((tpu_v2, stable), (tpu_v2alpha1, alpha), (tpu_v1, old)):
        version = package.__name__.rpartition("_")[2]
        bridge = Bridge(endpoint, version, package, pem)
        client = package.TpuClient(client_options={"api_endpoint": f"localhost:{bridge.port}"})
        found[version] = use(client)
        bridge.stop()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
