"""Checks of the fleet file, foreign TPUs, the TPU grant, the quota and the bucket."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from ...module_utils.cloud import errors
from ...module_utils.cloud.session import GOOGLE_STORAGE, ApiSettings, open_storage_session
from ...module_utils.cloud.shapes import shape_of
from ...module_utils.cloud.storage import BucketUrl
from ...module_utils.worker.doctor_finding import Finding, ok, problem, unknown
from ..fleet.bucket_location import location_warning, region_of
from ..fleet.observed import match
from ..fleet.ownership import LABEL
from ..fleet.plan import WARN_DAYS, make_plan, parse_date
from ..fleet.source import Source, list_nodes
from ..fleet.spec import FleetEntry, parse_fleet
from ..view.folded_names import folded
from .doctor_probe import Reply, get
from .summary import adopt_command

#: IAM permissions with which a controller reads checkpoints and output (docs/controller.md).
READ_PERMISSIONS = ("storage.objects.get", "storage.objects.list")
#: IAM permissions that are also needed for run records, and to publish the report.
WRITE_PERMISSIONS = ("storage.objects.create", "storage.objects.delete")
PERMISSIONS = WRITE_PERMISSIONS + READ_PERMISSIONS
RECORDS = "run records"
FLEET_FILE = "inventory/*/group_vars/all/fleet.yml"


def fleet_finding(entries: object) -> tuple[tuple[FleetEntry, ...], Finding]:
    """Return the TPUs of the fleet file, none if it is invalid, and a finding about the file.

    ``entries`` is the value of ``tpu_fleet``.
    """
    check = "fleet file"
    try:
        fleet = parse_fleet(entries)
    except errors.CloudError as error:
        return (), problem(check, str(error), f"$EDITOR {FLEET_FILE}")
    if not fleet:
        return (), problem(check, "lists no TPU", f"$EDITOR {FLEET_FILE}")
    unknown_types = sorted({tpu.specs[0].kind for tpu in fleet if not shape_of(tpu.specs[0].kind)})
    if unknown_types:
        message = f"tpufleet does not know the accelerator type {', '.join(unknown_types)}"
        return fleet, problem(check, message, f"$EDITOR {FLEET_FILE}")
    chips = sum(shape.chips for tpu in fleet if (shape := shape_of(tpu.specs[0].kind)))
    tpus_text = f"{len(fleet)} TPU{'' if len(fleet) == 1 else 's'}"
    return fleet, ok(check, f"{tpus_text}, {chips} chips")


def foreign_findings(
    hosts: Iterable[Mapping[str, Any]], fleet: Mapping[str, Collection[str]]
) -> Iterator[Finding]:
    """Yield findings about TPUs that do not belong to this fleet.

    ``hosts`` are the inventory variables of each worker. ``fleet`` maps each TPU of the fleet file
    to its zones. A foreign TPU is a problem if the fleet file has a TPU of the same name and zone;
    otherwise it is only listed.
    """
    check = "foreign TPUs"
    tpus = {(str(host.get("tpu_name")), str(host.get("tpu_zone"))): host for host in hosts}
    taken = [(name, zone) for name, zone in sorted(tpus) if zone in fleet.get(name, ())]
    for name, zone in taken:
        reason, fix = "this fleet did not create it", adopt_command(name)
        if owner := tpus[name, zone].get("tpu_labels", {}).get(LABEL):
            reason = f"it belongs to the fleet {str(owner)!r:.80}"
            fix = f"rename this TPU in the fleet file: $EDITOR {FLEET_FILE}"
        yield problem(check, f"TPU {name} ({zone}) is in fleet.yml, but {reason}", fix)
    others = [name for name, _ in sorted(set(tpus) - set(taken))]
    if others:
        yield ok(
            check,
            f"{folded(others)}: playbooks skip them unless -e tpu=NAME names them. To adopt a TPU, "
            f"add it to fleet.yml, then run: {adopt_command('NAME')}",
        )


def grant_finding(grant_ends: object, today: date) -> Finding | None:
    """Check how many days of the TPU grant are left; return None if ``grant_ends`` is empty."""
    try:
        end_date = parse_date(grant_ends)
    except errors.CloudError as error:
        return problem("grant", str(error), f"$EDITOR {FLEET_FILE}")
    if end_date is None:
        return None
    days_left = (end_date - today).days
    if days_left < 0:
        message = f"ended on {end_date}, so existing TPUs cost money"
        return problem("grant", message, "ansible-playbook playbooks/delete.yml")
    if days_left <= WARN_DAYS:
        return problem(
            "grant", f"ends in {days_left} days ({end_date})", "ansible-playbook playbooks/plan.yml"
        )
    return ok("grant", f"ends in {days_left} days ({end_date})")


def quota_findings(
    source: Source,
    settings: ApiSettings,
    fleet: Sequence[FleetEntry],
    zones: Sequence[str],
    today: date,
) -> list[Finding]:
    """Check the quota in use, and find queued resources that hold quota but create no TPU.

    ``zones`` are those that the inventory lists (``-``: all).
    """
    try:
        observed = match(fleet, list_nodes(source, zones), zones)
        requests = source.list_queued(zones)
    except errors.CloudError as error:
        return [unknown("quota", str(error))]
    plan, limits = make_plan(fleet, observed, requests, today=today), _limits_page(settings)
    findings = []
    for entry in plan.chips:
        message = f"{entry['quota']}: {entry['held']} chips in use, {entry['wanted']} more wanted"
        findings.append(ok("quota", f"{message}; limits: {limits}"))
    for entry in plan.dead_requests:
        message = f"{entry['description']} has no TPU any more but still holds quota"
        findings.append(problem("quota", message, entry["fix"]))
    if not findings:
        findings.append(ok("quota", f"no quota in use; limits: {limits}"))
    for tpu in fleet:
        if tpu.name not in observed.present:
            findings += _creation_quota_findings(source, settings, tpu)
    return findings


def _creation_quota_findings(
    source: Source, settings: ApiSettings, tpu: FleetEntry
) -> Iterator[Finding]:
    for zone in tpu.zones:
        try:
            error = source.creation_error(zone, tpu.name)
        except errors.CloudError:
            # Ignore errors of the API here: api_finding reports them.
            continue
        if isinstance(error, errors.QuotaError):
            yield problem("quota", str(error), f"request more quota: {_limits_page(settings)}")


def _limits_page(settings: ApiSettings) -> str:
    page = "https://console.cloud.google.com/iam-admin/quotas"
    return f"{page}?service=tpu.googleapis.com&project={settings.project}"


def bucket_findings(
    settings: ApiSettings, bucket: str, zones: Sequence[str], *, has_records: bool = False
) -> list[Finding]:
    """Check that the bucket exists, is accessible, and is in the region of the TPUs.

    ``bucket`` is a URL such as ``gs://NAME/PREFIX``, empty if none is set; ``zones`` are those of
    the TPUs. If it is the bucket of the run records (``has_records``), it must be writable, in any
    region.
    """
    check = RECORDS if has_records else "bucket"
    if not bucket:
        message = (
            "none is set. To keep checkpoints when a TPU is lost, set bucket: gs://NAME, or use a "
            "disk outside the TPUs"
        )
        return [ok(check, message)]
    try:
        bucket_url = BucketUrl.parse(bucket)
    except errors.CloudError as error:
        file = "fleet.yml" if has_records else "bucket.yml"
        return [problem(check, str(error), f"$EDITOR inventory/*/group_vars/all/{file}")]
    address = settings.storage_address
    if not address:
        message = f"{bucket}: the local cloud has no buckets"
        return [problem(check, message, "sudo .venv/bin/python -m localcloud up")]
    api_url = f"{address}{bucket_url.api_path}"
    try:
        session = open_storage_session(address, settings.credentials_file)
        metadata = get(session, api_url)
        permissions = get(session, f"{api_url}/iam/testPermissions", {"permissions": PERMISSIONS})
    except errors.Unauthorized as error:
        return [unknown(check, f"{bucket}: {error}")]
    except errors.CloudError as error:
        return [problem(check, f"{bucket}: {error}", f"curl -sS -o /dev/null {address}")]
    emulated = address != GOOGLE_STORAGE
    return list(
        bucket_reply_findings(
            bucket_url.bucket,
            metadata,
            permissions,
            zones,
            emulated=emulated,
            has_records=has_records,
        )
    )


def bucket_reply_findings(
    name: str,
    metadata: Reply,
    permissions: Reply,
    zones: Sequence[str],
    *,
    emulated: bool = False,
    has_records: bool = False,
) -> Iterator[Finding]:
    """Check the bucket ``name``, according to the API's replies.

    ``permissions`` is the reply with the permissions that the credentials have for the bucket. If
    ``emulated``, an emulator of Cloud Storage replied, which may not report permissions. Only the
    bucket of the run records (``has_records``) must be writable with these credentials.
    """
    check = RECORDS if has_records else "bucket"
    url = f"gs://{name}"
    if metadata.status == 404:
        region = region_of(zones[0]) if zones else "REGION"
        create_command = f"gcloud storage buckets create {url} --location={region}"
        yield problem(check, f"{url} does not exist", create_command)
        return
    if metadata.status == 401:
        yield unknown(check, f"{url}: can't be checked without valid credentials")
        return
    busy = next((reply for reply in (metadata, permissions) if reply.is_transient), None)
    if busy:
        yield unknown(check, f"{url}: the API answers with HTTP {busy.status} ({busy.message})")
        return
    granted = permissions.body.get("permissions")
    held = granted if isinstance(granted, list) else []
    needed = PERMISSIONS if has_records else READ_PERMISSIONS
    missing = [permission for permission in needed if permission not in held]
    grant_command = (
        f"gcloud storage buckets add-iam-policy-binding {url} --member=MEMBER "
        "--role=roles/storage.objectUser"
    )
    if metadata.status != 200 and missing:
        yield problem(check, f"{url}: {metadata.message}", grant_command)
        return
    if emulated and permissions.status == 404:
        message = f"{url} exists; not checked whether it is writable (the emulator can't tell)"
        yield ok(check, message)
    elif missing:
        verbs = ", ".join(permission.rpartition(".")[2] for permission in missing)
        yield problem(check, f"{url}: no permission to {verbs}", grant_command)
    elif set(WRITE_PERMISSIONS) <= set(held):
        yield ok(check, f"{url} exists and is writable")
    else:
        yield unknown(
            check,
            f"{url} can be read with these credentials, but not written. Publishing the report "
            "there needs permission to write; each launch checks whether workers can write",
        )
    if has_records:
        return
    warning = location_warning(name, metadata.body, zones)
    if warning and not emulated:
        region = region_of(zones[0])
        command = f"gcloud storage buckets create gs://NAME --location={region}"
        yield problem("bucket's region", warning, f"create a bucket, and set bucket: {command}")
    elif not emulated and metadata.status != 200:
        yield unknown("bucket's region", f"can't be read ({metadata.message})")
    elif not emulated:
        yield ok("bucket's region", str(metadata.body.get("location", "unknown")).lower())
