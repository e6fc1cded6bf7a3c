"""Runs each command that reads a checkpoint, one after the other in the same process.

Run by test_other_processes.py as ``python -m train`` with a config and overrides. The processes
join once, because JAX can connect a process only once.
"""

import sys

from train.__main__ import main
from train.run import mesh

for verb in ("eval", "sample", "export", "bench"):
    sys.stdout.write(f"--- {verb}\n")
    if code := main([verb, *sys.argv[1:]]):
        sys.exit(code)
    mesh.join = lambda *_: None
