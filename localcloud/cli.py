"""The local cloud's command line: ``python -m localcloud up | down | status | preempt | fault``."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network
from pathlib import Path

from localcloud import bucket_cli, client, cloud, faults_cli, settings
from localcloud.failure import CloudError
from localcloud.machines import image, kinds
from localcloud.machines.seam import MachineError
from localcloud.place import NAME, Place, clouds_directory


def say(line: str) -> None:
    """Print a line of progress at once, also into a pipe."""
    print(line, flush=True)


def up(place: Place, options: argparse.Namespace) -> None:
    """Start the cloud, or find it running."""
    chosen = cloud.up(
        place,
        port=options.port,
        subnet=options.subnet,
        machines=options.machines,
        suite=options.suite,
        mnt_shared=options.mnt_shared,
        say=say,
    )
    kind = "" if chosen.machines == kinds.DEFAULT else f" of kind {chosen.machines}"
    say(f"local cloud {place.name!r} is up: {chosen.endpoint}, machines{kind} in {chosen.subnet}")
    say(f"use it: {place.playbook('playbooks/create.yml')}")


def down(place: Place, options: argparse.Namespace) -> None:
    """Remove the cloud with all its machines, after naming them."""
    if not place.directory.exists():
        cloud.down(place, say=lambda _line: None)
        say(f"local cloud {place.name!r} is not there: nothing to do")
        return
    machines = sorted(entry.name for entry in place.machines.glob("*"))
    shared = sorted(entry.name for entry in place.shared.glob("*"))
    if (machines or shared) and not options.yes:
        say(
            f"This removes local cloud {place.name!r} and all of {place.directory}: "
            f"{len(machines)} machines ({', '.join(machines) or 'none'}), "
            f"and what they share ({', '.join(shared) or 'nothing'})."
        )
        _want_typed(place)
    cloud.down(place, say=say)
    say(f"local cloud {place.name!r} is gone")


def clean(_place: Place, options: argparse.Namespace) -> None:
    """Remove every local cloud of this checkout, and the cached root file systems."""
    directory = clouds_directory()
    for entry in sorted(directory.glob("*")):
        if NAME.fullmatch(entry.name) and cloud.is_one(entry):
            down(Place.of(entry.name), options)
    cloud.remove_images(say=say)
    if not directory.exists():
        return
    try:
        directory.rmdir()
    except OSError as error:
        left = ", ".join(sorted(entry.name for entry in directory.iterdir()))
        raise CloudError(
            f"{directory} holds what is no local cloud's, and stays: {left}"
        ) from error
    say(f"removed {directory}")


def status(place: Place, options: argparse.Namespace) -> None:
    """Print what the cloud is doing: one line a TPU."""
    told = client.ask(place, "GET", "/_localcloud/status")
    if options.json:
        say(json.dumps(told, indent=2))
        return
    chosen = settings.read(place)
    say(f"local cloud {place.name!r}: {chosen.endpoint}, machines in {chosen.subnet}")
    if place.bucket_endpoint.exists():
        say(bucket_cli.line(place))
    for node in told["nodes"]:
        workers = ", ".join(
            f"{worker['machine']} {worker['address']} {'up' if worker['alive'] else 'down'}"
            for worker in node["workers"]
        )
        say(f"{node['name']:<20} {node['acceleratorType']:<12} {node['state']:<10} {workers}")
    for queued in told["queuedResources"]:
        say(f"queued resource {queued['name']} in {queued['zone']}: {queued['state']}")
    if not told["nodes"]:
        say(f"no TPUs yet: {place.playbook('playbooks/create.yml')}")


def preempt(place: Place, options: argparse.Namespace) -> None:
    """Take a TPU away as Google does: its machines die at once, its state is PREEMPTED."""
    body = {"warningSeconds": options.warning}
    client.ask(place, "POST", f"{faults_cli.node_path(options)}:preempt", body)
    if options.warning:
        say(f"{options.tpu} will be preempted in {options.warning:g} s")
    else:
        say(f"{options.tpu} is preempted: its machines are gone")


def fault(place: Place, options: argparse.Namespace) -> None:
    """Make the cloud get something wrong: errors, no capacity, quota, health, maintenance."""
    for line in faults_cli.run(place, options):
        say(line)


def bucket(place: Place, options: argparse.Namespace) -> None:
    """Let the cloud's bucket be gone, back, or read-only."""
    say(bucket_cli.run(place, options))


def serve(_place: Place, options: argparse.Namespace) -> None:
    """Be the server (``up`` starts this in the background)."""
    cloud.serve(Place(options.directory.name, options.directory))


VERBS: dict[str, Callable[[Place, argparse.Namespace], None]] = {
    "up": up,
    "down": down,
    "clean": clean,
    "status": status,
    "preempt": preempt,
    "fault": fault,
    "bucket": bucket,
    "serve": serve,
}


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    top = argparse.ArgumentParser(
        prog="python -m localcloud",
        description="A Cloud TPU API on loopback, backed by real Linux machines on this computer. "
        "Needs Linux and root.",
    )
    top.add_argument("--name", default="default", help="which local cloud (default: %(default)s)")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        one = verbs.add_parser(name, help=verb.__doc__, description=verb.__doc__)
        if name == "up":
            one.add_argument("--port", type=int, help="the API's port (default: a free one)")
            one.add_argument(
                "--subnet",
                type=IPv4Network,
                help="the machines' network, such as 198.18.4.0/22 (default: a free one)",
            )
            one.add_argument(
                "--machines",
                choices=kinds.KINDS,
                help="their kind; qemu: each with a kernel of its own, slow where KVM is not "
                "usable (default: nspawn)",
            )
            one.add_argument(
                "--suite",
                choices=image.SUITES,
                help="the Debian that they are (default: trixie on a Debian host, its own release "
                "on an Ubuntu one)",
            )
            one.add_argument(
                "--mnt-shared",
                choices=settings.MNT_SHARED,
                help="what /mnt/shared is: one directory that all machines see, or a directory of "
                "each machine's own disk, as on TPU VMs without NFS (default: shared; "
                "machines of kind qemu: local)",
            )
        if name in ("down", "clean"):
            one.add_argument("--yes", action="store_true", help="do not ask")
        if name == "status":
            one.add_argument("--json", action="store_true", help="print it for a program")
        if name == "serve":
            one.add_argument("--directory", type=Path, required=True, help="the cloud's directory")
        if name == "preempt":
            one.add_argument("tpu", help="the TPU's name")
            one.add_argument("--zone", help="its zone, where its name is in several")
            one.add_argument("--warning", type=float, default=0, metavar="SECONDS",
                             help="so much later (Google warns 30 s before)")  # fmt: skip
        if name == "fault":
            faults_cli.describe(one)
        if name == "bucket":
            bucket_cli.describe(one)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; an error is one line and exit code 1."""
    options = parser().parse_args(arguments)
    # An ordinary user's PATH, kept by sudo, lacks the places of nft and its like.
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    try:
        VERBS[options.verb](Place.of(options.name), options)
    except (CloudError, MachineError) as error:
        print(f"localcloud: {error}", file=sys.stderr)
        return 1
    return 0


def _want_typed(place: Place) -> None:
    if not sys.stdin.isatty():
        raise CloudError(
            "nothing was removed: there is no terminal to ask on. To remove it unasked: "
            f"{place.command('down', '--yes')}"
        )
    if input(f"Type {place.name} to go on: ").strip() != place.name:
        raise CloudError("nothing was removed")
