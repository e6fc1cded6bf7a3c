"""Weights and tokenizers of a repository of the Hugging Face hub; the hub is a local server."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import numpy as np
import pytest
from safetensors.numpy import save

from harness.trainer_processes import PROJECT
from train.data.hub import is_repository
from train.data.tokens import train_bpe

REVISION = "a" * 40
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": save({"a": np.ones(3, np.float32)}),
    "pytorch_model.bin": b"not downloaded",
    "consolidated.safetensors": b"not downloaded",
    "tokenizer.json": train_bpe(["a feast for all who love him"], 300),
    "tokenizer_config.json": b'{"eos_token": "<|endoftext|>"}',
    "generation_config.json": b'{"eos_token_id": 0}',
}


class Hub(BaseHTTPRequestHandler):
    """Fake Hugging Face hub: answers only requests that download the repository ``owner/name``."""

    paths: ClassVar[list[str]] = []
    """Paths of all requests so far."""

    def do_GET(self) -> None:
        self.paths.append(self.path)
        head, _, name = self.path.rpartition("/")
        if self.path.startswith("/api/models/owner/name/revision/"):
            self._answer(json.dumps({"id": "owner/name", "sha": REVISION}).encode())
        elif self.path.startswith("/api/models/owner/name/tree/"):
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": REVISION}
                for name, content in FILES.items()
            ]
            self._answer(json.dumps(entries).encode())
        elif head == f"/owner/name/resolve/{REVISION}" and name in FILES:
            self._answer(FILES[name])
        else:
            self._answer(b"", 404)

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, body: bytes, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", REVISION)
        if code == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


OPEN = """
import sys
from train.data.config import DataConfig
from train.hf.files import Tensors
tensors = Tensors(sys.argv[1], DataConfig())
print(tensors.shapes, tensors.config, sorted(p.name for p in tensors.directory.iterdir()))
"""
ENCODE = """
import sys
from pathlib import Path
from train.core.config import DataConfig
from train.data.corpus import prepare, read_meta
Path("text").write_text("a feast for all")
prepared = prepare(DataConfig(text="text", tokenizer=sys.argv[1], directory="data", heldout=0))
print(read_meta(prepared).vocabulary)
"""


def run(
    program: str, name: str, hub: str, directory: Path, *arguments: str, home: str = "."
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new process, because huggingface_hub reads its environment at import.

    The code runs in ``directory`` and gets ``name`` and ``arguments`` as its arguments. Its
    HF_HOME, which contains the cache, is the subdirectory ``home`` of ``directory``.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    env = environment | {
        "HF_ENDPOINT": hub,
        "HF_HOME": str(directory / home),
        "PYTHONPATH": str(PROJECT),
    }
    command = [sys.executable, "-c", program, name, *arguments]
    return subprocess.run(
        command, env=env, cwd=directory, capture_output=True, text=True, check=False
    )


def test_weights_and_config_json_of_a_revision_are_downloaded(hub: str, tmp_path: Path):
    Hub.paths.clear()
    done = run(OPEN, "owner/name@v2", hub, tmp_path)
    assert done.stdout.strip() == (
        "{'a': (3,)} {'model_type': 'llama'} ['config.json', 'model.safetensors']"
    ), done.stderr
    assert "/api/models/owner/name/revision/v2" in Hub.paths


def test_the_tokenizer_of_a_repository_is_downloaded(hub: str, tmp_path: Path):
    done = run(ENCODE, "owner/name", hub, tmp_path)
    assert 257 <= int(done.stdout) <= 300, done.stderr


def test_a_path_in_an_existing_directory_is_not_downloaded(hub: str, tmp_path: Path):
    (tmp_path / "owner").mkdir()
    done = run(OPEN, "owner/name", hub, tmp_path)
    assert "ConfigError: init_from: owner/name does not exist. Put config.json " in done.stderr


@pytest.mark.parametrize(
    ("name", "is_id"),
    [
        ("meta-llama/Llama-3.2-1B", True),
        ("a/b", True),
        ("a/b@main", True),
        ("a/b@refs/pr/1", True),
        ("a/b@", False),
        ("../b", False),
        ("a/..", False),
        ("./b", False),
        ("a/b.", False),
        ("-a/b", False),
        ("a/b--c", False),
        ("a/b..c", False),
        ("a/b.git", False),
        ("a/tokenizer.json", False),
        ("a/model.safetensors", False),
        ("a/b/c", False),
        ("a/b\n", False),
        ("a/é", False),
        ("a/" + "b" * 97, False),
        ("llama3-1b", False),
    ],
)
def test_ids_of_the_hub_are_distinguished_from_paths(name: str, is_id: bool):
    assert is_repository(name) == is_id


def test_a_missing_repository_is_reported_in_one_line(hub: str, tmp_path: Path):
    done = run(OPEN, "owner/other", hub, tmp_path)
    error = done.stderr.strip().splitlines()[-1]
    assert "ConfigError: init_from: owner/other is no file or directory here, and " in error
    assert "RepositoryNotFoundError" in error


NOWHERE = "http://127.0.0.1:9"


def test_an_unreachable_hub_is_not_a_config_error(tmp_path: Path):
    error = run(OPEN, "owner/name", NOWHERE, tmp_path).stderr.strip().splitlines()[-1]
    assert error.startswith("train.storage.UnavailableError: init_from: owner/name is no file or ")


KEEP = """
import sys
from pathlib import Path
from train.core.config import DataConfig
from train.data.corpus_cache import fetched, prepared
from train.run.contract import Contract
Path("text").write_text("a feast for all")
cfg = DataConfig(text="text", tokenizer=sys.argv[1], directory=sys.argv[2], heldout=0)
place = Contract("r", Path("r").absolute(), Path("checkpoints").absolute())
print([path.name for path in {"fetched": fetched, "prepared": prepared}[sys.argv[3]](cfg, place)])
"""


def test_a_resumed_run_needs_no_hub_for_its_tokenizer(hub: str, tmp_path: Path):
    def start(directory: str, verb: str, endpoint: str) -> str:
        (tmp_path / directory).mkdir(exist_ok=True)
        result = run(KEEP, "owner/name", endpoint, tmp_path, directory, verb, home=directory)
        assert result.returncode == 0, result.stderr
        return result.stdout

    first = start("first", "prepared", hub)
    assert [start("new", verb, NOWHERE) for verb in ("prepared", "fetched")] == [first, first]
    [copy] = (tmp_path / "checkpoints" / "corpus").glob("owner--name")
    assert sorted(path.name for path in copy.iterdir()) == [
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
