"""Check of a bucket's location: access by TPUs in another region is slow and costs money.

Sources: https://cloud.google.com/storage/docs/json_api/v1/buckets (``location``,
``locationType``), https://cloud.google.com/storage/docs/locations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...module_utils.cloud.errors import CloudError
from ...module_utils.cloud.storage import Bucket, BucketUrl

if TYPE_CHECKING:
    from ...module_utils.cloud.session import ApiSettings

_CONTINENTS = {"US": ("us-", "northamerica-"), "EU": ("europe-",), "ASIA": ("asia-",)}
_DUAL_REGIONS = {
    "NAM4": ("us-central1", "us-east1"),
    "EUR4": ("europe-north1", "europe-west4"),
    "EUR5": ("europe-west1", "europe-west2"),
    "EUR7": ("europe-west2", "europe-west3"),
    "EUR8": ("europe-west3", "europe-west6"),
    "ASIA1": ("asia-northeast1", "asia-northeast2"),
}


def bucket_warning(settings: ApiSettings, url: str, zones: Iterable[str]) -> str:
    """Return a warning if a bucket can't be read or is far from the TPUs in ``zones``.

    Returns an empty string if there is no reason for a warning, or if the cloud has no Storage API.
    ``url`` is ``gs://bucket/prefix``. Raises NotConfigured for an invalid URL.
    """
    BucketUrl.parse(url)
    address = settings.storage_address
    if not address:
        return ""
    try:
        bucket = Bucket(url, address=address, credentials_file=settings.credentials_file)
        return location_warning(bucket.bucket_url.bucket, bucket.describe(), zones)
    except CloudError as error:
        return str(error)


def location_warning(name: str, bucket: Mapping[str, Any], zones: Iterable[str]) -> str:
    """Return a warning if zones of TPUs are outside the bucket's location; empty if none is.

    ``name`` is the bucket's name, ``bucket`` its metadata, as the Cloud Storage API returns it.
    """
    location = str(bucket.get("location") or "").upper()
    if not location:
        return ""
    other_regions = sorted(
        {region_of(zone) for zone in zones if not _is_near(location, bucket, zone)}
    )
    if not other_regions:
        return ""
    return (
        f"the bucket {name} is in {location.lower()}, but TPUs are in {', '.join(other_regions)}: "
        "access from there is slow and costs money. Use a bucket in their region"
    )


def region_of(zone: str) -> str:
    """Return the region of a zone: ``us-central2`` for ``us-central2-b``."""
    return zone.rpartition("-")[0]


def _is_near(location: str, bucket: Mapping[str, Any], zone: str) -> bool:
    region = region_of(zone)
    if location in _CONTINENTS:
        return region.startswith(_CONTINENTS[location])
    placement = bucket.get("customPlacementConfig")
    data_locations = placement.get("dataLocations") if isinstance(placement, Mapping) else None
    regions = (
        [str(name).lower() for name in data_locations] if isinstance(data_locations, list) else None
    )
    return region in (regions or _DUAL_REGIONS.get(location) or (location.lower(),))
