"""Installation of an image: pulled and unpacked by a container engine, or copied from the leader.

Runs on workers as root.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .bucket_objects import access_token, request_failure
from .contract import IMAGE
from .from_leader import DiskFullError, FromLeaderError, has_leader, pull
from .image import CONFIG, RSYNC_MODULE, Image, image_folder
from .os_errors import output_says_disk_is_full
from .run import WorkerPaths
from .run_unit import read_launch
from .units import active_runs

KEPT_IMAGES = 2
"""Number of images that are kept in addition to the current one and those of active runs."""
PULL_SECONDS = 3600
"""Time limit for pulling an image. Meanwhile, other launches with an image wait on this worker."""
_ENGINES = ("podman", "docker")
_GOOGLE = re.compile(r"([a-z0-9-]+\.)?(gcr\.io|pkg\.dev)(:[0-9]+)?")
"""The registries to which the service account's token is sent: Container and Artifact Registry."""
_CONTAINER = "tpufleet-unpack"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ImageError(Exception):
    """An image cannot be installed; the message is one line for the user."""


def install(reference: str, paths: WorkerPaths) -> str:
    """Install an image: copy it from the leader, or else pull and unpack it on this worker.

    ``reference`` is ``REGISTRY/NAME@sha256:DIGEST``. Returns a warning if there is a leader but
    copying failed, otherwise an empty string. Raises ImageError, OSError.
    """
    folder = image_folder(paths, reference)
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        return _install(reference, folder)
    except ImageError as error:
        raise ImageError(f"image {reference}: {error}") from None


