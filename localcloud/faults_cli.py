"""The verb ``fault`` of the command line: make a running cloud get things wrong, reproducibly."""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from localcloud import client, settings
from localcloud.failure import CloudError
from localcloud.place import Place

_FAULTS = "/_localcloud/faults"
HEALTHS = ("HEALTHY", "TIMEOUT", "UNHEALTHY_TENSORFLOW", "UNHEALTHY_MAINTENANCE")


def describe(parser: argparse.ArgumentParser) -> None:
    """Add the faults to the parser of the verb."""
    kinds = parser.add_subparsers(dest="fault", required=True, metavar="FAULT")

    def kind(name: str, words: str, *, reach: bool = False) -> argparse.ArgumentParser:
        one = kinds.add_parser(name, help=words, description=words)
        if reach:
            one.add_argument("--zone", help="only in this zone (default: in all)")
            one.add_argument("--times", type=int, help="for so many calls (default: until clear)")
            one.add_argument("--for", dest="forSeconds", type=float, metavar="SECONDS",
                             help="for so long (default: until clear)")  # fmt: skip
        return one

    kind("show", "show the faults in force")
    kind("clear", "end all faults in force; what has happened to TPUs stays, also a power-off")
    _describe_worker(kind("worker", "make one worker fail; its TPU stays what it is"))
    one = kind("unreachable", "cut zones off: lists leave them out and say so")
    one.add_argument("zones", nargs="+", metavar="ZONE")
    one = kind("error", "answer an error", reach=True)
    one.add_argument("method", help="such as nodes.create, 'nodes.*' or '*'")
    one.add_argument("code", type=int, help="the HTTP code, such as 429 or 503")
    one = kind("outcome", "let a call of Compute begin an operation that fails", reach=True)
    one.add_argument("method", help="such as compute.disks.insert or 'compute.*'")
    one.add_argument("code", help="such as QUOTA_EXCEEDED or ZONE_RESOURCE_POOL_EXHAUSTED")
    one.add_argument("--message", help="the operation's words")
    one = kind("latency", "answer late", reach=True)
    one.add_argument("method", help="such as nodes.create, 'nodes.*' or '*'")
    one.add_argument("delaySeconds", type=float, metavar="SECONDS")
    one = kind("drop", "drop the connection without an answer", reach=True)
    one.add_argument("method", help="such as nodes.create, 'nodes.*' or '*'")
    one.add_argument("--when", choices=("before", "after"), default="before",
                     help="before or after the call is done (default: %(default)s)")  # fmt: skip
    one = kind("mix", "let a share of all calls meet an error or a dropped connection", reach=True)
    one.add_argument("share", type=float, help="0 to 1, such as 0.3")
    one.add_argument("--seed", type=int, default=0, help="the same seed, the same faults")
    one.add_argument("--method", default="*", help="such as 'nodes.*' (default: all)")
    one.add_argument("--codes", type=int, nargs="+", default=[429, 503], metavar="CODE")
    one.add_argument("--no-drops", dest="drops", action="store_false", help="errors alone")
    one = kind("capacity", "have no more capacity", reach=True)
    one.add_argument("--type", dest="acceleratorType", default="*",
                     help="only of this accelerator type, such as 'v4-*'")  # fmt: skip
    one = kind("quota", "limit the chips that may be held at once", reach=True)
    one.add_argument("chips", type=int)
    one.add_argument("--generation", help="only of this one, such as v4")
    one.add_argument("--tier", choices=("spot", "on-demand"))
    kind(
        "reuse-addresses",
        "give new TPUs the addresses that were released last (default: as late as possible)",
        reach=True,
    )
    one = kind("health", "give a TPU a health, and a symptom; HEALTHY takes both back")
    one.add_argument("tpu", help="the TPU's name")
    one.add_argument("health", choices=HEALTHS)
    one.add_argument("--zone", help="its zone, where its name is in several")
    one.add_argument("--description", help="why")
    one.add_argument("--symptom", help="such as OUT_OF_MEMORY")
    one.add_argument("--worker", default="0", help="whose symptom (default: %(default)s)")
    one = kind("maintenance", "reboot a worker of a TPU; its external address changes")
    one.add_argument("tpu", help="the TPU's name")
    one.add_argument("--zone", help="its zone, where its name is in several")
    one.add_argument("--worker", default="0", help="which worker (default: %(default)s)")


def _describe_worker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("worker", help="the worker, such as pod-w1")
    parser.add_argument("--zone", help="the TPU's zone, where its name is in several")
    kinds = parser.add_subparsers(dest="trouble", required=True, metavar="WHAT")
    words = {
        "hang": "its machine answers nothing any more, though it is there",
        "resume": "it goes on where it stood",
        "cut": "it loses its network; what runs on it runs on",
        "reconnect": "its network is back",
        "fill-disk": "its disk has no byte left",
        "free-disk": "the space is back",
        "power-off": "it dies at once, its disk stays; its TPU goes on being READY",
        "power-on": "it boots, in the background",
        "late": "at its next boot it comes up later than its TPU is READY",
    }
    for name, said in words.items():
        one = kinds.add_parser(name, help=said, description=said)
        if name == "late":
            one.add_argument("delaySeconds", type=float, metavar="SECONDS")


