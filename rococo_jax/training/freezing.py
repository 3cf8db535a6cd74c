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


def cached_sides(config: ConfigDict) -> tuple[str, ...]:
    """The towers whose features are computed once: none, "vision" (LiT, arXiv 2111.07991), or both."""
    if not config.data.cached_features:
        return ()
    return SIDES if config.train.text == "none" else ("vision",)


_Any = jax.Array | np.ndarray


def frozen_layers(spec: ModelSpec, side: str, what: str) -> int:
    """Count the frozen blocks of a tower where `what` is trained ("all", "none" or "last:N").

    Raises InputError: more blocks than the tower has, or some blocks of a tower without a stack (of convolutions).
    """
    layers = getattr(spec, side).layers
    if what in ("all", "none"):
        return 0 if what == "all" else layers
    if not layers:
        raise InputError("config", f"train.{side}", what, "'all' or 'none' for a tower of convolutions")
    last = int(what.removeprefix("last:"))
    if last > layers:
        raise InputError("config", f"train.{side}", what, f"at most 'last:{layers}', the blocks of this tower")
    return layers - last


def split_parameters(
    parameters: Mapping[str, jax.Array], spec: ModelSpec, train: Mapping[str, str] | ConfigDict
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """The trained and the frozen part; `join_parameters` is the inverse."""
    trained, frozen = {}, {}
    heads = train.get("heads", "all")
    cuts = {side: frozen_layers(spec, side, train[side]) for side in SIDES}
    for path, array in parameters.items():
        side = path.partition(".")[0]
        what = train[side] if side in SIDES else "all"
        if heads != "all" and side in ("vision_head", "text_head") and side != f"{heads}_head":
            what = "none"
        if what == "all":
            trained[path] = array
        elif what == "none":
            frozen[path] = array
        elif path.startswith(f"{side}.blocks."):
            trained[path] = array[cuts[side] :]
            if cuts[side]:
                frozen[path] = array[: cuts[side]]
        elif path.startswith(after_blocks(spec, side)):
            trained[path] = array
        else:
            frozen[path] = array
    return trained, frozen


def after_blocks(spec: ModelSpec, side: str) -> tuple[str, ...]:
    """How the paths of a tower begin that come after its blocks."""
    # BERT's norm stands before the blocks.
    if side == "text" and spec.text.norm_after_blocks:
        return (f"{side}.pooling.",)
    return (f"{side}.norm.", f"{side}.pooling.")


def join_parameters(trained: Mapping[str, _Any], frozen: Mapping[str, _Any]) -> dict[str, _Any]:
    """All parameters by path, on the host where both parts are."""
    both = [path for path in frozen if path in trained]  # in this order: a set's differs between processes
    on_host = all(isinstance(part[path], np.ndarray) for path in both for part in (frozen, trained))
    concatenate = np.concatenate if on_host else jnp.concatenate
    stacks = {path: concatenate([frozen[path], trained[path]]) for path in both}
    return {**frozen, **trained, **stacks}


def stop_at_frozen(model: DualEncoder, train: Mapping[str, str] | ConfigDict) -> None:
    """Sets in the towers where gradients stop, so that frozen blocks cost no backward pass."""
    for side, stack in model.stacks.items():
        stack.frozen_layers = frozen_layers(model.spec, side, train[side])
