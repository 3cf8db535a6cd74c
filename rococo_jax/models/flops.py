"""Floating-point operations of one image and of one text, from the spec alone: a product and a sum count as two.

    a linear map of t tokens         2 t inputs outputs
    attention of q over k tokens     4 q k width              (scores, and the mix of the values)
    a 3 x 3 convolution              2 taps inputs outputs   (taps on the padding, which is zero, left out)

Norms, activations, softmax and word look-up are left out, under one per cent of towers of usual widths.
"""

from rococo_jax.models.spec import (
    ConvNextSpec,
    EfficientNetSpec,
    FastVitSpec,
    GridResNetSpec,
    HeadSpec,
    MbConvSpec,
    ModelSpec,
    ResNetSpec,
    TextSpec,
    VisionSpec,
)


def image_flops(spec: ModelSpec, patches: int | None = None) -> int:
    """Operations from the pixels of one image to its embedding, or from so many of its patches. Raises ValueError
    without an image tower.
    """
    if spec.vision is None:
        raise ValueError("this model has no image tower")
    if patches is not None:
        return _vit(spec.vision, patches) + _head(spec.vision_head, spec.vision.features)
    return _TOWERS[type(spec.vision)](spec.vision) + _head(spec.vision_head, spec.vision.features)


def text_flops(spec: ModelSpec, tokens: int | None = None) -> int:
    """Operations from the token ids of one text to its embedding. Raises ValueError without a text tower.

    `tokens` counts special tokens and padding; by default it is the whole context.
    """
    if spec.text is None:
        raise ValueError("this model has no text tower")
    count = _text_tokens(spec.text, tokens)
    pooled = _linear(count, spec.text.width, spec.text.pooling_width) if spec.text.pooling_width else 0
    return pooled + _blocks(spec.text, count) + _head(spec.text_head, spec.text.features)


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


def rematerialised_flops(spec: VisionSpec | TextSpec, length: int | None = None) -> int:
    """Operations of the blocks that a backward pass with full rematerialisation makes again, for one image or text.

    Those of the forward pass, without each block's last product where only the residual sum takes what it gives: no
    gradient needs it. A norm or a scale of it does.

    Args:
        length: patches, or tokens as for `text_flops`; by default all.
    """
    if isinstance(spec, VisionSpec):
        tokens = (spec.grid**2 if length is None else length) + spec.class_token
    else:
        tokens = _text_tokens(spec, length)
    needed = spec.norm_changes or spec.layer_scale or spec.norm_after_blocks
    last = 0 if needed else spec.layers * _linear(tokens, spec.mlp_width, spec.width)
    return _blocks(spec, tokens) - last


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


def _vit(spec: VisionSpec, patches: int | None = None) -> int:
    patches, width = spec.grid**2 if patches is None else patches, spec.width
    tokens = patches + spec.class_token
    stem = spec.stem_width
    values = 4 * stem if stem else 3 * spec.patch_size**2
    embedded = _linear(patches, values, width) if spec.mbconv is None else _mbconv(spec.mbconv, spec.image_size, width)
    total = embedded + _blocks(spec, tokens)
    if stem:
        total += _linear(16 * patches, 48, stem) + _linear(4 * patches, 4 * stem, stem)
    if spec.pooling in ("attention", "cross"):
        pooled = spec.pooled_width
        total += _linear(tokens, width, 2 * pooled) + _linear(2, pooled, pooled) + _attention(1, tokens, pooled)
    if spec.pooling == "attention":
        total += 2 * _linear(1, width, spec.pooling_mlp_width or spec.mlp_width)
    return total


