"""The subcommand ``fault``: inject reproducible faults into a running local cloud."""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from localcloud import client
from localcloud.api.catalog import PARENT
from localcloud.api.node_message import HEALTHS
from localcloud.failure import CloudError
from localcloud.local_cloud import LocalCloud

_FAULTS = "/_localcloud/faults"
_ZONE_HELP = "the TPU's zone, if several zones have a TPU of that name"
PROGRAM = "python -m localcloud"


def examples(*commands: str) -> str:
    """Return the last part of a help text, which shows ``commands`` as examples."""
    return "examples:\n" + "".join(f"  {PROGRAM} {command}\n" for command in commands)


EXAMPLES = {
    "show": ("show",),
    "clear": ("clear",),
    "worker": ("worker demo-w1 hang", "worker demo-w1 resume", "worker demo-w0 late 60"),
    "unreachable": ("unreachable us-central2-b europe-west4-a",),
    "error": ("error nodes.create 429 --times 2", "error 'nodes.*' 503 --for 30"),
    "outcome": ("outcome compute.disks.insert QUOTA_EXCEEDED --times 1",),
    "latency": ("latency nodes.list 2.5", "latency '*' 1 --zone us-central2-b"),
    "drop": ("drop nodes.create --when after --times 1",),
    "mix": ("mix 0.3 --seed 7", "mix 0.1 --method 'nodes.*' --codes 500 503 --no-drops"),
    "capacity": ("capacity --type 'v4-*' --for 120",),
    "quota": ("quota 8 --generation v4 --tier spot",),
    "reuse-addresses": ("reuse-addresses --times 1",),
    "health": ("health demo UNHEALTHY_TENSORFLOW --symptom OUT_OF_MEMORY", "health demo HEALTHY"),
    "maintenance": ("maintenance demo --worker 1",),
}


# For each action on a worker: its help text, the method of the local cloud's API that performs the
# action, and the fault to name in the request, if any.
_WORKER_ACTIONS = {
    "hang": ("freeze its machine, so that it does not respond", "inject", "hang"),
    "resume": ("end a hang: its processes continue", "clear", "hang"),
    "cut": ("cut its network; its processes continue", "inject", "cut"),
    "reconnect": ("connect its network again after cut", "clear", "cut"),
    "fill-disk": ("fill its disk", "inject", "full-disk"),
    "free-disk": ("free its disk again after fill-disk", "clear", "full-disk"),
    "power-off": ("power it off; its disk stays and its TPU stays READY", "powerOff", None),
    "power-on": ("boot it in the background", "powerOn", None),
}


