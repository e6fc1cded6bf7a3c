"""Root file system image of the machines: built once with mmdebstrap, then cached.

The image contains what a new TPU VM has: systemd, sshd, sudo, Python, and the tools that scripts
for TPU VMs call. The packages come from this host's configured package sources.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from localcloud.failure import CloudError
from localcloud.local_cloud import images_directory
from localcloud.machines import mounts
from localcloud.machines.guest import install as guest

PACKAGES = (
    "ca-certificates",
    "curl",
    "dbus",
    "iproute2",
    "kmod",
    "libpam-systemd",
    "openssh-server",
    "python3",
    "python3-apt",  # Ansible's apt module needs python3-apt; TPU VMs have it too
    "sudo",
    "systemd",
    "systemd-sysv",
    "udev",
    # Tools that users' scripts for TPU VMs call.
    "git",
    "lsof",
    "patch",
    "python3-pip",
    "screen",
    "tmux",
    "virtualenv",
)
DEBIAN_SUITE = "trixie"
SUITES = ("bullseye", "bookworm", "trixie")
# Version of _finish(). Increment it when _finish() changes, so that images are built again.
RECIPE = 2
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_IMAGE_NAME = re.compile(
    r"[a-z]+-[0-9a-f]{12}(\.[0-9a-f]{8}\.ext4|\.accelerator|\.qemu)?(\.partial-\d+)?"
)
# Command prefix: the command and all its children are killed when this process ends, even by
# SIGKILL, and their mounts are invisible to the host (prctl(2), pid_namespaces(7)).
KILL_WITH_PARENT = (
    *("setpriv", "--pdeathsig", "KILL", "--"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--"),
)
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)
# Units that are masked in the image, because the host manages clock, disks and updates.
_MASKED = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "dpkg-db-backup.timer",
    "fstrim.timer",
    "e2scrub_all.timer",
    "systemd-timesyncd.service",
    "tmp.mount",
)


@dataclass(frozen=True)
class Source:
    """One configured package source, as listed by ``apt-get indextargets``."""

    uri: str
    release: str
    component: str


def configured_sources() -> list[Source]:
    """Return the package sources configured in this host's apt."""
    lines = _output(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(COMPONENT)",
         "Created-By: Packages"]
    )  # fmt: skip
    return [Source(*line.split("|")) for line in lines.splitlines() if line.count("|") == 2]


def base_lines(
    sources: Iterable[Source], os_release: dict[str, str], suite: str = ""
) -> tuple[str, list[str]]:
    """Return the image's suite and ``deb`` lines, derived from the host's package sources.

    On a Debian host, the image has the release ``suite`` (one of SUITES; default: DEBIAN_SUITE)
    and the host's mirror. On an Ubuntu host, it has the host's release. Raises CloudError on other
    hosts, if no source has the host's release, or if ``suite`` is not the Ubuntu host's release.
    """
    sources = list(sources)
    codename = os_release.get("VERSION_CODENAME", "")
    own = [s for s in sources if s.release == codename and s.component == "main"]
    if os_release.get("ID") not in ("debian", "ubuntu") or not own:
        raise CloudError(
            "the local cloud needs a Debian or Ubuntu host with a package source for its release "
            f"({codename or 'unknown'}). On such a host, add the release's deb line to "
            "/etc/apt/sources.list, then run: apt-get update"
        )
    if os_release["ID"] == "debian":
        suite = suite or DEBIAN_SUITE
        return suite, [f"deb {own[0].uri} {suite} main"]
    if suite not in ("", codename):
        raise CloudError(
            f"--suite: only a Debian host can create machines of {suite} (this is {codename}). "
            f"Run the same command without --suite {suite}"
        )
    related = [s for s in sources if s.release.startswith(codename)]
    lines = [
        f"deb {s.uri} {s.release} {s.component}"
        for s in related
        if s.component in ("main", "universe")
    ]
    return codename, list(dict.fromkeys(lines))


