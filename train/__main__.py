"""Command line of the trainer: ``python -m train run|eval|sample|bench|prepare|plot|export``."""

import argparse
import gc
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from train import contract
from train.config import Config, ConfigError, check_batch_divisible, load
from train.corpus import prepare, read_meta
from train.corpus_cache import prepared
from train.data import Corpus
from train.texts import CorpusError

# Subcommands import JAX only after the config is checked, so that an invalid config fails within a
# second and initializes no device.


@dataclass(frozen=True)
class Job:
    """Input of a subcommand: its arguments, the config and the run contract."""

    args: argparse.Namespace
    cfg: Config
    contract: contract.Contract


def main(arguments: Sequence[str]) -> int:
    """Run a subcommand and return an exit code of the run contract."""
    parser = _parser()
    args, more = parser.parse_known_args(arguments)
    if unknown := [word for word in more if word.startswith("-") or args.verb == "plot"]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.WARNING)
    logging.getLogger("train").setLevel(logging.INFO)
    # By default JAX does not cache programs that compile in less than a second, so a relaunch
    # would compile all of them again.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    try:
        if args.verb == "plot":
            return _plot(args)
        cfg = load(args.config, [*args.overrides, *more])
        return args.do(Job(args, cfg, contract.from_environment(os.environ, args.config, cfg)))
    except ConfigError as err:
        print(f"train: {err}{_how_to_fix(args)}", file=sys.stderr)
        return contract.BAD_CONFIG
    except CorpusError as err:
        print(f"train: {err}", file=sys.stderr)
        return contract.CRASHED


def _how_to_fix(args: argparse.Namespace) -> str:
    """Return a hint on how to fix the config; empty on a fleet, where the controller shows one."""
    if "TPUFLEET_RUN" in os.environ or args.verb == "plot":
        return ""
    return f"; fix it there or by key=value: python -m train {args.verb} {args.config} key=value"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m train",
        description="Train a GPT in JAX, and evaluate, sample or export it.",
        epilog="docs/trainer.md lists every key of a config with its default. "
        "The run directory is TPUFLEET_RUN_DIR, by default runs/<config's name>.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(
        name: str, do: Callable[[Job], int] | None, text: str, more: str = ""
    ) -> argparse.ArgumentParser:
        added = verbs.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}. {more}"
        )
        added.set_defaults(do=do)
        if do:
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
        _run,
        "train until the config's last step, from the newest checkpoint if there is one",
        "Exit codes: 0 done, 75 interrupted by SIGTERM and saved, 3 the loss is not a number, "
        "2 invalid config.",
    )
    evaluating = verb(
        "eval",
        _eval,
        "compute the loss, perplexity and bits per byte on the held-out text",
        "evaluate.batches=N sets the number of batches.",
    )
    sampling = verb("sample", _sample, "generate text", "sample.prompt=TEXT sets its beginning.")
    benching = verb(
        "bench",
        _bench,
        "measure tokens per second, MFU and memory of a config on this machine",
        "Trains on random tokens; needs no corpus and reads or writes no checkpoint.",
    )
    benching.add_argument("--steps", type=_count, default=20, help="steps to measure (default: 20)")
    verb(
        "prepare",
        _prepare,
        "download and tokenize the corpus; run also does this",
        "Does nothing if it is prepared on this machine already.",
    )
    plotting = verb("plot", None, "plot the loss of one or several runs")
    plotting.add_argument(
        "runs", metavar="RUN", nargs="+", type=Path, help="a run directory with a metrics.jsonl"
    )
    plotting.add_argument(
        "--to",
        type=Path,
        default=Path("loss.svg"),
        help="output file, .svg or .png (default: loss.svg)",
    )
    exporting = verb(
        "export",
        _export,
        "write the parameters to a safetensors file, adapters merged",
        "Hugging Face's transformers loads GPT-2's names; a config's init_from accepts both.",
    )
    exporting.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="output directory (default: export/ in the run directory)",
    )
    exporting.add_argument(
        "--names",
        choices=["gpt2", "plain"],
        default="gpt2",
        help="names of GPT-2, or those of train/model.py, for any model (default: gpt2)",
    )
    for reading in (evaluating, sampling, exporting):
        reading.add_argument(
            "--step", type=_count, help="use the checkpoint of this step instead of the newest"
        )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number at least 1, not {text!r}")
    return int(text)


def _prepare(job: Job) -> int:
    directory = prepare(job.cfg.data)
    meta = read_meta(directory)
    print(
        f"{directory}: {meta.train} tokens to train on, {meta.heldout} held out, "
        f"vocabulary {meta.vocabulary} ({meta.tokenizer})"
    )
    return contract.DONE


def _run(job: Job) -> int:
    cfg = job.cfg
    check_batch_divisible(cfg, job.contract.num_processes, "processes")
    with without_garbage_collection():
        contract.check_writable(job.contract)
    heartbeat = contract.Heartbeat(job.contract.run_dir, cfg.steps)
    heartbeat.write("starting")
    try:
        corpus = Corpus(prepared(cfg.data, job.contract), cfg)
        with without_garbage_collection():
            from train import compile_cache, optimizer, weights

            optimizer.check(cfg)
            weights.check(cfg)
            from train.loop import Run
            from train.mesh import join
        join(job.contract)
        compile_cache.sync(job.contract)
        return Run(cfg, job.contract, corpus, heartbeat).train()
    except (ConfigError, CorpusError):
        heartbeat.write("failed")
        raise
    except Exception:
        traceback.print_exc()
        heartbeat.write("failed")
        # A normal exit would wait for the other processes in JAX's shutdown barrier, dead ones too.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(contract.CRASHED)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection inside the ``with`` block, and freeze the objects created there.

    Around imports, this saves a tenth of their CPU time in each process at each start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _eval(job: Job) -> int:
    corpus = Corpus(prepare(job.cfg.data), job.cfg)
    from train.evaluation import evaluate_heldout
    from train.loop import restored_params

    params = restored_params(job.cfg, job.contract, corpus, job.args.step)
    result = evaluate_heldout(params, job.cfg, corpus)
    print(
        f"held-out loss {result.loss:.4f}, perplexity {result.perplexity:.2f}, "
        f"{result.bits_per_byte:.4f} bits per byte, over {result.sequences} sequences "
        f"of {job.cfg.model.context} tokens"
    )
    return contract.DONE


def _sample(job: Job) -> int:
    corpus = Corpus(prepare(job.cfg.data), job.cfg)
    from train.loop import restored_params
    from train.sample import generate

    params = restored_params(job.cfg, job.contract, corpus, job.args.step)
    print(generate(params, job.cfg, corpus.tokenizer))
    return contract.DONE


def _bench(job: Job) -> int:
    from train.bench import measure

    print(measure(job.cfg, job.args.steps))
    return contract.DONE


def _plot(args: argparse.Namespace) -> int:
    from train.plot import draw

    draw(args.runs, args.to)
    print(args.to)
    return contract.DONE


def _export(job: Job) -> int:
    corpus = Corpus(prepare(job.cfg.data), job.cfg)
    from train import weights
    from train.loop import restored_params

    weights.check_names(job.cfg, job.args.names)
    params = restored_params(job.cfg, job.contract, corpus, job.args.step)
    directory = job.args.to or job.contract.run_dir / "export"
    definition = corpus.tokenizer.definition
    print(weights.export(directory, params, job.cfg, job.args.names, definition))
    return contract.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
