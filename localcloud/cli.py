"""The local cloud's command line, ``python -m localcloud``, and its subcommands."""

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import NamedTuple

from localcloud import bucket as buckets
from localcloud import client, cloud, faults_cli, settings
from localcloud.choices import Options
from localcloud.failure import CloudError
from localcloud.faults_cli import PROGRAM, examples
from localcloud.local_cloud import NAME, LocalCloud, clouds_directory
from localcloud.machines import image, kinds
from localcloud.machines.interface import MachineError

# Directories of a cloud with files that users need: objects of the bucket, data disks, and the run
# records of inventory/local.
_STORED = ("bucket", "disks", "fleet")


def print_line(line: str) -> None:
    """Print one line and flush it, so that a reader of a pipe gets it immediately."""
    print(line, flush=True)


def up(local_cloud: LocalCloud, options: argparse.Namespace) -> None:
    """Start the cloud, unless it is already running."""
    requested = Options(
        options.port, options.subnet, options.machines, options.suite, options.mnt_shared
    )
    cloud_settings = cloud.up(local_cloud, requested, report=print_line)
    kind = "" if cloud_settings.machines == kinds.DEFAULT else f" of kind {cloud_settings.machines}"
    print_line(
        f"local cloud {local_cloud.name!r} is up: {cloud_settings.endpoint}, "
        f"machines{kind} in {cloud_settings.subnet}"
    )
    print_line(f"create TPUs: {local_cloud.playbook('playbooks/create.yml')}")


def down(local_cloud: LocalCloud, options: argparse.Namespace) -> None:
    """Remove the cloud with all its machines, after listing them and asking for confirmation."""
    if not local_cloud.directory.exists():
        cloud.down(local_cloud, report=lambda _line: None)
        print_line(f"local cloud {local_cloud.name!r} does not exist: nothing to do")
        return
    machines = sorted(entry.name for entry in local_cloud.machines.glob("*"))
    shared = sorted(entry.name for entry in local_cloud.shared.glob("*"))
    stored = [name for name in _STORED if _has_files(local_cloud.directory / name)]
    if (machines or shared or stored) and not options.yes:
        print_line(
            f"This removes local cloud {local_cloud.name!r} and all of {local_cloud.directory}: "
            f"{len(machines)} machines ({', '.join(machines) or 'none'}), "
            f"their shared files ({', '.join(shared) or 'none'}), and the directories with "
            f"objects, data disks and run records ({', '.join(stored) or 'none'})."
        )
        _confirm(local_cloud)
    cloud.down(local_cloud, report=print_line)
    print_line(f"local cloud {local_cloud.name!r} is removed")


def clean(local_cloud: LocalCloud, options: argparse.Namespace) -> None:
    """Remove every local cloud of this checkout and the cached root file systems."""
    cloud.check_root(local_cloud, "clean", *(["--yes"] if options.yes else []))
    directory = clouds_directory()
    for entry in sorted(directory.glob("*")):
        if NAME.fullmatch(entry.name) and cloud.is_cloud_directory(entry):
            down(LocalCloud.of(entry.name), options)
    cloud.remove_images(report=print_line)
    if not directory.exists():
        return
    try:
        directory.rmdir()
    except OSError as error:
        other_files = ", ".join(sorted(entry.name for entry in directory.iterdir()))
        raise CloudError(
            f"{directory}: not removed, because it holds other files ({other_files}). "
            "Move them away, then run: make clean"
        ) from error
    print_line(f"removed {directory}")


def status(local_cloud: LocalCloud, options: argparse.Namespace) -> None:
    """Show the cloud's TPUs, workers and queued resources."""
    state = client.request(local_cloud, "GET", "/_localcloud/status")
    if options.json:
        print_line(json.dumps(state, indent=2))
        return
    cloud_settings = settings.read(local_cloud)
    print_line(
        f"local cloud {local_cloud.name!r}: {cloud_settings.endpoint}, "
        f"machines in {cloud_settings.subnet}"
    )
    if local_cloud.bucket_endpoint.exists():
        print_line(buckets.summary(local_cloud))
    for node in state["nodes"]:
        workers = ", ".join(
            f"{worker['machine']} {worker['address']} {'up' if worker['alive'] else 'down'}"
            for worker in node["workers"]
        )
        print_line(
            f"{node['name']:<20} {node['acceleratorType']:<12} {node['state']:<10} {workers}"
        )
    for queued in state["queuedResources"]:
        print_line(f"queued resource {queued['name']} in {queued['zone']}: {queued['state']}")
    if not state["nodes"]:
        print_line(f"no TPUs yet: {local_cloud.playbook('playbooks/create.yml')}")


