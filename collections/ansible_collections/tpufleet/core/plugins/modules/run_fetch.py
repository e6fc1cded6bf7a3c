#!/usr/bin/python
"""Module tpufleet.core.run_fetch: download a run's checkpoints to the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_fetch
short_description: Download a run's checkpoints from a bucket to the controller
description:
  - Runs on the controller only. M(tpufleet.core.run_record) returns the location of the checkpoints
    and the command of the trainer, so no TPU is needed.
  - Lists the bucket, downloads the listed generation of each object, and verifies its checksum.
    Skips objects whose local file has the same checksum. Also skips the directories C(compiled) and
    C(corpus), which only the trainer uses.
options:
  location:
    description: The C(gs://) URL of the run's checkpoints.
    type: str
    required: true
  command:
    description: The command of the run's trainer, which shows whether this project's trainer wrote
      the checkpoints.
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
      - Without a pattern, a finished checkpoint of this project's trainer is a directory C(STEP)
        with a manifest. For any other O(command), it is a directory C(STEP) or C(NAME_STEP) with
        C(commit_success.txt), as Orbax writes it.
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
  description: The downloaded files, relative to the checkpoint location, without those that were
    there before. In check mode, the files to download.
  returned: success
  type: list
  elements: str
passed_over:
  description: With O(which=newest), the checkpoints that are newer than the downloaded one but not
    finished or not readable, each with the reason.
  returned: success
  type: list
  elements: str
unreadable:
  description: With O(which=all), the objects that could not be downloaded, each with the error. All
    others were downloaded.
  returned: success
  type: list
  elements: str
missing:
  description: Why there is no checkpoint to download, or why the bucket could not be read. Empty if
    there is a checkpoint.
  returned: success
  type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.cloud.checkpoint_download import fetch, fetched, layout_of
from ..module_utils.cloud.errors import CloudError
from ..module_utils.cloud.storage import Bucket
from ..module_utils.worker.os_errors import os_error_text


def main() -> None:
    """Run the module: download the checkpoints, or in check mode list them."""
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
    except CloudError as error:
        # Return the error in ``missing``: the play fails with it later, after copying the logs.
        result = fetched(missing=str(error))
    except OSError as error:
        module.fail_json(msg=os_error_text(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
