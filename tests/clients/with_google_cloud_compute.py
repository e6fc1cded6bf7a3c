"""Calls to a local cloud's API with the clients of google-cloud-compute.

Prints the results as JSON. Needs the environment of requirements/clients.lock and the proxy of
google_front.py.
"""

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from google.api_core import exceptions
from google.cloud import compute_v1

PROJECT, ZONE = "local-fleet", "us-central2-b"
HERE = {"project": PROJECT, "zone": ZONE}
PATIENCE_S = 60


def refused(call: Callable[[], Any]) -> str:
    """Return the name of the exception that the call raises, or ``accepted`` if there is none."""
    try:
        call()
    except exceptions.GoogleAPICallError as error:
        return type(error).__name__
    return "accepted"


def scopes(pager: Iterable[tuple[str, Any]], collection: str) -> dict[str, list[str]]:
    """Return the names of the resources in each scope, such as ``zones/us-central2-b``.

    ``pager`` yields the scopes of an aggregated list, each with an object whose field
    ``collection`` has the resources.
    """
    found = {scope: [it.name for it in getattr(part, collection)] for scope, part in pager}
    return {scope: names for scope, names in found.items() if names}


def main() -> None:
    """Send requests about disks, networks, firewalls, machine types and the project."""
    disks, machines = compute_v1.DisksClient(), compute_v1.MachineTypesClient()
    wanted = compute_v1.Disk(name="mine", size_gb=10, labels={"team": "a"})
    disks.insert(**HERE, disk_resource=wanted).result(PATIENCE_S)
    made = disks.get(**HERE, disk="mine")
    labels = compute_v1.ZoneSetLabelsRequest(
        labels={"team": "b"}, label_fingerprint=made.label_fingerprint
    )

    def relabel() -> Any:
        return disks.set_labels(**HERE, resource="mine", zone_set_labels_request_resource=labels)

    relabel().result(PATIENCE_S)
    found = {
        "labels": dict(disks.get(**HERE, disk="mine").labels),
        "stale_labels": refused(relabel),
        "disks": scopes(disks.aggregated_list(project=PROJECT), "disks"),
        "machine_types": [it.name for it in machines.list(**HERE)],
        "chips": machines.get(**HERE, machine_type="ct6e-standard-4t")
        .accelerators[0]
        .guest_accelerator_count,
        "machine_types_everywhere": len(
            scopes(machines.aggregated_list(project=PROJECT), "machine_types")
        ),
        "subnetworks": scopes(
            compute_v1.SubnetworksClient().aggregated_list(project=PROJECT), "subnetworks"
        ),
        "networks": [it.name for it in compute_v1.NetworksClient().list(project=PROJECT)],
        "unknown_network": refused(
            lambda: compute_v1.NetworksClient().get(project=PROJECT, network="nowhere")
        ),
        "project": compute_v1.ProjectsClient().get(project=PROJECT).name,
        "zones": ZONE in [it.name for it in compute_v1.ZonesClient().list(project=PROJECT)],
    }
    firewalls = compute_v1.FirewallsClient()
    rule = compute_v1.Firewall(
        name="mine", allowed=[compute_v1.Allowed(I_p_protocol="tcp", ports=["22"])]
    )
    firewalls.insert(project=PROJECT, firewall_resource=rule).result(PATIENCE_S)
    found["firewalls"] = [it.name for it in firewalls.list(project=PROJECT)]
    firewalls.delete(project=PROJECT, firewall="mine").result(PATIENCE_S)
    disks.delete(**HERE, disk="mine").result(PATIENCE_S)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
