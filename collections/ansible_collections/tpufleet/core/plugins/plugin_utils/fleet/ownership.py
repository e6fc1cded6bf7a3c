"""Ownership: which TPUs belong to this fleet, and which may be deleted unattended.

create.yml sets the label ``tpufleet-fleet`` to the name of the fleet (the inventory's option
``fleet_name``). A TPU with another label or none is foreign. Rules for labels:
https://cloud.google.com/resource-manager/docs/labels-overview#requirements.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING

from ...module_utils.cloud.fleet_name import LABEL

if TYPE_CHECKING:
    from ...module_utils.cloud.nodes import Node
    from ...module_utils.cloud.queued_resource import QueuedResource
    from ...module_utils.worker.node_identity import NodeIdentity

#: Inventory group of the hosts of TPUs that do not belong to this fleet.
FOREIGN_GROUP = "foreign"


class Owner(Enum):
    """Owner of a TPU according to its label."""

    THIS_FLEET = "this fleet"
    OTHER_FLEET = "another fleet"
    NOBODY = "nobody"


def owner_of(labels: Mapping[str, str], fleet_name: str) -> Owner:
    """Return the owner of a TPU with these labels."""
    name = labels.get(LABEL, "")
    if not name:
        return Owner.NOBODY
    return Owner.THIS_FLEET if name == fleet_name else Owner.OTHER_FLEET


def is_ours(labels: Mapping[str, str], fleet_name: str) -> bool:
    """Return whether a TPU with these labels belongs to this fleet."""
    return owner_of(labels, fleet_name) is Owner.THIS_FLEET


def foreign_text(labels: Mapping[str, str], fleet_name: str) -> str:
    """Return why a TPU with these labels is foreign; empty if it belongs to this fleet."""
    owner = owner_of(labels, fleet_name)
    if owner is Owner.OTHER_FLEET:
        return f"it belongs to the fleet {labels[LABEL]!r:.80}, not to {fleet_name}"
    return f"it has no label {LABEL}" if owner is Owner.NOBODY else ""


def adoption_blocker(node: Node, fleet_name: str, adopt: bool) -> str:
    """Return why create.yml must not change an existing TPU; empty if it may change it.

    With ``adopt``, create.yml may change a TPU without an owner: the TPU then belongs to this
    fleet.
    """
    owner = owner_of(node.labels, fleet_name)
    if owner is Owner.OTHER_FLEET:
        return (
            f"TPU {node.where}: {foreign_text(node.labels, fleet_name)}. "
            "Choose another name: $EDITOR inventory/*/group_vars/all/fleet.yml"
        )
    if owner is Owner.NOBODY and not adopt:
        return (
            f"TPU {node.where}: it exists, but this fleet did not create it (no label {LABEL}). "
            f"Adopt it: ansible-playbook playbooks/create.yml -e tpu={node.name} -e adopt=true"
        )
    return ""


def request_blocker(request: QueuedResource, fleet_name: str) -> str:
    """Return why delete.yml must not delete a queued resource that the user has not named.

    Returns an empty string if the resource has the label of this fleet (``fleet_name``).
    """
    if is_ours(request.labels, fleet_name):
        return ""
    return (
        f"queued resource {request.where}: this fleet did not create it (no label "
        f"{LABEL}={fleet_name}). To delete it, name it: ansible-playbook playbooks/delete.yml "
        f"-e tpu={request.name} -e zone={request.zone}"
    )


def deletion_blocker(node: Node, expected: NodeIdentity, fleet_name: str) -> str:
    """Return why a TPU must not be deleted without a user's confirmation; empty if it may be.

    Only a TPU with the expected name, zone and id and with the label of this fleet may be deleted
    without confirmation.
    """
    where = f"TPU {node.where}"
    if (node.name, node.zone) != (expected.name, expected.zone):
        return f"{where}: not the expected TPU ({expected.name}, {expected.zone})"
    if not node.id or node.id != expected.id:
        return (
            f"{where}: another TPU has this name now (id {node.id or 'unknown'}, expected "
            f"{expected.id})"
        )
    why = foreign_text(node.labels, fleet_name)
    return f"{where}: {why}" if why else ""
