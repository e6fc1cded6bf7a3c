"""Random models of transformers and their logits; a script that runs in .venv-transformers.

    python transformers_models.py make DIRECTORY CONFIGS…   reads DIRECTORY/models.json
    python transformers_models.py logits DIRECTORY…         reads tokens.npy in each directory
    python transformers_models.py random DIRECTORY…         reads config.json in each directory

``make`` saves a model for each entry of models.json in a directory with the entry's name, and then
does what ``logits`` does for these directories. For each directory of CONFIGS, which contains a
config.json, it writes the shapes of tensors to shapes.json and the configuration with all defaults
to values.json, without allocating a model.
``logits`` loads the model of each directory, fails on any warning, and writes logits.npy.
``random`` saves a model in bfloat16 with transformers' initial values and random norms.
"""

import json
import logging
import sys
from pathlib import Path

import numpy as np
import torch
import transformers


def make(directory: str, *configs: str) -> None:
    models = json.loads((Path(directory) / "models.json").read_text())
    for name, model in models.items():
        config = getattr(transformers, model["config"])(**model["options"])
        save(transformers.AutoModelForCausalLM.from_config(config), Path(directory) / name, model)
    logits(*(Path(directory) / name for name in models))
    shapes(*configs)


def save(model: transformers.PreTrainedModel, directory: Path, options: dict[str, str]) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        # Change parameters, so that norms are not 1 and biases are not 0.
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.to(getattr(torch, options["dtype"]))
    model.save_pretrained(directory, max_shard_size=options["shard_size"])


class Failing(logging.Handler):
    """Log handler that raises an error for each record."""

    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(record.getMessage())


def logits(*directories: str | Path) -> None:
    logging.getLogger("transformers").addHandler(Failing(logging.WARNING))
    for directory in map(Path, directories):
        model, loading_info = transformers.AutoModelForCausalLM.from_pretrained(
            directory, output_loading_info=True, dtype=torch.float32
        )
        assert not any(loading_info.values()), loading_info
        tokens = torch.tensor(np.load(directory / "tokens.npy"))
        with torch.no_grad():
            np.save(directory / "logits.npy", model.eval()(tokens).logits.numpy())


def random(*directories: str) -> None:
    torch.manual_seed(0)
    for directory in directories:
        config = transformers.AutoConfig.from_pretrained(directory)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(directory, max_shard_size="1GB")


def shapes(*directories: str) -> None:
    for directory in map(Path, directories):
        config = transformers.AutoConfig.from_pretrained(directory)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        tensor_shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
        (directory / "shapes.json").write_text(json.dumps(tensor_shapes))
        config.to_json_file(directory / "values.json", use_diff=False)


if __name__ == "__main__":
    commands = {"make": make, "random": random, "logits": logits}
    commands[sys.argv[1]](*sys.argv[2:])