def preempt(local_cloud: LocalCloud, options: argparse.Namespace) -> None:
    """Preempt a TPU: delete its machines and set its state to PREEMPTED."""
    body = {"warningSeconds": options.warning}
    path = faults_cli.node_path(options.zone, options.tpu)
    client.request(local_cloud, "POST", f"{path}:preempt", body)
    if options.warning:
        print_line(f"{options.tpu} will be preempted in {options.warning:g} s")
    else:
        print_line(f"{options.tpu} is preempted: its machines are deleted")


def fault(local_cloud: LocalCloud, options: argparse.Namespace) -> None:
    """Inject faults: API errors, no capacity, quota, worker failures, bad health, maintenance."""
    for line in faults_cli.run(local_cloud, options):
        print_line(line)


def bucket(local_cloud: LocalCloud, options: argparse.Namespace) -> None:
    """Stop the cloud's bucket, start it, or make it read-only."""
    cloud.check_root(local_cloud, "bucket", options.action)
    run, _ = _BUCKET_ACTIONS[options.action]
    run(local_cloud)
    print_line(buckets.summary(local_cloud))


def serve(_local_cloud: LocalCloud, options: argparse.Namespace) -> None:
    """Run the API server in the foreground; up starts it in the background."""
    # Use the absolute path, because the names of host resources are derived from the path.
    directory = options.directory.resolve()
    cloud.serve(LocalCloud(directory.name, directory))


_BUCKET_ACTIONS: dict[str, tuple[Callable[[LocalCloud], None], str]] = {
    "start": (buckets.start, "start it, with read and write access"),
    "stop": (buckets.stop, "simulate an outage: connections are refused, objects stay"),
    "read-only": (
        buckets.make_read_only,
        "answer every change with a 403, as for an account without write access",
    ),
}


class Verb(NamedTuple):
    """A subcommand: its function (the docstring is the summary), further help text and examples."""

    run: Callable[[LocalCloud, argparse.Namespace], None]
    details: str
    examples: tuple[str, ...]


