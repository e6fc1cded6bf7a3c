"""A module's code that is kept on the worker: sent once, run from there, never needed."""

import importlib
import json
import os
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import kept_run, worker_module
from ansible_collections.tpufleet.core.plugins.plugin_utils.setup import kept_modules
from ansible_collections.tpufleet.core.plugins.plugin_utils.setup.sends_wheels import SendsWheels
from hypothesis import example, given
from hypothesis import strategies as st

PLUGINS = "ansible_collections.tpufleet.core.plugins"
MODULES = f"{PLUGINS}.modules"


def run_there(
    place: Path,
    module: str,
    options: dict,
    packed: bytes = b"",
    secrets: tuple[str, ...] | None = None,
) -> dict:
    """Send a worker's Python what the controller sends, and read the answer."""
    script = Path(kept_run.__file__).read_text(encoding="utf-8")
    params = json.dumps({"ANSIBLE_MODULE_ARGS": options})
    place.parent.mkdir(exist_ok=True)
    call = (str(place), f"{MODULES}.{module}", params, b64encode(packed).decode(), secrets)
    done = subprocess.run(
        [sys.executable],
        cwd=place.parent,
        input=f"{script}\n\nrun{call!r}\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def packed() -> bytes:
    return kept_modules.pack()


def look(tmp_path: Path, place: Path, packed: bytes = b"") -> dict:
    options = {"state_dir": str(tmp_path / "none"), "etc": str(tmp_path / "none"), "wait": 0}
    return run_there(place, "run_info", options, packed)


def test_a_worker_without_the_code_says_so(tmp_path):
    told = look(tmp_path, tmp_path / "modules/v1")

    assert told == {"changed": False, "kept_modules": "missing"}


def test_the_code_that_came_with_one_run_serves_the_next(tmp_path, packed):
    place = tmp_path / "modules/v1"
    first = look(tmp_path, place, packed)

    again = look(tmp_path, place)

    assert again == first
    assert again["runs"] == []


@pytest.mark.parametrize(
    "module", sorted(p.stem for p in (kept_modules.COLLECTION / "plugins/modules").glob("*.py"))
)
def test_what_is_kept_is_all_that_a_module_imports(module, tmp_path, packed):
    place = tmp_path / "v1"
    kept_run.unpack(place, b64encode(packed).decode())

    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"import sys; sys.path.insert(0, {str(place)!r}); import {MODULES}.{module}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_a_wrong_argument_is_refused_as_ever(tmp_path, packed):
    told = run_there(tmp_path / "v1", "run_info", {"nonsense": 1}, packed)

    assert told["failed"]
    assert "nonsense" in told["msg"]


def checked_look(tmp_path: Path, packed: bytes, **more: object) -> dict:
    options = {"state_dir": str(tmp_path / "none"), "etc": str(tmp_path / "none"), **more}
    arguments, secrets = kept_modules.check_arguments("run_info", options)
    return run_there(tmp_path / "v1", "run_info", arguments, packed, secrets)


def test_arguments_that_were_checked_before_give_the_same_answer(tmp_path, packed):
    assert checked_look(tmp_path, packed) == look(tmp_path, tmp_path / "v1")


def test_a_refusal_of_a_module_whose_arguments_were_checked_is_a_failure(tmp_path, packed):
    told = checked_look(tmp_path, packed, run="no/name")

    assert told["failed"]
    assert "no/name" in told["msg"]


def test_a_module_that_breaks_with_checked_arguments_tells_how_but_no_secret(tmp_path, packed):
    told = run_there(tmp_path / "v1", "pass_word", {}, packed, ("pass_word",))

    assert told["failed"]
    assert told["msg"].startswith("ModuleNotFoundError")
    assert "Traceback" in told["exception"]
    assert "pass_word" not in str(told)


def test_checking_fills_in_defaults_and_types_and_leaves_what_is_ansible_s_own():
    given = {"wait": "3", "_ansible_check_mode": True}

    arguments, secrets = kept_modules.check_arguments("run_info", given)

    assert (arguments["wait"], arguments["until"]) == (3, "now")
    assert arguments["_ansible_check_mode"] is True
    assert secrets == ()


@pytest.mark.parametrize(
    "given",
    [
        {"nonsense": 1},
        {"wait": "soon"},
        {"until": "never"},
        {"since": 0},
        {"etc": "~/etc"},
        {"etc": "$HOME/etc"},
    ],
)
def test_what_is_wrong_or_the_worker_s_own_is_left_to_the_module(given):
    assert kept_modules.check_arguments("run_info", given) == (given, None)


ADA = {"name": "ada", "keys": ["ssh-ed25519 AAAA"]}


@pytest.mark.parametrize(
    ("module", "given"),
    [
        ("people", {"people": [ADA, {**ADA, "shell": "~/bin/sh"}]}),
        ("people", {"people": ["name=ada keys=none shell=$SHELL"]}),
        ("system_files", {"directories": [{"path": "$HOME/runs"}]}),
    ],
)
def test_a_path_within_an_option_is_the_worker_s_own_as_well(module, given):
    assert kept_modules.check_arguments(module, given) == (given, None)


def test_what_is_no_path_of_the_worker_s_is_checked_whatever_stands_in_it(tmp_path):
    unit = {"path": "/etc/systemd/system/a.service", "content": "ExecStart=/bin/kill $MAINPID ~\n"}

    arguments, secrets = kept_modules.check_arguments("system_files", {"files": [unit]})

    assert secrets == ()
    assert arguments["files"] == [{**unit, "mode": "0644"}]


def test_the_controller_s_cache_of_wheels_is_not_sent_to_a_worker(monkeypatch):
    sent = []
    monkeypatch.setattr(
        SendsWheels, "_execute_module", lambda _, **how: sent.append(how["module_args"]) or {}
    )
    action = SendsWheels.__new__(SendsWheels)

    action._module({"lock": "a==1", "cache": "~/wheels"}, {})

    assert sent == [{"lock": "a==1"}]
    assert kept_modules.check_arguments("python_env", sent[0])[1] == ()


def test_a_module_of_setup_gives_the_same_answer_when_its_arguments_were_checked(tmp_path, packed):
    given = {
        "files": [{"path": str(tmp_path / "a.txt"), "content": "ä $HOME\n"}],
        "directories": [{"path": str(tmp_path / "b"), "owner": str(os.getuid())}],
        "owed": str(tmp_path / "owed"),
        "_ansible_check_mode": True,
    }

    as_ever = run_there(tmp_path / "v1", "system_files", given, packed)
    checked = kept_modules.check_arguments("system_files", given)
    told = run_there(tmp_path / "v1", "system_files", checked[0], secrets=checked[1])

    assert checked[1] is not None
    assert told == as_ever
    assert told["changed"]


@pytest.mark.parametrize("name", kept_modules.RULES)
def test_every_module_whose_arguments_are_checked_is_kept(name):
    action = importlib.import_module(f"{PLUGINS}.action.{name}").ActionModule

    assert issubclass(action, kept_modules.KeptModules)


def test_a_module_that_has_no_rules_here_reads_its_arguments_itself():
    assert kept_modules.check_arguments("doctor_worker", {})[1] is None


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("died of pass-word, to-ken", "died of ********, ********"),
        ({"log": ["a to-ken b", None, True, 7]}, {"log": ["a ******** b", None, True, 7]}),
        (["pass-word-more"], ["********"]),
        ("key: first-line-of-it", "key: ********"),
        ("second-line, and more", "********, and more"),
        ("turned on, one step", "turned ********, one step"),
    ],
)
def test_a_secret_of_the_arguments_is_hidden_wherever_it_stands(monkeypatch, told, shown):
    words = {
        "A": "pass-word",
        "B": "pass-word-more",
        "C": "first-line-of-it\nsecond-line",
        "D": "on",
    }
    given = {"run": "pod", "state": "stopped", "secrets": words, "token": "to-ken"}
    monkeypatch.setattr(
        worker_module, "secrets", kept_modules.check_arguments("run", given)[1], raising=True
    )

    assert worker_module.hidden(told) == shown


