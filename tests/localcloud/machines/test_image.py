import os
import subprocess
from pathlib import Path

import pytest

from localcloud.failure import CloudError
from localcloud.machines.image import (
    Source,
    acquire_options,
    base_lines,
    certificates,
    inside,
    missing_certificates,
)

DEBIAN = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
UBUNTU = {"ID": "ubuntu", "VERSION_CODENAME": "noble"}


@pytest.mark.parametrize(("suite", "built"), [("", "trixie"), ("bullseye", "bullseye")])
def test_a_debian_host_builds_debian_13_or_the_requested_suite_from_its_own_mirror(suite, built):
    sources = [
        Source("http://mirror.example/debian/", "bookworm", "main"),
        Source("http://mirror.example/security/", "bookworm-security", "main"),
    ]
    lines = [f"deb http://mirror.example/debian/ {built} main"]
    assert base_lines(sources, DEBIAN, suite) == (built, lines)


def test_an_ubuntu_host_builds_its_own_release_with_universe_and_updates():
    sources = [
        Source("http://mirror.example/ubuntu/", "noble", "main"),
        Source("http://mirror.example/ubuntu/", "noble", "universe"),
        Source("http://mirror.example/ubuntu/", "noble", "multiverse"),
        Source("http://mirror.example/ubuntu/", "noble-updates", "main"),
        Source("http://elsewhere.example/apt/", "stable", "main"),
    ]
    suite, lines = base_lines(sources, UBUNTU)
    assert suite == "noble"
    assert lines == [
        "deb http://mirror.example/ubuntu/ noble main",
        "deb http://mirror.example/ubuntu/ noble universe",
        "deb http://mirror.example/ubuntu/ noble-updates main",
    ]


@pytest.mark.parametrize("os_release", [{"ID": "fedora"}, DEBIAN])
def test_a_host_without_a_usable_package_source_is_refused(os_release):
    with pytest.raises(CloudError, match="package source"):
        base_lines([Source("http://elsewhere.example/apt/", "stable", "main")], os_release)


def test_only_proxy_and_validity_settings_of_apt_are_copied():
    dump = "\n".join(
        [
            'Acquire "";',
            'Acquire::http::Proxy "http://proxy.example:3128";',
            'Acquire::Check-Valid-Until "false";',
            'Acquire::cdrom::mount "/media/cdrom/";',
            'Acquire::https::Verify-Peer "";',
        ]
    )
    assert acquire_options(dump) == [
        'Acquire::http::Proxy "http://proxy.example:3128";',
        'Acquire::Check-Valid-Until "false";',
    ]


@pytest.fixture
def two_certificates(tmp_path):
    pems = []
    for name in ("public", "company"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", f"/CN={name}",
             "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "pem")],
            check=True, capture_output=True,
        )  # fmt: skip
        pems.append((tmp_path / "pem").read_text())
    return pems


def test_a_certificate_of_the_host_is_copied_only_if_the_image_lacks_it(two_certificates):
    public, company = two_certificates
    assert missing_certificates(public + company, public) == certificates(company)
    assert missing_certificates(public + company, public + company) == []


def test_another_suite_is_refused_on_an_ubuntu_host():
    ubuntu = [Source("http://mirror.example/ubuntu/", "noble", "main")]
    with pytest.raises(CloudError, match="without --suite"):
        base_lines(ubuntu, UBUNTU, "bullseye")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its root")
def test_commands_inside_an_image_do_not_get_the_hosts_tmpdir(monkeypatch):
    monkeypatch.setenv("TMPDIR", "/of-this-host-alone")
    inside(Path("/"), "sh", "-c", 'test -z "$TMPDIR" && made=$(mktemp -d) && rmdir $made')


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its root")
def test_an_error_inside_an_image_has_the_command_and_its_output():
    with pytest.raises(CloudError, match=r"sh -c .* failed\. .*\nno room left"):
        inside(Path("/"), "sh", "-c", "echo no room left >&2; exit 1")
