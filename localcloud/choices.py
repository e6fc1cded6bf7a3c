"""Choice of a cloud's settings: from the options of ``up``, else the cloud's existing settings."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from ipaddress import IPv4Network

from localcloud.failure import CloudError
from localcloud.local_cloud import LocalCloud
from localcloud.machines import image
from localcloud.machines.kinds import DEFAULT, KINDS
from localcloud.settings import Settings


@dataclass(frozen=True)
class Options:
    """Options of ``up``.

    If an option is None, an existing cloud keeps its setting, and a new cloud gets the default. By
    default, a free port and a free subnet are chosen.

    ``machines`` is one of kinds.KINDS, ``suite`` one of image.SUITES, ``mnt_shared`` one of
    settings.MNT_SHARED.
    """

    port: int | None = None
    subnet: IPv4Network | None = None
    machines: str | None = None
    suite: str | None = None
    mnt_shared: str | None = None


DEFAULTS = Options()


def choose(
    cloud: LocalCloud, existing: Settings | None, options: Options, *, in_use: bool
) -> Settings:
    """Return settings with the chosen kind of machine, Debian release and type of ``/mnt/shared``.

    The result has the port, subnet and image of the cloud's ``existing`` settings, if any. Raises
    CloudError if ``options`` contradict each other, or differ from ``existing`` while the cloud is
    in use (running or with machines).
    """
    if existing and in_use:
        _check_unchanged(cloud, existing, options, ("machines", "suite", "mnt_shared"))
    kind = options.machines or (existing.machines if existing else DEFAULT)
    supported = KINDS[kind].mnt_shared
    if options.mnt_shared and options.mnt_shared not in supported:
        raise CloudError(
            f"--mnt-shared: machines of kind {kind} do not support {options.mnt_shared}. "
            f"Omit the option: {cloud.command('up', '--machines', kind)}"
        )
    current = existing.mnt_shared if existing and existing.machines == kind else supported[0]
    mnt_shared = options.mnt_shared or (current if current in supported else supported[0])
    base = existing or Settings(cloud.name, port=0, subnet="", image="")
    return replace(base, machines=kind, suite=options.suite or base.suite, mnt_shared=mnt_shared)


def choose_subnet(
    cloud: LocalCloud, existing: Settings | None, options: Options, *, has_machines: bool
) -> IPv4Network | None:
    """Return the subnet to use, or None for any free subnet.

    Raises CloudError if a subnet other than that of the ``existing`` settings is requested while
    the cloud has machines, because machines keep their addresses.
    """
    if existing is None:
        return options.subnet
    if has_machines:
        _check_unchanged(cloud, existing, options, ("subnet",))
    return options.subnet or IPv4Network(existing.subnet)


def check_address_unchanged(cloud: LocalCloud, existing: Settings, options: Options) -> None:
    """Raise CloudError if ``options`` request another port or subnet than the running cloud has."""
    _check_unchanged(cloud, existing, options, ("port", "subnet"))


def _check_unchanged(
    cloud: LocalCloud, existing: Settings, options: Options, names: Iterable[str]
) -> None:
    current = {**asdict(existing), "suite": existing.suite or image.DEBIAN_SUITE}
    requested = {name: str(value) for name, value in vars(options).items() if value}
    for name in names:
        if name in requested and requested[name] != str(current[name]):
            retained = {
                setting: current[setting] for setting in ("suite", "machines", "mnt_shared")
            }
            # Do not suggest the current --mnt-shared if the user requested a kind of machine: that
            # kind may not support it, and without the option its default applies.
            if "machines" in requested:
                del retained["mnt_shared"]
            raise CloudError(
                f"local cloud {cloud.name!r} already has {_option(name)} {current[name]} "
                f"({requested[name]} was requested). Remove the cloud with all its data and start "
                f"it again: {cloud.command('down')} && "
                f"{_up_command(cloud, {**retained, **requested})}"
            )


def _up_command(cloud: LocalCloud, options: Mapping[str, str]) -> str:
    defaults = {"machines": DEFAULT, "suite": image.DEBIAN_SUITE, "mnt_shared": "shared"}
    arguments = [
        argument
        for name, value in options.items()
        if value != defaults.get(name)
        for argument in (_option(name), value)
    ]
    return cloud.command("up", *arguments)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
