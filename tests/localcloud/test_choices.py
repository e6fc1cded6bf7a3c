"""A cloud's settings: defaults, and those that cannot change while it has machines or is up."""

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from localcloud import choices
from localcloud.choices import Options
from localcloud.failure import CloudError
from localcloud.local_cloud import LocalCloud
from localcloud.machines import kinds
from localcloud.settings import Settings

CLOUD = LocalCloud("one", Path("/clouds/one"))
BEFORE = Settings("one", 8470, "198.18.4.0/22", "/image")
OTHER = IPv4Network("198.18.8.0/22")


@pytest.fixture(autouse=True)
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.delenv("SUDO_UID", raising=False)


@pytest.mark.parametrize(
    ("requested", "mnt_shared"), [(Options(), "shared"), (Options(mnt_shared="local"), "local")]
)
def test_a_new_cloud_shares_mnt_shared_by_default(requested: Options, mnt_shared: str):
    chosen = choices.choose(CLOUD, None, requested, in_use=False)
    assert (chosen.machines, chosen.suite, chosen.mnt_shared) == ("nspawn", "", mnt_shared)


def test_qemu_machines_have_their_own_mnt_shared():
    requested = Options(machines="qemu")
    assert choices.choose(CLOUD, None, requested, in_use=False).mnt_shared == "local"
    with pytest.raises(CloudError, match=r"--machines qemu$"):
        choices.choose(CLOUD, None, Options(machines="qemu", mnt_shared="shared"), in_use=False)


def test_only_machines_with_a_shared_mnt_shared_mount_the_hosts_directory(tmp_path: Path):
    cloud = LocalCloud("one", tmp_path / "one")
    for mnt_shared, directory in (("shared", cloud.shared), ("local", None)):
        machines = kinds.KINDS["nspawn"].machines(cloud, None, tmp_path, mnt_shared)
        assert machines.shared == directory


def test_a_cloud_keeps_its_settings_when_it_comes_up_again():
    before = Settings("one", 8470, "198.18.4.0/22", "/i", suite="bookworm", mnt_shared="local")
    for in_use in (True, False):
        assert choices.choose(CLOUD, before, Options(), in_use=in_use) == before


@pytest.mark.parametrize(
    ("requested", "options"),
    [
        (Options(machines="qemu"), "--suite bookworm --machines qemu"),
        (Options(suite="bullseye"), "--suite bullseye --mnt-shared local"),
        (Options(mnt_shared="shared"), "--suite bookworm"),
    ],
)
def test_settings_of_existing_machines_cannot_change_and_the_error_suggests_a_new_cloud(
    requested: Options, options: str
):
    before = Settings("one", 8470, "198.18.4.0/22", "/i", suite="bookworm", mnt_shared="local")
    with pytest.raises(CloudError) as refused:
        choices.choose(CLOUD, before, requested, in_use=True)
    cloud = "TPUFLEET_LOCALCLOUD_DIR=/clouds .venv/bin/python -m localcloud --name one"
    assert str(refused.value).endswith(f": {cloud} down && {cloud} up {options}")


def test_a_cloud_with_machines_keeps_its_subnet():
    def chosen(requested: Options, *, has_machines: bool) -> IPv4Network | None:
        return choices.choose_subnet(CLOUD, BEFORE, requested, has_machines=has_machines)

    assert chosen(Options(subnet=OTHER), has_machines=False) == OTHER
    assert chosen(Options(), has_machines=True) == IPv4Network("198.18.4.0/22")
    with pytest.raises(CloudError, match=r"up --subnet 198\.18\.8\.0/22$"):
        chosen(Options(subnet=OTHER), has_machines=True)


def test_a_cloud_that_is_up_keeps_its_port():
    choices.check_address_unchanged(CLOUD, BEFORE, Options(port=8470))
    with pytest.raises(CloudError, match=r"already has --port 8470 \(9000 was requested\)"):
        choices.check_address_unchanged(CLOUD, BEFORE, Options(port=9000))
