"""A dual encoder from two single-modality towers: heads fitted in closed form on image-caption pairs."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from rococo_jax.encoders import Encoder
from rococo_jax.errors import InputError
from rococo_jax.models import DualEncoder, HeadSpec, ModelSpec
from rococo_jax.progress import progress
from rococo_jax.training.cca import RIDGES, choose_regularisation, fit_heads, fit_logit_scale

_FOLDS = 5


def image_tower_of(encoder: Encoder, pooling: str | None = None) -> Encoder:
    """The image tower alone, with a pooling.

    `pooling=None` takes the class token beside the mean of the patch tokens where a tower is pooled by its class token
    and has no head of its own (DINOv2): retrieval by a linear head gains from both. Other towers keep theirs.
    """
    vision = encoder.spec.vision
    if vision is None:
        raise InputError(encoder.name, "image tower", "none", "a model with an image tower")
    if pooling is None and vision.pooling == "cls" and encoder.spec.vision_head.kind == "none":
        pooling = "cls+mean"
    spec = dataclasses.replace(vision, pooling=pooling or vision.pooling)
    tower = nnx.clone(encoder.model.vision)
    tower.spec = spec
    return _alone(encoder, ModelSpec(vision=spec, text=None), "vision", tower)


def text_tower_of(encoder: Encoder) -> Encoder:
    """The text tower alone, pooled as the model says."""
    if encoder.spec.text is None:
        raise InputError(encoder.name, "text tower", "none", "a model with a text tower")
    tower = nnx.clone(encoder.model.text)
    return _alone(encoder, ModelSpec(vision=None, text=encoder.spec.text), "text", tower)


def _alone(encoder: Encoder, spec: ModelSpec, kind: str, tower: nnx.Module) -> Encoder:
    model = nnx.eval_shape(lambda: DualEncoder(spec, rngs=nnx.Rngs(0), dtype=encoder.model.dtype))
    setattr(model, kind, tower)
    model.logit_scale = nnx.Param(jnp.zeros((), jnp.float32))
    preprocessing = encoder.preprocessing if kind == "vision" else None
    tokenizer = encoder.tokenizer if kind == "text" else None
    return Encoder(model, preprocessing, tokenizer, encoder.provenance, encoder.name, encoder.mesh)


def join_towers(
    vision: Encoder,
    text: Encoder,
    image_features: Float[np.ndarray, "images image_width"],
    text_features: Float[np.ndarray, "texts text_width"],
    text_image: Int[np.ndarray, " texts"],
    dim: int,
    name: str,
) -> tuple[Encoder, dict[str, Any]]:
    """Fits both heads. Returns the dual encoder and a record of the fit.

    Args:
        vision: an image tower alone (`image_tower_of`).
        text: a text tower alone (`text_tower_of`).
        image_features: pooled features of the training images, from `vision`.
        text_features: pooled features of their captions, from `text`.
        text_image: the row of the image that each caption describes.
        dim: length of the joint embedding.
        name: of the new model.

    Raises:
        InputError: `dim` does not fit the towers, there are too few images, or features are not finite.
    """
    widest = min(image_features.shape[1], text_features.shape[1])
    if not 1 <= dim <= widest:
        raise InputError("dim", "dimensions", dim, f"1 to {widest}, the narrower tower's width")
    if len(image_features) < 2 * _FOLDS:
        raise InputError("captions", "images", len(image_features), f"at least {2 * _FOLDS}, to cross-validate")
    for features, of in ((image_features, vision.name), (text_features, text.name)):
        if not np.isfinite(features).all():
            raise InputError(of, "features", "values that are not finite", "finite features")
    with progress("choosing the regularisation", _FOLDS * len(RIDGES) ** 2, "fits") as advance:
        chosen, score = choose_regularisation(
            image_features, text_features, text_image, dim, folds=_FOLDS, on_progress=advance
        )
    heads = fit_heads(image_features, text_features, text_image, dim, chosen)
    scale = fit_logit_scale(*heads.project(image_features, text_features), text_image)
    spec = ModelSpec(
        vision=vision.spec.vision,
        text=text.spec.text,
        vision_head=HeadSpec("linear", dim, bias=True),
        text_head=HeadSpec("linear", dim, bias=True),
    )
    model = DualEncoder(spec, rngs=nnx.Rngs(0), dtype=vision.model.dtype)
    model.vision, model.text = vision.model.vision, text.model.text
    for head, kernel, bias in (
        (model.vision_head, heads.image_kernel, heads.image_bias),
        (model.text_head, heads.text_kernel, heads.text_bias),
    ):
        head.kernel[...] = jnp.asarray(kernel, jnp.float32)
        head.bias[...] = jnp.asarray(bias, jnp.float32)
    model.logit_scale[...] = jnp.log(jnp.asarray(scale, jnp.float32))
    record = {
        "method": "regularised CCA",
        "images": len(image_features),
        "captions": len(text_features),
        "dim": dim,
        **dataclasses.asdict(chosen),
        "folds": _FOLDS,
        "held_out_recall_at_1": round(score, 3),
        "logit_scale": round(scale, 4),
    }
    provenance = {"joined": {"vision": vision.provenance, "text": text.provenance, "fit": record}}
    return Encoder(model, vision.preprocessing, text.tokenizer, provenance, name, vision.mesh), record
