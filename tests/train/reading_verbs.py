"""Runs eval, sample, export and bench of a checkpoint, one after the other in one process.

Run by test_other_processes.py; the arguments are a config and overrides. Only the first verb
connects the processes, because JAX can connect a process only once.
"""

import sys

from train.__main__ import main
from train.run import mesh

VERBS = ("eval", "sample", "export", "bench")


if __name__ == "__main__":
    for verb in VERBS:
        sys.stdout.write(f"--- {verb}\n")
        if code := main([verb, *sys.argv[1:]]):
            sys.exit(code)
        mesh.join = lambda *_, **_options: None
