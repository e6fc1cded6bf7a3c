"""Import and export of parameters as safetensors files.

The tensors have the names of the library transformers or of model.py. families.py lists the
supported model families of transformers. A file of such a family has separate tensors for each
layer, merges the axes of the attention heads, and stores the output layer as (v, d). No file
contains padding of the vocabulary: export removes it, import adds it.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from train.core import lora
from train.core.config import Config, ConfigError, ModelConfig
from train.core.model import Params, init_params, is_layer_matrix, matrix_axes
from train.core.sharding import gathered
from train.data.texts import digest_of
from train.hf import families
from train.hf.families import GPT2, Family, closest
from train.hf.files import CONFIG, WEIGHTS, Tensors, parsed
from train.run import mesh
from train.storage import write_atomically
from train.strict import section

type Index = tuple[slice, ...]


def export(directory: Path, params: Params, cfg: Config, names: str) -> Path:
    """Write the parameters, with adapters merged, to a safetensors file and return its path.

    If ``params`` are sharded over several processes, all must call this, and only process 0 writes.

    ``names`` is ``transformers`` or ``plain`` (the names of model.py). For ``transformers``, also
    writes a config.json. Raises ConfigError for a model that no family of transformers supports.
    """
    family, merged = check_names(cfg, names), lora.merge(params, cfg)
    parts: dict[str, list[np.ndarray]] = {}
    # If a tensor combines several parameters, they are in the order of family.names.
    for name in sorted(merged, key=[*family.names].index) if family else merged:
        array = np.asarray(gathered(merged[name]))
        if jax.process_index() == 0:
            prefix = family.prefix if family and name != "head_dv" else ""
            for file_name, part in _stored(name, array, cfg.model, family).items():
                parts.setdefault(prefix + file_name, []).append(part)
    if jax.process_index():
        return directory / WEIGHTS
    tensors = {}
    for name in [*parts]:
        arrays = parts.pop(name)  # so that memory holds no part that has been copied
        tensor = np.concatenate(arrays, -1) if len(arrays) > 1 else arrays[0]
        # save_file ignores the axis order of a view and writes its memory as it is.
        tensors[name] = np.ascontiguousarray(tensor)
    directory.mkdir(parents=True, exist_ok=True)
    partial_file = directory / f".{WEIGHTS}"
    save_file(tensors, partial_file, {"format": "pt", "model": json.dumps(asdict(cfg.model))})
    if family:
        text = json.dumps(family.config_json(cfg.model), indent=2)
        write_atomically(directory / CONFIG, text + "\n")
    return partial_file.replace(directory / WEIGHTS)


def check_names(cfg: Config, names: str) -> Family | None:
    """Return the family whose names an export uses; None if ``names`` is ``plain``.

    Raises ConfigError for a model that no family supports.
    """
    if names == "plain":
        return None
    family = closest(cfg.model)
    if difference := family.incompatibility(cfg.model):
        raise ConfigError(
            f"{difference}, which {family.title} cannot express. Export with -e names=plain, or on "
            "the command line of the trainer with --names plain"
        )
    return family


def check(cfg: Config) -> None:
    """Raise ConfigError unless ``init_from`` has this model's parameters.

    Reads only names and shapes, and needs no device.
    """
    if cfg.init_from is not None:
        _Weights(cfg)


def load_initial(state: dict[str, Any], cfg: Config) -> dict[str, Any]:
    """Return the state of step 0 with the parameters of ``init_from``, if configured.

    The parameters in ``state`` are replaced one by one, so that memory never holds two models.
    Shardings stay the same. Each process reads a tensor once for all of its shards. Raises
    ConfigError as ``check`` does, and if processes have different files.
    """
    if cfg.init_from is None:
        return state
    weights = _Weights(cfg)
    if jax.process_count() > 1:
        mesh.check_equal(
            digest_of(weights.tensors.files),
            f"have different files in init_from ({cfg.init_from}) than process 0",
        )
    params = state["params"]
    for name, a in params.items():
        if not lora.is_adapter(name):
            indices = a.sharding.addressable_devices_indices_map(a.shape).values()
            shards = weights.read(name, a.shape, set(indices))
            params[name] = jax.make_array_from_callback(a.shape, a.sharding, shards.__getitem__)
    return state


def tensor_shapes(cfg: ModelConfig, family: Family | None) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a model's files, by name without the family's prefix.

    Without a family, the tensors are the parameters of model.py. Allocates nothing.
    """

    def parts() -> dict[str, dict[str, jax.Array]]:
        params = init_params(jax.random.key(0), cfg)
        return {name: _stored(name, a, cfg, family) for name, a in params.items()}

    shapes: dict[str, tuple[int, ...]] = {}
    for stored in jax.eval_shape(parts).values():
        for file_name, part in stored.items():
            *inputs, outputs = part.shape
            shapes[file_name] = (*inputs, outputs + shapes.get(file_name, (0,))[-1])
    return shapes


