"""Checks of the access to Google Cloud: credentials, clock, project, API, zones."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ...module_utils.cloud import errors
from ...module_utils.cloud.closest_names import closest_names
from ...module_utils.cloud.session import ApiSettings
from ...module_utils.worker.doctor_finding import Finding, ok, problem, unknown
from .doctor_probe import Reply, get

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

#: Largest accepted clock error. Google rejects tokens if the clock is off by minutes.
MAX_SKEW_S = 60.0
SET_CLOCK = "sudo timedatectl set-ntp true"
SET_PROJECT = "set project in tpu.yml to one that gcloud projects list shows"
TPU_API = "TPU API"
LOGIN = "gcloud auth application-default login, or set another key file"
_NUMBER = re.compile(r"^(\d+)-compute@")
_SERVICES = {"tpu": "tpu.googleapis.com", "compute": "compute.googleapis.com"}


def cloud_findings(
    settings: ApiSettings, zones: Sequence[str], fleet_zones: Iterable[str]
) -> list[Finding]:
    """Check credentials, clock, API, project and zones.

    Checks that are impossible, for instance without credentials, are reported as unknown.
    ``zones`` are those that the inventory lists (``-``: all), ``fleet_zones`` those of the fleet
    file.
    """
    try:
        session = settings.open_session(settings.address)
    except errors.CloudError as error:
        return [problem("credentials", str(error)), *_unknown_findings("without credentials")]
    url = f"{settings.address}/v2/projects/{quote(settings.project, safe=':')}/locations"
    try:
        reply = get(session, url, {"pageSize": "500"})
    except errors.Unauthorized as error:
        message = (
            f"{describe_credentials(session.credentials, settings)}, refused or expired ({error})"
        )
        return [
            problem("credentials", message, LOGIN),
            *_unknown_findings("without valid credentials"),
        ]
    except errors.CloudError as error:
        return [
            unknown(
                "credentials", f"{describe_credentials(session.credentials, settings)}; not checked"
            ),
            problem(TPU_API, str(error), f"curl -sS -o /dev/null {settings.address}"),
            *_unknown_findings("without an answer of the TPU API", excluded=(TPU_API,)),
        ]
    account = describe_credentials(session.credentials, settings)
    findings = [ok("credentials", f"{account}, accepted")]
    if reply.status == 401:
        message = f"{account}, not accepted ({reply.message})"
        findings = [problem("credentials", message, LOGIN)]
    findings += [clock_finding(reply)] if reply.skew_s is not None else []
    findings += [project_finding(settings, session), api_finding(reply, settings)]
    return findings + zone_findings(reply, zones, fleet_zones)


def clock_finding(reply: Reply) -> Finding:
    """Compare the clock of this computer with the Date header of the API's reply."""
    skew = reply.skew_s or 0.0
    if abs(skew) <= MAX_SKEW_S:
        return ok("clock", f"within {MAX_SKEW_S:.0f} s of the API's clock")
    direction = "ahead of" if skew > 0 else "behind"
    return problem("clock", f"{abs(skew):.0f} s {direction} the API's clock", SET_CLOCK)


def api_finding(reply: Reply, settings: ApiSettings) -> Finding:
    """Check that the project can use the Cloud TPU API, according to the API's reply."""
    check = TPU_API
    if reply.status == 200 and isinstance(reply.body.get("locations", []), list):
        return ok(check, f"answers at {settings.address}")
    if reply.is_disabled:
        return problem(
            check, f"is not enabled in {settings.project}", _enable_command(settings, "tpu")
        )
    if reply.status == 401:
        return unknown(check, "can't be checked without valid credentials")
    if reply.status == 403:
        policy = f"gcloud projects get-iam-policy {settings.project}"
        return problem(check, reply.message, f"give the account roles/tpu.admin; check: {policy}")
    if reply.status == 404:
        return problem(check, reply.message, SET_PROJECT)
    message = f"answers with HTTP {reply.status} ({reply.message})"
    return problem(check, message, "try again later")


def project_finding(settings: ApiSettings, session: AuthorizedSession) -> Finding:
    """Check the project: it exists, is accessible, and has Compute Engine enabled."""
    check, name = "project", settings.project
    url = f"{settings.compute_address}/projects/{quote(name, safe=':')}"
    try:
        reply = get(session, url)
    except errors.CloudError as error:
        return unknown(check, f"{name}: {error}")
    if reply.status == 200:
        number = _NUMBER.match(str(reply.body.get("defaultServiceAccount", "")))
        return ok(check, f"{name}{f', number {number[1]}' if number else ''}")
    if reply.is_disabled:
        message = f"Compute Engine, which TPUs run on, is not enabled in {name}"
        return problem(check, message, _enable_command(settings, "compute"))
    if reply.status == 401:
        return unknown(check, f"{name}: can't be checked without valid credentials")
    if reply.status == 403:  # roles/tpu.admin does not have the permission compute.projects.get
        return unknown(check, f"{name}: can't be read ({reply.message})")
    if reply.is_transient:
        return unknown(check, f"{name}: the API answers with HTTP {reply.status} ({reply.message})")
    return problem(check, f"{name}: {reply.message}", SET_PROJECT)


def zone_findings(reply: Reply, zones: Sequence[str], fleet_zones: Iterable[str]) -> list[Finding]:
    """Check that the zones of the inventory and of the fleet file have TPUs.

    ``reply`` is the API's list of the zones that have TPUs for the project. For the other arguments
    see cloud_findings.
    """
    locations = reply.body.get("locations") if reply.status == 200 else None
    if not isinstance(locations, list):
        return [unknown("zones", "can't be checked, because the TPU API did not list them")]
    available = {
        str(location.get("locationId")) for location in locations if isinstance(location, dict)
    }
    requested = {zone: "tpu.yml" for zone in zones if zone != "-"}
    requested |= {zone: "fleet.yml" for zone in fleet_zones if zone not in requested}
    missing = [zone for zone in requested if zone not in available]
    if not missing:
        names = ", ".join(requested) or f"all {len(available)}"
        return [ok("zones", f"{names} with TPUs")]
    return [
        problem(
            "zones",
            f"{zone} ({requested[zone]}) has no TPUs for this project",
            f"set a zone in {requested[zone]}: {closest_names(zone, available)}",
        )
        for zone in missing
    ]


def describe_credentials(credentials: Any, settings: ApiSettings) -> str:
    """Return the account and the source of the credentials as a text without secrets."""
    email = getattr(credentials, "service_account_email", "") or getattr(credentials, "account", "")
    owner = errors.one_line(email) if email and email != "default" else "an account"
    file = settings.credentials_file or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    return f"{owner} ({file or 'application-default credentials'})"


def _enable_command(settings: ApiSettings, service: str) -> str:
    return f"gcloud services enable {_SERVICES[service]} --project={settings.project}"


def _unknown_findings(reason: str, excluded: Sequence[str] = ()) -> list[Finding]:
    checks = ("clock", "project", TPU_API, "zones")
    return [
        unknown(check, f"can't be checked {reason}") for check in checks if check not in excluded
    ]
