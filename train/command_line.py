"""The trainer's arguments and help: ``python -m train COMMAND CONFIG key=value …``."""

import argparse
import textwrap
from pathlib import Path

from train.compile import slices

_MORE = """
exit codes of run; the other commands exit with 0, 1 or 2:
  0   done
  1   crashed, or a corpus, bucket or Hugging Face repository could not be used
  2   invalid config or arguments; or a path is missing, access is denied, or the
      checkpoint does not fit the config
  3   the loss, the gradient or a parameter is infinite or not a number
  70  no step has finished for hang_after seconds (the first: at least an hour)
  75  interrupted by SIGTERM; a checkpoint is saved, and the same command resumes

environment variables, all optional; for TPUFLEET_*, see docs/own_trainer.md:
  JAX_COMPILATION_CACHE_DIR  JAX's cache of compiled programs. With checkpoints
                             in a bucket, a local directory is ignored, and the
                             cache is kept beside the checkpoints
  XDG_CACHE_HOME             prepared corpora are in tpufleet/data below it
                             (default: ~/.cache), unless data.directory is set or
                             this user can write to /var/lib/tpufleet/data
  WANDB_API_KEY              for report.wandb; without an API key, the run is
                             recorded offline

train/core/config.py and train/data/config.py describe every key of a config;
make docs lists them in site/reference/config.html.
"""


def _examples(*commands: str) -> str:
    return "examples:\n" + "".join(f"  python -m train {command}\n" for command in commands)


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line, with all subcommands."""
    shakespeare = "train/configs/shakespeare.yml"
    parser = argparse.ArgumentParser(
        prog="python -m train",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=textwrap.fill(
            "Train a GPT in JAX, and evaluate, sample or export it. A config is a YAML file; "
            "key=value overrides one of its keys. 'COMMAND --help' explains a command.",
            79,
        ),
        epilog=_examples(f"run {shakespeare} steps=200", f"sample {shakespeare} sample.length=100")
        + _MORE,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")

    def verb(name: str, text: str, *examples: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(
            name,
            help=text,
            description=textwrap.fill(f"{text[0].upper()}{text[1:]}.", 79),
            epilog=_examples(*(f"{name} {example}" for example in examples)),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.add_argument("config", metavar="CONFIG", help="a YAML file")
        added.add_argument(
            "overrides",
            metavar="key=value",
            nargs="*",
            help="override of a key, for example model.layers=4",
        )
        return added

    verb(
        "run",
        "train until the config's last step, from the newest checkpoint if there is one",
        shakespeare,
        f"{shakespeare} steps=20 batch=4",
        f"{shakespeare} data.text='corpus/*.txt' data.tokenizer=bytes model.vocabulary=256",
    )
    evaluating = verb(
        "eval",
        "compute the newest checkpoint's loss and perplexity on the held-out text",
        f"{shakespeare} evaluate.batches=20",
        f"{shakespeare} --step 400",
    )
    sampling = verb(
        "sample",
        "generate text with the newest checkpoint, from sample.prompt",
        shakespeare,
        f"{shakespeare} sample.prompt='O Romeo' --step 400",
    )
    benching = verb(
        "bench",
        "measure tokens per second, MFU and memory on this machine, with random tokens",
        f"{shakespeare} --steps 50",
        "train/configs/gpt2-124m.yml batch=20 model.layers=6",
    )
    benching.add_argument(
        "--steps",
        type=_count,
        default=20,
        help="steps to measure, rounded up to a multiple of compute.steps_per_call (default: 20)",
    )
    compiling = verb(
        "compile",
        "compile the training step for a TPU slice, without a TPU, and estimate its time; needs "
        "libtpu, which 'make env-compile' installs in .venv-tpu",
        "train/configs/1.5b.yml --topology v5p-128",
        "train/configs/modern.yml --topology v5e-16 --slices 2 compute.fsdp=4",
    )
    compiling.add_argument(
        "--topology",
        type=_slice,
        required=True,
        metavar="TYPE",
        help="accelerator type (v5p-128, v5e-16, …) or shape (v5p:4x4x12) of a slice",
    )
    compiling.add_argument(
        "--slices", type=_count, default=1, help="number of slices, for multislice (default: 1)"
    )
    compiling.add_argument(
        "--hlo", type=Path, metavar="FILE", help="write the compiled program to FILE as HLO text"
    )
    compiling.add_argument(
        "--slowest",
        type=_count,
        default=0,
        metavar="N",
        help="list the N instructions that take longest by the estimate",
    )
    verb(
        "prepare",
        "download and tokenize the corpus; run also does this",
        f"{shakespeare} data.text=README.md data.tokenizer=bytes model.vocabulary=256",
    )
    exporting = verb(
        "export",
        "write the newest checkpoint's parameters, LoRA adapters merged, to a safetensors file",
        shakespeare,
        f"{shakespeare} --names plain --to exported --step 400",
    )
    exporting.add_argument(
        "--to",
        metavar="DIR",
        help="output directory, or gs://BUCKET/PREFIX (default: export/ in the run directory)",
    )
    exporting.add_argument(
        "--names",
        choices=["transformers", "plain"],
        default="transformers",
        help="parameter names: those of Hugging Face's transformers (also writes config.json), or "
        "those of train/core/model.py, which exist for every model (default: transformers)",
    )
    for reading in (evaluating, sampling, exporting):
        reading.add_argument(
            "--step", type=_count, help="use the checkpoint of this step instead of the newest"
        )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _slice(text: str) -> slices.Slice:
    try:
        return slices.parse(text)
    except ValueError as err:
        raise argparse.ArgumentTypeError(str(err)) from None
