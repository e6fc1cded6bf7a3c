"""From a plan's processes to launches: what each run is, and what each worker is given to start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .record import LaunchSpec, NodeIdentity
from .run_plan import Part, with_overrides

Parts = Mapping[str, Part]
"""The process of each host, by the host's inventory name."""
Nodes = Mapping[str, NodeIdentity]
"""The TPU of each host."""


@dataclass(frozen=True)
class LaunchOptions:
    """What all runs of one play have in common.

    ``requirements`` is the digest of the lock file; each run's checkpoints go to a directory of its
    own in ``checkpoints``; ``env`` holds nothing secret. ``overrides`` (key=value) come before
    those of a sweep, in place of ``{set}`` in the command.
    """

    release: str
    requirements: str
    jax_requirements: str
    command: tuple[str, ...]
    checkpoints: str
    overrides: tuple[str, ...] = ()
    config: str | None = None
    config_name: str = "config.yml"
    compile_cache: str = ""
    volatile_checkpoints: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


def new_launches(options: LaunchOptions, parts: Parts, nodes: Nodes) -> dict[str, LaunchSpec]:
    """Return the launch of each run of the play, by the run's name. Raises RunError."""
    return {
        part.run: LaunchSpec(
            release=options.release,
            requirements=options.requirements,
            jax_requirements=options.jax_requirements,
            command=with_overrides(options.command, (*options.overrides, *part.extra)),
            config=options.config,
            config_name=options.config_name,
            env={**options.env, **part.env},
            checkpoints=f"{options.checkpoints.rstrip('/')}/{part.run}",
            compile_cache=options.compile_cache,
            volatile_checkpoints=options.volatile_checkpoints,
            tpu=part.tpu,
            chip=part.chip,
            workers=part.num_processes,
            nodes=nodes_of(part.run, parts, nodes),
        )
        for part in parts.values()
        if part.process_id == 0
    }


def relaunched(recorded: LaunchSpec, run: str, parts: Parts, nodes: Nodes) -> LaunchSpec:
    """Return a recorded launch on the TPU that the run has now; all else stays as it was."""
    workers = sum(part.run == run for part in parts.values())
    return replace(recorded, workers=workers, nodes=nodes_of(run, parts, nodes))


def nodes_of(run: str, parts: Parts, nodes: Nodes) -> tuple[NodeIdentity, ...]:
    """Return the TPUs of a run, each once."""
    found = {nodes[host] for host, part in parts.items() if part.run == run and host in nodes}
    return tuple(sorted(found, key=lambda node: (node.zone, node.name)))


def starts(
    parts: Mapping[str, Mapping[str, Any]],
    launches: Mapping[str, Mapping[str, Any]],
    wants: Mapping[str, Mapping[str, Any]],
    meet_seconds: int,
) -> dict[str, dict[str, Any]]:
    """Return each worker's arguments of the module run: ``run``, ``state``, ``launch``.

    ``launches`` are LaunchSpec.fields() by run, ``wants`` what run_want recorded by run.
    """
    peers: dict[str, dict[int, str]] = {}
    for host, part in parts.items():
        peers.setdefault(part["run"], {})[part["process_id"]] = host
    names = {run: [host for _, host in sorted(found.items())] for run, found in peers.items()}
    found = {}
    for host, part in parts.items():
        run = part["run"]
        launch, want = launches[run], wants[run]
        found[host] = {
            "run": run,
            "state": "launched" if want["launch"] else "ready",
            "launch": {
                "attempt": want["record"]["attempt"],
                "release": launch["release"],
                "lock_digest": launch["requirements"],
                "config": launch["config"],
                "command": launch["command"],
                "coordinator": f"{part['leader']}:{want.get('port', 0)}",
                "num_processes": part["num_processes"],
                "process_id": part["process_id"],
                "peers": names[run],
                "meet_seconds": meet_seconds,
                "checkpoints": launch["checkpoints"],
                "compile_cache": launch["compile_cache"],
                "chip": part["chip"],
                "volatile_checkpoints": launch["volatile_checkpoints"],
                "finished_attempt": want.get("finished_attempt", 0),
            },
        }
    return found
