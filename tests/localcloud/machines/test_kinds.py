"""The tools that each kind of machine needs on its host."""

import pytest

from localcloud.failure import CloudError
from localcloud.machines import kinds


@pytest.mark.parametrize(
    ("kind", "tool", "command"),
    [
        ("nspawn", "mkfs.ext4", "make env-localcloud"),
        ("nspawn", "nsenter", "make env-localcloud"),
        ("qemu", "qemu-img", "requirements/install-system qemu"),
    ],
)
def test_a_missing_tool_is_reported_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch, kind: str, tool: str, command: str
):
    monkeypatch.setattr("shutil.which", lambda name: None if name == tool else f"/bin/{name}")
    with pytest.raises(CloudError) as refused:
        kinds.check_tools(kind)
    assert (
        str(refused.value)
        == f"machines of kind {kind} need tools that are missing ({tool}). Run: {command}"
    )
