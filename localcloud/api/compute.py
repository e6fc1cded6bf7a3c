"""The Compute API v1, as far as TPU clients use it: beside the Cloud TPU API, on the same port.

Firewall rules, networks and disks are records here: rules filter nothing, every network is the
machines' one, and a disk has a block device on machines with a kernel of their own alone. What is
kept to is what a client sees of them: their checks, their operations, and who uses what.
"""

from collections.abc import Callable
from dataclasses import replace

from localcloud.api.compute_disks import Disks
from localcloud.api.compute_firewalls import Firewalls
from localcloud.api.compute_frame import Frame
from localcloud.api.compute_machine_types import MachineTypes
from localcloud.api.compute_networks import Networks
from localcloud.api.compute_operations import ComputeOperations
from localcloud.api.compute_places import Places
from localcloud.api.compute_project import ComputeProject
from localcloud.api.database import Database
from localcloud.api.project import Project
from localcloud.api.routing import Route
from localcloud.machines.seam import Machines


def compute_routes(
    database: Database,
    project: Project,
    endpoint: str,
    machines: Machines,
    changed: Callable[[], None],
) -> tuple[Route, ...]:
    """Give the methods of Compute with their paths.

    ``endpoint`` is the server's; ``changed`` is called after the project's metadata did.
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
