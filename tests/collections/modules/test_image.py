"""Container images of runs: names, pull, copy from the leader, removal, and the unit's mounts.

The container engine is a script here; tests/journey/test_container.py uses podman and docker.
"""

import json
import os
import re
import stat
import tarfile
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import image as module
from ansible_collections.tpufleet.core.plugins.module_utils.worker import image_install
from ansible_collections.tpufleet.core.plugins.module_utils.worker.contract import IMAGE
from ansible_collections.tpufleet.core.plugins.module_utils.worker.from_leader import DiskFullError
from ansible_collections.tpufleet.core.plugins.module_utils.worker.image import (
    Image,
    data_mounts,
    image_folder,
    mount_point,
    nearest_directory,
    outermost,
    unit_settings,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.image_install import (
    ImageError,
    install,
    remove,
    unused,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.launch_spec import (
    InvalidLaunchError,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.process import environment
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError, WorkerPaths
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_start import image_problem
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.run_plan import checked_image
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.valid_record import launch_spec, process
from tests.collections.modules.test_env_copy import serve
from tests.collections.running_modules import run_module

DIGEST = "ab" * 32
NAME = f"europe-docker.pkg.dev/project/repository/trainer@sha256:{DIGEST}"
TOKEN = "ya29.the-token"
CONFIG = {"Env": ["PATH=/venv/bin:/usr/bin", "LD_LIBRARY_PATH=/venv/lib"], "WorkingDir": "/app"}
ENGINE = """#!{python} -I
import json, os, shutil, stat, sys, time
here, words = {here!r}, sys.argv[1:]
with open(here + "/calls", "a") as calls:
    calls.write(json.dumps(words) + "\\n")
kind = next(word for word in words if word in ("image", "pull", "create", "export", "rm", "rmi"))
if kind == "image":
    if not os.path.exists(here + "/pulled"):
        sys.exit(1)
    print(json.dumps([{{"Config": {config!r}}}]))
elif kind == "pull":
    if "--authfile" in words:
        file = words[words.index("--authfile") + 1]
    elif "--config" in words:
        file = words[words.index("--config") + 1] + "/config.json"
    else:
        file = ""
    if file:
        shutil.copy(file, here + "/login")
        open(here + "/mode", "w").write(oct(stat.S_IMODE(os.stat(file).st_mode)))
    if os.path.exists(here + "/hang"):
        time.sleep(600)
    if os.path.exists(here + "/full"):
        sys.exit("Error: writing blob: write /var/tmp/1: no space left on device")
    if os.path.exists(here + "/refuse"):
        sys.exit("Trying to pull\\nError: manifest unknown.")
    open(here + "/pulled", "w").close()
elif kind == "export":
    if os.path.exists(here + "/corrupt"):
        sys.exit("Error: layer not known")
    sys.stdout.buffer.write(open(here + "/files.tar", "rb").read())
"""


def entry(name: str, mode: int, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.type, info.linkname, info.uid = mode, kind, target, 1000
    return info


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """The directory of a fake podman, first in PATH; a file ``refuse`` in it makes pulls fail."""
    if os.geteuid() != 0:
        pytest.skip("only root unpacks images")
    folder = tmp_path / "engine"
    folder.mkdir()
    monkeypatch.setattr(image_install, "access_token", lambda: TOKEN)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    with tarfile.open(folder / "files.tar", "w") as files:
        files.addfile(entry("app", 0o700, tarfile.DIRTYPE))
        files.addfile(entry("app/train.py", 0o600))
        files.addfile(entry("app/su", 0o6777))
        files.addfile(entry("app/pipe", 0o666, tarfile.FIFOTYPE))
        files.addfile(entry("dev/null", 0o666))
        files.addfile(entry("etc/passwd", 0o644, tarfile.SYMTYPE, "/etc/passwd"))
    program = folder / "podman"
    program.write_text(ENGINE.format(python="/usr/bin/python3", here=str(folder), config=CONFIG))
    program.chmod(0o755)
    return folder


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


@pytest.mark.parametrize(
    "name", [NAME, f"localhost:5000/a@sha256:{DIGEST}", f"gcr.io/p/a-b__c.d@sha256:{DIGEST}"]
)
def test_an_image_with_a_registry_and_a_digest_is_accepted(name):
    assert launch_spec(image=name).image == checked_image(name, "python x.py") == name


@pytest.mark.parametrize(
    "name",
    [
        "docker.io/library/python:3.12",
        f"docker.io/library/python:3.12@sha256:{DIGEST}",
        f"python@sha256:{DIGEST}",
        f"-v.x/python@sha256:{DIGEST}",
        f"python.org/python@sha256:{DIGEST} --privileged",
        f"gcr.io/../python@sha256:{DIGEST}",
        f"gcr.io/python@sha256:{DIGEST[:-1]}",
        f"gcr.io/python@sha256:{DIGEST}\n",
        f"user:password@gcr.io/python@sha256:{DIGEST}",
    ],
)
def test_any_other_name_of_an_image_is_refused(name):
    with pytest.raises(RunError, match=r"expected REGISTRY/NAME@sha256:DIGEST"):
        checked_image(name, "python x.py")
    with pytest.raises(InvalidLaunchError, match="image"):
        launch_spec(image=name)


@settings(max_examples=20)
@given(st.from_regex(IMAGE, fullmatch=True))
def test_the_directory_of_an_image_is_named_by_its_digest_alone(name):
    folder = image_folder(WorkerPaths(), name)

    assert folder.parent == Path("/opt/tpufleet/images")
    assert folder.name == name[-64:]


def test_an_image_needs_a_command():
    with pytest.raises(RunError, match="no command is set"):
        checked_image(NAME, None)


def test_a_trainer_in_an_image_uses_the_image_s_programs_and_certificates():
    image = Image.of_engine(Path("/opt/tpufleet/images/x/root"), [{"Config": CONFIG}])
    trust = {"SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt"}

    paths = WorkerPaths()
    variables = environment(process(image=NAME), paths, trust, image_path=image.path(paths))

    assert variables["PATH"] == "/venv/bin:/usr/bin:/opt/tpufleet/programs"
    assert not {"VIRTUAL_ENV", "SSL_CERT_FILE", "LD_LIBRARY_PATH"} & set(variables)
    assert variables["TPUFLEET_RUN"] == "mine"
    assert image.for_attempt(variables) == {
        "root": "/opt/tpufleet/images/x/root",
        "directory": "/app",
        "env": {"LD_LIBRARY_PATH": "/venv/lib"},
    }


@pytest.mark.parametrize(
    "inspected",
    [[], {}, [None], [{}], [{"Config": {"WorkingDir": "app"}}],
     [{"Config": {"WorkingDir": "/a/../b"}}], [{"Config": {"Env": ["A=\x1b"]}}]],
)  # fmt: skip
def test_a_malformed_answer_of_an_engine_is_refused(inspected):
    with pytest.raises(ValueError, match=r"the container engine|its config"):
        Image.of_engine(Path("/root"), inspected)


def test_an_image_without_settings_starts_in_the_root_directory():
    image = Image.of_engine(Path("/x"), [{"Config": {"Env": None, "WorkingDir": ""}}])

    assert (image.directory, image.env) == ("/", {})


@pytest.mark.parametrize("name", ["podman", "docker"])
def test_the_token_for_a_pull_is_only_in_a_file_that_root_alone_can_read(
    paths, engine, name, monkeypatch
):
    monkeypatch.setattr(image_install, "_ENGINES", (name,))
    (engine / "podman").rename(engine / name)

    assert install(NAME, paths) == ""

    login = json.loads((engine / "login").read_text())
    assert list(login["auths"]) == ["europe-docker.pkg.dev"]
    assert (engine / "mode").read_text() == "0o600"
    assert TOKEN not in (engine / "calls").read_text()
    [login] = [word for call in calls(engine) for word in call if word.startswith("/run/")]
    assert not Path(login).exists()


def test_other_registries_get_no_token(paths, engine):
    install(f"docker.io/library/x@sha256:{DIGEST}", paths)
    install(f"pkg.dev.example.org/x@sha256:{'cd' * 32}", paths)

    assert not (engine / "login").exists()


def test_the_files_of_an_image_belong_to_root_and_have_no_setuid_bits(paths, engine):
    install(NAME, paths)

    image = Image.read(image_folder(paths, NAME))
    assert image
    files = {path.relative_to(image.root).as_posix(): path for path in image.root.rglob("*")}
    assert set(files) == {"app", "app/train.py", "app/su", "etc", "etc/passwd"}
    modes = {name: stat.S_IMODE(path.lstat().st_mode) for name, path in files.items()}
    assert (modes["app"], modes["app/train.py"], modes["app/su"]) == (0o755, 0o644, 0o755)
    assert {path.lstat().st_uid for path in files.values()} == {0}


def test_the_engine_keeps_the_image_only_if_it_had_it_before(paths, engine):
    install(NAME, paths)
    assert ["rmi", NAME] in calls(engine)
    before, create, _, after = (call for call in calls(engine) if "tpufleet-unpack" in call)
    assert create[:3] == ["create", "--network", "host"]
    assert before == after == ["rm", "--force", "tpufleet-unpack"]

    (engine / "calls").unlink()
    install(NAME.replace("ab" * 32, "cd" * 32), paths)
    assert not any("rmi" in call or "pull" in call for call in calls(engine))


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("refuse", r"podman cannot pull it: manifest unknown\. .*roles/a"),
        ("full", r"podman cannot pull it: .* no space left on device\. Free space where podman"),
        ("corrupt", r"cannot be unpacked: .*podman export: layer not known"),
    ],
)
def test_a_failed_pull_or_export_leaves_no_files_and_shows_the_engine_s_error(
    paths, engine, fault, error
):
    (engine / fault).touch()

    with pytest.raises(ImageError, match=f"^image {re.escape(NAME)}: {error}"):
        install(NAME, paths)

    assert list((paths.root / "images").iterdir()) == []
    problem = image_problem(process(image=NAME), paths)
    assert "it is missing. Run the playbook with the same options again" in problem
    # train.yml refuses an image without a command.
    assert "-e command=" in problem


def test_a_pull_that_takes_too_long_is_ended(paths, engine, monkeypatch):
    monkeypatch.setattr(image_install, "PULL_SECONDS", 1)
    (engine / "hang").touch()

    with pytest.raises(ImageError, match=r"podman has not pulled it within 1 s\. Check the worker"):
        install(NAME, paths)


def test_a_failed_unpack_shows_the_error_of_tar(paths, engine):
    with tarfile.open(engine / "files.tar", "w") as files:
        files.addfile(entry("app", 0o600))
        files.addfile(entry("app/train.py", 0o600))

    with pytest.raises(ImageError, match=r"cannot be unpacked: tar: app/train.py: Cannot open"):
        install(NAME, paths)


def test_an_image_that_a_power_cut_has_damaged_is_replaced(paths, engine):
    damaged = image_folder(paths, NAME)
    (damaged / "root").mkdir(parents=True)
    (damaged / "image.json").touch()
    assert Image.read(damaged) is None
    (engine / "sync").write_text(f"#!/bin/sh\necho $* >{engine}/flushed\n")
    (engine / "sync").chmod(0o755)

    install(NAME, paths)

    assert (damaged / "root/app/train.py").is_file()
    assert (engine / "flushed").read_text().startswith("--file-system")


def test_without_an_engine_the_error_names_the_packages(paths, monkeypatch):
    monkeypatch.setattr(image_install, "_ENGINES", ("no-such-engine",))
    with pytest.raises(ImageError, match=r"no container engine .*podman or docker.*base_packages"):
        install(NAME, paths)


@pytest.fixture
def leader(tmp_path, monkeypatch) -> Path:
    """The image directory of the TPU's leader. The worker under test has no container engine."""
    monkeypatch.setattr(image_install, "_ENGINES", ("no-such-engine",))
    (tmp_path / "peer").mkdir()
    images = tmp_path / "leader"
    images.mkdir()
    serve(tmp_path / "peer", {"images": str(images)}, monkeypatch)
    return images


def test_a_worker_copies_the_whole_image_of_its_leader(paths, leader):
    root = leader / DIGEST / "root"
    root.mkdir(parents=True)
    (root / "python").write_text("#!")
    (root / "python").chmod(0o755)
    (root / "python3").hardlink_to(root / "python")
    (root / "sh").symlink_to("/usr/bin/dash")
    (leader / DIGEST / "image.json").write_text('{"directory": "/app", "env": {"A": "b"}}')

    assert install(NAME, paths) == ""

    folder = image_folder(paths, NAME)
    assert Image.read(folder) == Image(folder / "root", "/app", {"A": "b"})
    assert (folder / "root/python3").stat().st_nlink == 2
    assert stat.S_IMODE((folder / "root/python").stat().st_mode) == 0o755
    assert (folder / "root/sh").readlink() == Path("/usr/bin/dash")


@pytest.mark.parametrize("config", [None, "{}"])
def test_an_incomplete_image_of_the_leader_is_not_copied(paths, leader, config):
    (leader / DIGEST / "root").mkdir(parents=True)
    if config:
        (leader / DIGEST / "image.json").write_text(config)

    with pytest.raises(ImageError, match="the leader's copy of the image is incomplete"):
        install(NAME, paths)
    assert not image_folder(paths, NAME).exists()


def test_a_full_disk_is_named_and_partial_files_are_removed(paths, monkeypatch):
    def full(module, path, destination, **options):
        (destination / "part").touch()
        raise DiskFullError("copying failed: write failed: No space left on device (28)")

    monkeypatch.setattr(image_install, "has_leader", lambda: True)
    monkeypatch.setattr(image_install, "pull", full)

    with pytest.raises(ImageError, match=r"No space left .* Free space on /.*images"):
        install(NAME, paths)
    assert list((paths.root / "images").iterdir()) == []


def write_images(paths: WorkerPaths, count: int) -> list[str]:
    """Write this number of images, the least recently used first; return their digests."""
    digests = [f"{number:064x}" for number in range(count)]
    for last_used, digest in enumerate(digests):
        config = paths.root / "images" / digest / "image.json"
        config.parent.mkdir(parents=True)
        config.touch()
        os.utime(config, (last_used, last_used))
    return digests


def test_least_recently_used_images_are_removed_except_those_of_active_runs(paths, monkeypatch):
    monkeypatch.setattr(image_install, "active_runs", lambda: ["mine"])
    named, images = write_images(paths, 6), paths.root / "images"
    spec = {"image": NAME.replace(DIGEST, named[0])}
    (paths.unit_dir("mine") / "launch.json").write_text(json.dumps({"spec": spec}))
    (images / f".{named[0]}.new").mkdir()

    to_remove = unused(images / named[5], paths)
    assert [path.name for path in to_remove] == [named[1], named[2]]

    remove(images, to_remove)
    assert sorted(path.name for path in images.iterdir()) == [named[i] for i in (0, 3, 4, 5)]


def test_a_dry_run_shows_which_images_would_be_removed(paths, systemctl):
    named = write_images(paths, 3)
    (systemctl.parent / "podman").symlink_to("/bin/true")
    constants = {"ROOT": str(paths.root), "STATE_DIR": str(paths.state)}

    result = run_module("image", check=True, image=NAME, constants=constants)

    assert result["removed"] == [named[0]]
    assert result["diff"] == {"before": f"image {named[0]}\n", "after": f"image {DIGEST}\n"}
    assert (paths.root / "images" / named[0]).is_dir()


def test_the_unit_mounts_the_worker_s_directories_into_the_image(paths, tmp_path, monkeypatch):
    data, root = tmp_path / "data", tmp_path / "root"
    for folder in (data / "checkpoints", root):
        folder.mkdir(parents=True)
    monkeypatch.setattr(module, "_WORKER_PATHS", ("/dev", "/etc/hosts", "/proc"))

    text = unit_settings(Image(root, "/", {}), paths, [str(data / "checkpoints/not-yet")])

    assert f"BindPaths=/dev:{root}/dev\n" in text
    assert f"BindPaths={paths.state}:{root}{paths.state}\n" in text
    assert f"BindPaths={data}/checkpoints:{root}{data}/checkpoints\n" in text
    assert "AmbientCapabilities=CAP_SYS_CHROOT\nNoNewPrivileges=yes\n" in text
    assert (root / "etc/hosts").is_file()
    assert (root / str(data).lstrip("/") / "checkpoints").is_dir()


def test_mounts_outside_the_system_directories_are_data():
    lines = """
21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 0:5 / /dev rw - devtmpfs udev rw
23 21 0:9 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw
24 21 0:10 / /mnt/shared rw - nfs4 10.0.0.2:/share rw
25 21 0:11 / /data/with\\040space rw - ext4 /dev/sdb rw
26 21 0:12 / /data/corpus rw shared:7 - ext4 /dev/sdc ro
27 21 0:13 / /home rw - ext4 /dev/sdd rw
28 21 0:14 / /home/data rw - ext4 /dev/sde rw
"""
    assert data_mounts(lines) == ["/mnt/shared", "/data/corpus", "/home/data"]
    assert outermost(["/mnt", "/mnt/shared", "/data/corpus", "/mnt"]) == ["/data/corpus", "/mnt"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/no-such-directory/x", "it would hide / of"),
        ("/home/no-such-directory", "it would hide /home of"),
        ("with:colon", "systemd does not accept its name"),
    ],
)
def test_a_directory_that_cannot_be_mounted_into_an_image_is_refused(tmp_path, path, reason):
    (tmp_path / "with:colon").mkdir()

    with pytest.raises(RunError, match=rf"cannot be mounted into the image \({reason}"):
        nearest_directory(str(tmp_path / path))


def test_a_mount_that_root_cannot_use_is_not_data(tmp_path, monkeypatch):
    def refuse(path, *arguments, **options):
        if str(path).startswith("/home/alice/bucket"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    real = os.stat
    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(module, "data_mounts", lambda _: ["/home/alice/bucket"])
    monkeypatch.setattr(module, "_WORKER_PATHS", ())

    text = unit_settings(Image(tmp_path, "/", {}), WorkerPaths(tmp_path, tmp_path, tmp_path), [])

    assert f"BindPaths={tmp_path}:" in text
    assert "alice" not in text


def test_a_directory_below_a_mounted_one_may_have_any_name(tmp_path, monkeypatch):
    data = tmp_path / "my data"
    (data / "ck").mkdir(parents=True)
    root = tmp_path / "image"
    root.mkdir()
    monkeypatch.setattr(module, "_WORKER_PATHS", (str(tmp_path),))

    text = unit_settings(Image(root, "/", {}), WorkerPaths(root, root, root), [f"{data}/ck"])

    assert f"BindPaths={tmp_path}:{root}{tmp_path}\n" in text
    assert "my data" not in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a link to another user")
def test_no_checkpoints_are_mounted_through_a_link_of_the_trainer(tmp_path):
    (tmp_path / "secret").mkdir()
    checkpoints = tmp_path / "ck"
    checkpoints.mkdir()
    (checkpoints / "mine").symlink_to(tmp_path / "secret")
    os.lchown(checkpoints / "mine", 1000, 1000)
    os.chown(checkpoints, 1000, 1000)

    with pytest.raises(RunError, match="mine is a link that another user may have made"):
        nearest_directory(str(checkpoints / "mine"))


def test_nothing_is_mounted_through_a_link_of_an_image(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "etc", outside):
        folder.mkdir(parents=True)
    (root / "mnt").symlink_to(outside)
    (root / "etc/hosts").symlink_to(outside / "hosts")

    with pytest.raises(RunError, match="/mnt in the image must be a directory"):
        mount_point(root, "/mnt")
    assert mount_point(root, "/etc/hosts").is_file()
    assert not (root / "etc/hosts").is_symlink()
    assert list(outside.iterdir()) == []
