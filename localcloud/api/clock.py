"""The time as the API writes it."""

from datetime import UTC, datetime


def timestamp() -> str:
    """Give now as google.protobuf.Timestamp's JSON has it: UTC, RFC 3339, ending in Z."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
