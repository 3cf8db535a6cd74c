"""Split parameters, a dictionary of dotted paths, into a trained and a frozen part.

Blocks are stacked along a leading axis, so "the last N blocks" splits every array of the stack: the first layers belong
to the frozen part, the last to the trained part, under the same path. Inputs of the blocks (patches, words, positions)
are frozen with them.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from rococo_jax.errors import InputError
from rococo_jax.models import DualEncoder, ModelSpec

SIDES = ("vision", "text")
# An array on devices or on the host.
_AnyArray = jax.Array | np.ndarray


def frozen_layers(spec: ModelSpec, side: str, trainable: str) -> int:
    """Count the frozen blocks of a tower.

    Args:
        trainable: "all", "none" or "last:N".

    Raises InputError: N is more than the tower has, or the tower is convolutional and has no stack of blocks.
    """
    layers = getattr(spec, side).layers
    if trainable in ("all", "none"):
        return 0 if trainable == "all" else layers
    if not layers:
        raise InputError("config", f"train.{side}", trainable, "'all' or 'none' for a tower of convolutions")
    last = int(trainable.removeprefix("last:"))
    if last > layers:
        raise InputError("config", f"train.{side}", trainable, f"at most 'last:{layers}', the blocks of this tower")
    return layers - last


def split_parameters(
    parameters: Mapping[str, jax.Array], spec: ModelSpec, train: Mapping[str, str] | ConfigDict
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Return the trained and the frozen parameters; `join_parameters` is the inverse."""
    trained, frozen = {}, {}
    heads = train.get("heads", "all")
    frozen_blocks = {side: frozen_layers(spec, side, train[side]) for side in SIDES}
    for path, array in parameters.items():
        side = path.partition(".")[0]
        trainable = train[side] if side in SIDES else "all"
        is_head = side in ("vision_head", "text_head")
        if is_head and heads != "all" and side != f"{heads}_head":
            trainable = "none"
        if trainable == "all":
            trained[path] = array
        elif trainable == "none":
            frozen[path] = array
        elif path.startswith(f"{side}.blocks."):
            trained[path] = array[frozen_blocks[side] :]
            if frozen_blocks[side]:
                frozen[path] = array[: frozen_blocks[side]]
        elif path.startswith(after_blocks(spec, side)):
            trained[path] = array
        else:
            frozen[path] = array
    return trained, frozen


def after_blocks(spec: ModelSpec, side: str) -> tuple[str, ...]:
    """Return the prefixes of the paths of a tower's parameters that come after its blocks."""
    # In BERT the norm comes before the blocks.
    if side == "text" and spec.text.norm_after_blocks:
        return (f"{side}.pooling.",)
    return (f"{side}.norm.", f"{side}.pooling.")


def join_parameters(trained: Mapping[str, _AnyArray], frozen: Mapping[str, _AnyArray]) -> dict[str, _AnyArray]:
    """Return all parameters by path, on the host if both parts are on the host."""
    split_paths = [path for path in frozen if path in trained]  # a list, since sets are ordered differently by process
    on_host = all(isinstance(part[path], np.ndarray) for path in split_paths for part in (frozen, trained))
    concatenate = np.concatenate if on_host else jnp.concatenate
    stacks = {path: concatenate([frozen[path], trained[path]]) for path in split_paths}
    return {**frozen, **trained, **stacks}


def set_gradient_stops(model: DualEncoder, train: Mapping[str, str] | ConfigDict) -> None:
    """Tell each tower how many of its blocks are frozen, so that they cost no backward pass."""
    for side, stack in model.stacks.items():
        stack.frozen_layers = frozen_layers(model.spec, side, train[side])
