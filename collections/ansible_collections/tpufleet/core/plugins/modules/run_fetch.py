#!/usr/bin/python
"""Module tpufleet.core.run_fetch: download a run's checkpoints to the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_fetch
short_description: Download a run's checkpoints from a bucket to the controller
description:
  - Runs on the controller only. M(tpufleet.core.run_record) returns the location of the checkpoints
    and the command of the trainer, so no TPU is needed.
  - Downloads the generation of each object that the bucket has listed, and verifies its checksum.
    An object is not downloaded again if the local file has the same checksum.
options:
  location:
    description: The C(gs://) URL of the run's checkpoints.
    type: str
    required: true
  command:
    description: The command of the run's trainer.
    type: list
    elements: str
    required: true
  to:
    description: The local directory. The checkpoints are stored below it as
      C(checkpoints/STEP/...).
    type: path
    required: true
  which:
    description: Whether to download all checkpoints, or only the newest one that is finished and
      readable.
    type: str
    choices: [newest, all]
    default: all
  pattern:
    description:
      - A pattern of the checkpoints' paths, relative to the run's checkpoint location, such as
        V(*/step-*). The newest checkpoint is the one with the highest number in the last part of
        its path.
      - Without a pattern, checkpoints are recognized by the manifest that this project's trainer
        writes, or by Orbax's layout, C(STEP) or C(NAME_STEP) with a C(commit_success.txt).
    type: str
    default: ""
extends_documentation_fragment:
  - tpufleet.core.tpu_api
  - tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Download the newest finished checkpoint
  tpufleet.core.run_fetch:
    location: gs://bucket/checkpoints/shakespeare
    command: [python, -m, train, run, "{config}"]
    api: "{{ tpu_api }}"
    to: fetched/shakespeare
    which: newest
"""

RETURN = r"""
files:
  description: The downloaded files, relative to the checkpoint location.
  returned: success
  type: list
  elements: str
passed_over:
  description: The checkpoints that are newer than the downloaded one but not finished or not
    readable, each with the reason.
  returned: success
  type: list
  elements: str
unreadable:
  description: The objects that could not be downloaded, each with the error. All others were
    downloaded.
  returned: success
  type: list
  elements: str
missing:
  description: Why there is no checkpoint to download. Empty if there is one.
  returned: success
  type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.cloud.checkpoint_download import fetch, fetched, layout_of
from ..module_utils.cloud.errors import CloudError
from ..module_utils.cloud.storage import Bucket


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "location": {"type": "str", "required": True},
            "command": {"type": "list", "elements": "str", "required": True},
            "api": {"type": "dict", "required": True},
            "to": {"type": "path", "required": True},
            "which": {"type": "str", "choices": ["newest", "all"], "default": "all"},
            "pattern": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    layout = layout_of(params["command"], params["pattern"])
    folder, newest = Path(params["to"]) / "checkpoints", params["which"] == "newest"
    try:
        bucket = Bucket.of(params["location"], params["api"])
        result = fetch(bucket, folder, layout, newest, module.check_mode)
    except CloudError as error:  # return the error, so that the play copies the logs first
        result = fetched(missing=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
