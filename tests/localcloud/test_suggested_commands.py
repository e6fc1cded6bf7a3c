"""The commands suggested in the local cloud's messages act on the right cloud."""

import argparse
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcloud import bucket, cli, client, settings
from localcloud.failure import CloudError
from localcloud.local_cloud import NAME, PROJECT_ROOT, LocalCloud
from tests.docs.suggestions import FILLED_IN, of_python

SOURCES = sorted((PROJECT_ROOT / "localcloud").rglob("*.py"))
PARSER = cli.parser()
VERBS = [["up"], ["down", "--yes"], ["status"], ["bucket", "start"], ["preempt", "demo"]]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCloud:
    """A cloud whose name and directory are not the default."""
    monkeypatch.setenv("TPUFLEET_LOCALCLOUD_DIR", str(tmp_path / "my clouds"))
    monkeypatch.delenv("SUDO_UID", raising=False)
    return LocalCloud.of("own")


def parse_command(line: str) -> tuple[LocalCloud, argparse.Namespace]:
    """Return the cloud and the options of a suggested command line."""
    words = shlex.split(line)
    words = [word for word in words if word not in ("sudo", "env")]
    environment = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    rest = words[len(environment) :]
    assert rest[:3] == [".venv/bin/python", "-m", "localcloud"]
    options = PARSER.parse_args(rest[3:])
    clouds = Path(environment.get("TPUFLEET_LOCALCLOUD_DIR", PROJECT_ROOT / ".localcloud"))
    return LocalCloud(options.name, clouds / options.name), options


@given(
    st.from_regex(NAME, fullmatch=True),
    st.text("abc '\"$;-", min_size=1).map(lambda name: Path("/clouds", name)),
    st.booleans(),
    st.sampled_from(VERBS),
)
def test_a_suggested_command_selects_the_given_cloud(name, clouds, default, arguments):
    local_cloud = LocalCloud(name, (PROJECT_ROOT / ".localcloud" if default else clouds) / name)
    parsed_cloud, options = parse_command(local_cloud.command(*arguments))
    assert parsed_cloud == local_cloud
    assert options.verb == arguments[0]


def test_down_without_a_terminal_suggests_a_command_for_the_same_cloud(own, monkeypatch):
    (own.machines / "t1v-n-0-w-0").mkdir(parents=True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(CloudError) as refused:
        cli.down(own, argparse.Namespace(yes=False))
    parsed_cloud, options = parse_command(str(refused.value).rpartition(": ")[2])
    assert (parsed_cloud, options.verb, options.yes) == (own, "down", True)


@pytest.mark.parametrize("arguments", [["up"], ["down"], ["bucket", "stop"], ["clean", "--yes"]])
def test_a_verb_that_needs_root_suggests_itself_with_sudo(own, monkeypatch, capsys, arguments):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(bucket.processes, "end", lambda *_, **__: pytest.fail("not as root"))

    assert cli.main(["--name", "own", *arguments]) == 1

    line = capsys.readouterr().err.rpartition("Run: ")[2].strip()
    assert line.startswith("sudo env TPUFLEET_LOCALCLOUD_DIR=")
    assert line.endswith(" ".join(arguments))
    assert parse_command(line)[0] == own
    assert not own.command("status").startswith("sudo")


def test_a_cloud_that_is_not_up_is_named_in_the_suggested_command(own):
    for ask in (lambda: settings.read(own), lambda: client.request(own, "GET", "/")):
        with pytest.raises(CloudError) as refused:
            ask()
        parsed_cloud, options = parse_command(str(refused.value).rpartition("Start it: ")[2])
        assert (parsed_cloud, options.verb) == (own, "up")


def test_all_messages_use_local_cloud_to_build_commands():
    by_hand = [
        text.location
        for path in SOURCES
        if path.name not in ("__main__.py", "local_cloud.py")
        for text in of_python(path.read_text(), path.name)
        if re.search(
            rf"-m localcloud (?!COMMAND|{FILLED_IN})|localcloud (up|down|clean)", text.text
        )
    ]
    assert by_hand == []
