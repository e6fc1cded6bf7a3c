#!/usr/bin/python
"""Module tpufleet.core.image: install a container image for runs on a worker."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image
short_description: Install a container image for runs
description:
  - Unpacks an image to C(/opt/tpufleet/images/DIGEST). The trainer of a run with this image uses
    these files; no container is started.
  - The leader of a TPU pulls the image with podman or docker, which verify its digest, and unpacks
    it. The other workers copy it from their leader. A worker whose copy fails pulls the image
    itself. To log in to Google's registries, a worker uses an access token of its service account;
    no other registry gets the token.
  - After it has installed an image, removes images that no active run uses, except the new image
    and the two others that were used last.
options:
  image:
    description: The image to install, as C(REGISTRY/NAME@sha256:DIGEST).
    type: str
    required: true
  leader_only:
    description: Whether to do nothing on workers that copy from a leader. Set it in a first task,
      so that the leaders finish before the others copy.
    type: bool
    default: false
extends_documentation_fragment: tpufleet.core.diff_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Install the image on the leaders, which pull it
  tpufleet.core.image:
    image: "{{ image }}"
    leader_only: true
  become: true

- name: Install the image on the other workers, which copy it
  tpufleet.core.image:
    image: "{{ image }}"
  become: true
"""

RETURN = r"""
path:
  description: The directory of the image.
  returned: success
  type: str
removed:
  description: The digests of the images that were removed; in check mode, of those to remove.
  returned: success
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.contract import IMAGE
from ..module_utils.worker.from_leader import has_leader
from ..module_utils.worker.image import CONFIG, Image, image_folder
from ..module_utils.worker.image_install import (
    ImageError,
    find_engine,
    install,
    remove,
    unused,
)
from ..module_utils.worker.locks import IMAGES, one_at_a_time
from ..module_utils.worker.os_errors import os_error_text
from ..module_utils.worker.run import RunError, WorkerPaths


def main() -> None:
    """Run the module: install the image if it is missing, and then remove unused images."""
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "leader_only": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    image, to_remove = module.params["image"], []
    if not IMAGE.fullmatch(image):
        module.fail_json(msg=f"image={image}: expected REGISTRY/NAME@sha256:DIGEST")
    paths = WorkerPaths()
    folder = image_folder(paths, image)
    if module.params["leader_only"] and has_leader():
        module.exit_json(changed=False, path=str(folder), removed=[])
    try:
        is_missing = not Image.read(folder)
        if module.check_mode:
            if is_missing and not has_leader():
                find_engine()
            to_remove = unused(folder, paths) if is_missing else []
        else:
            with one_at_a_time(IMAGES):
                is_missing = not Image.read(folder)
                if is_missing and (warning := install(image, paths)):
                    module.warn(warning)
                os.utime(folder / CONFIG)  # the time of the last use
                if is_missing:
                    to_remove = unused(folder, paths)
                    remove(folder.parent, to_remove)
    except (ImageError, RunError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=os_error_text(error))
    after = f"image {folder.name}\n"
    before = [f"image {path.name}\n" for path in to_remove] + ([] if is_missing else [after])
    module.exit_json(
        changed=is_missing,
        path=str(folder),
        removed=[path.name for path in to_remove],
        diff={"before": "".join(before), "after": after},
    )


if __name__ == "__main__":
    main()
