"""Only the run itself can read its secrets."""

import contextlib
import re
import subprocess
import threading
from pathlib import Path

import pytest

from harness.fleet import Fleet, write_inventory
from harness.own_cloud import own_or_existing_cloud
from localcloud.machines import processes

pytestmark = pytest.mark.machines
RUN = "guarded"
PLANTED = {"WANDB_API_KEY": "planted-wandb-5f1c0a77", "HF_TOKEN": "planted-hub-93be26d4"}
# Directories to search for secrets that other users of a worker can read.
READABLE = (
    *("/etc", "/var", "/run", "/home", "/root", "/mnt", "/srv", "/opt/tpufleet/releases"),
    *("/tmp", "/dev/shm"),  # noqa: S108
)
NOBODY = 65534


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    # Put the secrets into the inventory, because watch.yml and restart.yml read them from there.
    inventory = write_inventory(tmp_path_factory.mktemp("inventory"), secrets=PLANTED)
    with own_or_existing_cloud("secrets") as cloud:
        fleet = Fleet(cloud, inventory)
        fleet.must_play("playbooks/create.yml")
        # An existing cloud may have been set up with other secrets, so set it up again.
        fleet.must_play("setup.yml", "-e", "renew=true")
        yield fleet


def workers(fleet: Fleet) -> list[str]:
    return fleet.groups()["tpu"]


class ProcessList:
    """A context that records which secrets appear in command lines, which every user can read.

    It reads the command lines of all processes of this computer and of the workers, which share
    its kernel.
    """

    def __init__(self, secrets: dict[str, str]) -> None:
        self.leaks: set[str] = set()
        self.reads = 0
        self._secrets = secrets
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "ProcessList":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self.reads += 1
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    text = file.read_bytes().decode(errors="replace")
                    self.leaks |= {f"{name}: {text}" for name in secrets_in(text, self._secrets)}


def secrets_in(text: str, secrets: dict[str, str]) -> list[str]:
    """Return the names of the secrets in a text."""
    return [name for name, secret in secrets.items() if secret in text]


def in_files(folder: Path, secrets: dict[str, str]) -> set[str]:
    """Return ``NAME in FILE`` for each secret in a file below a folder."""
    return {
        f"{name} in {file}"
        for file in folder.rglob("*")
        if file.is_file()
        for name in secrets_in(file.read_bytes().decode(errors="replace"), secrets)
    }