class _Weights:
    """Parameters of ``init_from``, checked against the configured model."""

    def __init__(self, cfg: Config) -> None:
        self.model, self.tensors = cfg.model, Tensors(str(cfg.init_from), cfg.data)
        self.family, file_model, source = self._identify()
        families.check_same(file_model, self.model, source)
        prefix = self.family.prefix if self.family else ""
        self.names = {n.removeprefix(prefix): n for n in self.tensors.shapes}
        self._check()

    def _identify(self) -> tuple[Family | None, ModelConfig, str]:
        """Return the files' family, their ModelConfig, and the prefix of errors about the model.

        The family is None if the tensors have the names of model.py's parameters. Raises
        ConfigError if the family is unknown.
        """
        tensors, content = self.tensors, self.tensors.config
        source = f"init_from: {tensors.path}"
        if "tokens_vd" in tensors.shapes:
            exported = parsed(tensors.metadata.get("model", "{}"), f"{source}: model")
            # If another program wrote the file, it has no model options: use the config's.
            options = asdict(self.model)
            return None, section(ModelConfig, exported or options, source, "model."), source
        if content is None:
            raise ConfigError(f"{source} needs a {CONFIG} beside it, with the model's options")
        source = f"init_from: {tensors.directory / CONFIG}"
        family = families.named(content, source)
        return family, family.model(content, source), source

    def _check(self) -> None:
        """Raise ConfigError unless the files have exactly this model's tensors."""
        source = f"init_from: {self.tensors.path}"
        shapes = tensor_shapes(self.model, self.family)
        for name, expected in shapes.items():
            if name not in self.names:
                raise ConfigError(
                    f"{source}: the tensor {name} is missing, but the config needs it. Change the "
                    "options of model, or use other weights"
                )
            actual = self.tensors.shapes[self.names[name]]
            is_longer = actual[1:] == expected[1:] and actual > expected
            # A file may have more position embeddings than the model. Only the first are used.
            is_positions = name in ("positions_td", GPT2.names["positions_td"])
            if actual != expected and not (is_longer and is_positions):
                raise ConfigError(
                    f"{source}: the tensor {name} is {_format_shape(actual)}, but the config needs "
                    f"{_format_shape(expected)}. Change the options of model, or use other weights"
                )
        for name in sorted(self.names.keys() - shapes.keys()):
            is_unused = self.family and self.family.unused.fullmatch(name)
            if not (is_unused or (self.model.tied and name == GPT2.names["head_dv"])):
                raise ConfigError(
                    f"{source}: the tensor {name} is not part of the config's model. Change the "
                    "options of model, or use other weights"
                )

    def read(self, name: str, shape: tuple[int, ...], indices: Iterable[Index]) -> dict[Index, Any]:
        """Return the shards ``indices`` of a parameter of model.py, as float32.

        ``shape`` is that of the whole parameter. The vocabulary is padded with zeros. ``indices``
        must select all layers, because files of a family have a tensor for each layer.
        """
        shards: dict[Index, list[np.ndarray]] = {index: [] for index in indices}
        per_layer = self.family is not None and name.startswith("l_")
        for file_name in _file_names(name, self.model, self.family):
            array = self._read(name, file_name, shape[per_layer:])
            for index, layer_arrays in shards.items():
                layer_arrays.append(array[index[per_layer:]].astype(np.float32))
        return {index: np.stack(p) if per_layer else p[0] for index, p in shards.items()}

    def _read(self, name: str, file_name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Read a parameter of model.py, or one layer of it: padded, in the dtype of the file."""
        array = self.tensors.read(self.names[file_name])
        tensor_params = _tensor_params(name, self.family)
        array = np.split(array, len(tensor_params), axis=-1)[tensor_params.index(name)]
        if _is_transposed(name, self.family):
            array = array.T
        unpadded = _unpadded_shape(name, shape, self.model)
        if name == "positions_td":
            array = array[: self.model.context]
        array = array.reshape(unpadded)
        if unpadded == shape:
            return array
        return np.pad(array, [(0, to - n) for n, to in zip(unpadded, shape, strict=True)])


def _file_names(name: str, cfg: ModelConfig, family: Family | None) -> list[str]:
    """Return the names of the stored tensors that contain the parameter ``name`` of model.py.

    For a parameter of the layers, files of a family have one tensor per layer, and files with the
    names of model.py have one tensor for all layers.
    """
    file_name = family.names[name] if family else name
    return [file_name.format(i) for i in range(cfg.layers)] if "{}" in file_name else [file_name]


def _tensor_params(name: str, family: Family | None) -> list[str]:
    """Return the parameters that a file stores in one tensor with ``name``, in stored order."""
    if family is None:
        return [name]
    return [other for other in family.names if family.names[other] == family.names[name]]


def _is_transposed(name: str, family: Family | None) -> bool:
    """Return whether files store a matrix as (out, in); model.py always has (in, out)."""
    if family is None:
        return False
    return name == "head_dv" or (family.is_output_first and is_layer_matrix(name))


def _stored(
    name: str, array: jax.Array | np.ndarray, cfg: ModelConfig, family: Family | None
) -> dict[str, Any]:
    """Return the arrays to export for one parameter of model.py, by tensor name.

    The arrays have no padding. With a family, axes of heads are merged, and an array may be only a
    part of its tensor (``_tensor_params``).
    """
    arrays = [array[tuple(map(slice, _unpadded_shape(name, array.shape, cfg)))]]
    if family and name.startswith("l_"):
        axes, shape = matrix_axes(name), (-1,)
        if axes:
            shape = (math.prod(array.shape[1 : 1 + len(axes[0])]), -1)
        arrays = [layer.reshape(shape) for layer in arrays[0]]
    if _is_transposed(name, family):
        arrays = [a.T for a in arrays]
    return dict(zip(_file_names(name, cfg, family), arrays, strict=True))


def _unpadded_shape(name: str, shape: tuple[int, ...], cfg: ModelConfig) -> tuple[int, ...]:
    axis = {"tokens_vd": 0, "head_dv": 1, "head_v": 0}.get(name)
    return tuple(cfg.vocabulary if i == axis else n for i, n in enumerate(shape))


def _format_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
