"""The command line: ``python -m train run|sample|prepare CONFIG key=value…``."""

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence

from train import contract
from train.config import Config, ConfigError, check_share, load
from train.corpus import CorpusError, prepare, read_meta
from train.data import Corpus


def main(arguments: Sequence[str]) -> int:
    """Do one verb and return the exit code of the run contract."""
    words = _parser().parse_args(arguments)
    verb = {"run": _run, "sample": _sample, "prepare": _prepare}[words.verb]
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.WARNING)
    logging.getLogger("train").setLevel(logging.INFO)
    try:
        cfg = load(words.config, words.overrides)
        place = contract.from_environment(os.environ, words.config, cfg)
        return verb(cfg, place)
    except ConfigError as err:
        print(f"train: {err}", file=sys.stderr)
        return contract.BAD_CONFIG
    except CorpusError as err:
        print(f"train: {err}", file=sys.stderr)
        return contract.CRASHED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m train", description="Train a GPT in JAX.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    helps = {
        "run": "train until the config's last step, from the last checkpoint if there is one",
        "sample": "let the last checkpoint write a passage",
        "prepare": "make the corpus ready; run does so by itself",
    }
    for name, text in helps.items():
        verb = verbs.add_parser(name, help=text, description=text.capitalize() + ".")
        verb.add_argument("config", metavar="CONFIG", help="a YAML file")
        verb.add_argument(
            "overrides",
            metavar="key=value",
            nargs="*",
            help="a key of the config, dotted, and its value: model.layers=4",
        )
    return parser


def _prepare(cfg: Config, place: contract.Contract) -> int:
    directory = prepare(cfg.data)
    meta = read_meta(directory)
    print(f"{directory}: {meta.train} tokens to train on, {meta.heldout} held out")
    return contract.DONE


def _run(cfg: Config, place: contract.Contract) -> int:
    check_share(cfg, place.num_processes, "processes")
    contract.check_writable(place)
    heartbeat = contract.Heartbeat(place.run_dir, cfg.steps)
    heartbeat.write("starting")
    try:
        corpus = Corpus(prepare(cfg.data), cfg)
        # Imported this late: a mistake in the config must cost a second, and touch no device.
        from train.loop import Run
        from train.mesh import join

        join(place)
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


def _sample(cfg: Config, place: contract.Contract) -> int:
    corpus = Corpus(prepare(cfg.data), cfg)
    from train.loop import restored_params
    from train.sample import passage

    print(passage(restored_params(cfg, place, corpus), cfg, corpus.tokenizer))
    return contract.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