def middle_line(text: str) -> str:
    """Return a line from the middle of a private key: the first line is the same in many keys."""
    lines = [line for line in re.split(r"\n|\\n", text) if len(line) > 30 and "-----" not in line]
    return lines[len(lines) // 2]


@pytest.fixture(scope="module")
def launched(fleet, tmp_path_factory):
    """A run with secrets, on which playbooks such as train.yml and kill.yml have run at -vvv.

    The fixture has their output, their files, and the secrets that were seen in command lines.
    """
    directory = tmp_path_factory.mktemp("guarded")
    state, logs, code = directory / "state", directory / "logs", directory / "code"
    code.mkdir()
    (code / "mine.sh").write_text(
        'printf "%s" "$WANDB_API_KEY$HF_TOKEN" | wc -c\nsleep 600 & wait\n'
    )
    keys = {
        "the controller's ssh key": (fleet.cloud.directory / "ssh/id_ed25519").read_text(),
        "the service account's key": (fleet.cloud.directory / "service-account.json").read_text(),
    }
    secrets = {**PLANTED, **{name: middle_line(text) for name, text in keys.items()}}
    common = ("-vvv", "-e", f"fleet_state={state}", "-e", f"watch_log={directory / 'watch.log'}")
    launch_options = ("-e", f"code={code}", "-e", "command='sh mine.sh'")
    printed: dict[str, str] = {}

    def play(playbook: str, *options: str) -> None:
        with pytest.MonkeyPatch.context() as verbose:
            # Unlike the option -vvv, this variable reaches the playbooks that restart.yml starts.
            verbose.setenv("ANSIBLE_VERBOSITY", "3")
            played = fleet.must_play(playbook, *common, *options)
        printed[playbook] = printed.get(playbook, "") + played.output

    def add_token(name: str) -> None:
        for worker in workers(fleet):
            until_read(fleet, worker)
        environment = fleet.on("demo-w0", "cat", f"/etc/tpufleet/runs/{RUN}/environment")
        secrets[name] = re.search(r"TPUFLEET_RENDEZVOUS_TOKEN=\"?(\w+)", environment)[1]

    with pytest.MonkeyPatch.context() as environment, ProcessList(secrets) as process_list:
        environment.setenv("TPUFLEET_LOG_DIR", str(logs))
        play("playbooks/create.yml")
        play("setup.yml")
        play("playbooks/push.yml", "-e", f"code={code}")
        play("train.yml", *launch_options, "-e", f"run={RUN}", "-e", "wait=started")
        add_token("the rendezvous token")
        play("playbooks/status.yml", "-e", f"status_json={directory / 'status.json'}")
        play("playbooks/report.yml", "-e", f"report={directory / 'report.html'}")
        play("playbooks/logs.yml", "-e", f"run={RUN}", "-e", f"logs_dir={directory / 'copied'}")
        bundle = ("-e", f"run={RUN}", "-e", f"to={directory / 'fetched'}")
        play("playbooks/fetch.yml", *bundle, "-e", "bundle=true")
        play("playbooks/doctor.yml")
        play("playbooks/watch.yml")
        # Empty the logs, so that until_read waits for the trainer of the next attempt.
        for worker in workers(fleet):
            fleet.on(worker, "truncate", "--size=0", f"/var/lib/tpufleet/runs/{RUN}/log")
        play("playbooks/restart.yml", "-e", f"run={RUN}")
        add_token("the next attempt's rendezvous token")
        play("playbooks/kill.yml", "-e", f"run={RUN}")
        play("playbooks/restart.yml", "-e", f"run={RUN}", "-e", "even_if_stopped=true")
        add_token("the last attempt's rendezvous token")
    yield {
        "fleet": fleet,
        "secrets": secrets,
        "printed": printed,
        "at": directory,
        "processes": process_list,
    }
    fleet.must_play("playbooks/kill.yml", "-e", f"run={RUN}", "-e", f"fleet_state={state}")


def until_read(fleet: Fleet, worker: str) -> None:
    """Wait until the trainer has read its secrets: then it prints their length."""
    length = sum(map(len, PLANTED.values()))
    command = f"until grep -qx {length} /var/lib/tpufleet/runs/{RUN}/log; do sleep 0.2; done"
    fleet.on(worker, "timeout", "60", "sh", "-c", command)


def inside(fleet: Fleet, worker: str, *command: str, user: int = 0, stdin: str = "") -> str:
    """Run a command in a worker's namespaces as a user with id ``user``; return its output.

    Does not use Ansible, so that a search for a secret does not write the secret to the worker.
    """
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return subprocess.run(
        ["nsenter", f"--target={init_of(fleet, worker)}", "--all", *become, *command],
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=300,
    ).stdout


def init_of(fleet: Fleet, worker: str) -> str:
    """Return the process id of a worker's init on this computer."""
    [machine] = fleet.cloud.machines.glob(f"*-w-{worker.rpartition('-w')[2]}")
    children = [
        child
        for pid in processes.with_argument(f"--directory={machine / 'root'}")
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ]
    [init] = [
        child
        for child in children
        if re.search(r"^NSpid:.*\t1$", Path(f"/proc/{child}/status").read_text(), re.MULTILINE)
    ]
    return init


def files_with(fleet: Fleet, worker: str, secrets: dict[str, str], *, user: int) -> list[str]:
    """Return the files of a worker that contain a secret and that the user can read."""
    search = ("grep", "--recursive", "--files-with-matches", "--no-messages", "--fixed-strings")
    patterns = "".join(f"{secret}\n" for secret in secrets.values())
    options = ("--devices=skip", "--text", "--file=-", *READABLE)
    return inside(fleet, worker, *search, *options, user=user, stdin=patterns).splitlines()


def test_no_verb_prints_a_secret_at_vvv(launched):
    leaks = {
        f"{name} in {verb}"
        for verb, text in launched["printed"].items()
        for name in secrets_in(text, launched["secrets"])
    }
    assert leaks == set()
    assert all("ESTABLISH" in text or "TASK [" in text for text in launched["printed"].values())


def test_no_log_record_release_status_or_report_contains_a_secret(launched):
    directory = launched["at"]
    directories = ("state", "logs", "fetched", "copied")
    for name in (*directories, "status.json", "report.html", "watch.log"):
        assert (directory / name).exists(), name
    assert in_files(directory, launched["secrets"]) == set()


def test_no_command_line_contains_a_secret_while_verbs_run(launched):
    assert launched["processes"].reads > 20
    assert launched["processes"].leaks == set()


@pytest.mark.parametrize("worker", ["demo-w0", "demo-w1"])
def test_another_user_of_a_worker_finds_no_secret(launched, worker):
    fleet, secrets = launched["fleet"], launched["secrets"]
    # Root finds the secrets file, which shows that the search works.
    assert f"/etc/tpufleet/runs/{RUN}/secrets" in files_with(fleet, worker, secrets, user=0)
    assert files_with(fleet, worker, secrets, user=NOBODY) == []

    commands = {
        "processes": "ps -ewwo args; cat /proc/[0-9]*/cmdline",
        "environments": "cat /proc/[0-9]*/environ",
        "units": f"systemctl show --all 'tpufleet-run@{RUN}'; systemctl cat 'tpufleet-run@{RUN}'",
    }
    reply = {
        name: inside(fleet, worker, "sh", "-c", command, user=NOBODY)
        for name, command in commands.items()
    }
    assert "mine.sh" in reply["processes"]
    assert f"tpufleet-run@{RUN}" in reply["units"]
    leaks = {
        f"{name} in {source}"
        for source, text in reply.items()
        for name in secrets_in(text, secrets)
    }
    assert leaks == set()


@pytest.mark.parametrize("worker", ["demo-w0", "demo-w1"])
def test_no_unit_journal_or_other_file_contains_a_secret(launched, worker):
    fleet, secrets = launched["fleet"], launched["secrets"]
    unit = inside(fleet, worker, "systemctl", "show", "--all", f"tpufleet-run@{RUN}")
    journal = inside(fleet, worker, "journalctl", "--no-pager", "--all")
    assert "ExecStart" in unit
    assert f"tpufleet-run@{RUN}" in journal
    assert secrets_in(unit + journal, secrets) == []
    # Root may find secrets only in the run's files and in systemd's copies of them.
    allowed = (f"/etc/tpufleet/runs/{RUN}/", "/run/credentials/")
    files = files_with(fleet, worker, secrets, user=0)
    assert [file for file in files if not file.startswith(allowed)] == []
