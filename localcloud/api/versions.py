"""The versions of the Cloud TPU API that are answered, each by paths of its own."""

from enum import StrEnum


class Version(StrEnum):
    """One version, as its paths begin."""

    V1 = "v1"
    V2 = "v2"
    V2ALPHA1 = "v2alpha1"

    @property
    def node_value(self) -> str:
        """What a node's ``apiVersion`` says of the version that created it."""
        return {"v1": "V1", "v2": "V2", "v2alpha1": "V2_ALPHA1"}[self]

    def type_url(self, name: str) -> str:
        """Return the ``@type`` of one of the version's messages, such as ``Node``."""
        return f"type.googleapis.com/google.cloud.tpu.{self}.{name}"
