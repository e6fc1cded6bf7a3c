"""Prove only that Python starts, and that the current user may open the chips' device files."""

import json
import os
import sys
from pathlib import Path

pattern = os.environ["TPUFLEET_DEVICE_GLOB"]
paths = Path("/").glob(pattern.lstrip("/")) if pattern else ()
device_paths = [path for path in paths if path.name != "vfio"]  # /dev/vfio/vfio is not a chip
inaccessible = [str(path) for path in device_paths if not os.access(path, os.R_OK | os.W_OK)]
if inaccessible:
    sys.exit(f"the user with id {os.getuid()} cannot open {', '.join(sorted(inaccessible))}")
print(json.dumps({"devices": len(device_paths) if pattern else 1}))
