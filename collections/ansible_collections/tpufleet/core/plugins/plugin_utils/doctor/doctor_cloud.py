"""What the doctor sees of Google's side: credentials, clock, project, API, zones."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import quote

from ...module_utils.cloud import errors
from ...module_utils.cloud.session import ApiSettings
from ...module_utils.worker.doctor_finding import Finding, mend, ok, unseen
from .doctor_probe import Probe, Reply

#: Google refuses tokens of a clock that is minutes off; certificates and logs suffer sooner.
MOST_SKEW_S = 60.0
SET_CLOCK = "sudo timedatectl set-ntp true"
LOGIN = "gcloud auth application-default login"
_NUMBER = re.compile(r"^(\d+)-compute@")
_SERVICES = {"tpu": "tpu.googleapis.com", "compute": "compute.googleapis.com"}
Opener = Callable[[str, str], Probe]


def cloud_findings(
    settings: ApiSettings, zones: Sequence[str], wanted_zones: Iterable[str], opener: Opener = Probe
) -> list[Finding]:
    """Look at credentials, clock, API, project and zones; each though another one fails.

    ``zones`` are the inventory's (``-``: all), ``wanted_zones`` those of the fleet file.
    """
    try:
        probe = opener(settings.address, settings.credentials_file)
    except errors.CloudError as error:
        return [mend("credentials", str(error)), *_unseen("without credentials")]
    where = f"{settings.address}/v2/projects/{quote(settings.project, safe=':')}/locations"
    try:
        reply = probe.get(where, {"pageSize": "500"})
    except errors.Unauthorized as error:
        said = f"{whose(probe.credentials, settings)} is refused or has expired ({error})"
        return [
            mend("credentials", said, _renewal(settings)),
            *_unseen("without valid credentials"),
        ]
    except errors.CloudError as error:
        return [
            unseen("credentials", f"{whose(probe.credentials, settings)}; not tried"),
            mend("API", str(error), f"curl -sS -o /dev/null {settings.address}"),
            *_unseen("without an answer", but=("API",)),
        ]
    found = [credentials_finding(reply, whose(probe.credentials, settings), settings)]
    found += [clock_finding(reply)] if reply.skew_s is not None else []
    found += [project_finding(settings, probe), api_finding(reply, settings)]
    return found + zone_findings(reply, zones, wanted_zones)


def credentials_finding(reply: Reply, who: str, settings: ApiSettings) -> Finding:
    """Judge the credentials by the API's answer."""
    if reply.status == 401:
        return mend("credentials", f"{who} is not accepted ({reply.message})", _renewal(settings))
    return ok("credentials", f"{who}, accepted")


def clock_finding(reply: Reply) -> Finding:
    """Compare this clock with the API's."""
    skew = reply.skew_s or 0.0
    if abs(skew) <= MOST_SKEW_S:
        return ok("clock", f"within {MOST_SKEW_S:.0f} s of the API's")
    way = "ahead of" if skew > 0 else "behind"
    return mend("clock", f"{abs(skew):.0f} s {way} the API's", SET_CLOCK)


def api_finding(reply: Reply, settings: ApiSettings) -> Finding:
    """Judge whether the Cloud TPU API is there for the project."""
    check = "TPU API"
    if reply.status == 200 and isinstance(reply.body.get("locations", []), list):
        return ok(check, f"answers at {settings.address}")
    if reply.disabled:
        return mend(check, f"is not enabled in {settings.project}", _enable(settings, "tpu"))
    if reply.status == 401:
        return unseen(check, "without valid credentials")
    if reply.status == 403:
        role = f"gcloud projects get-iam-policy {settings.project} (roles/tpu.admin is needed)"
        return mend(check, reply.message, role)
    if reply.status == 404:
        return mend(check, reply.message, "gcloud projects list, and project in tpu.yml")
    return mend(check, f"answers {reply.status}: {reply.message}", "try again later")


def project_finding(settings: ApiSettings, probe: Probe) -> Finding:
    """Ask Compute Engine for the project: its name and number."""
    check, name = "project", settings.project
    url = f"{settings.compute_address}/projects/{quote(name, safe=':')}"
    try:
        reply = probe.get(url)
    except errors.CloudError as error:
        return unseen(check, f"{name}: {error}")
    if reply.status == 200:
        number = _NUMBER.match(str(reply.body.get("defaultServiceAccount", "")))
        return ok(check, f"{name}{f', number {number[1]}' if number else ''}")
    if reply.disabled:
        said = f"Compute Engine, whose machines TPUs are, is not enabled in {name}"
        return mend(check, said, _enable(settings, "compute"))
    if reply.status == 401:
        return unseen(check, f"{name}: without valid credentials")
    by = "gcloud projects list says yours: project in tpu.yml"
    return mend(check, f"{name}: {reply.message}", by)


def zone_findings(reply: Reply, zones: Sequence[str], wanted: Iterable[str]) -> list[Finding]:
    """Compare the zones of the inventory and of the fleet file with those that have TPUs."""
    places = reply.body.get("locations") if reply.status == 200 else None
    if not isinstance(places, list):
        return [unseen("zones", "without the API")]
    there = {str(place.get("locationId")) for place in places if isinstance(place, dict)}
    asked = {zone: "tpu.yml" for zone in zones if zone != "-"}
    asked |= {zone: "fleet.yml" for zone in wanted if zone not in asked}
    missing = [zone for zone in asked if zone not in there]
    if not missing:
        names = ", ".join(asked) or f"all {len(there)}"
        return [ok("zones", f"{names}, with TPUs to be had")]
    return [
        mend(
            "zones",
            f"{zone} ({asked[zone]}) has no TPUs for this project",
            f"set a zone in {asked[zone]} such as {_near(zone, there)}",
        )
        for zone in missing
    ]


def whose(credentials: Any, settings: ApiSettings) -> str:
    """Say which credentials these are, and whose; never a part of them."""
    email = getattr(credentials, "service_account_email", "") or getattr(credentials, "account", "")
    owner = errors.one_line(email) if email and email != "default" else "a person"
    if settings.credentials_file:
        source = f"credentials_file {settings.credentials_file}"
    elif os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        source = f"GOOGLE_APPLICATION_CREDENTIALS {os.environ['GOOGLE_APPLICATION_CREDENTIALS']}"
    else:
        source = "application-default"
        if "compute_engine" in type(credentials).__module__:
            source, owner = "this machine's service account", owner.replace("a person", "default")
    return f"{owner} ({source})"


def _renewal(settings: ApiSettings) -> str:
    if settings.credentials_file or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return f"name another key file, or none and {LOGIN}"
    return LOGIN


def _enable(settings: ApiSettings, service: str) -> str:
    return f"gcloud services enable {_SERVICES[service]} --project={settings.project}"


def _near(zone: str, there: set[str]) -> str:
    names = difflib.get_close_matches(zone, sorted(there), 3, 0.3) or sorted(there)[:3]
    return ", ".join(names) or "none: the project has no zone with TPUs"


def _unseen(why: str, but: Sequence[str] = ()) -> list[Finding]:
    checks = ("clock", "project", "TPU API", "zones")
    return [unseen(check, f"can't be seen {why}") for check in checks if check not in but]