VERBS = {
    "up": Verb(
        up,
        "The first start builds the machines' root file system. "
        "--machines, --suite and --mnt-shared apply until 'down'.",
        ("up", "up --mnt-shared local", "--name vm up --machines qemu"),
    ),
    "down": Verb(down, "Without a terminal it needs --yes.", ("down", "--name vm down --yes")),
    "clean": Verb(
        clean,
        "make clean does this too, and removes everything else that was created.",
        ("clean --yes",),
    ),
    "status": Verb(status, "Does not need root.", ("status", "status --json")),
    "preempt": Verb(
        preempt,
        "To playbooks this looks like a preemption by Google; the watch recreates the TPU of a "
        "wanted run. With --warning, the machines are notified first and stop their services.",
        ("preempt demo", "preempt demo --warning 30"),
    ),
    "fault": Verb(
        fault,
        "'fault FAULT --help' explains a fault. Faults last until 'fault clear', unless --times "
        "or --for limits them. 'fault clear' does not change a TPU's health or power workers on.",
        ("fault show", "fault error nodes.create 503 --times 2", "fault worker demo-w1 hang"),
    ),
    "bucket": Verb(
        bucket,
        "The bucket is gs://local-fleet. Stopping it keeps its objects.",
        ("bucket stop", "bucket start"),
    ),
    "serve": Verb(serve, "For debugging.", ("serve --directory .localcloud/default",)),
}
_MORE = """
exit codes:
  0  succeeded, or there was nothing to do
  1  failed or not confirmed; the reason and the fix are on standard error
  2  invalid arguments

environment:
  TPUFLEET_LOCALCLOUD_DIR  directory of all local clouds (default: .localcloud in
                           the checkout)
  TPUFLEET_LOCALCLOUD      name of the cloud that inventory/local uses (default:
                           default); this command ignores it, use --name

docs/localcloud.md describes the local cloud.
"""


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser with all subcommands."""
    root_parser = argparse.ArgumentParser(
        prog=PROGRAM,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=textwrap.fill(
            "A Cloud TPU API on loopback, backed by real Linux machines on this computer. The "
            "playbooks use it like Google Cloud, with -i inventory/local. Needs Debian or Ubuntu; "
            "up, down, clean, bucket and serve also need root. 'COMMAND --help' explains a "
            "command.",
            79,
        ),
        epilog=examples("up", "status", "preempt demo", "--name two up", "down") + _MORE,
    )
    root_parser.add_argument(
        "--name", default="default", help="which local cloud; before COMMAND (default: %(default)s)"
    )
    verbs = root_parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    for name, verb in VERBS.items():
        sub = verbs.add_parser(
            name,
            help=verb.run.__doc__,
            description=textwrap.fill(f"{verb.run.__doc__} {verb.details}", 79),
            epilog=examples(*verb.examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_options(name, sub)
    return root_parser


def port(text: str) -> int:
    """Parse a port number.

    If ``text`` is not a number, argparse shows this function's name: "invalid port value".
    """
    if not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"a port is a number from 1 to 65535 ({text})")
    return int(text)


def subnet(text: str) -> IPv4Network:
    """Parse the network for machines; it must have from 32 (/27) to 65,536 (/16) addresses."""
    network = IPv4Network(text)
    if not 16 <= network.prefixlen <= 27:
        raise argparse.ArgumentTypeError(f"a subnet needs a prefix from /16 to /27 ({text})")
    return network


def _add_options(name: str, sub: argparse.ArgumentParser) -> None:
    """Add the options of the subcommand ``name`` to its parser."""
    if name == "up":
        sub.add_argument(
            "--port",
            type=port,
            help="the API's port; if it is in use, another one (default: that of the last start, "
            "or a free one)",
        )
        sub.add_argument(
            "--subnet",
            type=subnet,
            help="the machines' network, such as 198.18.4.0/22 (default: that of the last start, "
            "or a free one)",
        )
        sub.add_argument(
            "--machines",
            choices=kinds.KINDS,
            help="kind of machine; nspawn: containers; qemu: virtual machines with their own "
            "kernel, slow without KVM (default: nspawn)",
        )
        sub.add_argument(
            "--suite",
            choices=image.SUITES,
            help="Debian release of the machines, only on a Debian host (default: trixie); on "
            "Ubuntu, machines have the host's release",
        )
        sub.add_argument(
            "--mnt-shared",
            choices=settings.MNT_SHARED,
            help="/mnt/shared: one directory shared by all machines, or a directory on each "
            "machine's own disk, as on TPU VMs without NFS (default: shared; qemu: always local)",
        )
    if name in ("down", "clean"):
        sub.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    if name == "status":
        sub.add_argument("--json", action="store_true", help="print JSON")
    if name == "serve":
        sub.add_argument("--directory", type=Path, required=True, help="the cloud's directory")
    if name == "preempt":
        sub.add_argument("tpu", help="the TPU's name")
        sub.add_argument("--zone", help="its zone, if several zones have a TPU of that name")
        sub.add_argument("--warning", type=float, default=0, metavar="SECONDS",
                         help="notify the machines now and preempt the TPU after this time "
                         "(Google: 30; default: 0, without notice)")  # fmt: skip
    if name == "fault":
        faults_cli.add_fault_parsers(sub)
    if name == "bucket":
        actions = sub.add_subparsers(dest="action", required=True, metavar="ACTION")
        for action, (_, text) in _BUCKET_ACTIONS.items():
            actions.add_parser(action, help=text, description=text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand; return the exit code: 0, or 1 after printing an error on one line."""
    options = parser().parse_args(arguments)
    cloud.find_system_tools()
    try:
        VERBS[options.verb].run(LocalCloud.of(options.name), options)
    except (CloudError, MachineError) as error:
        print(f"localcloud: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("localcloud: interrupted. To continue, run the same command again", file=sys.stderr)
        return 1
    return 0


def _has_files(directory: Path) -> bool:
    return any(entry.is_file() for entry in directory.rglob("*"))


def _confirm(local_cloud: LocalCloud) -> None:
    if not sys.stdin.isatty():
        raise CloudError(
            "nothing was removed: there is no terminal to confirm on. To remove without asking: "
            f"{local_cloud.command('down', '--yes')}"
        )
    try:
        answer = input(f"Type {local_cloud.name} to confirm: ")
    except EOFError:
        answer = ""
    if answer.strip() != local_cloud.name:
        raise CloudError(
            f"nothing was removed, because {local_cloud.name} was not typed. To remove without "
            f"asking: {local_cloud.command('down', '--yes')}"
        )
