"""Floating-point operations of a training step, counted from the spec: the towers and heads; losses are left out.

    a pass forward        image_flops or text_flops a row
    a pass backward       twice that, through what is trained
    rematerialised        one pass forward more through what is trained
    in parts              one pass forward more through everything (gradient cache)

The losses are `4 B^2 dim` a pair of passes and matter only where a batch has more pairs than a tower has parameters.
"""

from ml_collections import ConfigDict

from rococo_jax.models import ModelSpec, ResNetSpec
from rococo_jax.models.flops import image_flops, text_flops
from rococo_jax.training.freezing import frozen_layers


def step_flops(config: ConfigDict, spec: ModelSpec, text_length: int) -> float:
    """Operations of one step on all devices together.

    Args:
        text_length: tokens that every text is padded to.
    """
    losses = config.losses
    images = 1 + bool(losses.vc.weight)
    texts = 1 + bool(losses.sc.weight) * losses.sc.count
    if losses.hard_positives.weight:
        texts += 1 + losses.hard_positives.count
    if config.data.cached_features:
        # Heads only; all that a pass costs is their products.
        heads = [_head_flops(spec.vision_head, spec.vision.features), _head_flops(spec.text_head, spec.text.features)]
        return 3.0 * config.batch_size * (images * heads[0] + texts * heads[1])
    of_images = images * image_flops(spec) * _passes(config, spec, "vision")
    of_texts = texts * text_flops(spec, text_length) * _passes(config, spec, "text")
    return config.batch_size * (of_images + of_texts)


def _passes(config: ConfigDict, spec: ModelSpec, side: str) -> float:
    """How many forward passes a row costs."""
    what = config.train[side]
    tower = getattr(spec, side)
    share = float(what == "all")
    if what.startswith("last:") and not isinstance(tower, ResNetSpec):
        share = 1 - frozen_layers(spec, side, what) / tower.layers
    again = float(config.micro_batches > 1)
    return 1 + again + share * (2 + config.remat)


def _head_flops(head, features: int) -> float:
    if head.hidden is None:
        return 2.0 * features * (head.dim or 0)
    return 2.0 * (features * head.dim + features * head.hidden + head.hidden * head.dim)
