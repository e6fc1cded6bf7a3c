"""The option with which modules are told the API."""

from __future__ import annotations


class ModuleDocFragment:
    """Read by ansible-doc."""

    DOCUMENTATION = r"""
options:
  api:
    description: Which API, whose project, which key; the inventory's variable C(tpu_api).
    type: dict
    required: true
    suboptions:
      project:
        description: The Google Cloud project's id.
        type: str
        required: true
      endpoint:
        description: The API's address. Empty for Google's.
        type: str
        default: ""
      credentials_file:
        description: A key file. Empty for Google's application-default credentials.
        type: str
        default: ""
      compute_endpoint:
        description:
          Compute Engine's address, with C(/compute/v1). Empty for Google's, or for the one beside
          C(endpoint).
        type: str
        default: ""
      storage_endpoint:
        description:
          Cloud Storage's address; STORAGE_EMULATOR_HOST comes before it. Empty for Google's, or
          where C(endpoint) is given for none.
        type: str
        default: ""
      zones:
        description: The zones that the inventory lists; of no matter here.
        type: list
        elements: str
        default: ["-"]
requirements: [google-auth, requests]
"""
