"""Every command in messages and pages exists, with its variables, tags and modules."""

import functools
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.suggestions import (
    FILLED_IN,
    ROOT,
    PlaybookCommand,
    installers,
    make_targets,
    of_markdown,
    of_python,
    pages,
    playbook_commands,
    texts,
)

MODULES = ROOT / "collections/ansible_collections/tpufleet/core/plugins/modules"
TEXTS = texts()
COMMANDS = [command for text in TEXTS for command in playbook_commands(text)]
PAGES = pages()
ON_PAGES = [command for text in PAGES for command in playbook_commands(text)]
IMPORTED = re.compile(r"import_playbook: (\S+)")
ROLE = re.compile(r"(?:role|name): ([a-z_]+)(?:,|$)", re.MULTILINE)


#: Texts of events in a record, which look like commands but are none.
EVENTS = {"stopped by kill.yml"}


def file_of(command: PlaybookCommand) -> Path | None:
    """Return the file of a command's playbook, or None. Pages may omit the folder."""
    paths = (ROOT / command.path, ROOT / "playbooks" / command.path)
    return next((path for path in paths if path.is_file()), None)


def describe(command: PlaybookCommand) -> str:
    return f"{command.location}: {command.text}"


@functools.cache
def files_of(playbook: Path) -> tuple[Path, ...]:
    """Return a playbook's file, the playbooks that it imports, and the files of all their roles."""
    text = playbook.read_text()
    files = [playbook]
    for imported in IMPORTED.findall(text):
        files += files_of((playbook.parent / imported).resolve())
    for role in ROLE.findall(text):
        if (ROOT / "roles" / role).is_dir():
            files += sorted((ROOT / "roles" / role).rglob("*.yml"))
    return tuple(files)


def reads_variable(playbook: Path, variable: str) -> bool:
    """Return whether a playbook, its roles or the inventories read a variable."""
    word = re.compile(rf"\b{re.escape(variable)}\b")
    shared = [ROOT / "playbooks/group_vars/all.yml", *(ROOT / "inventory").rglob("*.yml")]
    return any(word.search(path.read_text()) for path in (*files_of(playbook), *shared))


def tags_of(playbook: Path) -> set[str]:
    """Return the tags of a playbook's plays and roles."""
    tags = set()
    for path in files_of(playbook):
        for listed in re.findall(r"tags: (.+)", path.read_text()):
            tags |= set(re.findall(r"[a-z_]+", listed))
    return tags


def _has_module(name: str) -> bool:
    if name.startswith("tpufleet.core."):
        return (MODULES / f"{name.removeprefix('tpufleet.core.')}.py").is_file()
    return find_spec(f"ansible.modules.{name.removeprefix('ansible.builtin.')}") is not None


def test_the_suggested_modules_exist():
    unknown = {
        f"{text.location}: {text.text}"
        for text in PAGES
        for name in re.findall(r"^\$? ?ansible \S.* -m (\S+)", text.text)
        if not _has_module(name)
    }
    assert unknown == set()


@pytest.mark.parametrize(
    ("command", "source", "definition"),
    [
        (r"-m localcloud (?:--name \S+ )?([a-z]+)", "localcloud/cli.py", '    "{}": '),
        (r"-m train ([a-z]+)", "train/command_line.py", '        "{}",\n'),
        (r"tpufleet_launch ([a-z]+)", "roles/run/files/tpufleet_launch", "def launch_{}("),
    ],
)
def test_the_suggested_verbs_and_launchers_exist(command, source, definition):
    defined = (ROOT / source).read_text()
    locations = {verb: text.location for text in PAGES for verb in re.findall(command, text.text)}
    assert locations
    assert {
        v: location for v, location in locations.items() if definition.format(v) not in defined
    } == {}


def test_commands_are_found_in_messages():
    assert len(COMMANDS) > 60
    assert len(ON_PAGES) > 100
    folders = {command.location.split("/")[0] for command in COMMANDS}
    assert folders >= {"collections", "playbooks"}


def test_every_suggested_playbook_exists():
    complete = [command for command in (*COMMANDS, *ON_PAGES) if command.is_complete]
    absent = {describe(command) for command in complete if not (ROOT / command.path).is_file()}
    assert absent == set()


def test_messages_suggest_playbooks_only_in_complete_commands():
    files = (*(ROOT / "playbooks").glob("*.yml"), ROOT / "setup.yml", ROOT / "train.yml")
    playbooks = {path.name for path in files}
    incomplete = {
        describe(c)
        for c in COMMANDS
        if not c.is_complete and Path(c.path).name in playbooks and c.text not in EVENTS
    }
    assert incomplete == set()


def test_messages_reach_workers_without_ssh_config_yml():
    """``ssh WORKER`` works only after ssh_config.yml, ``ansible WORKER`` always does."""
    by_ssh = re.compile(rf"(?<![\w/.-])ssh\s(?:{FILLED_IN}|\{{\{{)")
    assert {
        text.location
        for text in TEXTS
        if by_ssh.search(text.text) and "playbooks/ssh_config.yml" not in text.location + text.text
    } == set()


def test_playbooks_read_every_suggested_variable():
    unknown = {
        f"{variable}: {describe(command)}"
        for command in (*(command for command in COMMANDS if command.is_complete), *ON_PAGES)
        if (playbook := file_of(command))
        for variable in command.variables()
        if FILLED_IN not in variable and not reads_variable(playbook, variable)
    }
    assert unknown == set()


def test_playbooks_have_every_suggested_tag():
    unknown = {
        f"{value}: {describe(command)}"
        for command in (*COMMANDS, *ON_PAGES)
        if (playbook := file_of(command))
        for option, value in command.options
        if option == "--tags" and value != FILLED_IN
        for tag in value.split(",")
        if tag not in tags_of(playbook)
    }
    assert unknown == set()


def test_every_suggested_make_target_exists():
    targets = set(re.findall(r"^([a-z][-a-z]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    unknown = {
        f"make {target}: {text.location}: {text.text}"
        for text in (*TEXTS, *PAGES)
        for target in make_targets(text)
        if target not in targets
    }
    assert unknown == set()


def test_every_suggested_installer_has_the_suggested_arguments():
    for text in TEXTS:
        for kind, sets in installers(text):
            for name in sets:
                file = f"system-packages-{name}.txt" if kind == "system" else f"{name}.lock"
                assert (ROOT / "requirements" / file).is_file(), f"{text.location}: {text.text}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('x = f"{a}: ansible-playbook setup.yml --limit {host}"', ("setup.yml", ())),
        ('x = "ansible-playbook playbooks/gone.yml -e tpu=a"', ("playbooks/gone.yml", ("tpu",))),
        ('A = "-e b=1"\nx = f"ansible-playbook train.yml {A} -e c=2"', ("train.yml", ("b", "c"))),
    ],
)
def test_a_command_is_found_in_an_f_string(source, expected):
    [command] = [c for text in of_python(source, "here") for c in playbook_commands(text)]
    assert (command.path, tuple(command.variables())) == expected


def test_a_page_is_parsed_with_continued_lines_and_quoted_values():
    block = "```\nansible-playbook train.yml \\\n  -e env='\"A=1 B=2\"' -e run=a\n```\n"
    page = f"Run `kill.yml -e run=a`, or:\n\n{block}"
    killed, trained = [c for text in of_markdown(page, "here") for c in playbook_commands(text)]
    assert (killed.is_complete, killed.path, killed.variables()) == (False, "kill.yml", ["run"])
    assert (trained.is_complete, trained.variables()) == (True, ["env", "run"])