def _install(reference: str, folder: Path) -> str:
    new = folder.with_name(f".{folder.name}.new")
    problem = ""
    if has_leader():
        try:
            new.mkdir(mode=0o755, exist_ok=True)
            pull(RSYNC_MODULE, folder.name, new, options=["--hard-links", "--whole-file"])
            if not Image.read(new):
                raise FromLeaderError("the leader's copy of the image is incomplete")
            _complete(new, folder)
            return ""
        except DiskFullError as error:
            shutil.rmtree(new, ignore_errors=True)
            raise ImageError(
                f"{error}. Free space on {folder.parent}, then launch the run again"
            ) from None
        except FromLeaderError as error:
            problem = str(error)
    engine = find_engine(problem)
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir(mode=0o700)
        pull_and_unpack(engine, reference, new)
        new.chmod(0o755)
        _complete(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return f"{problem}. This worker pulled the image by itself" if problem else ""


def _complete(new: Path, folder: Path) -> None:
    """Flush the files of a new image to the disk, then rename its directory to its final name.

    Without the flush, a power cut could leave an image with missing or empty files.
    """
    _output(["sync", "--file-system", str(new)])
    if folder.exists():
        shutil.rmtree(folder)
    new.replace(folder)


def find_engine(problem: str = "") -> str:
    """Return the name of this worker's container engine.

    If there is none, raises ImageError with ``problem``, which says why the image could not be
    copied from the leader. If ``problem`` is empty, the error says how to install an engine.
    """
    engine = next(filter(shutil.which, _ENGINES), "")
    if not engine:
        raise ImageError(
            problem
            or "no container engine is installed (podman or docker). Add podman to base_packages "
            "in group_vars, then run: ansible-playbook setup.yml"
        )
    return engine


def pull_and_unpack(engine: str, reference: str, folder: Path) -> None:
    """Pull an image and unpack it to ``folder``. The engine verifies the image's digest.

    Afterwards the image is removed from the engine, unless the engine had it before. Raises
    ImageError, OSError.
    """
    was_present = not _exit_code([engine, "image", "inspect", reference])
    if not was_present:
        _pull(engine, reference)
    root = folder / "root"
    root.mkdir(mode=0o755)
    try:
        inspected = json.loads(_output([engine, "image", "inspect", reference]))
        image = Image.of_engine(root, inspected)
        # An interrupted installation may have left a container of this name.
        _exit_code([engine, "rm", "--force", _CONTAINER])
        # Name a command, because engines create no container without one, and the image may define
        # none. The container is never started, so the command /none need not exist.
        arguments = ["create", "--network", "host", "--name", _CONTAINER, reference, "/none"]
        _output([engine, *arguments])
        _export(engine, root)
    except ValueError as error:
        raise ImageError(
            f"{error}. Build it again, push it, and launch the run with its new digest"
        ) from None
    finally:
        _exit_code([engine, "rm", "--force", _CONTAINER])
        if not was_present:
            _exit_code([engine, "rmi", reference])
    # All users may read the image, only root may change it, and no program is setuid or setgid.
    _output(["chmod", "-R", "u+rwX,go+rX,go-w,u-s,g-s", str(root)])
    # Remove devices and pipes. An archive of tar cannot contain sockets.
    _output(["find", str(root), "-type", "b,c,p", "-delete"])
    (folder / CONFIG).write_text(json.dumps(image.config()) + "\n", encoding="utf-8")


def _export(engine: str, root: Path) -> None:
    """Write the files of the container ``_CONTAINER`` to the directory ``root``.

    The user root owns all of them.
    """
    command = ["tar", "--extract", "--directory", str(root), "--no-same-owner"]
    command += ["--anchored", "--exclude=dev/*", "--exclude=./dev/*"]
    with tempfile.TemporaryFile("w+", errors="replace") as error_file:
        with subprocess.Popen(
            [engine, "export", _CONTAINER], stdout=subprocess.PIPE, stderr=error_file
        ) as export:
            result = subprocess.run(
                command, stdin=export.stdout, capture_output=True, text=True, check=False
            )
        error_file.seek(0)
        problem = _last_line(error_file.read())
    if export.returncode != 0 or result.returncode != 0:
        # tar's last line only says that it failed; its first one names the cause.
        tar_error = result.stderr.strip().partition("\n")[0]
        errors = [tar_error] if tar_error else []
        errors.append(f"{engine} export: {problem}")
        raise ImageError(f"cannot be unpacked: {'; '.join(errors)}")


def _pull(engine: str, reference: str) -> None:
    """Pull an image. For Google's registries, the engine reads an access token from a file."""
    host = IMAGE.fullmatch(reference)["host"]
    is_google = _GOOGLE.fullmatch(host) is not None
    with tempfile.TemporaryDirectory(dir="/run", prefix="tpufleet-image-") as folder:
        options, config = ["pull", "--quiet"], Path(folder) / "config.json"
        if is_google:
            config.touch(mode=0o600)
            config.write_text(_login(host), encoding="ascii")
            podman, docker = [*options, "--authfile", str(config)], ["--config", folder, *options]
            options = podman if engine == "podman" else docker
        try:
            result = subprocess.run(
                [engine, *options, reference],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=PULL_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise ImageError(
                f"{engine} has not pulled it within {PULL_SECONDS} s. Check the worker's "
                f"connection to {host}, then launch the run again"
            ) from None
    if result.returncode != 0:
        raise ImageError(
            f"{engine} cannot pull it: {_last_line(result.stderr)}. "
            f"{_fix_of_pull(engine, host, is_google, result.stderr)}"
        )


def _fix_of_pull(engine: str, host: str, is_google: bool, output: str) -> str:
    if output_says_disk_is_full(output):
        return f"Free space where {engine} stores images, then launch the run again"
    access = (
        "let the workers' service account read the registry (roles/artifactregistry.reader)"
        if is_google
        else f"log in on the TPU's leader, if the registry needs it: sudo {engine} login {host}"
    )
    return f"Check its name and digest, and {access}"


def _login(host: str) -> str:
    """Return the text of a podman or docker configuration file with a token for a registry.

    The token is an access token of this worker's service account. Raises ImageError. Source:
    https://cloud.google.com/artifact-registry/docs/docker/authentication#token
    """
    try:
        token = access_token()
    except (OSError, ValueError) as error:
        problem = request_failure(error) if isinstance(error, OSError) else str(error)
        raise ImageError(
            f"no access token from the metadata server ({problem}). If the TPU has no service "
            "account with the scope cloud-platform, set service_account in fleet.yml, then run: "
            "ansible-playbook playbooks/create.yml -e tpu=NAME -e recreate=true"
        ) from None
    login = base64.b64encode(f"oauth2accesstoken:{token}".encode()).decode()
    return json.dumps({"auths": {host: {"auth": login}}})


def unused(current: Path, paths: WorkerPaths) -> list[Path]:
    """Return the directories of the images to remove.

    Keeps the image ``current``, the images of active runs, and the KEPT_IMAGES most recently used
    of all others. Raises RunError if it is unknown which runs are active.
    """
    used = {current.name}
    for run in active_runs():
        launch = read_launch(run, paths)
        match = IMAGE.fullmatch(str((launch.get("spec") or {}).get("image") or ""))
        used |= {match["digest"]} if match else set()
    others = [path for path in current.parent.glob("*") if _DIGEST.fullmatch(path.name)]
    others = sorted((path for path in others if path.name not in used), key=_last_use)
    return others[: max(len(others) - KEPT_IMAGES, 0)]


def remove(images: Path, unused_images: Sequence[Path]) -> None:
    """Remove ``unused_images``, and the remains of interrupted installations and removals."""
    for leftover in images.glob(".*.new"):
        shutil.rmtree(leftover)
    for path in unused_images:
        # If this call is interrupted, the loop above removes this directory in the next call.
        removing = path.with_name(f".{path.name}.new")
        path.replace(removing)
        shutil.rmtree(removing)


def _last_use(folder: Path) -> float:
    config = folder / CONFIG
    return config.stat().st_mtime if config.exists() else 0.0


def _exit_code(command: Sequence[str]) -> int:
    return subprocess.run(command, capture_output=True, check=False).returncode


def _output(command: Sequence[str]) -> str:
    """Run a command and return its output. Raises ImageError."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ImageError(f"{command[0]}: {_last_line(result.stderr)}")
    return result.stdout


def _last_line(output: str) -> str:
    """Return the last line of a command's error output, which names the cause."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ").rstrip(".") if lines else "no error output"
