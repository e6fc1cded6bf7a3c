"""The choice of the qemu that runs a machine, and of the machine's processor."""

from pathlib import Path

import pytest

from localcloud.machines import image, qemu_program
from localcloud.machines.qemu_image import QemuImage

DEBIAN_12 = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright (c) …"
DEBIAN_13 = "QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)\nCopyright (c) …"


@pytest.fixture
def vm_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QemuImage:
    """A machine image on a Debian host without KVM; the build of a newer qemu is faked."""

    def make(tree: Path, command: list[str], report: object) -> None:
        assert f"{tree}.partial-" in " ".join(command)
        tree.mkdir()

    monkeypatch.setattr(qemu_program, "choose", lambda _: "tcg")
    monkeypatch.setattr(
        image, "sources", lambda: ("trixie", ["deb http://m.example trixie main"], [])
    )
    monkeypatch.setattr(image, "images_directory", lambda: tmp_path)
    monkeypatch.setattr(image, "make_tree", make)
    return QemuImage(tmp_path / "trixie-0123456789ab")


def host_has(monkeypatch: pytest.MonkeyPatch, reply: str) -> None:
    monkeypatch.setattr(qemu_program, "host_version", lambda: reply)


@pytest.mark.parametrize(
    ("reply", "sound"),
    [(DEBIAN_12, False), (DEBIAN_13, True), ("QEMU emulator version 9.2.1", False), ("", False)],
)
def test_qemu_is_sound_from_version_10_on(reply: str, sound: bool):
    assert qemu_program.is_sound(reply) is sound


def test_a_newer_qemu_runs_with_its_own_loader_and_all_processor_features(
    vm_image: QemuImage, monkeypatch: pytest.MonkeyPatch
):
    host_has(monkeypatch, DEBIAN_12)
    qemu_program.ensure(vm_image, print)
    command = qemu_program.command(vm_image)
    assert command[0] == f"{vm_image.qemu}/lib64/ld-linux-x86-64.so.2"
    assert command[-1] == "max"


def test_a_sound_host_qemu_is_used(vm_image: QemuImage, monkeypatch: pytest.MonkeyPatch):
    host_has(monkeypatch, DEBIAN_13)
    qemu_program.ensure(vm_image, print)
    assert not vm_image.qemu.exists()
    assert qemu_program.command(vm_image)[0] == "qemu-system-x86_64"
    assert qemu_program.command(vm_image)[-1] == "max"


def test_an_old_qemu_without_a_newer_one_gets_a_warning_and_the_safer_processor(
    vm_image: QemuImage, monkeypatch: pytest.MonkeyPatch
):
    host_has(monkeypatch, DEBIAN_12)
    monkeypatch.setattr(image, "sources", lambda: ("jammy", [], []))
    output: list[str] = []
    qemu_program.ensure(vm_image, output.append)
    assert "may crash" in output[-1]
    assert qemu_program.command(vm_image)[-1] == "Nehalem"


def test_with_kvm_the_hosts_qemu_is_used_at_any_age(
    vm_image: QemuImage, monkeypatch: pytest.MonkeyPatch
):
    host_has(monkeypatch, DEBIAN_12)
    monkeypatch.setattr(qemu_program, "choose", lambda _: "kvm")
    qemu_program.ensure(vm_image, print)
    assert qemu_program.command(vm_image) == [
        "qemu-system-x86_64", "-accel", "kvm", "-cpu", "host"
    ]  # fmt: skip