def add_fault_parsers(parser: argparse.ArgumentParser) -> None:
    """Add a subparser for each fault to the parser of the subcommand ``fault``."""
    subparsers = parser.add_subparsers(dest="fault", required=True, metavar="FAULT")

    def add_fault(
        name: str, text: str, *, is_limited: bool = False, is_counted: bool = True
    ) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=examples(*(f"fault {command}" for command in EXAMPLES[name])),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if is_limited:
            sub.add_argument("--zone", help="only in this zone (default: all zones)")
            if is_counted:
                sub.add_argument(
                    "--times", type=int, help="how often it occurs (default: no limit)"
                )
            sub.add_argument("--for", dest="forSeconds", type=float, metavar="SECONDS",
                             help="how long it lasts (default: until 'fault clear')")  # fmt: skip
        return sub

    add_fault("show", "show the active faults")
    add_fault(
        "clear",
        "end all active faults; does not recreate TPUs, power workers on or change a TPU's health",
    )
    _add_worker_actions(add_fault("worker", "make one worker fail; its TPU keeps its state"))
    sub = add_fault(
        "unreachable",
        "make zones unreachable: lists omit their TPUs and name the zones; other calls get a 503",
    )
    sub.add_argument("zones", nargs="+", metavar="ZONE")
    sub = add_fault("error", "make API calls fail", is_limited=True)
    sub.add_argument("method", help="such as nodes.create, 'nodes.*' or '*'")
    sub.add_argument("code", type=int, help="the HTTP code, such as 429 or 503")
    sub = add_fault(
        "outcome", "accept a call of the Compute API, but let its operation fail", is_limited=True
    )
    sub.add_argument("method", help="such as compute.disks.insert or 'compute.*'")
    sub.add_argument("code", help="such as QUOTA_EXCEEDED or ZONE_RESOURCE_POOL_EXHAUSTED")
    sub.add_argument("--message", help="the operation's error message")
    sub = add_fault("latency", "delay the responses of API calls", is_limited=True)
    sub.add_argument("method", help="such as nodes.create, 'nodes.*' or '*'")
    sub.add_argument("delaySeconds", type=float, metavar="SECONDS")
    sub = add_fault("drop", "close the connection of API calls without a response", is_limited=True)
    sub.add_argument("method", help="such as nodes.create, 'nodes.*' or '*'")
    sub.add_argument("--when", choices=("before", "after"), default="before",
                     help="before or after the call takes effect (default: before)")  # fmt: skip
    sub = add_fault(
        "mix", "make a random share of the API calls fail, as error and drop do", is_limited=True
    )
    sub.add_argument("share", type=float, help="0 to 1, such as 0.3")
    sub.add_argument("--seed", type=int, default=0, help="the same seed gives the same faults")
    sub.add_argument("--method", default="*", help="such as 'nodes.*' (default: all)")
    sub.add_argument("--codes", type=int, nargs="+", default=[429, 503], metavar="CODE",
                     help="the HTTP codes of the errors (default: 429 503)")  # fmt: skip
    sub.add_argument("--no-drops", dest="drops", action="store_false",
                     help="only errors, no closed connections")  # fmt: skip
    sub = add_fault(
        "capacity",
        "report no capacity for new TPUs; --times does not count queued resources",
        is_limited=True,
    )
    sub.add_argument("--type", dest="acceleratorType", default="*",
                     help="only this accelerator type, such as 'v4-*'")  # fmt: skip
    sub = add_fault("quota", "limit the number of chips in use", is_limited=True, is_counted=False)
    sub.add_argument("chips", type=int, help="the largest number of chips in use")
    sub.add_argument("--generation", help="only this TPU generation, such as v4 (default: all)")
    sub.add_argument("--tier", choices=("spot", "on-demand"),
                     help="only spot or only on-demand TPUs (default: both)")  # fmt: skip
    add_fault(
        "reuse-addresses",
        "give new TPUs the most recently released addresses (default: the least recently)",
        is_limited=True,
    )
    sub = add_fault(
        "health", "set a TPU's health and symptom; HEALTHY without --symptom clears both"
    )
    sub.add_argument("tpu", help="the TPU's name")
    sub.add_argument("health", choices=HEALTHS)
    sub.add_argument("--zone", help=_ZONE_HELP)
    sub.add_argument("--description", help="healthDescription of the TPU")
    sub.add_argument("--symptom", help="such as OUT_OF_MEMORY")
    sub.add_argument("--worker", default="0",
                     help="index of the worker with the symptom (default: 0)")  # fmt: skip
    sub = add_fault("maintenance", "reboot a worker of a TPU and change its external address")
    sub.add_argument("tpu", help="the TPU's name")
    sub.add_argument("--zone", help=_ZONE_HELP)
    sub.add_argument("--worker", default="0", help="index of the worker (default: %(default)s)")


def _add_worker_actions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("worker", help="the worker, such as pod-w1")
    parser.add_argument("--zone", help=_ZONE_HELP)
    subparsers = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (effect, _, _) in _WORKER_ACTIONS.items():
        subparsers.add_parser(name, help=effect, description=effect)
    effect = "delay its next boot by SECONDS; its TPU becomes READY without it"
    late_parser = subparsers.add_parser("late", help=effect, description=effect)
    late_parser.add_argument("delaySeconds", type=float, metavar="SECONDS")


def node_path(zone: str | None, tpu: str) -> str:
    """Return the path of a TPU in the local cloud's own API.

    If ``zone`` is None, the API finds the TPU by name and rejects a name that is in several zones.
    """
    location = f"locations/{zone}/" if zone else ""
    return f"/_localcloud/{location}nodes/{tpu}"


