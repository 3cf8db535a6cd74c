"""Dual encoder: an image tower and a text tower with heads that map into one space.

    e(x) = head(tower(x)) / |head(tower(x))|,        logits = exp(logit_scale) e(image) . e(text) + logit_bias

Towers compute in `dtype`. Heads and norms compute in float32 at full precision, so that rounding creates no ties.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.models.convnext import ConvNextTower
from rococo_jax.models.layers import ACTIVATIONS, LayerNorm, Linear
from rococo_jax.models.matching import MatchingHead
from rococo_jax.models.resnet import ResNetTower
from rococo_jax.models.spec import (
    ConvNextSpec,
    HeadSpec,
    ModelSpec,
    ResNetSpec,
    VisionSpec,
)
from rococo_jax.models.text import TextTower
from rococo_jax.models.transformer import Blocks
from rococo_jax.models.vision import VisionTower

# Initial values: a temperature of 0.07 in CLIP (arXiv 2103.00020, section 2.5), a scale of 10 and a bias of -10 in
# SigLIP (2303.15343, section 3.2).
_INITIAL_SCALE, _INITIAL_SCALE_WITH_BIAS, _INITIAL_BIAS = 1 / 0.07, 10.0, -10.0


class DualEncoder(nnx.Module):
    """Image tower and text tower with their heads, or one of the towers alone.

    Attributes:
        vision, text: the towers; one of them may be None.
        vision_head, text_head: maps into the shared space, usually linear; None if the features are the embedding.
        logit_scale: logarithm of the factor of the cosines, shape ().
        logit_bias: number added to the scaled cosines, shape (), or None.
        matching: head that scores pairs; None in most models.
        sharded_over: mesh over which the parameters are sharded (`models.fsdp`), or None.
    """

    def __init__(self, spec: ModelSpec, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32):
        self.spec, self.dtype = spec, dtype
        self.sharded_over: Mesh | None = None
        self.vision = None if spec.vision is None else _TOWERS[type(spec.vision)](spec.vision, dtype=dtype, rngs=rngs)
        self.text = None if spec.text is None else TextTower(spec.text, dtype=dtype, rngs=rngs)
        self.vision_head = None if spec.vision is None else _head(spec.vision_head, spec.vision.features, rngs)
        self.text_head = None if spec.text is None else _head(spec.text_head, spec.text.features, rngs)
        scale = _INITIAL_SCALE_WITH_BIAS if spec.logit_bias else _INITIAL_SCALE
        self.logit_scale = nnx.Param(jnp.asarray(math.log(scale), jnp.float32))
        self.logit_bias = nnx.Param(jnp.asarray(_INITIAL_BIAS, jnp.float32)) if spec.logit_bias else None
        # NNX decides at the first assignment whether an attribute holds parameters.
        has_matching = spec.matching is not None
        self.matching = MatchingHead(spec.text, spec.vision.width, dtype=dtype, rngs=rngs) if has_matching else None

    @property
    def stacks(self) -> dict[str, Blocks]:
        """Dictionary of the stacks of blocks by tower, "vision" and "text". Convolutional towers have no stack."""
        towers = {"vision": self.vision, "text": self.text}
        return {side: tower.blocks for side, tower in towers.items() if tower is not None and tower.blocks is not None}

    def image_features(
        self, pixels: Float[Array, "b h w 3"], patches: Int[Array, "b kept"] | None = None
    ) -> Float[Array, "b features"]:
        """Compute pooled features before the head, float32; with `patches`, from these patches only."""
        tower = _require(self.vision, "image")
        return tower(pixels) if patches is None else tower(pixels, patches)

    def text_features(self, ids: Int[Array, "b t"], mask: Bool[Array, "b t"]) -> Float[Array, "b features"]:
        """Compute pooled features before the head, float32. See `TextTower` for the arguments."""
        return _require(self.text, "text")(ids, mask)

    def image_embeddings(
        self, pixels: Float[Array, "b h w 3"], patches: Int[Array, "b kept"] | None = None
    ) -> Float[Array, "b dim"]:
        """Compute unit vectors, float32, from normalised pixels; with `patches`, from these patches only."""
        return self.project_image(self.image_features(pixels, patches))

    def text_embeddings(self, ids: Int[Array, "b t"], mask: Bool[Array, "b t"]) -> Float[Array, "b dim"]:
        """Compute unit vectors, float32. See `TextTower` for the arguments."""
        return self.project_text(self.text_features(ids, mask))

    def project_image(self, features: Float[Array, "... features"]) -> Float[Array, "... dim"]:
        """Map pooled features of the image tower to unit vectors."""
        return _unit(self.vision_head, features)

    def project_text(self, features: Float[Array, "... features"]) -> Float[Array, "... dim"]:
        """Map pooled features of the text tower to unit vectors."""
        return _unit(self.text_head, features)

    def matching_logits(
        self,
        image_tokens: Float[Array, "images tokens width"],
        ids: Int[Array, "images texts t"],
        mask: Bool[Array, "images texts t"],
    ) -> Float[Array, "images texts 2"]:
        """Compute the logits of no match and of a match, float32, of each image with its texts; see `MatchingHead`."""
        if self.matching is None:
            raise ValueError("this model has no matching head")
        return self.matching(_require(self.text, "text"), image_tokens, ids, mask)


class ResidualHead(nnx.Module):
    """Head `x A + a + gelu(norm(x) B + b) C`. C starts at zero, so that adding the MLP to a head changes nothing."""

    def __init__(self, features: int, spec: HeadSpec, *, rngs: nnx.Rngs):
        self.affine = Linear(features, spec.dim, bias=spec.bias, dtype=jnp.float32, rngs=rngs)
        self.norm = LayerNorm(features, 1e-6)
        self.up = Linear(features, spec.hidden, dtype=jnp.float32, rngs=rngs)
        self.down = Linear(spec.hidden, spec.dim, bias=False, dtype=jnp.float32, rngs=rngs)
        self.down.kernel[...] = jnp.zeros_like(self.down.kernel[...])

    def __call__(self, x: Float[Array, "... features"]) -> Float[Array, "... dim"]:
        return self.affine(x) + self.down(ACTIVATIONS["gelu"](self.up(self.norm(x))))


class MlpHead(nnx.Module):
    """Head `gelu(x A) B`, with biases after A and B if the spec has them."""

    def __init__(self, features: int, spec: HeadSpec, *, rngs: nnx.Rngs):
        self.up = Linear(features, spec.hidden, bias=spec.hidden_bias, dtype=jnp.float32, rngs=rngs)
        self.down = Linear(spec.hidden, spec.dim, bias=spec.bias, dtype=jnp.float32, rngs=rngs)

    def __call__(self, x: Float[Array, "... features"]) -> Float[Array, "... dim"]:
        return self.down(ACTIVATIONS["gelu"](self.up(x)))


Head = Linear | ResidualHead | MlpHead
_TOWERS = {
    VisionSpec: VisionTower,
    ResNetSpec: ResNetTower,
    ConvNextSpec: ConvNextTower,
}


def _head(spec: HeadSpec, features: int, rngs: nnx.Rngs) -> Head | None:
    if spec.kind == "none":
        return None
    if spec.kind == "mlp":
        return MlpHead(features, spec, rngs=rngs)
    if spec.hidden is not None:
        return ResidualHead(features, spec, rngs=rngs)
    return Linear(features, spec.dim, bias=spec.bias, dtype=jnp.float32, rngs=rngs)


def _require(tower: nnx.Module | None, kind: str) -> nnx.Module:
    if tower is None:
        raise ValueError(f"this model has no {kind} tower")
    return tower


def _unit(head: Head | None, features: Float[Array, "... features"]) -> Float[Array, "... dim"]:
    x = features if head is None else head(features)
    squares = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    # A zero vector stays zero instead of becoming NaN.
    return x * jax.lax.rsqrt(jnp.maximum(squares, jnp.finfo(jnp.float32).tiny))


@functools.lru_cache(maxsize=16)
def abstract_model(spec: ModelSpec, dtype: str = "float32") -> tuple[Any, Any]:
    """Return the graph of a model and the shapes of its state. Cached, as tracing takes a third of a second."""
    return nnx.split(nnx.eval_shape(lambda: DualEncoder(spec, rngs=nnx.Rngs(0), dtype=jnp.dtype(dtype))))


def parameter_counts(spec: ModelSpec) -> dict[str, int]:
    """Count the parameters of each component: `vision`, `text`, `vision_head`, `text_head`, `logits`, `matching`."""
    counts: dict[str, int] = {}
    parameters = nnx.to_pure_dict(nnx.filter_state(abstract_model(spec)[1], nnx.Param))
    for name, component in parameters.items():
        name = "logits" if name.startswith("logit_") else name
        counts[name] = counts.get(name, 0) + sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(component))
    return counts
