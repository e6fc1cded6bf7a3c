"""Errors of the command line: one line and an exit code, usually without importing JAX."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.trainer_processes import clean_environment
from train.__main__ import main
from train.core.config import Config, ConfigError

WITHOUT_JAX = """
import contextlib, io, json, os, sys
sys.modules["jax"] = None
from train.__main__ import main
done = []
for words, environment in json.load(sys.stdin):
    before = os.environ.copy()
    os.environ.update(environment)
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        done.append((main(words), errors.getvalue()))
    os.environ.clear()
    os.environ.update(before)
json.dump(done, sys.stdout)
"""

CASES: dict[str, tuple[list[str], dict[str, str], int]] = {
    "nowhere.yml: cannot be read: No such file": (["nowhere.yml"], {}, 2),
    "model.layerz: unknown key; allowed here: layers": (["{config}", "model.layerz=3"], {}, 2),
    "batch: must be a multiple of the number of processes (2), not 3": (
        ["{config}", "batch=3"],
        {"TPUFLEET_NUM_PROCESSES": "2", "TPUFLEET_COORDINATOR": "127.0.0.1:1"},
        2,
    ),
    "data.text: no file matches nowhere*.txt": (["{config}", "data.text=nowhere*.txt"], {}, 2),
    "tokens to train on and 2087 held out, but one sequence needs 1000001": (
        ["{config}", "model.context=1000000"],
        {},
        2,
    ),
    "feast has 0 tokens to train on and 20877 held out": (
        ["{config}", "data.documents=packed"],
        {},
        2,
    ),
    "data.tokenizer: must be ascii, bytes": (["{config}", "data.tokenizer=nowhere.json"], {}, 2),
    "model.vocabulary: must be at least 128": (["{config}", "model.vocabulary=64"], {}, 2),
    "data.directory: /dev/null/d: cannot be": (["{config}", "data.directory=/dev/null/d"], {}, 2),
    "/dev/null/r: cannot be written": (["{config}"], {"TPUFLEET_RUN_DIR": "/dev/null/r"}, 2),
    "train: the corpus shakespeare: uv cannot install it: no route": (
        ["{config}", "data.text=null", "data.directory={directory}/data"],
        {"PATH": "{directory}"},
        1,
    ),
}
"""For each error: arguments and environment of ``train run``, and its exit code."""


@pytest.fixture(scope="module")
def results(
    config_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[int, str]]:
    """Run CASES in one Python process that cannot import JAX; return exit codes and errors."""
    directory = tmp_path_factory.mktemp("cases")
    uv = directory / "uv"
    uv.write_text("#!/bin/sh\necho 'no\n route' >&2\nexit 2\n")
    uv.chmod(0o755)

    def filled(text: str) -> str:
        return text.format(config=config_file, directory=directory)

    cases = [
        (
            ["run", *map(filled, arguments)],
            {name: filled(value) for name, value in variables.items()},
        )
        for arguments, variables, _ in CASES.values()
    ]
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX],
        cwd=directory,
        env=clean_environment(),
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return dict(zip(CASES, json.loads(result.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("message", CASES)
def test_an_invalid_run_is_refused_in_one_line_without_importing_jax(
    results: dict[str, Any], message: str
):
    code, errors = results[message]
    assert code == CASES[message][2], errors
    assert len(errors.splitlines()) == 1, errors
    assert errors.startswith("train: ")
    assert message in errors


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("optimizer.frozen=[nothing]", "optimizer.frozen: 'nothing' matches nothing; allowed: "),
        ("init_from=nowhere", "init_from: nowhere does not exist. Put config.json "),
    ],
)
def test_a_mismatch_with_the_model_s_shapes_is_refused_before_joining(
    config_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    word: str,
    message: str,
):
    """The coordinator is unreachable, so the exit code would differ if the process joined."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TPUFLEET_COORDINATOR", "192.0.2.1:1")
    assert main(["run", str(config_file), word]) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 1, errors
    assert message in errors


def test_sigterm_while_weights_are_downloaded_removes_partial_files(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The SIGTERM handler raises SystemExit, so ``with`` blocks remove temporary directories."""
    from train.hf import weights

    handlers = []

    def check(_: Config) -> None:
        handlers.append(signal.getsignal(signal.SIGTERM))
        raise ConfigError("no such weights")

    monkeypatch.setattr(weights, "check", check)
    monkeypatch.setenv("TPUFLEET_RUN_DIR", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    assert main(["run", str(config_file)]) == 2
    with pytest.raises(SystemExit):
        handlers[0]()
    assert signal.getsignal(signal.SIGTERM) == before
