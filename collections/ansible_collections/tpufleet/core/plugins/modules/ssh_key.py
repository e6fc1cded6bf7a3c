"""The module tpufleet.core.ssh_key: the fleet's key pair, made once and whole."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_key
short_description: Have an ssh key pair, made once
description:
  - Makes an ed25519 key pair without a passphrase where there is none. One that is there stays as
    it is; if its public half is missing, that is made from it.
  - The private key gets its name last and in one step, so that a run that is killed leaves a whole
    pair or none.
author: tpufleet maintainers
attributes:
  check_mode:
    description: Makes nothing.
    support: full
options:
  path:
    description: The private key's file. The public key is beside it, with C(.pub) behind its name.
    type: path
    required: true
  comment:
    description: What stands behind the public key.
    type: str
    default: tpufleet
"""

EXAMPLES = r"""
- name: Have an ssh key
  tpufleet.core.ssh_key:
    path: "{{ tpu_ssh.private_key_file }}"
"""

RETURN = r"""
msg:
  description: One line on what happened.
  type: str
  returned: always
"""

import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule


def _make(module: AnsibleModule, private: Path, public: Path) -> None:
    private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=private.parent) as beside:
        made = Path(beside) / "key"
        words = ["-q", "-t", "ed25519", "-N", "", "-C", module.params["comment"]]
        module.run_command(["ssh-keygen", *words, "-f", str(made)], check_rc=True)
        made.with_name("key.pub").replace(public)
        made.replace(private)


def _make_public_half(module: AnsibleModule, private: Path, public: Path) -> None:
    _, told, _ = module.run_command(["ssh-keygen", "-y", "-f", str(private)], check_rc=True)
    with tempfile.TemporaryDirectory(dir=private.parent) as beside:
        made = Path(beside) / "key.pub"
        made.write_text(told, encoding="utf-8")
        made.replace(public)


def main() -> None:
    """Run as a module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "comment": {"type": "str", "default": "tpufleet"},
        },
        supports_check_mode=True,
    )
    private = Path(module.params["path"])
    public = private.with_name(private.name + ".pub")
    lacks = None if private.exists() and public.exists() else _make
    if lacks and private.exists():
        lacks = _make_public_half
    if lacks and not module.check_mode:
        try:
            lacks(module, private, public)
        except OSError as error:
            module.fail_json(msg=f"can't make the ssh key {private}: {error.strerror}")
    verb = "is there" if not lacks else "would be made" if module.check_mode else "is made"
    half = "the public half of " if lacks is _make_public_half else ""
    module.exit_json(changed=lacks is not None, msg=f"{half}the ssh key {private} {verb}")


if __name__ == "__main__":
    main()
