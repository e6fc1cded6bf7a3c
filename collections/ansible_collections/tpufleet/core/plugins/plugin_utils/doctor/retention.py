"""Check of how long a bucket keeps the stored output of runs.

Source: https://cloud.google.com/storage/docs/lifecycle. The check never
changes the bucket's lifecycle.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from ...module_utils.cloud import errors
from ...module_utils.cloud.session import GOOGLE_STORAGE, ApiSettings
from ...module_utils.cloud.storage import SCHEME, BucketUrl
from ...module_utils.worker.doctor_finding import Finding, ok, problem
from .doctor_probe import Probe, StorageProbe

CHECK = "stored output"
MOST_DAYS = 36500


def retention_findings(
    settings: ApiSettings,
    location: str,
    days: object,
    opener: Callable[[str, str], Probe] = StorageProbe,
) -> list[Finding]:
    """Compare ``outputs_days`` with the bucket's lifecycle; nothing if the bucket can't be read.

    ``location`` is ``outputs_location``. An emulator has no lifecycle.
    """
    if not location.startswith(SCHEME) or settings.storage_address != GOOGLE_STORAGE:
        return []
    try:
        place = BucketUrl.parse(location)
        probe = opener(settings.storage_address, settings.credentials_file)
        reply = probe.get(f"{settings.storage_address}/storage/v1/b/{quote(place.bucket, safe='')}")
    except errors.CloudError:
        return []  # the check of the bucket reports it
    return [retention_finding(place, reply.body, days)] if reply.status == 200 else []


def retention_finding(place: BucketUrl, bucket: Mapping[str, Any], days: object) -> Finding:
    """Compare ``days``, 0 for no limit, with the lifecycle rules of a bucket."""
    text = str(days)
    if not text.isdecimal() or int(text) > MOST_DAYS:
        message = (
            f"outputs_days: expected whole days from 0 (no limit) to {MOST_DAYS} ({text!r:.40})"
        )
        return problem(CHECK, message, "$EDITOR inventory/*/group_vars/all/bucket.yml")
    if not place.prefix:
        return ok(CHECK, f"gs://{place.bucket} is a whole bucket, so no lifecycle rule is proposed")
    wanted, prefix = int(text), f"{place.prefix}/"
    rules = _rules(bucket)
    kept = min((age for rule in rules if (age := _age(rule, prefix)) is not None), default=0)
    where = f"gs://{place.bucket}/{prefix}"
    if kept == wanted:
        limit = f"is kept for {kept} days" if kept else "is kept without limit (outputs_days)"
        return ok(CHECK, f"{where} {limit}")
    if not wanted:
        return ok(CHECK, f"{where} is kept for {kept} days by a lifecycle rule of the bucket")
    others = [rule for rule in rules if _age(rule, prefix) is None]
    new = {
        "action": {"type": "Delete"},
        "condition": {"age": wanted, "matchesPrefix": [prefix]},
    }
    lifecycle = shlex.quote(json.dumps({"rule": [*others, new]}))
    now = f"is kept for {kept} days" if kept else "is kept without limit"
    return problem(
        CHECK,
        f"{where} {now}, and outputs_days is {wanted}",
        f"echo {lifecycle} > lifecycle.json && "
        f"gcloud storage buckets update gs://{place.bucket} --lifecycle-file=lifecycle.json",
    )


def _rules(bucket: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    lifecycle = bucket.get("lifecycle")
    rules = lifecycle.get("rule") if isinstance(lifecycle, Mapping) else None
    return [rule for rule in rules if isinstance(rule, Mapping)] if isinstance(rules, list) else []


def _age(rule: Mapping[str, Any], prefix: str) -> int | None:
    """Return the age in days at which a rule deletes exactly what begins with ``prefix``."""
    action, condition = rule.get("action"), rule.get("condition")
    if not isinstance(action, Mapping) or action.get("type") != "Delete":
        return None
    if not isinstance(condition, Mapping) or set(condition) != {"age", "matchesPrefix"}:
        return None
    age = condition["age"]
    is_age = isinstance(age, int) and not isinstance(age, bool)
    return age if is_age and condition["matchesPrefix"] == [prefix] else None
