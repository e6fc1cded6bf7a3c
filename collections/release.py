"""Make the collection as it is published, and prove that it stands alone: ``make release``.

In the tree, roles, playbooks, trainer and lock files stand at the root, where people look for them.
In the artefact they stand beside the plugins, where Ansible looks for a collection's.
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
"""What goes from the tree's root into the collection's."""


class ReleaseError(Exception):
    """The artefact cannot be made, or does not stand alone; the text says what to fix."""


def main() -> int:
    """Build into a directory and check what was built."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="where the artefact is put")
    words = parser.parse_args()
    try:
        artefact = build(words.directory)
        check_changelog()
        with tempfile.TemporaryDirectory() as scratch:
            said = check(artefact, Path(scratch))
    except ReleaseError as err:
        print(f"release: {err}", file=sys.stderr)
        return 1
    print("\n".join([*said, str(artefact)]))
    return 0


def version() -> str:
    """Give the one version, galaxy.yml's."""
    return yaml.safe_load((COLLECTION / "galaxy.yml").read_text())["version"]


def build(directory: Path) -> Path:
    """Stage what git knows of, and have ansible-galaxy pack it; the artefact's absolute path."""
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
    """Have the changelog speak of this version, or of what is not released yet."""
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if not {version(), "Unreleased"} & set(headings[:1]):
        raise ReleaseError(
            f"CHANGELOG.md begins with {headings[:1] or 'nothing'}: write what {version()} brings"
        )


def check(artefact: Path, place: Path) -> list[str]:
    """Install into an empty place and use what is there; say what was proven."""
    env = installed(artefact, place)
    core = place / "ansible_collections/tpufleet/core"
    said = []
    for kind, folder in (
        ("module", "modules"),
        ("inventory", "inventory"),
        ("callback", "callback"),
    ):
        names = [
            f"tpufleet.core.{f.stem}" for f in sorted((core / "plugins" / folder).glob("*.py"))
        ]
        _run("ansible-doc", "-t", kind, "-j", *names, env=env, cwd=place)
        said.append(f"ansible-doc knows {len(names)} of kind {kind}")
    roles = [f"tpufleet.core.{role.name}" for role in sorted((core / "roles").iterdir())]
    _run("ansible-doc", "-t", "role", "-j", *roles, env=env, cwd=place)
    said.append(f"ansible-doc knows {len(roles)} roles")
    playbooks = sorted((core / "playbooks").glob("*.yml"))
    for playbook in playbooks:
        name = f"tpufleet.core.{playbook.stem}"
        _run("ansible-playbook", "--syntax-check", "-i", "localhost,", name, env=env, cwd=place)
    said.append(f"ansible-playbook takes {len(playbooks)} playbooks by name")
    return said


def installed(artefact: Path, place: Path) -> dict[str, str]:
    """Install the artefact into a place, and give the environment in which nothing else is seen."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ANSIBLE_", "PYTHONPATH"))}
    env |= {"ANSIBLE_COLLECTIONS_PATH": str(place), "ANSIBLE_HOME": str(place / "home")}
    galaxy = ("ansible-galaxy", "collection", "install", "--offline", "--no-deps")
    _run(*galaxy, "-p", str(place), str(artefact), env=env, cwd=place)
    return env


def _copy_known(source: Path, target: Path) -> None:
    """Copy what git has of a directory or file: what is ignored or stray stays here."""
    listed = _run("git", "ls-files", "-z", "--", str(source), cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        file = ROOT / name
        if not file.is_file():
            raise ReleaseError(f"{name} is in git but not in the tree: git status")
        place = target / file.relative_to(source) if file != source else target
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)  # what a link leads to, with its mode


def _run(*command: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip()
        raise ReleaseError(f"{' '.join(command[:4])} …: {last}")
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())
