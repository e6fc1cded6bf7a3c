"""Checks of TPUs that do not belong to this fleet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ...module_utils.worker.doctor_finding import Finding, ok, problem
from ..view.folded_names import folded

CHECK = "foreign TPUs"


def adopt_command(tpu: str) -> str:
    """Return the command that adopts a TPU of the fleet file."""
    return f"ansible-playbook playbooks/create.yml -e tpu={tpu} -e adopt=true"


def foreign_findings(tpus: Mapping[str, str], fleet: Collection[str]) -> Iterator[Finding]:
    """Yield findings about TPUs that do not belong to this fleet.

    ``tpus`` maps the names of these TPUs to zones; ``fleet`` has the names in the fleet file.
    """
    for name in sorted(set(tpus) & set(fleet)):
        message = f"TPU {name} ({tpus[name]}) is in fleet.yml, but this fleet did not create it"
        yield problem(CHECK, message, adopt_command(name))
    others = sorted(set(tpus) - set(fleet))
    if others:
        yield ok(
            CHECK,
            f"{folded(others)}: left alone unless named with -e tpu=NAME. To adopt one, add it to "
            f"fleet.yml, then: {adopt_command('NAME')}",
        )


def refused_key_fix(tpu: str, is_foreign: bool) -> str:
    """Return the advice for a TPU whose workers refuse this computer's ssh key."""
    if is_foreign:
        return f"adopt the TPU: add it to fleet.yml, then {adopt_command(tpu)}"
    return f"ansible-playbook playbooks/create.yml -e tpu={tpu} adds this computer's key"
