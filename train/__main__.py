"""The command line: ``python -m train run|eval|sample|bench|prepare|plot|export``."""

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
from train.config import Config, ConfigError, check_share, load
from train.corpus import prepare, read_meta
from train.data import Corpus
from train.kept_corpus import prepared
from train.texts import CorpusError

# Verbs import JAX as late as they can: a mistake in the config must cost a second, and touch no
# device.


@dataclass(frozen=True)
class Job:
    """What a verb works on: the words of the command line, the config, the run's place."""

    words: argparse.Namespace
    cfg: Config
    place: contract.Contract


def main(arguments: Sequence[str]) -> int:
    """Do one verb and return the exit code of the run contract."""
    parser = _parser()
    words, more = parser.parse_known_args(arguments)
    if unknown := [word for word in more if word.startswith("-") or words.verb == "plot"]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.WARNING)
    logging.getLogger("train").setLevel(logging.INFO)
    # Where JAX keeps what it compiled, it leaves out what took less than a second: a relaunch
    # would compile all of that again.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    try:
        if words.verb == "plot":
            return _plot(words)
        cfg = load(words.config, [*words.overrides, *more])
        place = contract.from_environment(os.environ, words.config, cfg)
        return words.do(Job(words, cfg, place))
    except ConfigError as err:
        print(f"train: {err}{_again(words)}", file=sys.stderr)
        return contract.BAD_CONFIG
    except CorpusError as err:
        print(f"train: {err}", file=sys.stderr)
        return contract.CRASHED


def _again(words: argparse.Namespace) -> str:
    """Say what to type once it is mended, to who typed it: in a fleet that was the controller."""
    if "TPUFLEET_RUN" in os.environ or words.verb == "plot":
        return ""
    return f"; mended there or by key=value: python -m train {words.verb} {words.config} key=value"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m train",
        description="Train a GPT in JAX, and do things with what was trained.",
        epilog="Every key of a config, with its default: docs/trainer.md. "
        "A run by hand lives in runs/<config's name>; in a fleet, where TPUFLEET_RUN_DIR says.",
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
                help="a key of the config, dotted, and its value: model.layers=4",
            )
        return added

    verb(
        "run",
        _run,
        "train until the config's last step, from the last checkpoint if there is one",
        "Ends with 0 when done, 75 when interrupted by SIGTERM and saved, 3 when the loss is no "
        "number, 2 when the config can't be run.",
    )
    evaluating = verb(
        "eval",
        _eval,
        "compute the loss, perplexity and bits per byte on the held-out text",
        "evaluate.batches=N says how many batches of windows are tried.",
    )
    sampling = verb("sample", _sample, "write a passage", "sample.prompt=TEXT says how it begins.")
    benching = verb(
        "bench",
        _bench,
        "measure tokens a second, MFU and memory of a config on this machine",
        "Trains on random tokens: no corpus is needed and no checkpoint is touched.",
    )
    benching.add_argument("--steps", type=_count, default=20, help="steps to measure (20)")
    verb(
        "prepare",
        _prepare,
        "make the corpus ready; run does so by itself",
        "Fetches and tokenizes it, once a machine.",
    )
    plotting = verb("plot", None, "draw the loss of one run or several into one picture")
    plotting.add_argument(
        "runs", metavar="RUN", nargs="+", type=Path, help="a run directory with a metrics.jsonl"
    )
    plotting.add_argument(
        "--to", type=Path, default=Path("loss.svg"), help="the picture, .svg or .png (loss.svg)"
    )
    exporting = verb(
        "export",
        _export,
        "write the parameters to a safetensors file, adapters merged",
        "By GPT-2's names Hugging Face's transformers loads it; a config's init_from takes either.",
    )
    exporting.add_argument(
        "--to", type=Path, metavar="DIR", help="where to (export/ in the run's directory)"
    )
    exporting.add_argument(
        "--names",
        choices=["gpt2", "plain"],
        default="gpt2",
        help="GPT-2's names, or those of train/model.py, which any model has (gpt2)",
    )
    for reading in (evaluating, sampling, exporting):
        reading.add_argument(
            "--step", type=_count, help="take the checkpoint of this step, not the last"
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
        f"{meta.vocabulary} different ones ({meta.tokenizer})"
    )
    return contract.DONE


def _run(job: Job) -> int:
    cfg, place = job.cfg, job.place
    check_share(cfg, place.num_processes, "processes")
    with importing():
        contract.check_writable(place)
    heartbeat = contract.Heartbeat(place.run_dir, cfg.steps)
    heartbeat.write("starting")
    try:
        corpus = Corpus(prepared(cfg.data, place), cfg)
        with importing():
            from train import compiled, optimizer, weights

            optimizer.check(cfg)
            weights.check(cfg)
            from train.loop import Run
            from train.mesh import join
        join(place)
        compiled.carry(place)
        return Run(cfg, place, corpus, heartbeat).go()
    except (ConfigError, CorpusError):
        heartbeat.write("failed")
        raise
    except Exception:
        traceback.print_exc()
        heartbeat.write("failed")
        # With a peer gone, an ordinary exit would wait for it in a barrier.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(contract.CRASHED)


@contextmanager
def importing() -> Iterator[None]:
    """Look for no garbage meanwhile, nor ever in what this leaves behind: modules stay.

    A run's imports take a tenth less of a processor so, in each process of a restart.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _eval(job: Job) -> int:
    corpus = Corpus(prepare(job.cfg.data), job.cfg)
    from train.evaluation import evaluation
    from train.loop import restored_params

    params = restored_params(job.cfg, job.place, corpus, job.words.step)
    found = evaluation(params, job.cfg, corpus)
    print(
        f"held-out loss {found.loss:.4f}, perplexity {found.perplexity:.2f}, "
        f"{found.bits_per_byte:.4f} bits per byte, over {found.windows} windows "
        f"of {job.cfg.model.context} tokens"
    )
    return contract.DONE


def _sample(job: Job) -> int:
    corpus = Corpus(prepare(job.cfg.data), job.cfg)
    from train.loop import restored_params
    from train.sample import passage

    params = restored_params(job.cfg, job.place, corpus, job.words.step)
    print(passage(params, job.cfg, corpus.tokenizer))
    return contract.DONE


def _bench(job: Job) -> int:
    from train.bench import measure

    print(measure(job.cfg, job.words.steps))
    return contract.DONE


def _plot(words: argparse.Namespace) -> int:
    from train.plot import draw

    draw(words.runs, words.to)
    print(words.to)
    return contract.DONE


def _export(job: Job) -> int:
    corpus = Corpus(prepare(job.cfg.data), job.cfg)
    from train import weights
    from train.loop import restored_params

    weights.check_names(job.cfg, job.words.names)
    params = restored_params(job.cfg, job.place, corpus, job.words.step)
    directory = job.words.to or job.place.run_dir / "export"
    definition = corpus.tokenizer.definition
    print(weights.write(directory, params, job.cfg, job.words.names, definition))
    return contract.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
