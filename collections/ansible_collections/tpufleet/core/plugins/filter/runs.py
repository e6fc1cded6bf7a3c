"""Filters that read many workers' answers together: who is in the way, who failed, the status
table."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..module_utils.worker.error_line import error_line, last_attempt
from ..plugin_utils.fleet.fleet import expand
from ..plugin_utils.fleet.ownership import FOREIGN_GROUP
from ..plugin_utils.view.folded_names import folded

ENV_FORMS = (
    'say -e env=\'"NAME=value OTHER=value"\' or -e \'{"env": {"NAME": "value"}}\' '
    "to ansible-playbook train.yml"
)

Answer = Mapping[str, Any]


def by_host(
    variables: Mapping[str, Mapping[str, Any]], hosts: Sequence[str], name: str
) -> dict[str, Any]:
    """Collect what a task registered under ``name`` on each host; a host that never came so far
    has nothing."""
    return {host: variables[host].get(name) or {} for host in hosts}


def workers_pattern(tpu: str = "", groups: Collection[str] = ()) -> str:
    """Return the pattern of the READY workers of this fleet, or of the TPU that is named."""
    if tpu:
        return f"tpu:&{group_of(tpu)}"
    return f"tpu:!{FOREIGN_GROUP}" if FOREIGN_GROUP in groups else "tpu"


def workers_of(groups: Mapping[str, Sequence[str]], tpu: str = "") -> list[str]:
    """Return the READY workers of this fleet, or of the TPU that is named."""
    meant, left_out = groups.get(group_of(tpu), []), groups.get(FOREIGN_GROUP, [])
    return [
        host for host in groups.get("tpu", []) if (host in meant if tpu else host not in left_out)
    ]


def foreign_tpus(
    groups: Mapping[str, Sequence[str]], facts: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Return the zone of each TPU that does not belong to this fleet, by its name.

    ``facts`` are each host's inventory variables.
    """
    hosts = [facts[host] for host in groups.get(FOREIGN_GROUP, [])]
    return {str(each.get("tpu_name")): str(each.get("tpu_zone") or "") for each in hosts}


def unmanaged_tpus(
    hosts: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    facts: Mapping[str, Mapping[str, Any]],
    fleet: Any,
) -> list[str]:
    """Return the TPUs of these hosts that create.yml cannot recreate.

    They are not in the fleet file (``fleet``), or they do not belong to this fleet.
    """
    known = {tpu.name for tpu in expand(fleet or [])}
    foreign = groups.get(FOREIGN_GROUP, [])
    found = {
        str(facts[host].get("tpu_name"))
        for host in hosts
        if host in foreign or facts[host].get("tpu_name") not in known
    }
    return sorted(found)


def group_of(tpu: str) -> str:
    """Give the inventory's group of a TPU, or of those made together (``multislice_NAME``); names
    are made safe as Ansible does it."""
    safe = re.sub(r"[^A-Za-z0-9_]", "_", tpu)
    return safe if safe.startswith("multislice_") else f"tpu_{safe}"


def which_checkpoints(asked: Any) -> str:
    """Read which checkpoints to fetch: ``none``, ``newest`` or ``all``; true is all of them.

    A place is what launches mean by the same variable, in the inventory: nothing is asked for.
    Raises AnsibleFilterError.
    """
    word = str(asked).strip().lower()
    if "/" in word:
        return "none"
    meant = {"true": "all", "yes": "all", "1": "all", "false": "none", "no": "none", "0": "none"}
    found = meant.get(word, word)
    if found not in ("none", "newest", "all"):
        raise AnsibleFilterError(f"checkpoints={word}: say newest or all")
    return found


def run_env(layers: Sequence[Any]) -> dict[str, str]:
    """Lay environments over each other, the later ones on top.

    Each is a mapping, or as the command line gives it: ``A=b C="d e"`` or JSON. Raises
    AnsibleFilterError of one line, which shows names, never values.
    """
    found: dict[str, str] = {}
    for layer in layers:
        found |= one_env(layer)
    return found


