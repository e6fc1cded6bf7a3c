"""Run the local cloud's command line."""

import sys

try:
    from localcloud.cli import main
except ModuleNotFoundError as error:
    sys.exit(f"localcloud: {error}: run it as .venv/bin/python -m localcloud (make env makes that)")

sys.exit(main())
