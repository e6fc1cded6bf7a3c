"""Where a bucket is, beside where the TPUs are: what lies in another region costs time and money.

https://cloud.google.com/storage/docs/json_api/v1/buckets (``location``, ``locationType``) and
https://cloud.google.com/storage/docs/locations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...module_utils.cloud import tpu_errors as errors
from ...module_utils.cloud.gcs import Location, Objects
from ...module_utils.cloud.tpu_api import ApiSettings

_CONTINENTS = {"US": ("us-", "northamerica-"), "EU": ("europe-",), "ASIA": ("asia-",)}
_PAIRS = {
    "NAM4": ("us-central1", "us-east1"),
    "EUR4": ("europe-north1", "europe-west4"),
    "EUR5": ("europe-west1", "europe-west2"),
    "EUR7": ("europe-west2", "europe-west3"),
    "EUR8": ("europe-west3", "europe-west6"),
    "ASIA1": ("asia-northeast1", "asia-northeast2"),
}


def bucket_doubt(settings: ApiSettings, bucket: str, zones: Iterable[str]) -> str:
    """Say what is wrong with where a bucket, ``gs://name/prefix``, is; empty if nothing is.

    Raises NotConfigured for what is no gs:// address; one that can't be asked about is a doubt.
    """
    place = Location.of(bucket)
    address = settings.storage_address
    if not address:
        return ""
    what = f"find out where the bucket {place.bucket} is"
    try:
        client = Objects(bucket, address=address, credentials_file=settings.credentials_file)
        found = client.ask("GET", f"/storage/v1/b/{place.bucket}", what)
    except errors.TpuApiError as error:
        return str(error)
    return doubt_of(place.bucket, found, zones)


def doubt_of(name: str, found: Mapping[str, Any], zones: Iterable[str]) -> str:
    """Compare a bucket's JSON with the zones of TPUs."""
    location = str(found.get("location") or "").upper()
    if not location:
        return ""
    far = sorted({region_of(zone) for zone in zones if not _reaches(location, found, zone)})
    if not far:
        return ""
    return (
        f"the bucket {name} is in {location.lower()}, but TPUs are in {', '.join(far)}: reading "
        "and writing from there is slow and is paid for; take a bucket in their region"
    )


def region_of(zone: str) -> str:
    """Give ``us-central2`` for ``us-central2-b``."""
    return zone.rpartition("-")[0]


def _reaches(location: str, found: Mapping[str, Any], zone: str) -> bool:
    region = region_of(zone)
    if location in _CONTINENTS:
        return region.startswith(_CONTINENTS[location])
    custom = found.get("customPlacementConfig")
    parts = custom.get("dataLocations") if isinstance(custom, Mapping) else None
    regions = [str(part).lower() for part in parts] if isinstance(parts, list) else None
    return region in (regions or _PAIRS.get(location) or (location.lower(),))
