"""Module tpufleet.core.ssh_key: create the fleet's ssh key pair if it is missing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_key
short_description: Create an ssh key pair
description:
  - Creates an ed25519 key pair without a passphrase if there is none. An existing private key stays
    as it is; a missing public key is derived from it.
  - The private key is moved into place last, so that an interrupted task never leaves a new
    private key without its public key.
author: tpufleet maintainers
extends_documentation_fragment: tpufleet.core.check_mode
options:
  path:
    description: The file of the private key. The file of the public key has the same name with
      C(.pub) appended.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Create an ssh key
  tpufleet.core.ssh_key:
    path: "{{ tpu_ssh.private_key_file }}"
"""

RETURN = r"""
msg:
  description: What the task did, in one line.
  type: str
  returned: always
"""

import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule


def _create(module: AnsibleModule, private: Path, public: Path) -> None:
    private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=private.parent) as folder:
        key = Path(folder) / "key"
        options = ["-q", "-t", "ed25519", "-N", "", "-C", "tpufleet"]
        module.run_command(["ssh-keygen", *options, "-f", str(key)], check_rc=True)
        key.with_name("key.pub").replace(public)
        key.replace(private)


def _derive_public_key(module: AnsibleModule, private: Path, public: Path) -> None:
    _, output, _ = module.run_command(["ssh-keygen", "-y", "-f", str(private)], check_rc=True)
    with tempfile.TemporaryDirectory(dir=private.parent) as folder:
        key = Path(folder) / "key.pub"
        key.write_text(output, encoding="utf-8")
        key.replace(public)


def main() -> None:
    """Run the module: create the key pair, or the public key, if it is missing."""
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}},
        supports_check_mode=True,
    )
    private = Path(module.params["path"])
    public = private.with_name(private.name + ".pub")
    if private.exists() and public.exists():
        module.exit_json(changed=False, msg=f"the ssh key {private} exists")
    create_key = _derive_public_key if private.exists() else _create
    if not module.check_mode:
        try:
            create_key(module, private, public)
        except OSError as error:
            module.fail_json(msg=f"can't create the ssh key {private}: {error.strerror}")
    subject = "the ssh key" if create_key is _create else "the public key of"
    verb = "would be created" if module.check_mode else "is created"
    module.exit_json(changed=True, msg=f"{subject} {private} {verb}")


if __name__ == "__main__":
    main()
