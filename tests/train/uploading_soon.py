"""Runs ``python -m train run`` and uploads compiled programs every second instead of every 10 s.

Run by test_bucket_runs.py; the arguments are a config and overrides.
"""

import sys

from train.__main__ import main
from train.run import compile_cache

if __name__ == "__main__":
    compile_cache.UPLOAD_INTERVAL_SECONDS = 1
    sys.exit(main(["run", *sys.argv[1:]]))
