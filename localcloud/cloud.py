"""Start, serve and remove a local cloud on this host; every step is idempotent."""

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

from localcloud import bucket, choices, client, settings
from localcloud.api.server import create_server
from localcloud.choices import DEFAULTS, Options
from localcloud.failure import CloudError
from localcloud.local_cloud import PROJECT_ROOT, LocalCloud
from localcloud.machines import image, kernel_limits, kinds, mounts, network, processes
from localcloud.machines.interface import Machines
from localcloud.machines.kinds import KINDS
from localcloud.settings import Settings

FIRST_PORT = 8470
TOOLS = ("dnsmasq", "ip", "mmdebstrap", "nft", "ssh-keygen")
START_DEADLINE_S = 120.0
_HOST_LOCK = Path("/run/tpufleet-localcloud.lock")
Report = Callable[[str], None]


def find_system_tools() -> None:
    """Add /usr/sbin, which contains nft, to PATH: sudo may keep a user's PATH without it."""
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def up(cloud: LocalCloud, options: Options = DEFAULTS, *, report: Report) -> Settings:
    """Start the cloud unless it is already running, and return its settings.

    ``report`` prints progress. Raises CloudError, MachineError.
    """
    check_root(cloud, "up")
    _check_tools()
    # Build the image first: that takes minutes, and other clouds wait for the lock below.
    root = None if is_served(cloud) else _image(cloud, options, report)
    with _lock_host(report):
        return _up(cloud, options, root, report)


def _image(cloud: LocalCloud, options: Options, report: Report) -> Path:
    chosen = _choose(cloud, options)
    kinds.check_tools(chosen.machines)
    return KINDS[chosen.machines].ensure_image(report, chosen.suite)


def _choose(cloud: LocalCloud, options: Options) -> Settings:
    in_use = is_served(cloud) or _has_machines(cloud)
    return choices.choose(cloud, _existing_settings(cloud), options, in_use=in_use)


def _existing_settings(cloud: LocalCloud) -> Settings | None:
    return settings.read(cloud) if cloud.settings.exists() else None


def _up(cloud: LocalCloud, options: Options, root: Path | None, report: Report) -> Settings:
    """Start the cloud unless it is already running, and return its settings.

    ``root`` is the image for new machines. It is None if the cloud was running when the command
    began; the cloud can't be started then.
    """
    cloud.directory.mkdir(parents=True, exist_ok=True)
    # Deny access to other users, because the root user of a machine can create setuid files here.
    cloud.directory.chmod(0o700)
    cloud.machines.mkdir(exist_ok=True)
    cloud.shared.mkdir(exist_ok=True)
    # All users of all machines can write to the shared directory, as to /tmp.
    cloud.shared.chmod(0o1777)
    existing, chosen = _existing_settings(cloud), _choose(cloud, options)
    if is_served(cloud):
        running = settings.read(cloud)
        choices.check_address_unchanged(cloud, running, options)
        client.request(cloud, "GET", "/_localcloud/status")
        bucket.up(cloud, network.Network(cloud, IPv4Network(running.subnet)).gateway, report)
        settings.hand_over(cloud)
        return running
    if root is None or not root.is_dir():
        reason = f"{root} was removed" if root else "the server was stopped"
        command = cloud.command("up")
        raise CloudError(f"{reason} while this command was running. Run again: {command}")
    kernel_limits.raise_for_many_machines()
    report("starting the network: a bridge, NAT, a name server")
    has_machines = _has_machines(cloud)
    subnet = choices.choose_subnet(cloud, existing, options, has_machines=has_machines)
    net = network.up(cloud, subnet, report, is_required=has_machines)
    port = _choose_port(options.port or chosen.port, report)
    chosen = replace(chosen, port=port, subnet=str(net.subnet), image=str(root))
    settings.write(cloud, chosen)
    bucket.up(cloud, net.gateway, report)
    report("starting the API")
    _start_server(cloud)
    settings.hand_over(cloud)
    return chosen


def down(cloud: LocalCloud, *, report: Report) -> None:
    """Remove the cloud: server, machines, network and directory.

    Also removes what a killed server or an interrupted ``up`` has left behind.
    """
    check_root(cloud, "down")
    with _lock_host(report):
        _down(cloud, report)


def _down(cloud: LocalCloud, report: Report) -> None:
    report("stopping the API")
    processes.end(_server_argument(cloud), grace_s=10)
    kind = settings.read(cloud).machines if cloud.settings.exists() else kinds.DEFAULT
    net = network.Network(cloud, network.RANGE)
    for name in KINDS[kind].machines(cloud, net, cloud.directory, "local").sweep(keep=()):
        report(f"removed machine {name}")
    bucket.down(cloud)
    network.down(cloud)
    if mount_points := mounts.below(cloud.directory):
        raise CloudError(
            f"{mount_points[0]}: still mounted, but not by the cloud. Unmount it, then run: "
            f"{cloud.command('down')}"
        )
    _remove_directory(cloud)
    kernel_limits.restore_after_the_last_cloud()


