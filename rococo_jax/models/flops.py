"""Floating-point operations of one image and of one text: a product and a sum count as two.

    a linear map of t tokens         2 t inputs outputs
    attention of q over k tokens     4 q k width              (scores, and the mix of the values)
    a convolution                    2 taps inputs outputs    (taps on the padding, which is zero, left out)

Those of an image are counted in the traced program of its tower, those of a text follow from the spec for any length.
Norms, activations, softmax and word look-up are left out, under one per cent of towers of usual widths.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import ClosedJaxpr, Jaxpr

from rococo_jax.models.dual_encoder import abstract_model
from rococo_jax.models.spec import HeadSpec, ModelSpec, TextSpec, VisionSpec


def image_flops(spec: ModelSpec, patches: int | None = None) -> int:
    """Operations from the pixels of one image to its embedding, or from so many of its patches. Raises ValueError
    without an image tower.
    """
    if spec.vision is None:
        raise ValueError("this model has no image tower")
    return _traced_flops(ModelSpec(spec.vision, None, spec.vision_head), patches)


@functools.lru_cache(maxsize=64)
def _traced_flops(spec: ModelSpec, patches: int | None) -> int:
    graph, state = abstract_model(spec)
    side = spec.vision.image_size
    inputs = [jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)]
    inputs += [] if patches is None else [jax.ShapeDtypeStruct((1, patches), jnp.int32)]
    program = jax.make_jaxpr(lambda state, *inputs: nnx.merge(graph, state).image_embeddings(*inputs))
    return _program_flops(program(state, *inputs).jaxpr)


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


def text_flops(spec: ModelSpec, tokens: int | None = None) -> int:
    """Operations from the token ids of one text to its embedding. Raises ValueError without a text tower.

    `tokens` counts special tokens and padding; by default it is the whole context.
    """
    if spec.text is None:
        raise ValueError("this model has no text tower")
    count = _text_tokens(spec.text, tokens)
    return _blocks(spec.text, count) + _head(spec.text_head, spec.text.features)


def matching_flops(spec: ModelSpec, tokens: int, texts: int = 1) -> int:
    """Operations of the matching head for one image, from its tokens, with `texts` texts of `tokens` tokens; else
    ValueError.
    """
    if spec.matching is None:
        raise ValueError("this model has no matching head")
    image_tokens, width = spec.vision.grid**2 + spec.vision.class_token, spec.text.width
    of_image = _linear(image_tokens, spec.vision.width, 2 * width)
    of_text = _linear(tokens, width, 2 * width) + _attention(tokens, image_tokens, width)
    return spec.text.layers * (of_image + texts * of_text) + texts * (_blocks(spec.text, tokens) + _linear(1, width, 2))


def _text_tokens(spec: TextSpec, tokens: int | None) -> int:
    count = spec.context_length if tokens is None else tokens
    if spec.pooling == "appended":  # at least one token of padding, and its own
        return min(count + 1, spec.context_length) + 1
    return count


def _linear(tokens: int, inputs: int, outputs: int) -> int:
    return 2 * tokens * inputs * outputs


def _attention(queries: int, keys: int, width: int) -> int:
    return 4 * queries * keys * width


def _blocks(spec: VisionSpec | TextSpec, tokens: int) -> int:
    width = spec.width
    products = 3 if spec.gated_mlp else 2
    attention = _linear(tokens, width, 4 * width) + _attention(tokens, tokens, width)
    return spec.layers * (attention + products * _linear(tokens, width, spec.mlp_width))


def _head(spec: HeadSpec, features: int) -> int:
    affine = 0 if spec.kind != "linear" else _linear(1, features, spec.dim)
    if spec.hidden is None:
        return affine
    return affine + _linear(1, features, spec.hidden) + _linear(1, spec.hidden, spec.dim)
