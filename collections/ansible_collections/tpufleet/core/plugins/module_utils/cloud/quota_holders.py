"""Which quota is used up, and what holds it: the dead first, for those can go at once.

Quota is held by every TPU that lives and by every queued resource until it is deleted. One quota is
that of a generation, on demand or not, in a zone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from . import tpu_errors as errors
from .tpu_api import TpuApi
from .tpu_nodes import DEAD_STATES, Node, parse_node
from .tpu_requests import Request, parse_request
from .tpu_shapes import generation_of, shape_of


@dataclass(frozen=True)
class Quota:
    """Whose chips are counted together. An empty generation stands for all."""

    generation: str
    spot: bool
    zone: str

    @classmethod
    def of(cls, kind: str, spot: bool, zone: str) -> Quota:
        """Give the quota of an accelerator type; ``spot`` is of preemptible ones, too."""
        return cls(generation_of(kind), spot, zone)

    @property
    def words(self) -> str:
        """Say it for people: ``v4 spot in us-central2-b``."""
        return f"{self.generation} {'spot' if self.spot else 'on demand'} in {self.zone}"


def mend_words(request: Request) -> str:
    """Give the command that removes a queued resource."""
    return f"ansible-playbook playbooks/delete.yml -e tpu={request.name} -e zone={request.zone}"


def holders(quota: Quota, nodes: Iterable[Node], requests: Iterable[Request]) -> str:
    """Say what holds a quota, in one line: dead queued resources by name, then what lives."""
    nodes, requests = list(nodes), list(requests)
    there = {(node.zone, node.name) for node in nodes if node.state not in DEAD_STATES}
    mine = [
        request
        for request in requests
        if Quota.of(request.accelerator_type, request.tier == "spot", request.zone) == quota
    ]
    dead = [
        f"the dead queued resource {request.name} ({request.state}, {request.chips} chips: "
        f"{mend_words(request)})"
        for request in mine
        if request.dead and not any((request.zone, name) in there for name in request.nodes)
    ]
    living = [
        f"TPU {node.name} ({_chips(node.accelerator_type)} chips)"
        for node in nodes
        if node.state not in DEAD_STATES
        and Quota.of(node.accelerator_type, node.spot or node.preemptible, node.zone) == quota
    ]
    waiting = [
        f"queued resource {request.name} ({request.state}, {request.chips} chips)"
        for request in mine
        if not request.dead and not any((request.zone, name) in there for name in request.nodes)
    ]
    what = [*dead, *living, *waiting]
    return (
        f"{quota.words} is held by {', '.join(what)}"
        if what
        else f"{quota.words}: nobody holds any"
    )


class Explainer:
    """Adds to quota errors what holds the quota; looks once for each. Safe for several threads."""

    def __init__(self, api: TpuApi) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._told: set[Quota] = set()

    def explained(self, refused: errors.QuotaError, quota: Quota) -> errors.QuotaError:
        """Give the error with what holds the quota. Where that can't be seen, it says so."""
        with self._lock:
            if quota in self._told:
                return errors.QuotaError(f"{refused}; it is the quota {quota.words} again")
            self._told.add(quota)
        return errors.QuotaError(f"{refused}; {self._seen(quota)}")

    def _seen(self, quota: Quota) -> str:
        try:
            nodes = [parse_node(node) for node in self._api.list_nodes((quota.zone,)).nodes]
            requests = [parse_request(each) for each in self._api.list_requests((quota.zone,))]
        except errors.TpuApiError as error:
            return f"what holds it can't be seen ({error})"
        return holders(quota, nodes, requests)


def _chips(kind: str) -> int:
    shape = shape_of(kind)
    return shape.chips if shape else 0
