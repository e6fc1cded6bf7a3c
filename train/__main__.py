"""The subcommands of ``python -m train``: run, eval, sample, bench, compile, prepare, export."""

import argparse
import importlib.util
import logging
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from train.command_line import command_line
from train.compile import slices
from train.core.config import Config, ConfigError, check_batch_divisible, load
from train.core.data import Corpus
from train.data.corpus import prepare_all, read_meta
from train.data.corpus_cache import fetched, prepared
from train.data.texts import CorpusError
from train.run import contract
from train.storage import (
    UnavailableError,
    check_path_writable,
    output_directory,
    parse_location,
    repeated,
)

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
    parser = command_line()
    args, extra = parser.parse_known_args(arguments)
    if unknown := [argument for argument in extra if argument.startswith("-")]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.WARNING)
    logging.getLogger("train").setLevel(logging.INFO)
    # By default JAX does not cache programs that compile in less than a second, so a relaunch
    # would compile all of them again.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    try:
        cfg = load(args.config, [*args.overrides, *extra])
        run_contract = contract.from_environment(os.environ, args.config, cfg)
        return VERBS[args.verb](Job(args, cfg, run_contract))
    except ConfigError as err:
        print(f"train: {err}{_fix_hint(args)}", file=sys.stderr)
        return contract.BAD_CONFIG
    except (CorpusError, UnavailableError) as err:
        print(f"train: {err}", file=sys.stderr)
        return contract.CRASHED


def _fix_hint(args: argparse.Namespace) -> str:
    """Return a hint on how to fix the config; "" on a worker, where the controller adds a hint."""
    if "TPUFLEET_RUN" in os.environ:
        return ""
    command = f"python -m train {args.verb} {args.config} key=value"
    return f". Edit the config, or append key=value: {command}"


def _prepare(job: Job) -> int:
    for directory in prepare_all(job.cfg.data):
        meta = read_meta(directory)
        print(
            f"{directory}: {meta.train} tokens to train on, {meta.heldout} held out, "
            f"vocabulary {meta.vocabulary} ({meta.tokenizer})"
        )
    return contract.DONE


def _run(job: Job) -> int:
    cfg = job.cfg
    check_batch_divisible(cfg, job.contract.num_processes, "processes")
    contract.check_writable(job.contract)
    heartbeat = contract.Heartbeat(job.contract.run_dir, cfg.steps)
    try:
        # Preparing data, or waiting for the process that prepares it, may take hours. Renew the
        # heartbeat meanwhile: the watch assumes that a process hangs if its heartbeat is old.
        with repeated(lambda: heartbeat.write("starting"), contract.STARTING_SECONDS):
            with _cleaning_up_at_sigterm():
                corpus = Corpus(prepared(cfg.data, job.contract), cfg)
                from train.core import optimizer
                from train.hf import weights
                from train.run import checkpoint, compile_cache
                from train.run.loop import Run
                from train.run.mesh import join

                optimizer.check(cfg)
                # If there are checkpoints, the run resumes, and init_from is not used.
                if not checkpoint.exist(job.contract.checkpoints):
                    weights.check(cfg)
            join(job.contract, cfg.heartbeat_timeout)
        compile_cache.sync(job.contract)
        code = Run(cfg, job.contract, corpus, heartbeat).train()
    except (ConfigError, CorpusError, UnavailableError):
        heartbeat.write("failed")
        raise
    except Exception:
        traceback.print_exc()
        heartbeat.write("failed")
        # A normal exit would wait in JAX's shutdown barrier, even for processes that have died.
        _exit_immediately(contract.CRASHED)
    if cfg.report.wandb:
        # Avoid a normal exit: wandb would wait minutes for W&B's servers if they do not answer.
        import jax

        jax.distributed.shutdown()
        _exit_immediately(code)
    return code


