"""Entry point of ``python -m localcloud``."""

import sys

try:
    from localcloud.cli import main
except ModuleNotFoundError as error:
    sys.exit(f"localcloud: {error}. Run: make env-localcloud, then .venv/bin/python -m localcloud")

sys.exit(main())