def remove_images(*, report: Report) -> None:
    """Remove the cached root file systems. No cloud on this host can start meanwhile."""
    with _lock_host(report):
        image.remove_all(report)


def is_cloud_directory(directory: Path) -> bool:
    """Return whether a directory belongs to a local cloud.

    A cloud's directory contains ``machines`` or is empty: ``machines`` is the first entry that
    ``up`` creates and the last that ``down`` removes.
    """
    return directory.is_dir() and (
        (directory / "machines").is_dir() or not any(directory.iterdir())
    )


def is_served(cloud: LocalCloud) -> bool:
    """Return whether the cloud's server is running, that is, holds the cloud's lock."""
    if not cloud.lock.exists():
        return False
    with cloud.lock.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def machines_of(cloud: LocalCloud) -> Machines:
    """Return the cloud's machines; raise CloudError if the cloud was never started."""
    cloud_settings = settings.read(cloud)
    net = network.Network(cloud, IPv4Network(cloud_settings.subnet))
    return KINDS[cloud_settings.machines].machines(
        cloud, net, Path(cloud_settings.image), cloud_settings.mnt_shared
    )


def serve(cloud: LocalCloud) -> None:
    """Serve the cloud's API until SIGTERM; the machines keep running afterwards."""
    cloud_settings = settings.read(cloud)
    net = network.Network(cloud, IPv4Network(cloud_settings.subnet))
    server = create_server(
        cloud.directory,
        machines_of(cloud),
        port=cloud_settings.port,
        metadata_at=(str(net.gateway), 0),
    )
    network.publish_metadata(net, server.metadata_port or 0)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    server.recover()
    cloud.endpoint.write_text(f"{server.endpoint}\n")
    server.serve()


@contextlib.contextmanager
def _lock_host(report: Report) -> Iterator[None]:
    """Hold the host's lock, so that only one cloud starts or stops at a time.

    Clouds share the host's ports, subnets, kernel limits and images.
    """
    with _HOST_LOCK.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting: another local cloud is starting or stopping on this host")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _remove_directory(cloud: LocalCloud) -> None:
    if not cloud.directory.exists():
        return
    for entry in cloud.directory.iterdir():
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink()
        elif entry != cloud.machines:
            shutil.rmtree(entry)
    shutil.rmtree(cloud.directory)


def _has_machines(cloud: LocalCloud) -> bool:
    return cloud.machines.is_dir() and any(cloud.machines.iterdir())


def _start_server(cloud: LocalCloud) -> None:
    """Start the server in the background and wait until it answers."""
    cloud.endpoint.unlink(missing_ok=True)
    server = processes.start(
        [sys.executable, "-m", "localcloud", "serve", _server_argument(cloud)],
        cloud.log,
        cwd=PROJECT_ROOT,
        env={**os.environ, "TPUFLEET_LOCALCLOUD_DIR": str(cloud.directory.parent)},
    )
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline:
        # Until the endpoint file exists, service-account.json may have a previous server's port.
        with contextlib.suppress(CloudError):
            if cloud.endpoint.exists():
                client.request(cloud, "GET", "/_localcloud/status")
                return
        if server.poll() is not None:
            break
        time.sleep(0.1)
    last = cloud.log.read_text(errors="replace").splitlines()[-1:]
    raise CloudError(f"the API did not start ({' '.join(last)}). See {cloud.log}")


def _server_argument(cloud: LocalCloud) -> str:
    """Return the argument that identifies this cloud's server process."""
    return f"--directory={cloud.directory}"


def _choose_port(requested: int, report: Report) -> int:
    """Return ``requested``, unless it is 0 or in use; then return another port."""
    chosen = network.free_port("127.0.0.1", requested, FIRST_PORT)
    if requested and chosen != requested:
        report(f"port {requested} is in use on this host: using {chosen}")
    return chosen


def check_root(cloud: LocalCloud, *arguments: str) -> None:
    """Raise CloudError unless this process is root.

    The error shows the local cloud's command with ``arguments`` to run as root.
    """
    if os.geteuid() != 0:
        raise CloudError(f"the local cloud's machines need root. Run: {cloud.command(*arguments)}")


def _check_tools() -> None:
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        raise CloudError(f"{', '.join(missing)} is missing. Run: make env-localcloud")
