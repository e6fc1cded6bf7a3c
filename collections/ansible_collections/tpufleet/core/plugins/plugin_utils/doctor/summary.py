"""Summary of the doctor's findings on the controller and on each worker."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ...module_utils.worker.doctor_finding import PROBLEM, Finding, from_dicts, problem, verdict
from ..fleet.ownership import LABEL
from ..runs.status import answer_error
from ..view.folded_names import folded

Result = Mapping[str, Any]
#: Part of ssh's message if the worker accepts none of the user's keys. This error has no exit code
#: of its own.
REFUSED_KEY = "Permission denied ("


def doctor_summary(
    controller_result: Result,
    worker_results: Mapping[str, Result],
    tpu: str = "",
    hostvars: Mapping[str, Mapping[str, Any]] | None = None,
    foreign: Collection[str] = (),
) -> dict[str, Any]:
    """Return ``lines`` for users, the ``verdict`` (the last line), and the ``count`` of problems.

    ``controller_result`` is the result of the action doctor. ``worker_results`` maps each worker to
    its result of the module doctor_worker. ``tpu`` is the TPU that the user named, empty for none.
    ``foreign`` lists the workers of TPUs that do not belong to this fleet.
    """
    findings = [
        *from_dicts(controller_result["findings"]),
        *worker_findings(worker_results, hostvars or {}, foreign),
    ]
    if tpu and not worker_results:
        named = "" if tpu == "all" else f" of TPU {tpu}"
        fix = "ansible-playbook playbooks/status.yml"
        findings.append(problem("workers", f"no worker{named} is READY", fix))
    count = sum(finding.state == PROBLEM for finding in findings)
    message = verdict(findings)
    return {
        "lines": [*(finding.line for finding in findings), message],
        "verdict": message,
        "count": count,
    }


def adopt_command(tpu: str) -> str:
    """Return the command that adopts a TPU of the fleet file."""
    return f"ansible-playbook playbooks/create.yml -e tpu={tpu} -e adopt=true"


def worker_findings(
    worker_results: Mapping[str, Result],
    hostvars: Mapping[str, Mapping[str, Any]],
    foreign: Collection[str],
) -> list[Finding]:
    """Return the findings of all workers, with equal findings merged and problems last.

    For the arguments see doctor_summary.
    """
    hosts_by_finding: dict[Finding, list[str]] = {}
    failures: list[Finding] = []
    refused_hosts: dict[tuple[str, bool], list[str]] = {}
    for host, result in worker_results.items():
        if "findings" not in result:
            if result.get("unreachable") and REFUSED_KEY in str(result.get("msg")):
                tpu = str(hostvars.get(host, {}).get("tpu_name") or "NAME")
                refused_hosts.setdefault((tpu, host in foreign), []).append(host)
            else:
                failures.append(
                    _failure_finding(host, result, hostvars.get(host, {}), host in foreign)
                )
            continue
        for finding in from_dicts(result["findings"]):
            hosts_by_finding.setdefault(finding, []).append(host)
    findings = [
        Finding(f"{folded(hosts)}: {finding.check}", finding.state, finding.message, finding.fix)
        for finding, hosts in sorted(
            hosts_by_finding.items(), key=lambda item: item[0].state == PROBLEM
        )
    ]
    findings += [
        problem(
            folded(hosts),
            "refuses this computer's ssh key",
            _refused_key_fix(tpu, is_foreign, hostvars.get(hosts[0], {})),
        )
        for (tpu, is_foreign), hosts in refused_hosts.items()
    ]
    return findings + failures


def _refused_key_fix(tpu: str, is_foreign: bool, variables: Mapping[str, Any]) -> str:
    ssh = variables.get("tpu_ssh") or {}
    if not is_foreign and ssh.get("os_login"):
        key = Path(ssh.get("private_key_file") or "KEY").expanduser()
        return (
            "check ssh_user in tpu.yml, and add the key: "
            f"gcloud compute os-login ssh-keys add --key-file {shlex.quote(f'{key}.pub')}"
        )
    if not is_foreign:
        return f"add the key: ansible-playbook playbooks/create.yml -e tpu={tpu}"
    if fleet := (variables.get("tpu_labels") or {}).get(LABEL):
        return (
            f"check your own TPU, because this one belongs to the fleet {fleet!r:.80}: "
            "ansible-playbook playbooks/doctor.yml -e tpu=NAME"
        )
    return f"to adopt the TPU, add it to fleet.yml, then run: {adopt_command(tpu)}"


def _failure_finding(
    host: str, result: Result, variables: Mapping[str, Any], is_foreign: bool
) -> Finding:
    message = answer_error(result)
    if "timedout" in result:
        message = "its checks did not end in time; a network file system may not respond"
        return problem(host, message, f"ansible {host} -b -a 'timeout 10 df'")
    if not result.get("unreachable"):
        return problem(host, message, f"ansible-playbook setup.yml --limit {host}")
    tpu = str(variables.get("tpu_name") or "NAME")
    if is_foreign:
        fix = f"wait a minute if it is booting, or tell the owner of TPU {tpu}"
        return problem(host, message, fix)
    zone = variables.get("tpu_zone")
    # If several zones have a TPU of this name, the host names and -e tpu= include the zone.
    if host.startswith(f"{tpu}-{zone}-w"):
        tpu = f"{tpu}_{zone}"
    fix = (
        "wait a minute if it is booting. If no other check explains this, recreate its TPU, which "
        "must be in fleet.yml: "
        f"ansible-playbook playbooks/delete.yml -e tpu={tpu} && "
        f"ansible-playbook playbooks/create.yml -e tpu={tpu}"
    )
    return problem(host, message, fix)
