"""The option ``api`` of modules that call Google's APIs."""

from __future__ import annotations


class ModuleDocFragment:
    """Read by ansible-doc."""

    DOCUMENTATION = r"""
options:
  api:
    description: Project, endpoints, credentials and zones; the inventory's variable C(tpu_api).
    type: dict
    required: true
    suboptions:
      project:
        description: The Google Cloud project's id.
        type: str
        required: true
      endpoint:
        description: The address of the Cloud TPU API. Empty for Google's.
        type: str
        default: ""
      credentials_file:
        description: A key file. Empty for Google's application-default credentials.
        type: str
        default: ""
      compute_endpoint:
        description:
          The address of Compute Engine, with C(/compute/v1). Empty for Google's, or for the one
          below C(endpoint).
        type: str
        default: ""
      storage_endpoint:
        description:
          The address of Cloud Storage; STORAGE_EMULATOR_HOST takes precedence. Empty for Google's,
          or for none if C(endpoint) is set.
        type: str
        default: ""
      zones:
        description: The zones that the inventory lists.
        type: list
        elements: str
        default: ["-"]
requirements: [google-auth, requests]
"""
