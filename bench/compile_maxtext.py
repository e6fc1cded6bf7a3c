"""Compile MaxText's training step for a TPU slice without a TPU, and save its HLO.

    PYTHON bench/compile_maxtext.py v5e:4x4 FILE [key=value ...]

PYTHON is the Python of an environment with MaxText; bench/compile.py runs this program with it.
key=value are settings of MaxText.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5p-32",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "DECOUPLE_GCLOUD": "TRUE",
}
"""Variables that let libtpu compile and MaxText start without a TPU and without Google Cloud."""


def main(topology: str, to: str, *settings: str) -> None:
    """Compile the step with MaxText's own train_compile and write its HLO to the file ``to``."""
    os.environ.update(ENVIRONMENT)
    from maxtext.configs import pyconfig
    from maxtext.trainers.pre_train import train_compile
    from maxtext.utils import accelerator_to_spec_map

    slices = accelerator_to_spec_map.UserFacingNameToSystemCharacteristics.items()
    topology_name = topology.replace("v5p:", "v5:")
    name = next(name for name, slice_ in slices if slice_.topology_name == topology_name)
    compile_ = train_compile.jit_and_compile

    def saving(*args: Any, **kwargs: Any) -> Any:
        compiled = compile_(*args, **kwargs)
        Path(to).write_text(compiled.as_text(), encoding="utf-8")
        return compiled

    train_compile.jit_and_compile = saving
    # Do not print information about the system: MaxText would query real devices for it.
    train_compile.max_utils.print_system_information = lambda: None
    own = {
        "compile_topology": name,
        "compile_topology_num_slices": 1,
        "run_name": "aot",
        "base_output_directory": tempfile.gettempdir(),
        "dataset_type": "synthetic",
        "enable_checkpointing": "false",
    }
    base = Path(pyconfig.__file__).with_name("base.yml")
    overrides = [f"{key}={value}" for key, value in own.items()]
    train_compile.main(["train_compile", str(base), *overrides, *settings])


if __name__ == "__main__":
    main(*sys.argv[1:])
