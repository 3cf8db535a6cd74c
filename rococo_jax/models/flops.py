"""Floating-point operations of embedding one image or one text, and of scoring a pair.

A multiplication and an addition count as two operations:

    a linear map of t tokens         2 t inputs outputs
    attention of q over k tokens     4 q k width              (scores, and the weighted sum of the values)
    a convolution                    2 taps inputs outputs    (without taps on the zeros of the padding)

They are counted in the traced program. Norms, activations, softmax and word lookups are not counted; they are less than
one per cent of towers of usual widths.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import ClosedJaxpr, Jaxpr

from rococo_jax.models.dual_encoder import abstract_model
from rococo_jax.models.spec import ModelSpec


def image_flops(spec: ModelSpec, patches: int | None = None, pixels: tuple[int, int, int] | None = None) -> int:
    """Count the operations of embedding one image, or this number of its patches.

    `pixels` is the shape of the image, by default a square of the tower's size. Raises ValueError without an image
    tower.
    """
    if spec.vision is None:
        raise ValueError("this model has no image tower")
    patch_input = () if patches is None else (((1, patches), jnp.int32),)
    shape = (1, *(pixels or (spec.vision.image_size, spec.vision.image_size, 3)))
    model = ModelSpec(spec.vision, None, spec.vision_head)
    return _traced_flops(model, "image_embeddings", (shape, jnp.float32), *patch_input)


def text_flops(spec: ModelSpec, tokens: int | None = None) -> int:
    """Count the operations of embedding one text of `tokens` tokens, including special tokens and padding.

    By default, and in towers of one length, this is the context length. Raises ValueError without a text tower.
    """
    if spec.text is None:
        raise ValueError("this model has no text tower")
    shape = (1, spec.text.context_length if tokens is None or spec.text.attention == "full" else tokens)
    text = ModelSpec(None, spec.text, text_head=spec.text_head)
    return _traced_flops(text, "text_embeddings", (shape, jnp.int32), (shape, jnp.bool_))


def matching_flops(spec: ModelSpec, tokens: int, texts: int = 1) -> int:
    """Count the operations of the matching head for the tokens of one image and `texts` texts of `tokens` tokens.

    Raises ValueError without a matching head.
    """
    image = (1, spec.vision.grid**2 + spec.vision.first_patch, spec.vision.width)
    shape = (1, texts, tokens)
    return _traced_flops(spec, "matching_logits", (image, jnp.float32), (shape, jnp.int32), (shape, jnp.bool_))


@functools.lru_cache(maxsize=256)
def _traced_flops(spec: ModelSpec, method: str, *inputs: tuple[tuple[int, ...], Any]) -> int:
    graph, state = abstract_model(spec)
    program = jax.make_jaxpr(lambda state, *inputs: getattr(nnx.merge(graph, state), method)(*inputs))
    return program_flops(program(state, *(jax.ShapeDtypeStruct(*each) for each in inputs)).jaxpr)


def program_flops(program: Jaxpr) -> int:
    """Count the operations of the products and convolutions of a program for one item, including inner programs."""
    total = 0
    for equation in program.eqns:
        parameters, output = equation.params, equation.outvars[0].aval
        if equation.primitive is jax.lax.dot_general_p:
            (contracted, _), _ = parameters["dimension_numbers"]
            total += 2 * output.size * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
        elif equation.primitive is jax.lax.conv_general_dilated_p:  # channels last
            image, kernel = (each.aval.shape for each in equation.invars)
            strides, padding = parameters["window_strides"], parameters["padding"]
            axes = zip(image[1:3], output.shape[1:3], kernel[:2], strides, padding, strict=True)
            total += 2 * math.prod(kernel[2:]) * math.prod(_taps(*axis) for axis in axes)
        inner = (each.jaxpr for each in parameters.values() if isinstance(each, ClosedJaxpr))
        total += parameters.get("length", 1) * sum(map(program_flops, inner))  # the iterations of a scan
    return total


def _taps(side: int, outputs: int, size: int, stride: int, padding: tuple[int, int]) -> int:
    """Count the taps of a convolution along an axis for all outputs, without those on the padding."""
    firsts = range(-padding[0], stride * outputs - padding[0], stride)
    return sum(min(first + size, side) - max(first, 0) for first in firsts)