ANSWER = {"step": 1200, "loss": 1.25, "time": 1700000000.5, "done": True, "exit": None}


@given(st.dictionaries(st.text(), st.integers() | st.floats(allow_nan=False) | st.booleans()))
@example(ANSWER)
def test_no_secret_changes_a_number_of_an_answer(numbers):
    secrets = tuple(str(number) for number in numbers.values())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(worker_module, "secrets", (*secrets, "1", "0", "12", "None", "True"))
        assert worker_module.hidden(numbers) == numbers


@pytest.mark.parametrize("secret", ["1", "12", "0.5", "on", "", " "])
def test_a_short_secret_leaves_the_words_and_numbers_around_it_whole(monkeypatch, secret):
    monkeypatch.setattr(worker_module, "secrets", (secret,))
    text = "step 1200 of 12000, loss 10.55, second 1"

    assert worker_module.hidden(text) == text


@pytest.mark.parametrize(("no_log", "lines"), [(False, 1), (True, 0)])
def test_the_worker_s_syslog_has_what_was_asked_without_its_secrets(monkeypatch, no_log, lines):
    said: list[str] = []
    monkeypatch.setattr(worker_module, "secrets", ("to-ken",))
    monkeypatch.setattr(worker_module.syslog, "syslog", lambda _, text: said.append(text))

    worker_module.CheckedModule({"run": "pod", "token": "to-ken", "_ansible_no_log": no_log})

    assert len(said) == lines
    assert all("pod" in line and "to-ken" not in line for line in said)