def sources(suite: str = "") -> tuple[str, list[str], list[str]]:
    """Return the suite, ``deb`` lines and apt options for building a file system on this host."""
    release = platform.freedesktop_os_release()
    suite, lines = base_lines(configured_sources(), release, suite)
    return suite, lines, acquire_options(_output(["apt-config", "dump", "Acquire"]))


def acquire_options(dump: str) -> list[str]:
    """Return the ``Acquire::http*`` (proxy) and ``Acquire::Check-*`` options in ``dump``.

    ``dump`` is the output of ``apt-config dump``.
    """
    relevant = re.compile(r"Acquire::(https?::|Check-)[^\"]*\"[^\"]+\";")
    return [line for line in dump.splitlines() if relevant.fullmatch(line)]


def certificates(pem: str) -> list[str]:
    """Split a PEM bundle into its certificates."""
    return _CERTIFICATE.findall(pem)


def missing_certificates(host_pem: str, image_pem: str) -> list[str]:
    """Return the host's certificates that the image does not have, such as a company's CA.

    The arguments are PEM bundles of the host and the image.
    """
    present = {ssl.PEM_cert_to_DER_cert(pem) for pem in certificates(image_pem)}
    return [pem for pem in certificates(host_pem) if ssl.PEM_cert_to_DER_cert(pem) not in present]


def ensure(
    report: Callable[[str], None], extra_packages: tuple[str, ...] = (), suite: str = ""
) -> Path:
    """Return the image's directory; build the image first if it is not cached.

    ``report`` prints progress. ``extra_packages``, such as a kernel, are installed in addition to
    PACKAGES. ``suite`` is the Debian release. The directory appears only when the image is
    complete. Raises CloudError if the build fails.
    """
    packages = PACKAGES + extra_packages
    suite, lines, options = sources(suite)
    host_pem = CA_BUNDLE.read_text() if CA_BUNDLE.exists() else ""
    ingredients = (suite, lines, options, packages, _MASKED, os.uname().machine, host_pem)
    recipe = repr((RECIPE, guest.digest(), *ingredients))
    name = f"{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    image = images_directory() / name
    if not image.is_dir():
        with lock_images(report):
            if not image.is_dir():
                report(
                    f"building the machines' root file system ({suite}; only at the first start)"
                )
                command = bootstrap("minbase", packages, suite, options)
                command += [str(partial_of(image)), *lines]
                make_tree(image, command, report, lambda root: _finish(root, host_pem))
    return image


