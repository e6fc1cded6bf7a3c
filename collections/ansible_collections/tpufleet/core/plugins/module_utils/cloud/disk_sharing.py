"""Attachment of a data disk to existing TPUs: read-write to one worker, or read-only to many.

Only the Cloud TPU API v2alpha1 attaches a disk to one worker of a TPU. To change its mode, a disk
must be detached and attached again, as ``gcloud alpha compute tpus tpu-vm update`` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import errors
from .disks import READ_ONLY_MANY, read_disk
from .fields import Fields

if TYPE_CHECKING:
    from .nodes import Node
    from .tpu_api import TpuApi


@dataclass(frozen=True)
class Attachment:
    """A data disk of a TPU as the API reports it.

    ``source`` is the disk's API path, ``mode`` is READ_WRITE or READ_ONLY. ``workers`` has the
    numbers of the workers to which the disk is attached; empty if it is attached to all workers.
    """

    source: str
    mode: str
    workers: tuple[str, ...] = ()

    def body(self) -> dict[str, Any]:
        """Return the attachment in the API's JSON format."""
        workers = {"workerIds": list(self.workers)} if self.workers else {}
        return {"sourceDisk": self.source, "mode": self.mode, **workers}

    def attaches(self, zone: str, disk: str) -> bool:
        """Return whether this is an attachment of the disk with this zone and name.

        The project is not compared, because the API may name it by id or number.
        """
        return self.source.endswith(f"/zones/{zone}/disks/{disk}")


def attachments_of(api: TpuApi, node: Node) -> tuple[Attachment, ...]:
    """Return the TPU's data disks. Raises CloudError; Different if the TPU was recreated."""
    data = api.get_data_disks(node.zone, node.name)
    fields = Fields(data, f"TPU {node.where}")
    if node.id and fields.id() != node.id:
        raise errors.Different(
            f"can't read the disks of TPU {node.where}: it was recreated meanwhile. Run the "
            "playbook again"
        )
    return tuple(
        Attachment(
            attachment.text("sourceDisk"),
            attachment.identifier("mode") or "READ_WRITE",
            attachment.text_list("workerIds"),
        )
        for attachment in fields.nested_list("dataDisks")
    )


def ensure_detached(
    api: TpuApi, disk: str, nodes: Sequence[Node], *, deadline: float, check: bool = False
) -> bool:
    """Detach the disk from these TPUs, so that another TPU can write to it.

    The TPUs are in the disk's zone. The other arguments and the exceptions are described at
    ``ensure_writable``.
    """
    _check_unshared(api, nodes[0].zone, disk)
    changed = [_attach(api, node, disk, None, deadline, check) for node in nodes]
    return any(changed)


def ensure_writable(
    api: TpuApi, disk: str, writer: Node, *, deadline: float, check: bool = False
) -> bool:
    """Attach the disk to worker 0 of ``writer`` for writing.

    Before this call, the disk must be detached from all other TPUs (``ensure_detached``).

    Args:
        disk: the name of a disk in the TPU's zone. With ``check``, it need not exist yet.
        writer: the TPU whose worker writes.
        deadline: when all steps must be done, as a ``polling.clock`` time.
        check: change nothing; return whether anything would change.

    Returns whether anything changed. Raises CloudError; Different if the disk is a Hyperdisk that
    was shared before, because Google can't make such a disk writable again.
    """
    _check_unshared(api, writer.zone, disk)
    source = f"projects/{api.settings.project}/zones/{writer.zone}/disks/{disk}"
    desired = Attachment(source, "READ_WRITE", ("0",) if len(writer.endpoints) > 1 else ())
    return _attach(api, writer, disk, desired, deadline, check)


def _check_unshared(api: TpuApi, zone: str, disk: str) -> None:
    stored = read_disk(api.compute, zone, disk)
    if stored and stored.access_mode == READ_ONLY_MANY:
        raise errors.Different(
            f"the disk {stored.where} was filled before. Google can't make a Hyperdisk writable "
            "again after it was shared. Set another name in data_disks of fleet.yml, and fill that "
            "disk"
        )


def ensure_shared(
    api: TpuApi,
    disk: str,
    nodes: Sequence[Node],
    *,
    deadline: float,
    check: bool = False,
) -> bool:
    """Attach the disk read-only to all workers of these TPUs, which are in the disk's zone.

    A Hyperdisk gets the access mode READ_ONLY_MANY. ``deadline`` is when all steps must be done, as
    a ``polling.clock`` time. With ``check``, nothing is changed. Returns whether anything changed,
    or with ``check`` would change. Raises CloudError.
    """
    zone = nodes[0].zone
    stored = read_disk(api.compute, zone, disk)
    is_unshared = stored is not None and stored.access_mode not in ("", READ_ONLY_MANY)
    changes = []
    # A disk that one TPU writes to cannot be attached to another one: detach it everywhere first.
    for node in nodes:
        modes = {
            attachment.mode
            for attachment in attachments_of(api, node)
            if attachment.attaches(zone, disk)
        }
        if is_unshared or modes - {"READ_ONLY"}:
            changes.append(_attach(api, node, disk, None, deadline, check))
    if is_unshared and not check:
        api.compute.set_access_mode(zone, disk, READ_ONLY_MANY, deadline)
    source = f"projects/{api.settings.project}/zones/{zone}/disks/{disk}"
    desired = Attachment(source, "READ_ONLY")
    changes += [_attach(api, node, disk, desired, deadline, check) for node in nodes]
    return is_unshared or any(changes)


def _attach(
    api: TpuApi,
    node: Node,
    disk: str,
    desired: Attachment | None,
    deadline: float,
    check: bool,
) -> bool:
    """Attach the disk with the mode and workers of ``desired``; detach it if ``desired`` is None.

    Returns whether anything changed, or with ``check`` would change.
    """
    attachments = attachments_of(api, node)
    existing = [attachment for attachment in attachments if attachment.attaches(node.zone, disk)]
    if [(attachment.mode, attachment.workers) for attachment in existing] == (
        [(desired.mode, desired.workers)] if desired else []
    ):
        return False
    if check:
        return True
    others = [
        attachment.body() for attachment in attachments if not attachment.attaches(node.zone, disk)
    ]
    steps = ([others] if existing else []) + ([[*others, desired.body()]] if desired else [])
    for disks in steps:
        api.set_data_disks(node.zone, node.name, disks, deadline)
    return True
