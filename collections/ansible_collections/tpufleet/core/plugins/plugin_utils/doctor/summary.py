"""Summary of the doctor's findings, the controller's and each worker's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...module_utils.worker.doctor_finding import MEND, Finding, mend, untold, verdict
from ..view.folded_names import folded
from .foreign import refused_key_fix

Answer = Mapping[str, Any]
#: What ssh says if a server accepts none of the keys (ssh has no exit code of its own for it).
REFUSED_KEY = "Permission denied ("


def doctor_summary(
    here: Answer,
    answers: Mapping[str, Answer],
    tpu: str = "",
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    foreign: Collection[str] = (),
) -> dict[str, Any]:
    """Put all findings into ``lines``, with the ``verdict`` and the ``count`` of what to mend.

    ``answers`` are what doctor_worker said, by worker; ``tpu`` is the TPU that was asked for.
    ``facts`` are each host's inventory variables, ``foreign`` the workers of others.
    """
    findings = [*untold(here["findings"]), *worker_findings(answers, facts or {}, foreign)]
    if tpu and not answers:
        named = "" if tpu == "all" else f" of TPU {tpu}"
        shown = "ansible-playbook playbooks/status.yml shows what there is"
        findings.append(mend("workers", f"no worker{named} is READY", shown))
    count = sum(each.state == MEND for each in findings)
    said = verdict(findings)
    return {"lines": [*(each.line for each in findings), said], "verdict": said, "count": count}


def worker_findings(
    answers: Mapping[str, Answer],
    facts: Mapping[str, Mapping[str, Any]],
    foreign: Collection[str],
) -> list[Finding]:
    """Fold what many workers say alike into a line; what is wrong stands behind what is right."""
    alike: dict[Finding, list[str]] = {}
    lost: list[Finding] = []
    refused: dict[tuple[str, bool], list[str]] = {}
    for host, answer in answers.items():
        if "findings" not in answer:
            if answer.get("unreachable") and REFUSED_KEY in str(answer.get("msg")):
                tpu = str(facts.get(host, {}).get("tpu_name") or "NAME")
                refused.setdefault((tpu, host in foreign), []).append(host)
            else:
                lost.append(_unreached(host, answer))
            continue
        for each in untold(answer["findings"]):
            alike.setdefault(each, []).append(host)
    found = [
        Finding(f"{folded(hosts)}: {each.check}", each.state, each.said, each.mend)
        for each, hosts in sorted(alike.items(), key=lambda item: item[0].state == MEND)
    ]
    found += [
        mend(folded(hosts), "refuses the ssh key", refused_key_fix(tpu, is_foreign))
        for (tpu, is_foreign), hosts in refused.items()
    ]
    return found + lost


def _unreached(host: str, answer: Answer) -> Finding:
    said = " ".join(str(answer.get("msg") or "no answer").split())
    if not answer.get("unreachable"):
        return mend(host, said, f"ansible-playbook setup.yml --limit {host}")
    reason = said[max(said.rfind("ssh: "), 0) :]
    tpu = host.rpartition("-w")[0]
    by = (
        "wait a minute if it boots, else recreate its TPU: "
        f"ansible-playbook playbooks/delete.yml -e tpu={tpu} && "
        f"ansible-playbook playbooks/create.yml -e tpu={tpu}"
    )
    return mend(host, f"can't be reached: {reason}", by)
