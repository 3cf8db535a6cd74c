"""A step in float8: which products it takes, where their histories lie, and the chips that have it.

It takes products of the blocks of transformers that are trained whole, the bulk of a step's operations; attention,
patches, heads and losses stay as they are. Histories are a state of the optimizer, and so of checkpoints: the step
differentiates with respect to them, and their cotangents say what was seen (`models.float8`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import optax
from flax import nnx
from ml_collections import ConfigDict

from rococo_jax.errors import InputError
from rococo_jax.models import DualEncoder
from rococo_jax.models.attention import compute_capability
from rococo_jax.models.float8 import first_history, renewed
from rococo_jax.models.layers import Linear
from rococo_jax.training.freezing import SIDES

# Before the paths of maps among those of parameters.
_PREFIX = "float8:"
# The first of NVIDIA's GPUs that multiply float8 (Ada; the H100 has 9.0), and the first of TPUs.
_ADA, _TPU = 8.9, "TPU7x"


def float8_kernels(config: ConfigDict, trained: Mapping[str, Any]) -> tuple[str, ...]:
    """The trained kernels whose products are float8; () without `config.float8`.

    Raises InputError: no tower has any.
    """
    if not config.float8:
        return ()
    sides = tuple(f"{side}.blocks." for side in SIDES if config.train[side] == "all")
    kernels = tuple(path for path in sorted(trained) if path.startswith(sides) and path.endswith(".kernel"))
    if not kernels:
        raise InputError("config", "config.float8", True, "false, or a transformer among the towers that train 'all'")
    return kernels


def check_device(device: Any) -> None:
    """Raises InputError where a device does not multiply float8; CPUs emulate it."""
    if device.platform == "cpu" or compute_capability(device) >= _ADA or device.device_kind.startswith(_TPU):
        return
    wanted = f"false, an NVIDIA GPU from compute capability {_ADA} on (as the H100), or a {_TPU}; CPUs emulate it"
    raise InputError("config", "config.float8", f"true on {device.device_kind}", wanted)


def keep_histories(kernels: Sequence[str]) -> optax.GradientTransformation:
    """Keeps the histories of these kernels, and takes what was seen out of the gradients."""

    def start(parameters):
        return {_PREFIX + path: first_history(parameters[path].shape[0]) for path in kernels}

    def update(updates, histories, params=None):
        rest = {path: update for path, update in updates.items() if path not in histories}
        return rest, {path: renewed(history, updates[path]) for path, history in histories.items()}

    return optax.GradientTransformation(start, update)


def histories_of(moments: tuple) -> dict[str, jax.Array]:
    """Amax histories of an optimizer whose first transformation keeps them."""
    return moments[0]


def split_histories(parameters: Mapping[str, jax.Array]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """The parameters, and the histories by the path of their map."""
    histories = {
        path.removeprefix(_PREFIX).removesuffix(".kernel"): array
        for path, array in parameters.items()
        if path.startswith(_PREFIX)
    }
    return {path: array for path, array in parameters.items() if not path.startswith(_PREFIX)}, histories


def use_float8(model: DualEncoder, histories: Mapping[str, jax.Array]) -> None:
    """Makes the maps of a model that have a history multiply in float8."""
    for path, module in nnx.iter_modules(model) if histories else ():
        if isinstance(module, Linear) and (name := ".".join(map(str, path))) in histories:
            module.float8 = nnx.data(nnx.Variable(histories[name]))
