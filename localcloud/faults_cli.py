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
    kind("clear", "end all faults in force; what has happened to TPUs stays")
    one = kind("unreachable", "cut zones off: lists leave them out and say so")
    one.add_argument("zones", nargs="+", metavar="ZONE")
    one = kind("error", "answer an error", reach=True)
    one.add_argument("method", help="such as nodes.create, 'nodes.*' or '*'")
    one.add_argument("code", type=int, help="the HTTP code, such as 429 or 503")
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
    one = kind("health", "give a TPU a health, and a symptom; HEALTHY takes both back")
    one.add_argument("tpu", help="the TPU's name")
    one.add_argument("health", choices=HEALTHS)
    one.add_argument("--description", help="why")
    one.add_argument("--symptom", help="such as OUT_OF_MEMORY")
    one.add_argument("--worker", default="0", help="whose symptom (default: %(default)s)")
    one = kind("maintenance", "reboot a worker of a TPU; its external address changes")
    one.add_argument("tpu", help="the TPU's name")
    one.add_argument("--worker", default="0", help="which worker (default: %(default)s)")


def run(place: Place, options: argparse.Namespace) -> Iterator[str]:
    """Do what was asked for; give the lines to show."""
    special: Mapping[str, Callable[[Place, argparse.Namespace], Iterator[str]]] = {
        "clear": _clear,
        "health": _health,
        "maintenance": _maintenance,
    }
    if options.fault in special:
        yield from special[options.fault](place, options)
    elif options.fault == "show":
        yield from _shown(client.ask(place, "GET", _FAULTS))
    else:
        yield from _shown(client.ask(place, "POST", f"{_FAULTS}:add", _wanted(options)))


def _wanted(options: argparse.Namespace) -> dict[str, Any]:
    if options.fault == "unreachable":
        return {"unreachable": options.zones}
    kinds = {"error": "errors", "drop": "drops"}
    outside = ("name", "verb", "fault")
    said = {
        key: value
        for key, value in vars(options).items()
        if key not in outside and value is not None
    }
    return {kinds.get(options.fault, options.fault): [said]}


def _clear(place: Place, _options: argparse.Namespace) -> Iterator[str]:
    in_force = client.ask(place, "GET", _FAULTS)
    yield from _shown(client.ask(place, "POST", _FAULTS, {kind: [] for kind in in_force}))


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
    node = client.ask(place, "POST", f"/_localcloud/nodes/{options.tpu}:setHealth", body)
    yield f"{options.tpu} is {node['state']}, {node.get('health', 'without a health')}"


def _maintenance(place: Place, options: argparse.Namespace) -> Iterator[str]:
    project = settings.read(place).project
    nodes = client.ask(place, "GET", "/_localcloud/status")["nodes"]
    zones = [node["zone"] for node in nodes if node["name"] == options.tpu]
    if len(zones) != 1:
        raise CloudError(
            f"{options.tpu} is in {', '.join(zones)}: the local cloud's API can tell them apart"
            if zones
            else f"there is no TPU {options.tpu}: python -m localcloud --name {place.name} status"
        )
    path = f"/v2alpha1/projects/{project}/locations/{zones[0]}/nodes/{options.tpu}"
    body = {"workerIds": [options.worker]}
    client.ask(place, "POST", f"{path}:simulateMaintenanceEvent", body)
    yield f"{options.tpu} is REPAIRING: its worker {options.worker} reboots"
