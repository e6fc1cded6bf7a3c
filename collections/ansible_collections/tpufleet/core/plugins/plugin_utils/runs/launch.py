"""The launches of a play, built from its plan: one LaunchSpec for each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...module_utils.worker.launch_spec import LaunchSpec
from ...module_utils.worker.node_identity import NodeIdentity
from ...module_utils.worker.run import RunError
from .run_plan import Placement, with_overrides

Placements = Mapping[str, Placement]
"""The placement of each host's process, by the host's inventory name."""
Nodes = Mapping[str, NodeIdentity]
"""The TPU of each host, by the host's inventory name."""


def new_launches(
    common: Mapping[str, Any],
    command: Sequence[str],
    overrides: Sequence[str],
    checkpoints: str,
    outputs: str,
    placements: Placements,
    nodes: Nodes,
) -> dict[str, LaunchSpec]:
    """Return the launch of each run of the play, by the run's name.

    Raises RunError.

    Args:
        common: the LaunchSpec fields that all runs share, including ``env``.
        command: the trainer's command; ``{set}`` in it is replaced by the settings of the run.
        overrides: settings (key=value) of all runs; the settings of a sweep are appended.
        checkpoints: the path or URI below which each run has a directory for its checkpoints.
        outputs: the directory or URL below which each run stores output.
        placements: the placement of each host's process.
        nodes: the TPU of each host.
    """
    return {
        placement.run: LaunchSpec(
            **{**common, "env": {**common["env"], **placement.env}},
            run=placement.run,
            command=with_overrides(command, (*overrides, *placement.overrides)),
            checkpoints=f"{checkpoints.rstrip('/')}/{placement.run}",
            outputs=stored_output_url(outputs, placement.run),
            tpu=placement.tpu,
            chip=placement.chip,
            **placement_fields(placement.run, placements, nodes),
        )
        for placement in placements.values()
        if placement.process_id == 0
    }


def stored_output_url(outputs: str, run: str) -> str:
    """Return the URL below ``outputs`` for a run's output; empty if ``outputs`` is a directory.

    Raises RunError for a URL that is not ``gs://``.
    """
    if outputs.startswith("gs://"):
        return f"{outputs.rstrip('/')}/{run}"
    if "://" in outputs:
        raise RunError(
            f"outputs={outputs}: expected gs:// or a directory. Name one: "
            "ansible-playbook train.yml -e outputs=gs://BUCKET/runs"
        )
    return ""


def relaunched(
    recorded: LaunchSpec, outputs: str, placements: Placements, nodes: Nodes
) -> LaunchSpec:
    """Return the recorded launch of a run, moved to its current TPU and workers.

    If the recorded launch stores output only on the controller and ``outputs`` is in a bucket, the
    returned launch stores output in the bucket.
    """
    outputs_url = recorded.outputs or stored_output_url(outputs, recorded.run)
    return replace(
        recorded, outputs=outputs_url, **placement_fields(recorded.run, placements, nodes)
    )


def placement_fields(run: str, placements: Placements, nodes: Nodes) -> dict[str, Any]:
    """Return the LaunchSpec fields that describe on which workers and TPUs a run is placed.

    ``placements`` and ``nodes`` have an entry for each host of the play.
    """
    own_placements = {
        host: placement for host, placement in placements.items() if placement.run == run
    }
    hosts = sorted(own_placements, key=lambda host: own_placements[host].process_id)
    run_nodes = {nodes[host] for host in hosts if host in nodes}
    return {
        "workers": len(hosts),
        "slices": own_placements[hosts[0]].slices,
        "coordinator_host": own_placements[hosts[0]].coordinator_host,
        "placement": tuple(hosts),
        "nodes": tuple(sorted(run_nodes, key=lambda node: (node.zone, node.name))),
    }


def launch_for(launch: Mapping[str, Any], process_id: int) -> dict[str, Any]:
    """Return a copy of a launch (JSON) to send to the process with this id, with fewer host names.

    Process 0 waits for all processes and reports which are missing, so it gets all host names. Each
    other process waits only for process 0 and gets two names: the host of process 0 and its own.
    With all names, the data sent would grow with the square of the number of workers.
    """
    names, own_id = launch["placement"], int(process_id)
    sent_names = [
        name if number in (0, own_id) else "" for number, name in enumerate(names[: own_id + 1])
    ]
    return {**launch, "placement": sent_names if own_id else names}