@pytest.mark.parametrize(("no_log", "lines"), [(False, 2), (True, 0)])
def test_a_module_says_more_in_the_syslog_but_no_secret(monkeypatch, no_log, lines):
    said: list[str] = []
    monkeypatch.setattr(worker_module, "secrets", ("to-ken",))
    monkeypatch.setattr(worker_module.syslog, "syslog", lambda _, text: said.append(text))
    env = {"UV_INDEX_URL": "https://ada:pass-word@wheels.example/simple"}

    module = worker_module.CheckedModule({"env": env, "_ansible_no_log": no_log})
    module.log("removed the environment to-ken")

    assert len(said) == lines
    assert "pass-word" not in str(said) and "to-ken" not in str(said)
    assert all("ada:********@wheels.example" in line for line in said[:1])
    assert said[1:] in ([], ["removed the environment ********"])


@pytest.mark.parametrize("end", ["exit_json", "fail_json"])
@pytest.mark.parametrize("warnings", [[], ["slow", "old"]])
def test_an_answer_has_the_warnings_if_there_are_any(monkeypatch, capsys, end, warnings):
    monkeypatch.setattr(worker_module.syslog, "syslog", lambda *_: None)
    module = worker_module.CheckedModule({})
    for text in warnings:
        module.warn(text)

    with pytest.raises(SystemExit) as ended:
        getattr(module, end)(msg="the end")

    told = json.loads(capsys.readouterr().out)
    assert ended.value.code == (end == "fail_json")
    assert told["msg"] == "the end"
    assert told.get("warnings") == (warnings or None)
    assert ("warnings" in told) == bool(warnings)


def test_an_answer_is_found_behind_what_a_login_shell_says(monkeypatch, capsys):
    sys.stdout.write("welcome")

    worker_module.tell({"changed": False})

    assert capsys.readouterr().out.splitlines() == ["welcome", '{"changed": false}']


def test_a_module_whose_arguments_are_checked_imports_nothing_of_ansible(tmp_path, packed):
    place = tmp_path / "v1"
    kept_run.unpack(place, b64encode(packed).decode())
    names = ", ".join(f"{MODULES}.{name}" for name in kept_modules.RULES)
    script = (
        f"import sys; sys.path.insert(0, {str(place)!r}); import {names}; "
        "print([name for name in sys.modules if name.split('.')[0] == 'ansible'])"
    )

    words = [sys.executable, "-I", "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", ["__future__", "random", "tempfile", "json", "ansible"])
def test_nothing_is_imported_from_where_the_login_user_is(name, tmp_path, packed):
    (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the home directory')\n")

    told = look(tmp_path, tmp_path / "v1", packed)

    assert told["runs"] == []


def test_a_place_that_cannot_be_written_is_a_worker_without_the_code(tmp_path, packed):
    (tmp_path / "v1").write_text("a file, no directory")

    told = look(tmp_path, tmp_path / "v1", packed)

    assert told["kept_modules"] == "missing"


def test_a_module_that_breaks_tells_how(tmp_path, packed):
    told = run_there(tmp_path / "v1", "no_such_module", {}, packed)

    assert told["failed"]
    assert "no_such_module" in told["msg"]


def test_only_the_few_that_were_used_last_are_kept(tmp_path, packed):
    for version in range(kept_run.KEPT + 2):
        (tmp_path / f"v{version}").mkdir()
        os.utime(tmp_path / f"v{version}", (version, version))
    (tmp_path / ".half").mkdir()
    os.utime(tmp_path / ".half", (9, 9))

    kept_run.unpack(tmp_path / "newest", b64encode(packed).decode())

    assert {path.name for path in tmp_path.iterdir()} == {"newest", "v3", "v4"}


def test_what_a_module_may_be_running_from_stays(tmp_path, packed):
    for version in range(kept_run.KEPT + 2):
        kept_run.unpack(tmp_path / f"v{version}", b64encode(packed).decode())

    assert len(list(tmp_path.iterdir())) == kept_run.KEPT + 2


def test_using_the_code_makes_it_young(tmp_path, packed):
    place = tmp_path / "modules/v1"
    look(tmp_path, place, packed)
    os.utime(place, (1, 1))

    look(tmp_path, place)

    assert place.stat().st_mtime > 1


def test_the_name_follows_the_content_that_the_playbook_began_with(tmp_path, monkeypatch):
    before = kept_modules.content_name(tmp_path / "a")
    monkeypatch.setattr(kept_modules, "read", lambda: (("a.py", b"changed"),))

    assert kept_modules.content_name(tmp_path / "a") == before  # the playbook's, to its end
    assert kept_modules.digest() != before  # so this is not sent under that name


def test_every_module_that_runs_on_workers_is_kept_there():
    plugins = kept_modules.COLLECTION / "plugins"
    modules = {file.stem for file in (plugins / "modules").glob("*.py")}
    actions = {file.stem for file in (plugins / "action").glob("*.py")}

    assert modules - actions == {"run_schedule", "ssh_key", "vpc_firewall"}  # the controller's own
