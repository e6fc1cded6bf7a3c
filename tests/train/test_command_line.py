"""Config errors: one line and exit code 2, without importing JAX."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.trainer_processes import PROJECT, clean_environment

WITHOUT_JAX = "import sys; sys.modules['jax'] = None; sys.path.insert(0, {path!r}); "
MAIN = "from train.__main__ import main; sys.exit(main(sys.argv[1:]))"


def train(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call the command line in a Python where importing JAX fails."""
    program = WITHOUT_JAX.format(path=str(PROJECT)) + MAIN
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=cwd,
        env=clean_environment() | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (["nowhere.yml"], {}, "nowhere.yml: cannot be read: No such file"),
        (["{config}", "model.layerz=3"], {}, "model.layerz: unknown key; allowed here: layers"),
        (
            ["{config}", "batch=3"],
            {"TPUFLEET_NUM_PROCESSES": "2", "TPUFLEET_COORDINATOR": "127.0.0.1:1"},
            "batch: must be a multiple of the number of processes (2), not 3",
        ),
        (["{config}", "data.text=nowhere*.txt"], {}, "data.text: no file matches nowhere*.txt"),
        (["{config}", "model.context=1000000"], {}, "of one sequence"),
        (["{config}", "data.tokenizer=nowhere.json"], {}, "data.tokenizer: must be ascii, bytes"),
        (["{config}", "model.vocabulary=64"], {}, "model.vocabulary: must be at least the corpus"),
        (["{config}", "data.directory=/dev/null/d"], {}, "data.directory: /dev/null/d: cannot be"),
        (["{config}", "data.directory=~nobody-at-all"], {}, "data.directory: must be a path, with"),
        (["{config}"], {"TPUFLEET_RUN_DIR": "/dev/null/r"}, "/dev/null/r: cannot be written"),
    ],
)
def test_an_invalid_run_is_refused_in_one_line_without_importing_jax(
    config_file: Path, tmp_path: Path, words: list[str], environment: dict[str, str], said: str
):
    words = [word.format(config=config_file) for word in words]
    done = train("run", *words, cwd=tmp_path, **environment)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("train: ")
    assert said in done.stderr


def test_prepare_prints_the_directory_of_the_corpus(config_file: Path, tmp_path: Path):
    done = train("prepare", str(config_file), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tokens to train on" in done.stdout


def test_a_failed_download_of_a_corpus_exits_as_crashed(config_file: Path, tmp_path: Path):
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\necho 'no route' >&2\nexit 2\n")
    uv.chmod(0o755)
    data = f"data.directory={tmp_path}/data"
    done = train("run", str(config_file), "data.text=null", data, cwd=tmp_path, PATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.strip() == "train: shakespeare: uv could not install the corpus: no route"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("optimizer.frozen=[nothing]", "optimizer.frozen: 'nothing' matches nothing; allowed: "),
        ("init_from=nowhere", "init_from: nowhere does not exist. Put config.json "),
    ],
)
def test_a_mismatch_with_the_model_s_shapes_is_refused_before_joining(
    config_file: Path, tmp_path: Path, word: str, said: str
):
    """JAX is available, but the coordinator is unreachable."""
    done = subprocess.run(
        [sys.executable, "-m", "train", "run", str(config_file), word],
        cwd=tmp_path,
        env=clean_environment()
        | {"TPUFLEET_COORDINATOR": "192.0.2.1:1", "TPUFLEET_NUM_PROCESSES": "2"}
        | {"TPUFLEET_PROCESS_ID": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert said in done.stderr
