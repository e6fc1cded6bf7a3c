"""Every command that a message suggests exists, with its variables and tags."""

import functools
import re
from pathlib import Path

import pytest

from tests.docs.suggestions import (
    FILLED_IN,
    ROOT,
    PlaybookCommand,
    installers,
    make_targets,
    of_python,
    playbook_commands,
    texts,
)

TEXTS = texts()
COMMANDS = [command for text in TEXTS for command in playbook_commands(text)]
IMPORTED = re.compile(r"import_playbook: (\S+)")
ROLE = re.compile(r"(?:role|name): ([a-z_]+)$", re.MULTILINE)


#: Events of a record's history, not commands.
EVENTS = {"stopped by kill.yml"}


def shown(command: PlaybookCommand) -> str:
    return f"{command.where}: {command.text}"


@functools.cache
def files_of(playbook: Path) -> tuple[Path, ...]:
    """Return a playbook's file, the files that it imports, and those of their roles."""
    text = playbook.read_text()
    found = [playbook]
    for imported in IMPORTED.findall(text):
        found += files_of((playbook.parent / imported).resolve())
    for role in ROLE.findall(text):
        if (ROOT / "roles" / role).is_dir():
            found += sorted((ROOT / "roles" / role).rglob("*.yml"))
    return tuple(found)


def knows(playbook: Path, variable: str) -> bool:
    """Return whether a playbook, its roles or the inventories read a variable."""
    word = re.compile(rf"\b{re.escape(variable)}\b")
    inventories = (ROOT / "inventory").rglob("*.yml")
    return any(word.search(path.read_text()) for path in (*files_of(playbook), *inventories))


def tags_of(playbook: Path) -> set[str]:
    """Return the tags of a playbook's plays and roles."""
    found = set()
    for path in files_of(playbook):
        for tags in re.findall(r"tags: (.+)", path.read_text()):
            found |= set(re.findall(r"[a-z_]+", tags))
    return found


def test_commands_are_found_in_messages():
    assert len(COMMANDS) > 60
    assert {command.where.split("/")[0] for command in COMMANDS} >= {
        "collections",
        "playbooks",
    }


def test_every_suggested_playbook_exists():
    absent = {shown(c) for c in COMMANDS if c.whole and not (ROOT / c.path).is_file()}
    assert absent == set()


def test_every_suggested_playbook_is_part_of_a_complete_command():
    playbooks = {path.name for path in (ROOT / "playbooks").glob("*.yml")} | {
        "setup.yml",
        "train.yml",
    }
    halves = {
        shown(c)
        for c in COMMANDS
        if not c.whole and Path(c.path).name in playbooks and c.text not in EVENTS
    }
    assert halves == set()


def test_playbooks_read_every_suggested_variable():
    unknown = {
        f"{variable}: {shown(command)}"
        for command in COMMANDS
        if command.whole and (ROOT / command.path).is_file()
        for variable in command.variables()
        if FILLED_IN not in variable and not knows(ROOT / command.path, variable)
    }
    assert unknown == set()


def test_playbooks_have_every_suggested_tag():
    unknown = {
        f"{value}: {shown(command)}"
        for command in COMMANDS
        for option, value in command.options
        if option == "--tags" and value != FILLED_IN and value not in tags_of(ROOT / command.path)
    }
    assert unknown == set()


def test_every_suggested_make_target_exists():
    targets = set(re.findall(r"^([a-z][-a-z]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    unknown = {
        f"make {target}: {text.where}: {text.text}"
        for text in TEXTS
        for target in make_targets(text)
        if target not in targets
    }
    assert unknown == set()


def test_every_suggested_installer_has_the_suggested_set():
    for text in TEXTS:
        for what, parts in installers(text):
            for part in parts:
                file = f"system-packages-{part}.txt" if what == "system" else f"{part}.lock"
                assert (ROOT / "requirements" / file).is_file(), f"{text.where}: {text.text}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('x = f"{a}: ansible-playbook setup.yml --limit {host}"', ("setup.yml", ())),
        ('x = "ansible-playbook playbooks/gone.yml -e tpu=a"', ("playbooks/gone.yml", ("tpu",))),
        ('A = "-e b=1"\nx = f"ansible-playbook train.yml {A} -e c=2"', ("train.yml", ("b", "c"))),
    ],
)
def test_a_suggestion_is_read_from_the_code_that_formats_it(source, found):
    [command] = [c for text in of_python(source, "here") for c in playbook_commands(text)]
    assert (command.path, tuple(command.variables())) == found