def _mbconv(spec: MbConvSpec, side: int, outputs: int) -> int:
    after, inputs = (side + 1) // 2, spec.stem_width
    total = _convolution(side, after, 3, 2, 3, inputs) + _convolution(after, after, 3, 1, inputs, inputs)
    for width, blocks in zip(spec.widths, spec.stage_layers, strict=True):
        for block in range(blocks):
            side, after = after, after if block else (after + 1) // 2
            hidden, stride = 4 * width, 1 if block else 2
            total += _linear(side**2, inputs, hidden) + _convolution(side, after, 3, stride, 1, hidden)
            total += _linear(after**2, hidden, width) + (_linear(after**2, inputs, width) if inputs != width else 0)
            inputs = width
    return total + _convolution(after, (after + 1) // 2, 3, 2, inputs, outputs)


def _fastvit(spec: FastVitSpec) -> int:
    side, inputs = (spec.image_size + 1) // 2, spec.widths[0]
    total = _convolution(spec.image_size, side, 3, 2, 3, inputs)
    after = (side + 1) // 2
    total += _convolution(side, after, 3, 2, 1, inputs) + _linear(after**2, inputs, inputs)
    for stage, (width, blocks) in enumerate(zip(spec.widths, spec.stage_layers, strict=True)):
        side = after
        if stage:
            after = (side + 1) // 2
            total += _convolution(side, after, 7, 2, 1, width) + _linear(after**2, width, width)
            total += _linear(2, width, width // 4) if spec.squeezed[stage] else 0
        cells, wide = after**2, _convolution(after, after, 7, 1, 1, width)
        mixed = _linear(cells, width, 4 * width) + _attention(cells, cells, width)
        mixed = mixed if spec.attends(stage) else _convolution(after, after, 3, 1, 1, width)
        total += wide if spec.attends(stage) else 0
        total += blocks * (mixed + wide + 2 * _linear(cells, width, spec.mlp_ratio * width))
    return total + _convolution(after, after, 3, 1, 1, spec.features) + _linear(2, spec.features, spec.features // 16)


def _convnext(spec: ConvNextSpec) -> int:
    side, inputs = spec.image_size // 4, spec.widths[0]
    total = _linear(side**2, 48, inputs)
    for number, (width, blocks) in enumerate(zip(spec.widths, spec.stage_layers, strict=True)):
        if number:
            side //= 2
            total += _linear(side**2, 4 * inputs, width)
        total += blocks * (_linear(_reach(side, side, 7) ** 2, 1, width) + _linear(side**2, width, 8 * width))
        inputs = width
    return total


def _resnet(spec: ResNetSpec) -> int:
    side, width = (spec.image_size + 1) // 2, spec.width
    half = width // 2
    # With stride 2 only the first output of a line reaches over the border.
    total = _linear((3 * side - 1) ** 2, 3, half)
    total += _linear(_taps(side), half, half) + _linear(_taps(side), half, width)
    side, inputs = side // 2, width
    for number, blocks in enumerate(spec.stage_layers):
        channels = width << number
        after = side // 2 if number else side
        for block in range(blocks):
            before = side if block == 0 else after
            total += _linear(before**2, inputs, channels) + _linear(_taps(before), channels, channels)
            total += _linear(after**2, channels, 4 * channels)
            if block == 0:
                total += _linear(after**2, inputs, 4 * channels)
            inputs = 4 * channels
        side = after
    tokens, features = side**2 + 1, spec.features
    return total + _linear(1 + 2 * tokens, features, features) + _attention(1, tokens, features)


def _grid_resnet(spec: GridResNetSpec) -> int:
    side, inputs = (spec.image_size + 1) // 2, spec.width
    total = _linear(_reach(spec.image_size, side, 7, 2) ** 2, 3, inputs)
    side = (side + 1) // 2
    for number, blocks in enumerate(spec.stage_layers):
        channels = spec.width << number
        inner = spec.inner_width(channels)
        after = (side + 1) // 2 if number else side
        for block in range(blocks):
            reduced = after if spec.caffe or block else side
            taps = _reach(reduced, after, 3, 1 if reduced == after else 2) ** 2
            total += _linear(reduced**2, inputs, inner) + _linear(taps, inner // spec.groups, inner)
            total += _linear(after**2, inner, 4 * channels)
            if block == 0:
                total += _linear(after**2, inputs, 4 * channels)
            inputs = 4 * channels
        side = after
    return total + _linear(side**2, inputs, spec.pooling_width)


def _efficientnet(spec: EfficientNetSpec) -> int:
    sides = spec.sides
    total = _linear(_reach(spec.image_size, sides[0], 3, 2, 0) ** 2, 3, spec.stem_width)
    for stage, (width, blocks) in enumerate(zip(spec.widths, spec.stage_layers, strict=True)):
        size, expansion, after = spec.kernel_sizes[stage], spec.expansions[stage], sides[stage + 1]
        for block in range(blocks):
            before, inputs = (after, width) if block else (sides[stage], spec.inputs(stage))
            inner, stride = expansion * inputs, 1 if block else spec.strides[stage]
            total += _linear(before**2, inputs, inner) if expansion > 1 else 0
            start = size // 2 if block else spec.padding(stage)[0]
            total += _linear(_reach(before, after, size, stride, start) ** 2, 1, inner)
            total += 2 * _linear(1, inner, spec.gate_width(inputs)) + _linear(after**2, inner, width)
    return total


_TOWERS = {
    VisionSpec: _vit,
    ResNetSpec: _resnet,
    ConvNextSpec: _convnext,
    GridResNetSpec: _grid_resnet,
    EfficientNetSpec: _efficientnet,
    FastVitSpec: _fastvit,
}


def _convolution(side: int, after: int, size: int, stride: int, inputs: int, outputs: int) -> int:
    """A convolution padded by half its size; `inputs` are the channels of a group."""
    return _linear(_reach(side, after, size, stride) ** 2, inputs, outputs)


def _reach(side: int, outputs: int, size: int, stride: int = 1, before: int | None = None) -> int:
    """Cells that kernels of a size reach along a line for all outputs, the padding left out."""
    firsts = [stride * output - (size // 2 if before is None else before) for output in range(outputs)]
    return sum(min(first + size, side) - max(first, 0) for first in firsts)


def _taps(side: int) -> int:
    """Products a channel of a 3 x 3 convolution over a square, those with the padding left out."""
    return (3 * side - 2) ** 2


def _head(spec: HeadSpec, features: int) -> int:
    affine = 0 if spec.kind != "linear" else _linear(1, features, spec.dim)
    if spec.hidden is None:
        return affine
    return affine + _linear(1, features, spec.hidden) + _linear(1, spec.hidden, spec.dim)