def one_env(given: Any) -> dict[str, str]:
    """Read one environment."""
    if isinstance(given, str):
        text = given.strip()
        try:
            given = json.loads(text) if text.startswith("{") else pairs(shlex.split(text))
        except ValueError as error:
            raise AnsibleFilterError(f"env can't be read ({error}): {ENV_FORMS}") from None
    if not isinstance(given, Mapping):
        raise AnsibleFilterError(f"env is a {type(given).__name__}: {ENV_FORMS}")
    odd = [str(name) for name, value in given.items() if isinstance(value, Mapping | list)]
    if odd:
        raise AnsibleFilterError(f"env: {', '.join(odd)} is no single value: {ENV_FORMS}")
    return {str(name): "" if value is None else str(value) for name, value in given.items()}


def pairs(words: Sequence[str]) -> dict[str, str]:
    """Split words NAME=VALUE. Raises ValueError, which names no value."""
    if any("=" not in word for word in words):
        raise ValueError("a word without '='")
    return dict(word.split("=", 1) for word in words)


def launch_verdict(
    answers: Mapping[str, Answer], parts: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Decide from each worker's answer to ``state: launched`` or ``ready`` what is to be done.

    Each run stands for itself. Returns ``problems`` (by run its lines; a run that has one may not
    start), ``launch`` (runs that start), of these ``again`` (not all workers have started yet) and
    ``push`` (one lacks the release; ``push_hosts`` bring it), ``running`` and ``done`` (names of
    runs), ``notes`` (lines on the last two).
    """
    problems: dict[str, list[tuple[str, str]]] = {}
    standings: dict[str, set[str]] = {}
    push = set()
    for host, part in parts.items():
        answer, mine = answers.get(host) or {}, problems.setdefault(part["run"], [])
        if "standing" not in answer:
            mine.append((host, why(answer) + doctor_of(answer, part["tpu"])))
            continue
        mine += [(host, line) for line in answer["obstacles"]]
        standing = "started" if answer["started"] else answer["standing"]
        standings.setdefault(part["run"], set()).add(standing)
        if answer["lacks"]:
            push.add(part["run"])
    refused = {run for run, lines in problems.items() if lines}
    whole = {
        run: next(iter(found))
        for run, found in standings.items()
        if len(found) == 1 and run not in refused
    }
    running = sorted(run for run, found in whole.items() if found == "running")
    done = sorted(run for run, found in whole.items() if found == "done")
    launch = set(standings) - refused - set(running) - set(done)
    return {
        "problems": {run: said_once(problems[run]) for run in sorted(refused)},
        "launch": sorted(launch),
        "again": sorted(run for run in launch if whole.get(run) != "started"),
        "push": sorted(launch & push),
        "push_hosts": one_a_worker(parts, launch & push),
        "running": running,
        "done": done,
        "notes": [f"{run} runs already" for run in running]
        + [f"{run} is done already: another -e run=NAME makes a new one" for run in done],
    }


def doctor_of(answer: Answer, tpu: str) -> str:
    """Say what looks into a worker that can't be reached; nothing for another reason."""
    doctor = f": ansible-playbook playbooks/doctor.yml -e tpu={tpu}"
    return doctor if answer.get("unreachable") else ""


def one_a_worker(parts: Mapping[str, Mapping[str, Any]], runs: Collection[str]) -> list[str]:
    """Name the hosts of runs, of those that are chips of one worker the first."""
    found: dict[str, str] = {}
    for host, part in sorted(parts.items()):
        if part["run"] in runs:
            found.setdefault(part.get("worker") or host, host)
    return sorted(found.values())


def said_once(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Say each line once, with all the hosts that say it before it: ``pod-w[0-3]: no space``."""
    hosts: dict[str, list[str]] = {}
    for host, line in lines:
        hosts.setdefault(line, []).append(host)
    return [f"{folded(names)}: {line}" for line, names in hosts.items()]


def start_outcomes(
    parts: Mapping[str, Mapping[str, Any]],
    ready: Mapping[str, Answer],
    pushed: Mapping[str, Answer],
    started: Mapping[str, Answer],
    records: Sequence[Mapping[str, Any]] = (),
) -> dict[str, dict[str, Any]]:
    """Judge the start of each run of the play by its own workers, and by what its record says now.

    ``records`` are the results of a loop over runs, each with the run as ``__run_name``.
    """
    stopped = {
        look["__run_name"]
        for look in records
        if (look.get("record") or {}).get("wanted") == "stopped"
    }
    return {
        run: start_outcome(start_answers(hosts, ready, pushed, started), run in stopped)
        for run, hosts in hosts_by_run(parts).items()
    }


def wait_outcomes(
    before: Mapping[str, Mapping[str, Any]],
    parts: Mapping[str, Mapping[str, Any]],
    waited: Mapping[str, Answer],
) -> dict[str, Mapping[str, Any]]:
    """Judge each run by what waiting for it saw; one that nobody waited for stays as it was."""
    found = dict(before)
    for run, hosts in hosts_by_run(parts).items():
        answers = {host: waited.get(host) or {} for host in hosts}
        if not all(answer.get("skipped", not answer) for answer in answers.values()):
            found[run] = wait_outcome(answers)
    return found


def hosts_by_run(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Name each run's workers."""
    found: dict[str, list[str]] = {}
    for host, part in parts.items():
        found.setdefault(part["run"], []).append(host)
    return found


def start_answers(
    hosts: Sequence[str],
    ready: Mapping[str, Answer],
    pushed: Mapping[str, Answer],
    started: Mapping[str, Answer],
) -> dict[str, Answer]:
    """Give each worker's last word on its start: from the second step where there was one, from the
    push where that failed."""
    found = {}
    for host in hosts:
        push, second = pushed.get(host) or {}, started.get(host) or {}
        if push.get("unreachable") or push.get("failed"):
            found[host] = {key: push[key] for key in ("msg", "unreachable") if key in push}
        elif "info" in second or "msg" in second:
            found[host] = second
        else:
            first = ready.get(host) or {}
            found[host] = first if first.get("started") else {}
    return found


def failures(answers: Mapping[str, Answer], wanted: str = "info") -> list[str]:
    """Name the workers whose answer lacks what is wanted, each with the reason."""
    return [
        f"{host}: {why(answer)}" for host, answer in answers.items() if wanted not in (answer or {})
    ]


def start_outcome(answers: Mapping[str, Answer], stopped: bool = False) -> dict[str, Any]:
    """Judge the start of one run from its workers' answers: whoever fails, none may go on.

    ``stopped`` says that someone wanted it stopped while it was started: it may not go on either.
    """
    problems = failures(answers) + (["it was stopped while it was started"] if stopped else [])
    return {"problems": problems, "launch_failed": bool(problems), "stop": bool(problems)}


def wait_outcome(answers: Mapping[str, Answer]) -> dict[str, Any]:
    """Judge one run from what waiting for it saw.

    ``launch_failed``: something went wrong before the first step. ``stop``: the attempt is over,
    so none of it may go on; a run that had begun is not stopped because a worker can't be reached.
    """
    problems = bad_ends(answers)
    seen = [answer["info"] for answer in answers.values() if answer.get("info")]
    began = any(((info["heartbeat"] or {}).get("step") or 0) >= 1 for info in seen)
    over = any(trouble_of({"info": info}) for info in seen)
    return {
        "problems": problems,
        "launch_failed": bool(problems) and not began,
        "stop": bool(problems) and (over or not began),
    }


def attempt_words(outcome: Mapping[str, Any], run: str, ended: Mapping[str, Answer]) -> str:
    """Say on one line what went wrong with an attempt, and what stands now."""
    what = "; ".join(outcome["problems"])
    if not outcome["stop"]:
        return f"run {run} goes on: {what}: ansible-playbook playbooks/status.yml shows it"
    left = failures(ended)
    if left:
        return (
            f"run {run} failed: {what}; it was not stopped on {'; '.join(left)}: "
            f"ansible-playbook playbooks/kill.yml -e run={run}"
        )
    return (
        f"run {run} was stopped on all workers: {what}: "
        f"ansible-playbook playbooks/logs.yml -e run={run} shows more. After fixing it, run the "
        "command that launched it again"
    )


def bad_ends(answers: Mapping[str, Answer]) -> list[str]:
    """Name the workers whose part of a run ended badly or did not come in time, and why: by the
    line of the log that says it.

    The one that failed first stands first: the others often fail because it did. A worker that was
    left because another one failed says nothing of its own.
    """
    return [
        f"{host}: {'; '.join([trouble, *reason(answer)])}" for host, trouble, answer in bad(answers)
    ]


def bad_logs(answers: Mapping[str, Answer]) -> list[str]:
    """Give the last log lines of the workers whose part ended badly, each with the worker's
    name."""
    return [f"{host}: {line}" for host, _, answer in bad(answers) for line in said(answer)]


def bad(answers: Mapping[str, Answer]) -> list[tuple[str, str, Answer]]:
    """Pick the workers that are in trouble, with the trouble, the first of them first."""
    found = [(host, trouble_of(answer), answer) for host, answer in answers.items()]
    return sorted((each for each in found if each[1]), key=lambda each: ended_at(each[2]))


def ended_at(answer: Answer) -> float:
    """Give the time at which a worker's part ended, late for one that didn't."""
    ended = (answer.get("info") or {}).get("exit") or {}
    return float(ended.get("time") or "inf")


def said(answer: Answer) -> list[str]:
    """Return what the last attempt wrote to the log, of the lines that were brought."""
    lines = last_attempt((answer.get("info") or {}).get("log", []))
    return [line for line in lines if line.strip()]


def reason(answer: Answer) -> list[str]:
    """Return the line of the log that says why a worker's part ended, if that says more."""
    info = answer.get("info") or {}
    if str(info.get("state", "")).startswith(
        "not started"
    ):  # the unit's own words, not a trainer's
        return []
    line = str(info.get("error") or "") or error_line(said(answer))
    return [line] if line else []


def trouble_of(answer: Answer) -> str:
    """Say in words what is wrong with a worker's part of a run; nothing if nothing is."""
    info = answer.get("info")
    if not info:
        return why(answer)
    if not info["active"]:
        return "" if info["state"] in ("done", "interrupted, saved") else str(info["state"])
    return f"{info['state']}, and the time is up" if answer.get("outcome") == "time is up" else ""


def why(answer: Answer | None) -> str:
    """Say on one line why there is no answer."""
    answer = answer or {}
    text = " ".join(str(answer.get("msg") or "no answer").split()).removeprefix("Task failed: ")
    if answer.get("unreachable"):
        return f"can't be reached: {text[max(text.rfind('ssh: '), 0) :]}"
    return text


def active_runs(answers: Mapping[str, Answer]) -> list[str]:
    """Name the runs that are active on any of the workers."""
    return sorted(
        {
            run["run"]
            for answer in answers.values()
            for run in (answer or {}).get("runs", [])
            if run["active"]
        }
    )


def stopped_lines(answers: Mapping[str, Answer]) -> list[str]:
    """Say how each part of a run ended, with the last step that it told of; workers that never had
    it say nothing."""
    lines: list[tuple[str, str]] = []
    for host, answer in answers.items():
        info = (answer or {}).get("info")
        if info and info["attempt"] is not None:
            step = (info["heartbeat"] or {}).get("step")
            at = f" at step {step}" if step is not None else ""
            lines.append((host, f"{info['state']}{at}"))
    return said_once(lines) or ["no worker has had it"]


def watch_lines(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say on a line a run what a pass of the watch saw and did."""
    return [
        f"{each['run']}: {each['state']}"
        + (f": {each['why']}" if each.get("why") else "")
        + (f" → {each['action']}" if each.get("action", "nothing") != "nothing" else "")
        for each in runs
    ] or ["no run has a record"]


class FilterModule:
    """Ansible's way to find the filters."""

    def filters(self) -> dict[str, Any]:
        """Name them."""
        return {
            "by_host": by_host,
            "workers_pattern": workers_pattern,
            "workers_of": workers_of,
            "foreign_tpus": foreign_tpus,
            "unmanaged_tpus": unmanaged_tpus,
            "watch_lines": watch_lines,
            "which_checkpoints": which_checkpoints,
            "run_env": run_env,
            "one_env": one_env,
            "launch_verdict": launch_verdict,
            "start_outcomes": start_outcomes,
            "wait_outcomes": wait_outcomes,
            "run_failures": failures,
            "attempt_words": attempt_words,
            "run_bad_logs": bad_logs,
            "active_runs": active_runs,
            "stopped_lines": stopped_lines,
        }
