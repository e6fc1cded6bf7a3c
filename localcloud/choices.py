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
    """Options of ``up``; with None, a cloud keeps its value, and a new cloud gets the default.

    A new cloud gets a free port and subnet. ``machines`` is one of kinds.KINDS, ``suite`` one of
    image.SUITES, ``mnt_shared`` one of settings.MNT_SHARED.
    """

    port: int | None = None
    subnet: IPv4Network | None = None
    machines: str | None = None
    suite: str | None = None
    mnt_shared: str | None = None


DEFAULTS = Options()


def choose(
    cloud: LocalCloud, before: Settings | None, options: Options, *, in_use: bool
) -> Settings:
    """Return settings with the chosen kind of machine, Debian release and type of ``/mnt/shared``.

    ``before`` are the cloud's existing settings; the result has their port, subnet and image, if
    any. Raises CloudError if ``options`` contradict each other, or differ from ``before`` while the
    cloud is in use (running or with machines).
    """
    if before and in_use:
        _keep(cloud, before, options, ("machines", "suite", "mnt_shared"))
    kind = options.machines or (before.machines if before else DEFAULT)
    possible = KINDS[kind].mnt_shared
    if options.mnt_shared and options.mnt_shared not in possible:
        raise CloudError(
            f"--mnt-shared: machines of kind {kind} do not support {options.mnt_shared}. "
            f"Omit the option: {cloud.command('up', '--machines', kind)}"
        )
    held = before.mnt_shared if before and before.machines == kind else possible[0]
    mnt_shared = options.mnt_shared or (held if held in possible else possible[0])
    now = before or Settings(cloud.name, port=0, subnet="", image="")
    return replace(now, machines=kind, suite=options.suite or now.suite, mnt_shared=mnt_shared)


def choose_subnet(
    cloud: LocalCloud, before: Settings | None, options: Options, *, has_machines: bool
) -> IPv4Network | None:
    """Return the subnet to use, or None for any free subnet.

    ``before`` are the cloud's existing settings. Raises CloudError if another subnet is requested
    while the cloud has machines, because machines keep their addresses.
    """
    if before is None:
        return options.subnet
    if has_machines:
        _keep(cloud, before, options, ("subnet",))
    return options.subnet or IPv4Network(before.subnet)


def keep_address(cloud: LocalCloud, before: Settings, options: Options) -> None:
    """Raise CloudError if ``options`` request another port or subnet than the running cloud has."""
    _keep(cloud, before, options, ("port", "subnet"))


def _keep(cloud: LocalCloud, before: Settings, options: Options, names: Iterable[str]) -> None:
    held = {**asdict(before), "suite": before.suite or image.DEBIAN_SUITE}
    wanted = {name: str(value) for name, value in vars(options).items() if value}
    for name in names:
        if name in wanted and wanted[name] != str(held[name]):
            kept = {each: held[each] for each in ("suite", "machines", "mnt_shared")}
            if "machines" in wanted:  # each kind has its own default of mnt_shared
                del kept["mnt_shared"]
            raise CloudError(
                f"local cloud {cloud.name!r} already has {_option(name)} {held[name]} "
                f"({wanted[name]} was requested). Remove the cloud with all its data and start it "
                f"again: {cloud.command('down')} && {_up(cloud, {**kept, **wanted})}"
            )


def _up(cloud: LocalCloud, options: Mapping[str, str]) -> str:
    defaults = {"machines": DEFAULT, "suite": image.DEBIAN_SUITE, "mnt_shared": "shared"}
    words = [
        word
        for name, value in options.items()
        if value != defaults.get(name)
        for word in (_option(name), value)
    ]
    return cloud.command("up", *words)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
