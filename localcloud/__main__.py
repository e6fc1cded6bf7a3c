"""Run the local cloud's command line."""

import sys

from localcloud.cli import main

sys.exit(main())
