"""Summary of the doctor's findings on the controller and on each worker."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...module_utils.worker.doctor_finding import PROBLEM, Finding, from_dicts, problem, verdict
from ..fleet.ownership import LABEL
from ..runs.status import answer_error
from ..view.folded_names import folded

Answer = Mapping[str, Any]
#: ssh's message if the server accepts no key. ssh has no exit code for this error.
REFUSED_KEY = "Permission denied ("


def doctor_summary(
    here: Answer,
    answers: Mapping[str, Answer],
    tpu: str = "",
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    foreign: Collection[str] = (),
) -> dict[str, Any]:
    """Return ``lines`` for users, the ``verdict`` (the last line), and the ``count`` of problems.

    Args:
        here: the result of tpufleet.core.doctor on the controller.
        answers: the results of doctor_worker, by worker.
        tpu: the TPU that the user asked to check, or empty.
        facts: each host's inventory variables.
        foreign: the workers of TPUs that do not belong to this fleet.
    """
    findings = [*from_dicts(here["findings"]), *worker_findings(answers, facts or {}, foreign)]
    if tpu and not answers:
        named = "" if tpu == "all" else f" of TPU {tpu}"
        shown = "ansible-playbook playbooks/status.yml"
        findings.append(problem("workers", f"no worker{named} is READY", shown))
    count = sum(each.state == PROBLEM for each in findings)
    message = verdict(findings)
    return {
        "lines": [*(each.line for each in findings), message],
        "verdict": message,
        "count": count,
    }


def adopt_command(tpu: str) -> str:
    """Return the command that adopts a TPU of the fleet file."""
    return f"ansible-playbook playbooks/create.yml -e tpu={tpu} -e adopt=true"


def worker_findings(
    answers: Mapping[str, Answer],
    facts: Mapping[str, Mapping[str, Any]],
    foreign: Collection[str],
) -> list[Finding]:
    """Return the findings of all workers, with equal findings merged and problems last.

    For the arguments see doctor_summary.
    """
    alike: dict[Finding, list[str]] = {}
    lost: list[Finding] = []
    refused: dict[tuple[str, bool], list[str]] = {}
    for host, answer in answers.items():
        if "findings" not in answer:
            if answer.get("unreachable") and REFUSED_KEY in str(answer.get("msg")):
                tpu = str(facts.get(host, {}).get("tpu_name") or "NAME")
                refused.setdefault((tpu, host in foreign), []).append(host)
            else:
                lost.append(_unreached(host, answer, facts.get(host, {}), host in foreign))
            continue
        for each in from_dicts(answer["findings"]):
            alike.setdefault(each, []).append(host)
    found = [
        Finding(f"{folded(hosts)}: {each.check}", each.state, each.message, each.fix)
        for each, hosts in sorted(alike.items(), key=lambda item: item[0].state == PROBLEM)
    ]
    found += [
        problem(
            folded(hosts),
            "refuses the ssh key",
            _fix_of_refused_key(tpu, is_foreign, facts.get(hosts[0], {}).get("tpu_labels") or {}),
        )
        for (tpu, is_foreign), hosts in refused.items()
    ]
    return found + lost


def _fix_of_refused_key(tpu: str, is_foreign: bool, labels: Mapping[str, str]) -> str:
    if not is_foreign:
        return f"ansible-playbook playbooks/create.yml -e tpu={tpu} adds this computer's key"
    if fleet := labels.get(LABEL):
        return (
            f"it belongs to the fleet {fleet!r:.80}. Check your own TPU: "
            "ansible-playbook playbooks/doctor.yml -e tpu=NAME"
        )
    return f"adopt the TPU: add it to fleet.yml, then {adopt_command(tpu)}"


def _unreached(host: str, answer: Answer, facts: Mapping[str, Any], is_foreign: bool) -> Finding:
    message = answer_error(answer)
    if not answer.get("unreachable"):
        return problem(host, message, f"ansible-playbook setup.yml --limit {host}")
    tpu = str(facts.get("tpu_name") or "NAME")
    if is_foreign:
        by = f"wait a minute if it is booting, or ask the owner of TPU {tpu} to repair it"
        return problem(host, message, by)
    zone = facts.get("tpu_zone")
    if host.startswith(f"{tpu}-{zone}-w"):  # another zone has a TPU of this name
        tpu = f"{tpu}_{zone}"
    by = (
        "wait a minute if it is booting, or recreate its TPU: "
        f"ansible-playbook playbooks/delete.yml -e tpu={tpu} && "
        f"ansible-playbook playbooks/create.yml -e tpu={tpu}"
    )
    return problem(host, message, by)
