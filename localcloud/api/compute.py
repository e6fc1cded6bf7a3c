"""The part of the Compute API v1 that TPU clients use, on the same port as the Cloud TPU API.

As at Google, requests are validated, changes return operations, and a resource in use cannot be
deleted. But the resources have little effect: firewall rules filter no packets, all networks stand
for the machines' one network, and disks become block devices only on qemu machines.
"""

from collections.abc import Callable
from dataclasses import replace

from localcloud.api.compute_catalog import MachineTypes, Places
from localcloud.api.compute_disks import Disks
from localcloud.api.compute_firewalls import Firewalls
from localcloud.api.compute_frame import Frame
from localcloud.api.compute_networks import Networks
from localcloud.api.compute_operations import ComputeOperations
from localcloud.api.compute_project import ComputeProject
from localcloud.api.database import Database
from localcloud.api.project import Project
from localcloud.api.routing import Route
from localcloud.machines.interface import Machines


def compute_routes(
    database: Database,
    project: Project,
    endpoint: str,
    machines: Machines,
    changed: Callable[[], None],
) -> tuple[Route, ...]:
    """Return the HTTP routes of the Compute API.

    ``endpoint`` is the server's URL; ``changed`` is called when the project's metadata has changed.
    """
    name = project.parent.partition("/")[2]
    account = f"compute@{name}.iam.gserviceaccount.com"
    frame = Frame(database, project, endpoint, f"fleet@{name}.iam.gserviceaccount.com")
    resources = (
        *Networks(frame, machines.addresses).routes(),
        *Firewalls(frame).routes(),
        *Disks(frame, endpoint, machines).routes(),
        *ComputeProject(frame, account, changed).routes(),
    )
    return (
        *(
            route
            if route.verb == "GET"
            else replace(route, handler=frame.kept(route.handler), begins=True)
            for route in resources
        ),
        *ComputeOperations(frame).routes(),
        *Places(frame).routes(),
        *MachineTypes(frame).routes(),
    )
