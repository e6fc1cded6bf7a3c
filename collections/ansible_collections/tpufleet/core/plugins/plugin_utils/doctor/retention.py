"""Check of how long a bucket keeps the stored output of runs.

Source: https://cloud.google.com/storage/docs/lifecycle. This code never changes a bucket's
lifecycle.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ...module_utils.cloud import errors
from ...module_utils.cloud.session import GOOGLE_STORAGE, ApiSettings, open_storage_session
from ...module_utils.cloud.storage import SCHEME, BucketUrl
from ...module_utils.worker.doctor_finding import Finding, ok, problem
from .doctor_probe import get

CHECK = "stored output"
MAX_DAYS = 36500
EDIT = "$EDITOR inventory/*/group_vars/all/bucket.yml"


def retention_findings(settings: ApiSettings, location: str, days: object) -> list[Finding]:
    """Check that the bucket's lifecycle deletes stored output after ``outputs_days``.

    Returns no finding if the bucket can't be read, or is in an emulator, which has no lifecycle.
    ``location`` is the variable ``outputs_location``, a bucket's URL or a directory.
    """
    if not location.startswith(SCHEME) or settings.storage_address != GOOGLE_STORAGE:
        return []
    try:
        bucket_url = BucketUrl.parse(location)
        session = open_storage_session(settings.storage_address, settings.credentials_file)
        reply = get(session, f"{settings.storage_address}{bucket_url.api_path}")
    except errors.CloudError:
        # Ignore a bucket that can't be read: bucket_findings reports it.
        return []
    return [retention_finding(bucket_url, reply.body, days)] if reply.status == 200 else []


def retention_finding(bucket_url: BucketUrl, bucket: Mapping[str, Any], days: object) -> Finding:
    """Check that a bucket's lifecycle deletes stored output after ``outputs_days``.

    ``bucket_url`` is the location of the output, ``bucket`` the bucket's metadata as the Cloud
    Storage API returns it, and ``days`` the variable ``outputs_days``; 0 sets no limit.
    """
    text = str(days)
    if not text.isdecimal() or int(text) > MAX_DAYS:
        message = (
            f"outputs_days: expected whole days from 0 (no limit) to {MAX_DAYS} ({text!r:.40})"
        )
        return problem(CHECK, message, EDIT)
    desired_days, prefix = int(text), f"{bucket_url.prefix}/" if bucket_url.prefix else ""
    if desired_days and not prefix:
        message = (
            f"gs://{bucket_url.bucket} is a whole bucket, so a lifecycle rule for outputs_days "
            f"({desired_days}) would delete everything in it"
        )
        return problem(CHECK, message, f"set outputs: gs://{bucket_url.bucket}/runs")
    rules = _rules(bucket)
    other_rules = [rule for rule in rules if not _is_only_for(rule, prefix)]
    current_days = _deletion_age(rules, prefix)
    others_days = _deletion_age(other_rules, prefix)
    url = f"gs://{bucket_url.bucket}/{prefix}"
    state = "is kept without limit" if current_days is None else f"is kept for {current_days} days"
    if current_days == (desired_days or None):
        return ok(CHECK, f"{url} {state}")
    if not desired_days:
        return ok(CHECK, f"{url} {state} by a lifecycle rule of the bucket")
    if others_days is not None and others_days < desired_days:
        message = (
            f"{url} {state}, and outputs_days is {desired_days}. A lifecycle rule that is not only "
            f"for the output deletes it after {others_days} days: change that rule, or outputs_days"
        )
        return problem(CHECK, message, EDIT)
    new_rule = {
        "action": {"type": "Delete"},
        "condition": {"age": desired_days, "matchesPrefix": [prefix]},
    }
    lifecycle = shlex.quote(json.dumps({"rule": [*other_rules, new_rule]}))
    return problem(
        CHECK,
        f"{url} {state}, and outputs_days is {desired_days}",
        f"echo {lifecycle} > lifecycle.json && "
        f"gcloud storage buckets update gs://{bucket_url.bucket} --lifecycle-file=lifecycle.json",
    )


def _rules(bucket: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    lifecycle = bucket.get("lifecycle")
    rules = lifecycle.get("rule") if isinstance(lifecycle, Mapping) else None
    return [rule for rule in rules if isinstance(rule, Mapping)] if isinstance(rules, list) else []


def _is_only_for(rule: Mapping[str, Any], prefix: str) -> bool:
    """Return whether a rule deletes objects by age, and only those below ``prefix``."""
    return _age(rule) is not None and rule["condition"].get("matchesPrefix") == [prefix]


def _deletion_age(rules: Sequence[Mapping[str, Any]], prefix: str) -> int | None:
    """Return the days after which the rules delete objects below ``prefix``; None for never."""
    ages = []
    for rule in rules:
        age = _age(rule)
        prefixes = rule["condition"].get("matchesPrefix", [""]) if age is not None else None
        if isinstance(prefixes, list) and any(
            isinstance(rule_prefix, str) and prefix.startswith(rule_prefix)
            for rule_prefix in prefixes
        ):
            ages.append(age)
    return min(ages, default=None)


def _age(rule: Mapping[str, Any]) -> int | None:
    """Return the age in days at which a rule deletes objects.

    Returns None if the rule deletes nothing, or has conditions other than age and prefix.
    """
    action, condition = rule.get("action"), rule.get("condition")
    if not isinstance(action, Mapping) or action.get("type") != "Delete":
        return None
    if not isinstance(condition, Mapping) or not set(condition) <= {"age", "matchesPrefix"}:
        return None
    age = condition.get("age")
    return age if isinstance(age, int) and not isinstance(age, bool) else None
