"""Prove only that Python starts, and that this user may open the device files of the chips."""

import json
import os
import sys
from pathlib import Path

pattern = os.environ["TPUFLEET_DEVICE_GLOB"]
matching = Path("/").glob(pattern.lstrip("/")) if pattern else ()
found = [path for path in matching if path.name != "vfio"]  # /dev/vfio/vfio is not a chip
closed = [str(path) for path in found if not os.access(path, os.R_OK | os.W_OK)]
if closed:
    sys.exit(f"the user {os.getuid()} may not open {', '.join(sorted(closed))}")
print(json.dumps({"devices": len(found) if pattern else 1}))