@contextmanager
def _cleaning_up_at_sigterm() -> Iterator[None]:
    """Let SIGTERM raise SystemExit in the ``with`` block, so that partial files are removed."""
    previous_handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        yield
    except SystemExit:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def _exit_immediately(code: int) -> NoReturn:
    """Exit without running the exit handlers of libraries."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _join(job: Job) -> None:
    if job.contract.num_processes > 1:
        from train.run.mesh import join

        # Do not wait long: if a process fails before it joins, the others wait until this timeout.
        join(job.contract, job.cfg.heartbeat_timeout, join_timeout=300)


def _restored(job: Job, corpus: Corpus) -> tuple[Any, Any]:
    """Load the parameters of the newest checkpoint, or of ``--step``; return them and their mesh.

    The mesh contains all devices of this command. Training may have used other devices, so
    ``compute.fsdp`` does not apply.
    """
    _join(job)
    import jax

    from train.run.mesh import make_mesh
    from train.run.restore import restored_params

    mesh = make_mesh(jax.devices())
    return restored_params(job.cfg, job.contract, corpus, mesh, job.args.step), mesh


def _show(result: object) -> None:
    import jax

    if jax.process_index() == 0:
        print(result)


def _eval(job: Job) -> int:
    corpus = Corpus(fetched(job.cfg.data, job.contract), job.cfg)
    corpus.check_heldout()
    import jax

    from train.core import attention
    from train.core.step import BATCH_SPEC, evaluate, heldout_batches

    params, mesh = _restored(job, corpus)
    attention.check(job.cfg)
    check_batch_divisible(job.cfg, mesh.size, "devices")
    batches = heldout_batches(corpus, job.cfg, jax.NamedSharding(mesh, BATCH_SPEC))
    loss = float(evaluate(params, batches, job.cfg))
    _show(
        f"held-out loss {loss:.4f}, perplexity {math.exp(min(loss, 700)):.2f}, "
        f"over {job.cfg.evaluate.batches * job.cfg.batch} sequences "
        f"of {job.cfg.model.context} tokens"
    )
    return contract.DONE


def _sample(job: Job) -> int:
    corpus = Corpus(fetched(job.cfg.data, job.contract), job.cfg)
    from train.run.sample import generate

    params, _ = _restored(job, corpus)
    _show(generate(params, job.cfg, corpus.tokenizer))
    return contract.DONE


def _bench(job: Job) -> int:
    from train.run.bench import measure

    _join(job)
    _show(measure(job.cfg, job.args.steps))
    return contract.DONE


def _compile(job: Job) -> int:
    if importlib.util.find_spec("libtpu") is None:
        print(
            "train: compile: libtpu is not installed in this Python environment. Run: "
            "make env-compile, then use .venv-tpu/bin/python",
            file=sys.stderr,
        )
        return contract.BAD_CONFIG
    slice_ = job.args.topology
    slices.prepare_environment()
    from train.compile.estimate import estimate
    from train.compile.program import compile_step, report

    program = compile_step(job.cfg, slice_, job.args.slices)
    if job.args.hlo:
        job.args.hlo.write_text(program.hlo, encoding="utf-8")
    costs = estimate(program.hlo, slice_, job.args.slices)
    print(report(program, costs))
    for instruction, seconds in costs.seconds_of.most_common(job.args.slowest):
        print(f"  {1e3 * seconds / job.cfg.compute.steps_per_call:9.3f} ms  {instruction}")
    return contract.DONE


def _export(job: Job) -> int:
    corpus = Corpus(fetched(job.cfg.data, job.contract), job.cfg)
    from train.hf import weights

    weights.check_names(job.cfg, job.args.names)
    to = parse_location(job.args.to or str(job.contract.run_dir / "export"), "--to")
    check_path_writable(to, "--to")
    params, _ = _restored(job, corpus)
    import jax

    with output_directory(to) as directory:
        file = weights.export(directory, params, job.cfg, job.args.names)
        if jax.process_index() == 0:
            corpus.tokenizer.write(directory)
    from train.run.mesh import from_process_0

    # Make the other processes wait for process 0 here: if they waited in JAX's shutdown barrier
    # instead, its time limit would abort a long write.
    from_process_0(True)
    _show(f"{to}/{file.name}")
    return contract.DONE


VERBS: dict[str, Callable[[Job], int]] = {
    "run": _run,
    "eval": _eval,
    "sample": _sample,
    "bench": _bench,
    "compile": _compile,
    "prepare": _prepare,
    "export": _export,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
