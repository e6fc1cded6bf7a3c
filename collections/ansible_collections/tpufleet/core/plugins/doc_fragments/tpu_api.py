"""The option ``api`` of modules that call Google's APIs."""

from __future__ import annotations


class ModuleDocFragment:
    """The documentation fragment, in the form that ansible-doc reads."""

    DOCUMENTATION = r"""
options:
  api:
    description:
      - The inventory's variable C(tpu_api). Without the inventory plugin, a dictionary with
        C(project), and where they differ from Google's, C(endpoint), C(compute_endpoint),
        C(storage_endpoint) and C(credentials_file), which are explained at
        P(tpufleet.core.tpu#inventory).
    type: dict
    required: true
requirements: [google-auth, requests]
"""
