"""The option ``api`` of modules that call Google's APIs."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation fragment that modules name in ``extends_documentation_fragment``."""

    DOCUMENTATION = r"""
options:
  api:
    description:
      - The inventory's variable C(tpu_api). Without the inventory plugin, set a dictionary. It must
        have C(project), and may have C(zones), C(credentials_file), C(endpoint),
        C(compute_endpoint) and C(storage_endpoint). P(tpufleet.core.tpu#inventory) describes them.
    type: dict
    required: true
requirements: [google-auth, requests]
"""
