"""Mixed images as negatives of captions, made on device while training (the visual contrastive loss).

Every image is mixed with a partner from its run of `group` consecutive rows of the batch: where a device holds whole
runs nothing is sent, and the result does not depend on how many devices there are. With both methods, or with both
views (as the images are trained on, and squashed whole), the runs take turns. The draws depend on the seed and the step
alone.
"""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Int, UInt8
from ml_collections import ConfigDict

from rococo_jax.errors import InputError
from rococo_jax.perturb.images.mixing import Mixing, is_negative, mix_batch
from rococo_jax.training.forward import Batch


def check_groups(config: ConfigDict, devices: int) -> None:
    """Raises InputError unless every device holds whole runs."""
    group, rows = config.losses.vc.group, config.batch_size // devices
    if rows % group:
        wanted = f"a divisor of the {rows} images of a device"
        raise InputError("config", "losses.vc.group", group, wanted)


def with_mixed(batch: Batch, key: Array, vc: ConfigDict, mesh: Mesh | None) -> Batch:
    """The batch with `mixed (b 1 h w 3)` and `mixed_valid (b 1)`: False where the image was mixed with itself."""
    ids, methods = batch["image_id"], vc.methods.split(",")
    run = jnp.arange(len(ids)) // vc.group
    images = _views(batch, vc, run // len(methods))
    made = []
    for method in methods:
        mixing = Mixing(method=method, ratio=vc.ratio, derangement=True, group=vc.group)
        mixed = mix_batch(images, key, mixing, mesh=mesh)
        made.append((mixed.images, is_negative(mixed, ids)))
    mixed, valid = made[0]
    if len(made) > 1:
        second = run % 2 == 1
        mixed = jnp.where(second[:, None, None, None], made[1][0], mixed)
        valid = jnp.where(second, made[1][1], valid)
    kept = {name: value for name, value in batch.items() if name != "squashed"}
    return {**kept, "mixed": mixed[:, None], "mixed_valid": valid[:, None]}


def _views(batch: Batch, vc: ConfigDict, turn: Int[Array, " b"]) -> UInt8[Array, "b h w 3"]:
    views = [batch[{"cropped": "pixels", "squashed": "squashed"}[name]] for name in vc.views.split(",")]
    return views[0] if len(views) == 1 else jnp.where((turn % 2 == 0)[:, None, None, None], *views)


def step_key(seed: int, step: Array) -> Array:
    """The key of a step."""
    return jax.random.fold_in(jax.random.key(seed), step)