def run(cloud: LocalCloud, options: argparse.Namespace) -> Iterator[str]:
    """Inject, show or clear faults according to ``options``; yield the lines to print."""
    handlers: Mapping[str, Callable[[LocalCloud, argparse.Namespace], Iterator[str]]] = {
        "clear": _clear,
        "health": _health,
        "maintenance": _maintenance,
        "worker": _worker,
    }
    if options.fault in handlers:
        yield from handlers[options.fault](cloud, options)
    elif options.fault == "show":
        yield from _format_faults(
            {**client.request(cloud, "GET", _FAULTS), "workers": _worker_faults(cloud)}
        )
    else:
        yield from _format_faults(
            client.request(cloud, "POST", f"{_FAULTS}:add", _request(options))
        )


def _request(options: argparse.Namespace) -> dict[str, Any]:
    if options.fault == "unreachable":
        return {"unreachable": options.zones}
    keys = {
        "error": "errors",
        "drop": "drops",
        "outcome": "outcomes",
        "reuse-addresses": "reuse",
    }
    fields = {
        key: value
        for key, value in vars(options).items()
        if key not in ("name", "verb", "fault") and value is not None
    }
    return {keys.get(options.fault, options.fault): [fields]}


def _clear(cloud: LocalCloud, _options: argparse.Namespace) -> Iterator[str]:
    yield from _format_faults(client.request(cloud, "POST", f"{_FAULTS}:clear"))


def _worker_faults(cloud: LocalCloud) -> list[str]:
    workers = client.request(cloud, "GET", "/_localcloud/workerFaults")["workers"]
    return [
        f"{worker['worker']} in {worker['zone']}: {', '.join(worker['faults'])}"
        for worker in workers
    ]


def _worker(cloud: LocalCloud, options: argparse.Namespace) -> Iterator[str]:
    tpu, dash, index = options.worker.rpartition("-w")
    if not dash or not index.isdigit():
        raise CloudError(f"not a worker's name ({options.worker!r}). Use a name such as: pod-w1")
    if options.action == "late":
        late_fault = {"worker": options.worker, "delaySeconds": options.delaySeconds, "times": 1}
        zone = {"zone": options.zone} if options.zone else {}
        yield from _format_faults(
            client.request(cloud, "POST", f"{_FAULTS}:add", {"late": [{**late_fault, **zone}]})
        )
        return
    _, verb, fault = _WORKER_ACTIONS[options.action]
    body = {"workerIds": [index], **({"fault": fault} if fault else {})}
    client.request(cloud, "POST", f"{node_path(options.zone, tpu)}:{verb}", body)
    yield f"{options.worker}: {options.action} succeeded"


def _format_faults(active: Mapping[str, Any]) -> Iterator[str]:
    lines = [
        f"{kind:<12} {fault if isinstance(fault, str) else json.dumps(fault)}"
        for kind, faults in active.items()
        for fault in faults
    ]
    yield from lines or ["no active faults"]


def _health(cloud: LocalCloud, options: argparse.Namespace) -> Iterator[str]:
    body: dict[str, Any] = {}
    if options.health != "HEALTHY" or options.symptom:
        body["health"] = options.health
    if options.description:
        body["healthDescription"] = options.description
    if options.symptom:
        body["symptoms"] = [{"symptomType": options.symptom, "workerId": options.worker}]
    node = client.request(cloud, "POST", f"{node_path(options.zone, options.tpu)}:setHealth", body)
    yield f"{options.tpu} is {node['state']}, {node.get('health', 'health unknown')}"


def _maintenance(cloud: LocalCloud, options: argparse.Namespace) -> Iterator[str]:
    nodes = client.request(cloud, "GET", "/_localcloud/status")["nodes"]
    node_zones = [node["zone"] for node in nodes if node["name"] == options.tpu]
    zones = [zone for zone in node_zones if options.zone in (None, zone)]
    if len(zones) != 1:
        raise CloudError(
            f"{options.tpu} is in several zones ({', '.join(node_zones)}). Add: --zone ZONE"
            if node_zones and not options.zone
            else f"there is no TPU {options.tpu}{f' in {options.zone}' if options.zone else ''}. "
            f"To list the TPUs, run: {cloud.command('status')}"
        )
    path = f"/v2alpha1/{PARENT}/locations/{zones[0]}/nodes/{options.tpu}"
    body = {"workerIds": [options.worker]}
    client.request(cloud, "POST", f"{path}:simulateMaintenanceEvent", body)
    yield f"{options.tpu} is REPAIRING: its worker {options.worker} reboots"
