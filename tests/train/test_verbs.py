"""Verbs of the command line on a finished run, and runs from an exported file."""

import json
import math
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from harness.trainer_processes import Attempt, loss_log, train_here
from tests.train.bucket import NAME
from train.__main__ import main
from train.command_line import command_line
from train.core.config import Config, build, load
from train.core.model import init_params
from train.hf import weights
from train.run import bench, contract, mesh, mfu
from train.storage import open_filesystem

type Verb = Callable[..., str]


@pytest.fixture
def run_verb(
    finished: Path,
    tree: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Verb:
    """Run a verb on the finished run and return its output."""
    config = tmp_path / "feast.yml"
    config.write_text(yaml.safe_dump({**tree, "checkpoint": {"every": 10, "keep": 2}}))
    monkeypatch.setenv("TPUFLEET_RUN_DIR", str(finished))

    def run(verb: str, *arguments: str, code: int = contract.DONE) -> str:
        assert main([verb, str(config), *arguments]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return run


def test_eval_prints_held_out_loss_and_perplexity(run_verb: Verb):
    output = run_verb("eval", "evaluate.batches=2")
    fields = output.replace(",", "").split()
    loss, perplexity = (float(fields[i]) for i in (2, 4))
    assert 1 < loss < 3.2
    assert perplexity == pytest.approx(math.exp(loss), rel=1e-3)
    assert "over 16 sequences of 32 tokens" in output


def test_a_run_that_was_sharded_over_more_devices_can_be_used_on_one(run_verb: Verb):
    assert run_verb("eval", "compute.fsdp=8") == run_verb("eval")
    assert run_verb("sample", "compute.fsdp=8") == run_verb("sample")


@pytest.mark.parametrize("verb", ["eval", "sample"])
def test_attention_that_the_device_does_not_support_is_refused(run_verb: Verb, verb: str):
    error = run_verb(verb, "compute.attention=cudnn", code=contract.BAD_CONFIG)
    assert error.startswith("train: compute.attention: cudnn needs a GPU")


def test_step_may_precede_or_follow_an_override(run_verb: Verb):
    assert run_verb("eval", "--step", "30", "evaluate.batches=1") == run_verb(
        "eval", "evaluate.batches=1", "--step", "30"
    )
    assert run_verb("eval", "--step", "30") != run_verb("eval")


def test_a_step_without_a_checkpoint_is_refused_with_the_available_steps(run_verb: Verb):
    error = run_verb("eval", "--step", "35", code=contract.BAD_CONFIG)
    assert "no intact checkpoint of step 35; has 30, 40" in error


def test_export_writes_a_gpt2_to_the_run_directory(run_verb: Verb, finished: Path):
    assert run_verb("export").strip() == str(finished / "export" / "model.safetensors")
    config = json.loads((finished / "export" / "config.json").read_text())
    assert (config["model_type"], config["n_embd"], config["tie_word_embeddings"]) == (
        "gpt2",
        32,
        False,
    )


def test_an_export_to_a_bucket_has_the_same_files(
    run_verb: Verb, tmp_path: Path, bucket: dict[str, str]
):
    run_verb("export", "--to", str(tmp_path / "here"))
    output = run_verb("export", "--to", f"gs://{NAME}/there")
    filesystem = open_filesystem(f"gs://{NAME}")[0]
    filesystem.get(f"{NAME}/there/", f"{tmp_path}/there/", recursive=True)

    assert output == f"gs://{NAME}/there/model.safetensors\n"
    here, there = (tmp_path / name for name in ("here", "there"))
    assert (there / "config.json").read_bytes() == (here / "config.json").read_bytes()
    tensors = [load_file(folder / "model.safetensors") for folder in (here, there)]
    assert {name: a.tobytes() for name, a in tensors[0].items()} == {
        name: a.tobytes() for name, a in tensors[1].items()
    }


def test_a_run_starts_from_an_export_and_resumes_without_it(
    run_verb: Verb,
    make_config: Callable[..., Config],
    tmp_path: Path,
    finished: Path,
    launch: Callable[..., Attempt],
):
    run_verb("export", "--to", str(tmp_path / "weights"))
    file = tmp_path / "weights" / "model.safetensors"
    changes: dict[str, Any] = {
        "steps": 4,
        "checkpoint": {"every": 2},
        "lora": {"rank": 2},
        "optimizer": {"warmup": 0, "learning_rate": 1e-3},
        "sample": {"length": 0},
    }
    tuned = make_config(init_from=str(file), **changes)
    assert train_here(tuned, tmp_path / "whole") == contract.DONE
    losses = loss_log(tmp_path / "whole")
    assert losses[0][1] < np.mean([loss for _, loss in loss_log(finished)[-10:]]) + 0.5

    shutil.copytree(tmp_path / "whole/checkpoints/2", tmp_path / "resumed/checkpoints/2")
    file.unlink()
    overrides = [
        f"init_from={file}",
        "steps=4",
        "checkpoint.every=2",
        "lora.rank=2",
        "optimizer.warmup=0",
        "optimizer.learning_rate=1e-3",
        "sample.length=0",
    ]
    resumed = launch(tmp_path / "resumed", overrides, processes=1)
    assert resumed.codes() == [contract.DONE], resumed.logs()
    # The losses are not bitwise equal, because XLA may use a different number of threads in
    # the new process.
    np.testing.assert_allclose(loss_log(tmp_path / "resumed/w0"), losses[2:], rtol=1e-5)


def test_a_llama_is_fine_tuned_with_adapters_evaluated_sampled_and_exported(
    make_config: Callable[..., Config],
    tmp_path: Path,
    tree: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    llama = {
        "norm": "rms",
        "activation": "swiglu",
        "positions": "rotary",
        "rotary": {"theta": 500, "factor": 4, "original_context": 16},
        "kv_heads": 1,
        "head_dim": 32,
        "vocabulary": 300,
        "attention_bias": False,
        "feedforward_bias": False,
    }
    base = make_config(model=llama)
    params = jax.jit(init_params, static_argnums=1)(jax.random.key(0), base.model)
    weights.export(tmp_path / "base", params, base, "transformers")
    lora = {"rank": 2, "targets": ["l_[qkv]_*", "l_gate_df"]}
    data = tree["data"] | {"tokenizer": "bpe", "vocabulary": 300}
    changes = {"steps": 3, "lora": lora, "init_from": str(tmp_path / "base"), "data": data}
    assert train_here(make_config(model=llama, **changes), tmp_path / "run") == contract.DONE
    config = {**tree, **changes, "model": tree["model"] | llama}
    (tmp_path / "c.yml").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("TPUFLEET_RUN_DIR", str(tmp_path / "run"))
    assert (tmp_path / "run" / "sample.txt").read_text().startswith("the ")
    for verb, text in (("eval", "held-out loss "), ("export", "export/model.")):
        assert main([verb, str(tmp_path / "c.yml")]) == contract.DONE
        assert text in capsys.readouterr().out
    before = load_file(tmp_path / "base" / "model.safetensors")
    after = load_file(tmp_path / "run" / "export" / "model.safetensors")
    assert (tmp_path / "run" / "export" / "tokenizer.json").exists()
    assert {name for name in after if (after[name] != before[name]).any()} == {
        f"model.layers.0.{name}_proj.weight"
        for name in ("self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate")
    }


def test_bench_prints_tokens_per_second_and_changes_no_run(
    run_verb: Verb, tmp_path: Path, monkeypatch: Any
):
    monkeypatch.setenv("TPUFLEET_RUN_DIR", str(tmp_path / "none"))
    output = run_verb("bench", "--steps", "3", "data.text=/nowhere")
    assert output.startswith("1 x cpu: ")
    assert "tokens/s" in output
    assert "over 3 steps" in output
    assert not (tmp_path / "none").exists()


def test_bench_trains_the_model(finished_config: Config):
    cfg = replace(finished_config, data=replace(finished_config.data, text="/nowhere"))
    result = bench.measure(cfg, 30)
    # The loss decreases, because all steps have the same tokens.
    assert result.loss < math.log(128) - 0.3
    assert result.tokens_per_second == pytest.approx(8 * 32 / result.seconds_per_step)


GPT2 = {
    "layers": 12,
    "heads": 12,
    "width": 768,
    "context": 1024,
    "vocabulary": 50257,
    "tied": True,
}


def test_flops_are_counted_as_in_the_palm_paper():
    matrices = 12 * 12 * 768**2 + 50257 * 768
    assert mfu.flops_per_token(build({"model": GPT2})) == 6 * matrices + 12 * 12 * 768 * 1024


@pytest.mark.parametrize(
    ("options", "learned"),
    [
        ({"lora": {"rank": 8, "targets": ["l_q_dhe", "l_v_dge"]}}, 12 * 2 * 768**2),
        ({"optimizer": {"frozen": ["tokens_vd", "positions_td"]}}, 12 * 12 * 768**2),
        ({"optimizer": {"frozen": ["l_*"]}}, 50257 * 768),
    ],
)
def test_matrices_without_a_gradient_count_4_flops_per_parameter(options: dict, learned: int):
    matrices = 12 * 12 * 768**2 + 50257 * 768
    flops = mfu.flops_per_token(build({"model": GPT2} | options))
    assert flops == 4 * matrices + 2 * learned + 12 * 12 * 768 * 1024


def test_similar_names_of_gpus_and_tpus_have_no_published_peak():
    others = {"NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "TPU v4 lite"}
    assert not others & mfu.PEAK_FLOPS.keys()


@pytest.mark.parametrize("verb", ["run", "eval", "sample", "bench", "prepare", "export"])
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    assert end.value.code == 0
    examples = re.findall("^  python -m train (.+)$", capsys.readouterr().out, re.MULTILINE)
    assert examples
    for example in examples:
        args = command_line().parse_args(shlex.split(example))
        assert load(args.config, args.overrides)


def test_the_help_lists_every_exit_code(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = {
        int(code) for code in re.findall(r"^  (\d+)  ", capsys.readouterr().out, re.MULTILINE)
    }
    codes = {value for value in vars(contract).values() if isinstance(value, int)}
    assert listed == codes


@pytest.mark.parametrize(
    "arguments", [["eval", "c.yml", "--stop", "3"], ["bench", "c", "--steps=0"]]
)
def test_an_unknown_option_or_a_bad_number_is_refused(arguments: list[str]):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2


def test_processes_wait_for_an_export(finished, config_file, tmp_path, monkeypatch):
    monkeypatch.setenv("TPUFLEET_RUN_DIR", str(finished))
    written, original = [], mesh.from_process_0

    def watched(number):
        written.append((tmp_path / "out/model.safetensors").exists())
        return original(number)

    monkeypatch.setattr(mesh, "from_process_0", watched)
    assert main(["export", str(config_file), "--to", str(tmp_path / "out")]) == contract.DONE
    assert written
    assert written[-1]
