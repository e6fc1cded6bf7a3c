"""A small corpus and small configs for the trainer's tests."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness.trainer_processes import (
    PROCESSES,
    PROJECT,
    QUICKLY_COMPILED,
    Attempt,
    cache_variables,
    clean_environment,
    train_here,
)
from tests.train.bucket import emulated_bucket
from train.core.config import Config, build
from train.run import contract

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # also for the processes that tests start

SENTENCE = "the king is come to make a feast for all who love him and not his crown"


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 20 kB of sentences, on which a small model's loss decreases in few steps."""
    words = SENTENCE.split()
    draw = random.Random(0)  # noqa: S311
    path = tmp_path_factory.mktemp("text") / "feast.txt"
    path.write_text("".join(" ".join(draw.choices(words, k=8)) + ".\n" for _ in range(600)))
    return path


@pytest.fixture(scope="session")
def tree(text_file: Path) -> dict[str, Any]:
    """YAML tree of a config whose steps take milliseconds."""
    return {
        "steps": 40,
        "batch": 8,
        # Disable the watchdog: its thread would outlive a run that raises ConfigError in the test's
        # process, because only Run.end stops it.
        "hang_after": 0,
        "model": {"layers": 1, "heads": 2, "width": 32, "context": 32},
        "data": {"text": str(text_file), "directory": str(text_file.parent / "data")},
        # The learning rate is constant after its warm-up, so no loss depends on ``steps``.
        "optimizer": {"learning_rate": 3e-3, "warmup": 5, "final": 1},
        "checkpoint": {"every": 20},
        "sample": {"prompt": "the ", "length": 40},
    }


@pytest.fixture
def make_config(tree: dict[str, Any]) -> Callable[..., Config]:
    """Build a Config with sections and keys changed: make_config(steps=3, model={"layers": 1})."""

    def make(**changes: Any) -> Config:
        merged = dict(tree)
        for key, value in changes.items():
            merged[key] = {**tree.get(key, {}), **value} if isinstance(value, dict) else value
        return build(merged)

    return make


@pytest.fixture(scope="session")
def finished_config(tree: dict[str, Any]) -> Config:
    """The config of the run ``finished``."""
    return build({**tree, "checkpoint": {"every": 10, "keep": 2}})


@pytest.fixture(scope="session")
def finished(finished_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a finished run with one process."""
    directory = tmp_path_factory.mktemp("finished")
    assert train_here(finished_config, directory) == contract.DONE
    return directory


@pytest.fixture(scope="session")
def config_file(tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config ``tree`` as a file."""
    path = tmp_path_factory.mktemp("config") / "feast.yml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture(scope="session", autouse=True)
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Set up a compile cache for pytest's workers and the processes of tests; return its path.

    Also makes JAX compile quickly in this process, as QUICKLY_COMPILED does in others.
    """
    import jax

    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    # Set options, not environment variables: tests of other folders may have imported JAX, which
    # reads the variables only then.
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_disable_most_optimizations", True)
    return directory


@pytest.fixture(scope="session")
def on_four_devices(compile_cache: Path) -> Callable[..., Any]:
    """Run Python in a new process with four CPU devices; return the JSON that it prints.

    JAX fixes the number of devices when it starts.
    """
    devices = {"JAX_NUM_CPU_DEVICES": "4"}
    environment = clean_environment() | cache_variables(compile_cache) | QUICKLY_COMPILED | devices

    def run(*arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=PROJECT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def launch(config_file: Path, compile_cache: Path) -> Iterator[Callable[..., Attempt]]:
    """Start the processes of a run: launch(directory, ["steps=9"])."""
    attempts: list[Attempt] = []

    def start(
        directory: Path,
        overrides: Sequence[str] = (),
        process_overrides: dict[int, list[str]] | None = None,
        **options: Any,
    ) -> Attempt:
        """Start a run.

        Process i gets ``overrides`` and ``process_overrides[i]``; Attempt gets ``options``.
        """
        options["environment"] = QUICKLY_COMPILED | options.get("environment", {})
        processes = range(options.get("processes", PROCESSES))
        overrides_of = {i: [*overrides, *(process_overrides or {}).get(i, [])] for i in processes}
        attempts.append(Attempt(directory, config_file, overrides_of, compile_cache, **options))
        return attempts[-1]

    yield start
    for attempt in attempts:
        attempt.kill()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Serve an empty bucket; set and yield the environment variables that clients need."""
    with emulated_bucket() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield environment


@pytest.fixture
def no_mesh() -> Iterator[None]:
    """Reset the current mesh, which an earlier run in this process may have set."""
    import jax

    before = jax.sharding.get_mesh()
    jax.set_mesh(jax.sharding.Mesh(np.empty((), object), ()))
    yield
    jax.set_mesh(before)