@contextlib.contextmanager
def lock_images(report: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock that protects the building and removing of cached images."""
    images_directory().mkdir(parents=True, exist_ok=True)
    handle = os.open(images_directory(), os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting: another local cloud is building the machines' root file system")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def bootstrap(
    variant: str, packages: Iterable[str], suite: str, options: Iterable[str] = ()
) -> list[str]:
    """Return the mmdebstrap command; the caller appends the target directory and ``deb`` lines.

    ``variant`` is mmdebstrap's set of base packages. The command starts with KILL_WITH_PARENT,
    so that a killed build leaves no processes or mounts.
    """
    return [
        *KILL_WITH_PARENT,
        *("mmdebstrap", f"--variant={variant}", f"--include={','.join(packages)}"),
        *(f"--aptopt={option}" for option in options),
        suite,
    ]


def partial_of(tree: Path) -> Path:
    """Return the temporary path under which this process builds the directory ``tree``."""
    return tree.with_name(f"{tree.name}.partial-{os.getpid()}")


def make_tree(
    tree: Path,
    command: list[str],
    report: Callable[[str], None],
    finish: Callable[[Path], None] = lambda root: None,
) -> None:
    """Create the directory ``tree`` atomically.

    ``command`` must create ``partial_of(tree)``. ``finish`` may then change that directory, which
    is finally renamed to ``tree``. Call this inside ``lock_images``. Raises CloudError if
    ``command`` fails.
    """
    # All partial directories are from killed builds, because a running build would hold the lock.
    for abandoned in tree.parent.glob("*.partial-*"):
        _remove(abandoned)
    partial = partial_of(tree)
    tail: list[str] = []
    try:
        for line in _lines(command):
            tail = [*tail[-7:], line]
            if line.startswith("I: "):
                report(f"  {line[3:]}")
        finish(partial)
        partial.rename(tree)
    except subprocess.CalledProcessError as error:
        raise CloudError(
            f"{tree}: mmdebstrap failed. The end of its output:\n" + "\n".join(tail)
        ) from error
    finally:
        _remove(partial)


def remove_all(report: Callable[[str], None]) -> None:
    """Remove all cached images, complete or partial; keep other files in their directory."""
    if not images_directory().exists():
        return
    with lock_images(report):
        for entry in images_directory().glob("*"):
            if _IMAGE_NAME.fullmatch(entry.name):
                _remove(entry)
        with contextlib.suppress(OSError):
            images_directory().rmdir()


def _remove(image: Path) -> None:
    """Remove an image, after unmounting what mmdebstrap may have left mounted in it."""
    if image.is_file():
        image.unlink()
        return
    mounts.unmount_below(image)
    if not mounts.below(image):
        shutil.rmtree(image, ignore_errors=True)


def _finish(root: Path, host_pem: str) -> None:
    """Apply the configuration that all machines share; nspawn.furnish adds each machine's own."""
    for key in root.glob("etc/ssh/ssh_host_*"):
        key.unlink()
    (root / "etc/machine-id").write_text("")
    for unit in _MASKED:
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    networkd = wants / "systemd-networkd.service"
    if not networkd.is_symlink():
        networkd.symlink_to("/usr/lib/systemd/system/systemd-networkd.service")
    (root / "etc/ssh/sshd_config.d").mkdir(exist_ok=True)
    (root / "etc/ssh/sshd_config.d/10-keys-only.conf").write_text(
        "PasswordAuthentication no\nPermitRootLogin no\nMaxStartups 100:30:200\n"
    )
    sudoers = root / "etc/sudoers.d/google_sudoers"
    sudoers.write_text("%google-sudoers ALL=(ALL:ALL) NOPASSWD:ALL\n")
    sudoers.chmod(0o440)
    inside(root, "groupadd", "--system", "google-sudoers")
    extra = missing_certificates(host_pem, (root / str(CA_BUNDLE)[1:]).read_text())
    for number, pem in enumerate(extra):
        certificate = root / "usr/local/share/ca-certificates" / f"host-{number}.crt"
        certificate.parent.mkdir(parents=True, exist_ok=True)
        certificate.write_text(pem)
    if extra:
        inside(root, "update-ca-certificates")
    guest.install(root)
    for stamp in ("etc/.updated", "var/.updated"):
        # Without the .updated files, the first boot runs update services (systemd.unit(5)).
        (root / stamp).touch()


def inside(root: Path, *command: str) -> None:
    """Run a command in a chroot at ``root``; raise CloudError with its last output if it fails.

    The command does not inherit this process's environment: for example, the host's TMPDIR may not
    exist in the chroot.
    """
    result = subprocess.run(
        ["chroot", str(root), *command],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        tail = "\n".join(result.stdout.splitlines()[-8:])
        raise CloudError(f"{root}: {' '.join(command)} failed. The end of its output:\n{tail}")


def _lines(command: list[str]) -> Iterator[str]:
    """Run a command and yield its output lines; raise CalledProcessError if it fails."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None  # noqa: S101  (never None with stdout=PIPE)
        for line in process.stdout:
            yield line.rstrip()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise CloudError(
            f"the local cloud needs Debian or Ubuntu: apt's settings can't be read here ({error})"
        ) from error