def node_path(options: argparse.Namespace) -> str:
    """Give the path of the TPU that ``options`` name, with the zone if they name one."""
    where = f"locations/{options.zone}/" if options.zone else ""
    return f"/_localcloud/{where}nodes/{options.tpu}"


def run(place: Place, options: argparse.Namespace) -> Iterator[str]:
    """Do what was asked for; give the lines to show."""
    special: Mapping[str, Callable[[Place, argparse.Namespace], Iterator[str]]] = {
        "clear": _clear,
        "health": _health,
        "maintenance": _maintenance,
        "worker": _worker,
    }
    if options.fault in special:
        yield from special[options.fault](place, options)
    elif options.fault == "show":
        told = {**client.ask(place, "GET", _FAULTS), "workers": _troubled(place)}
        yield from _shown(told)
    else:
        yield from _shown(client.ask(place, "POST", f"{_FAULTS}:add", _wanted(options)))


def _wanted(options: argparse.Namespace) -> dict[str, Any]:
    if options.fault == "unreachable":
        return {"unreachable": options.zones}
    kinds = {
        "error": "errors",
        "drop": "drops",
        "outcome": "outcomes",
        "reuse-addresses": "reuse",
    }
    outside = ("name", "verb", "fault")
    said = {
        key: value
        for key, value in vars(options).items()
        if key not in outside and value is not None
    }
    return {kinds.get(options.fault, options.fault): [said]}


def _clear(place: Place, _options: argparse.Namespace) -> Iterator[str]:
    yield from _shown(client.ask(place, "POST", f"{_FAULTS}:clear"))


def _troubled(place: Place) -> list[str]:
    workers = client.ask(place, "GET", "/_localcloud/troubles")["workers"]
    return [f"{it['worker']} in {it['zone']}: {', '.join(it['troubles'])}" for it in workers]


# What a word does: the method and the trouble that it is about.
_WORKER_VERBS = {
    "hang": ("afflict", "hang"),
    "resume": ("relieve", "hang"),
    "cut": ("afflict", "cut"),
    "reconnect": ("relieve", "cut"),
    "fill-disk": ("afflict", "full-disk"),
    "free-disk": ("relieve", "full-disk"),
    "power-off": ("powerOff", None),
    "power-on": ("powerOn", None),
}


def _worker(place: Place, options: argparse.Namespace) -> Iterator[str]:
    tpu, dash, index = options.worker.rpartition("-w")
    if not dash or not index.isdigit():
        raise CloudError(f"a worker is named TPU-wNUMBER, such as pod-w1, not {options.worker!r}")
    if options.trouble == "late":
        late = {"worker": options.worker, "delaySeconds": options.delaySeconds, "times": 1}
        zone = {"zone": options.zone} if options.zone else {}
        yield from _shown(client.ask(place, "POST", f"{_FAULTS}:add", {"late": [{**late, **zone}]}))
        return
    verb, trouble = _WORKER_VERBS[options.trouble]
    where = f"locations/{options.zone}/nodes" if options.zone else "nodes"
    body = {"workerIds": [index], **({"trouble": trouble} if trouble else {})}
    client.ask(place, "POST", f"/_localcloud/{where}/{tpu}:{verb}", body)
    yield f"{options.worker}: {options.trouble} is done"


def _shown(in_force: Mapping[str, Any]) -> Iterator[str]:
    lines = [
        f"{kind:<12} {fault if isinstance(fault, str) else json.dumps(fault)}"
        for kind, faults in in_force.items()
        for fault in faults
    ]
    yield from lines or ["no faults in force"]


def _health(place: Place, options: argparse.Namespace) -> Iterator[str]:
    body: dict[str, Any] = {}
    if options.health != "HEALTHY" or options.symptom:
        body["health"] = options.health
    if options.description:
        body["healthDescription"] = options.description
    if options.symptom:
        body["symptoms"] = [{"symptomType": options.symptom, "workerId": options.worker}]
    node = client.ask(place, "POST", f"{node_path(options)}:setHealth", body)
    yield f"{options.tpu} is {node['state']}, {node.get('health', 'without a health')}"


def _maintenance(place: Place, options: argparse.Namespace) -> Iterator[str]:
    project = settings.read(place).project
    nodes = client.ask(place, "GET", "/_localcloud/status")["nodes"]
    known = [node["zone"] for node in nodes if node["name"] == options.tpu]
    zones = [zone for zone in known if options.zone in (None, zone)]
    if len(zones) != 1:
        raise CloudError(
            f"{options.tpu} is in {', '.join(known)}: say which by --zone"
            if known and not options.zone
            else f"there is no TPU {options.tpu}{f' in {options.zone}' if options.zone else ''}. "
            f"To see which there are, run: {place.command('status')}"
        )
    path = f"/v2alpha1/projects/{project}/locations/{zones[0]}/nodes/{options.tpu}"
    body = {"workerIds": [options.worker]}
    client.ask(place, "POST", f"{path}:simulateMaintenanceEvent", body)
    yield f"{options.tpu} is REPAIRING: its worker {options.worker} reboots"
