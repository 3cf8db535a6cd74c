"""Floating-point operations of one image, of one text and of a pair: a product and a sum count as two.

    a linear map of t tokens         2 t inputs outputs
    attention of q over k tokens     4 q k width              (scores, and the mix of the values)
    a convolution                    2 taps inputs outputs    (taps on the padding, which is zero, left out)

They are counted in the traced program. Norms, activations, softmax and word look-up are left out, under one per cent of
towers of usual widths.
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
    """Operations from the pixels of one image to its embedding, or from so many of its patches. Raises ValueError
    without an image tower.

    `pixels` is the shape of an image, by default a square of the tower's size.
    """
    if spec.vision is None:
        raise ValueError("this model has no image tower")
    some = () if patches is None else (((1, patches), jnp.int32),)
    shape = (1, *(pixels or (spec.vision.image_size, spec.vision.image_size, 3)))
    model = ModelSpec(spec.vision, None, spec.vision_head)
    return _traced_flops(model, "image_embeddings", (shape, jnp.float32), *some)


def text_flops(spec: ModelSpec, tokens: int | None = None) -> int:
    """Operations from the token ids of one text to its embedding. Raises ValueError without a text tower.

    `tokens` counts special tokens and padding; by default it is the whole context, which some towers always take.
    """
    if spec.text is None:
        raise ValueError("this model has no text tower")
    shape = (1, spec.text.context_length if tokens is None or spec.text.attention == "full" else tokens)
    text = ModelSpec(None, spec.text, text_head=spec.text_head)
    return _traced_flops(text, "text_embeddings", (shape, jnp.int32), (shape, jnp.bool_))


def matching_flops(spec: ModelSpec, tokens: int, texts: int = 1) -> int:
    """Operations of the matching head for one image, from its tokens, with `texts` texts of `tokens` tokens; else
    ValueError.
    """
    image = (1, spec.vision.grid**2 + spec.vision.first_patch, spec.vision.width)
    shape = (1, texts, tokens)
    return _traced_flops(spec, "matching_logits", (image, jnp.float32), (shape, jnp.int32), (shape, jnp.bool_))


@functools.lru_cache(maxsize=256)
def _traced_flops(spec: ModelSpec, method: str, *inputs: tuple[tuple[int, ...], Any]) -> int:
    graph, state = abstract_model(spec)
    program = jax.make_jaxpr(lambda state, *inputs: getattr(nnx.merge(graph, state), method)(*inputs))
    return _program_flops(program(state, *(jax.ShapeDtypeStruct(*each) for each in inputs)).jaxpr)


def _program_flops(program: Jaxpr) -> int:
    """Operations of the products and convolutions of a program for one item, inner programs included."""
    total = 0
    for equation in program.eqns:
        parameters, output = equation.params, equation.outvars[0].aval
        if equation.primitive is jax.lax.dot_general_p:
            (summed, _), _ = parameters["dimension_numbers"]
            total += 2 * output.size * math.prod(equation.invars[0].aval.shape[axis] for axis in summed)
        elif equation.primitive is jax.lax.conv_general_dilated_p:  # channels last
            image, kernel = (each.aval.shape for each in equation.invars)
            around = parameters["window_strides"], parameters["padding"]
            lines = zip(image[1:3], output.shape[1:3], kernel[:2], *around, strict=True)
            total += 2 * math.prod(kernel[2:]) * math.prod(_reached(*line) for line in lines)
        inner = (each.jaxpr for each in parameters.values() if isinstance(each, ClosedJaxpr))
        total += parameters.get("length", 1) * sum(map(_program_flops, inner))  # the rounds of a scan
    return total


def _reached(side: int, outputs: int, size: int, stride: int, padding: tuple[int, int]) -> int:
    """Cells that kernels of a size reach along a line for all outputs, the padding left out."""
    firsts = range(-padding[0], stride * outputs - padding[0], stride)
    return sum(min(first + size, side) - max(first, 0) for first in firsts)
