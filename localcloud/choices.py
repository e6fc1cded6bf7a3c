"""What a cloud comes up with: what the user asks for, else what the cloud already has."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from ipaddress import IPv4Network

from localcloud.failure import CloudError
from localcloud.machines import image
from localcloud.machines.kinds import DEFAULT, KINDS
from localcloud.place import Place
from localcloud.settings import Settings


@dataclass(frozen=True)
class Asked:
    """The options of ``up``; None is what the cloud has, or the default of a new one."""

    port: int | None = None
    subnet: IPv4Network | None = None
    machines: str | None = None
    suite: str | None = None
    mnt_shared: str | None = None


@dataclass(frozen=True)
class Choices:
    """What the machines are: their kind, their release (empty: the host's), ``/mnt/shared``."""

    kind: str
    suite: str
    mnt_shared: str


def choose(place: Place, before: Settings | None, asked: Asked, *, in_use: bool) -> Choices:
    """Choose what the machines are. A cloud that is ``in_use`` keeps what it has.

    Raises CloudError if ``asked`` contradicts that, or itself.
    """
    if before and in_use:
        _keep(place, before, asked, ("machines", "suite", "mnt_shared"))
    kind = asked.machines or (before.machines if before else DEFAULT)
    possible = KINDS[kind].mnt_shared
    if asked.mnt_shared and asked.mnt_shared not in possible:
        raise CloudError(
            f"--mnt-shared: machines of kind {kind} share no directory of the host "
            f"({asked.mnt_shared}). Leave the option out: "
            f"{place.command('up', '--machines', kind)}"
        )
    held = before.mnt_shared if before and before.machines == kind else possible[0]
    mnt_shared = asked.mnt_shared or (held if held in possible else possible[0])
    return Choices(kind, asked.suite or (before.suite if before else ""), mnt_shared)


def choose_subnet(
    place: Place, before: Settings | None, asked: Asked, *, has_machines: bool
) -> IPv4Network | None:
    """Choose the subnet; None is any free one. Machines keep the addresses they were made with."""
    if before is None:
        return asked.subnet
    if has_machines:
        _keep(place, before, asked, ("subnet",))
    return asked.subnet or IPv4Network(before.subnet)


def keep_address(place: Place, before: Settings, asked: Asked) -> None:
    """Raise CloudError if another port or subnet is asked of a cloud that is up."""
    _keep(place, before, asked, ("port", "subnet"))


def _keep(place: Place, before: Settings, asked: Asked, names: Iterable[str]) -> None:
    """Raise CloudError if another value is asked for one of the settings ``names``."""
    held = {**asdict(before), "suite": before.suite or image.DEBIAN_SUITE}
    wanted = {name: str(value) for name, value in vars(asked).items() if value}
    for name in names:
        if name in wanted and wanted[name] != str(held[name]):
            kept = {each: held[each] for each in ("suite", "machines", "mnt_shared")}
            if "machines" in wanted:  # another kind has its own default
                del kept["mnt_shared"]
            raise CloudError(
                f"local cloud {place.name!r} already has {_option(name)} {held[name]} "
                f"({wanted[name]} was asked for). Remove it with all that it holds, then start "
                f"it again: {place.command('down')} && {_up(place, {**kept, **wanted})}"
            )


def _up(place: Place, options: Mapping[str, str]) -> str:
    defaults = {"machines": DEFAULT, "suite": image.DEBIAN_SUITE, "mnt_shared": "shared"}
    words = [
        word
        for name, value in options.items()
        if value != defaults.get(name)
        for word in (_option(name), value)
    ]
    return place.command("up", *words)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
