"""Build the collection's archive for publication, and test it: ``make release``.

The test installs the archive into an empty directory. In the repository, roles, playbooks, trainer
and lock files are in the root directory, where users look for them. In the archive they are beside
the plugins, where Ansible looks for them.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
COLLECTION = ROOT / "collections/ansible_collections/tpufleet/core"
BESIDE = ("roles", "playbooks", "train", "requirements", "CHANGELOG.md", "LICENSE")
"""Files and directories of the repository's root that the archive has beside the plugins."""


class ReleaseError(Exception):
    """The archive cannot be built, or is incomplete; the message says what to fix."""


def main() -> int:
    """Build the archive in a directory and check it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="directory for the archive")
    words = parser.parse_args()
    try:
        artefact = build(words.directory)
        check_changelog()
        with tempfile.TemporaryDirectory() as scratch:
            findings = check(Path(scratch), installed(artefact, Path(scratch)))
    except ReleaseError as err:
        print(f"release: {err}", file=sys.stderr)
        return 1
    print("\n".join([*findings, str(artefact)]))
    return 0


def version() -> str:
    """Return the version in galaxy.yml."""
    return yaml.safe_load((COLLECTION / "galaxy.yml").read_text())["version"]


def build(directory: Path) -> Path:
    """Build the archive from the files that git tracks; return its absolute path."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        staged = Path(scratch) / "core"
        _copy_known(COLLECTION, staged)
        for name in BESIDE:
            _copy_known(ROOT / name, staged / name)
        galaxy = ("ansible-galaxy", "collection", "build", "--force")
        _run(*galaxy, "--output-path", str(directory), str(staged))
    return directory.resolve() / f"tpufleet-core-{version()}.tar.gz"


def check_changelog() -> None:
    """Raise ReleaseError unless the changelog begins with this version or Unreleased."""
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if not {version(), "Unreleased"} & set(headings[:1]):
        raise ReleaseError(
            f"CHANGELOG.md: the first section must be {version()} or Unreleased, not "
            f"{' '.join(headings[:1]) or 'missing'}. Add the heading: ## {version()}"
        )


def check(place: Path, env: dict[str, str]) -> list[str]:
    """Check that Ansible finds every part of the installed collection; return the output lines.

    ``place`` is the directory that was passed to ``installed()``, and ``env`` the environment that
    ``installed()`` returned. Raises ReleaseError.
    """
    core = place / "ansible_collections/tpufleet/core"
    findings = []
    for kind, folder in (
        ("module", "modules"),
        ("inventory", "inventory"),
        ("callback", "callback"),
    ):
        names = [
            f"tpufleet.core.{f.stem}" for f in sorted((core / "plugins" / folder).glob("*.py"))
        ]
        _run("ansible-doc", "-t", kind, "-j", *names, env=env, cwd=place)
        findings.append(f"ansible-doc finds {len(names)} plugins of kind {kind}")
    roles = [f"tpufleet.core.{role.name}" for role in sorted((core / "roles").iterdir())]
    _run("ansible-doc", "-t", "role", "-j", *roles, env=env, cwd=place)
    findings.append(f"ansible-doc finds {len(roles)} roles")
    playbooks = [f"tpufleet.core.{f.stem}" for f in sorted((core / "playbooks").glob("*.yml"))]
    _run("ansible-playbook", "--syntax-check", "-i", "localhost,", *playbooks, env=env, cwd=place)
    findings.append(f"ansible-playbook finds {len(playbooks)} playbooks by name")
    return findings


def installed(artefact: Path, place: Path) -> dict[str, str]:
    """Install the archive into ``place``; return the environment in which Ansible finds it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ANSIBLE_", "PYTHONPATH"))}
    env |= {"ANSIBLE_COLLECTIONS_PATH": str(place), "ANSIBLE_HOME": str(place / "home")}
    galaxy = ("ansible-galaxy", "collection", "install", "--offline", "--no-deps")
    _run(*galaxy, "-p", str(place), str(artefact), env=env, cwd=place)
    return env


def _copy_known(source: Path, target: Path) -> None:
    """Copy a file, or the files in a directory that git tracks, to ``target``."""
    listed = _run("git", "ls-files", "-z", "--", str(source), cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        file = ROOT / name
        if not file.is_file():
            raise ReleaseError(f"{name}: tracked by git, but missing. See: git status")
        place = target / file.relative_to(source) if file != source else target
        place.parent.mkdir(parents=True, exist_ok=True)
        # copy() keeps the file's mode, and copies the target of a link instead of the link.
        shutil.copy(file, place)


def _run(*command: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip()
        raise ReleaseError(f"{' '.join(command[:4])} …: {last}")
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())
