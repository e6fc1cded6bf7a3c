"""The versions of the Cloud TPU API that the local cloud serves."""

from enum import StrEnum


class Version(StrEnum):
    """A version, by the first segment of its paths."""

    V1 = "v1"
    V2 = "v2"
    V2ALPHA1 = "v2alpha1"

    @property
    def node_value(self) -> str:
        """The ``apiVersion`` of a node that this version created."""
        return {"v1": "V1", "v2": "V2", "v2alpha1": "V2_ALPHA1"}[self]

    def type_url(self, name: str) -> str:
        """Return the ``@type`` of a message of this version, such as ``Node``."""
        return f"type.googleapis.com/google.cloud.tpu.{self}.{name}"
