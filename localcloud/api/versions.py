"""The versions of the Cloud TPU API that the local cloud serves."""

from enum import StrEnum


class Version(StrEnum):
    """A version of the Cloud TPU API; the value is the first segment of its paths."""

    V1 = "v1"
    V2 = "v2"
    V2ALPHA1 = "v2alpha1"

    @property
    def node_value(self) -> str:
        """The value of ``apiVersion`` in nodes created through this version."""
        return {"v1": "V1", "v2": "V2", "v2alpha1": "V2_ALPHA1"}[self]

    def type_url(self, name: str) -> str:
        """Return the ``@type`` of this version's message ``name``, such as ``Node``."""
        return f"type.googleapis.com/google.cloud.tpu.{self}.{name}"
