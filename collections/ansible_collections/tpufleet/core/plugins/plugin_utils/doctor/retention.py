"""Check of how long a bucket keeps the stored output of runs.

Source: https://cloud.google.com/storage/docs/lifecycle. This code never changes a bucket's
lifecycle.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ...module_utils.cloud import errors
from ...module_utils.cloud.session import GOOGLE_STORAGE, ApiSettings, open_storage_session
from ...module_utils.cloud.storage import SCHEME, BucketUrl
from ...module_utils.worker.doctor_finding import Finding, ok, problem
from .doctor_probe import get

CHECK = "stored output"
MAX_DAYS = 36500
EDIT = "$EDITOR inventory/*/group_vars/all/bucket.yml"


def retention_findings(settings: ApiSettings, location: str, days: object) -> list[Finding]:
    """Check that the bucket has a lifecycle rule that deletes output after ``outputs_days``.

    Returns no finding if the bucket can't be read, or is in an emulator, which has no lifecycle.
    ``location`` is the variable ``outputs_location``, a bucket's URL or a directory.
    """
    if not location.startswith(SCHEME) or settings.storage_address != GOOGLE_STORAGE:
        return []
    try:
        bucket_url = BucketUrl.parse(location)
        session = open_storage_session(settings.storage_address, settings.credentials_file)
        api_url = f"{settings.storage_address}/storage/v1/b/{quote(bucket_url.bucket, safe='')}"
        reply = get(session, api_url)
    except errors.CloudError:
        # Ignore a bucket that can't be read: bucket_findings reports it.
        return []
    return [retention_finding(bucket_url, reply.body, days)] if reply.status == 200 else []


def retention_finding(bucket_url: BucketUrl, bucket: Mapping[str, Any], days: object) -> Finding:
    """Check that a bucket has a lifecycle rule that deletes output after ``outputs_days``.

    ``bucket_url`` is the location of the output, ``bucket`` the bucket's metadata as the Cloud
    Storage API returns it, and ``days`` the variable ``outputs_days``; 0 sets no limit.
    """
    text = str(days)
    if not text.isdecimal() or int(text) > MAX_DAYS:
        message = (
            f"outputs_days: expected whole days from 0 (no limit) to {MAX_DAYS} ({text!r:.40})"
        )
        return problem(CHECK, message, EDIT)
    desired_days, prefix = int(text), f"{bucket_url.prefix}/"
    url = f"gs://{bucket_url.bucket}/{bucket_url.prefix}"
    if not desired_days:
        return ok(CHECK, f"{url}: outputs_days sets no limit")
    if not bucket_url.prefix:
        message = (
            f"gs://{bucket_url.bucket} is a whole bucket, so a lifecycle rule for outputs_days "
            f"({desired_days}) would delete everything in it"
        )
        return problem(CHECK, message, f"set outputs: gs://{bucket_url.bucket}/runs")
    new_rule = {
        "action": {"type": "Delete"},
        "condition": {"age": desired_days, "matchesPrefix": [prefix]},
    }
    rules = _rules(bucket)
    kept_rules = [rule for rule in rules if not _is_only_for(rule, prefix)]
    if [rule for rule in rules if rule not in kept_rules] == [new_rule]:
        return ok(CHECK, f"{url}: a lifecycle rule deletes output after {desired_days} days")
    lifecycle = shlex.quote(json.dumps({"rule": [*kept_rules, new_rule]}))
    return problem(
        CHECK,
        f"{url}: outputs_days is {desired_days}, but the bucket has another lifecycle rule or none",
        f"echo {lifecycle} > lifecycle.json && "
        f"gcloud storage buckets update gs://{bucket_url.bucket} --lifecycle-file=lifecycle.json",
    )


def _rules(bucket: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    lifecycle = bucket.get("lifecycle")
    rules = lifecycle.get("rule") if isinstance(lifecycle, Mapping) else None
    return [rule for rule in rules if isinstance(rule, Mapping)] if isinstance(rules, list) else []


def _is_only_for(rule: Mapping[str, Any], prefix: str) -> bool:
    """Return whether a rule only deletes objects below ``prefix`` that reach some age."""
    condition = rule.get("condition")
    return (
        rule.get("action") == {"type": "Delete"}
        and isinstance(condition, Mapping)
        and condition == {"age": condition.get("age"), "matchesPrefix": [prefix]}
    )
