"""The version v1 beside v2: the methods that read, which ``gcloud compute tpus list`` calls.

Those that create and change are left out: v1 is for TPU Nodes, which Google no longer offers.
"""

from collections.abc import Iterable
from dataclasses import replace

from localcloud.api.routing import Route

_READ = ("nodes.list", "nodes.get", "operations.list", "operations.get")


def v1_twins(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Return the methods of v2 by the paths of v1 that list and get TPUs and operations."""
    return tuple(
        replace(route, template=route.template.replace("/v2/", "/v1/", 1))
        for route in routes
        if route.name in _READ and route.template.startswith("/v2/")
    )
