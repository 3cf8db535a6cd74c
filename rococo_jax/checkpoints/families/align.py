"""ALIGN (arXiv 2102.05918) as kakaobrain/align-base has it: an EfficientNet and a BERT, whose first token is projected.

    logits = cosine / temperature,  so that the logit scale is -log(temperature)

Image features are the embedding as they are. Sizes of the image tower follow from EfficientNet's rules: channels are
multiplied by a coefficient and rounded to a multiple, repeats multiplied and rounded up. Texts are cut at 64 tokens,
which is what the processor pads to; the tower has positions for more, which no text was trained on.
Source: `transformers/models/align`.
"""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rococo_jax.checkpoints.families.base import IGNORED, Family, Section, library_defaults, part_section
from rococo_jax.checkpoints.families.bert import BERT
from rococo_jax.checkpoints.tensors import (
    CONVOLUTION,
    POINT,
    NameTable,
    Row,
    Tensors,
    Transform,
    batch_norm_rows,
    linear_rows,
)
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.errors import InputError
from rococo_jax.models import EfficientNetSpec, HeadSpec, ModelSpec

_IGNORED = (*IGNORED, r".*\.num_batches_tracked", r"text_model\.(pooler\.dense\..*|embeddings\.token_type_ids)")
_STEM_CHANNELS = 32
_LONGEST_TEXT = 64
_SCALE = Transform(
    to_ours=lambda theirs: np.asarray(-np.log(theirs[0])),
    to_theirs=lambda ours, _: [np.asarray(np.exp(-ours))],
)


class Align(Family):
    """Read only: no export."""

    name = "align"
    model_types = ("align",)
    prefixes = ("vision_model.", "text_model.")
    # Its tower stores no positions.
    interpolates_positions = True
    lower_case = True
    processor: ClassVar = {
        "image_processor_type": "EfficientNetImageProcessor",
        "resample": 2,
        "do_center_crop": True,
        "rescale_factor": 1 / 127.5,
        "rescale_offset": True,
        "do_normalize": False,
        "include_top": False,
    }

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        vision = _vision(part_section(path, "vision_config", config, "AlignVisionConfig"))
        text = part_section(path, "text_config", config, "AlignTextConfig")
        model = Section(path, "", config, library_defaults("AlignConfig"))
        dim = model.integer("projection_dim")
        if dim != vision.features:
            raise model.refuse("projection_dim", f"{vision.features}, the channels of the image tower's last stage")
        text.values["model_type"] = BERT.name
        return ModelSpec(vision, BERT.text_spec(text, "cls"), text_head=HeadSpec("linear", dim, bias=True))

    def table(self, spec: ModelSpec, vision_prefix: str = "", text_prefix: str = "") -> NameTable:
        rows = (
            *_vision_rows(spec.vision, vision_prefix),
            *BERT.text_rows(text_prefix, spec.text),
            *linear_rows("text_head", "text_projection"),
            Row("logit_scale", "temperature", _SCALE),
        )
        return NameTable(rows, _IGNORED)

    def read_parameters(self, tensors: Tensors, spec: ModelSpec) -> dict[str, np.ndarray]:
        if "temperature" in tensors.names and not ((found := tensors.read("temperature")) > 0).all():
            raise InputError(tensors.path, "temperature", found, "a number above 0")
        return super().read_parameters(tensors, spec)

    def notes(self, spec: ModelSpec) -> dict[str, str]:
        return {"text_length": f"texts are cut at {_LONGEST_TEXT} tokens, as the model was trained"}

    def read_tokenizer(self, source: str | Path, config: Mapping[str, Any]) -> Tokenizer:
        text = part_section(Path(source), "text_config", config, "AlignTextConfig")
        limit = {"max_position_embeddings": min(_LONGEST_TEXT, text.integer("max_position_embeddings"))}
        return BERT.read_tokenizer(source, {"model_type": BERT.name, "text_config": limit})


ALIGN = Align()


def _vision(section: Section) -> EfficientNetSpec:
    """The image tower. Raises InputError where the lists of its stages do not fit together."""
    if section.values["num_channels"] != 3:
        raise section.refuse("num_channels", "3: red, green and blue")
    if section.values["pooling_type"] not in ("mean", "max"):
        raise section.refuse("pooling_type", "mean or max")
    if section.number("squeeze_expansion_ratio") >= 1:
        raise section.refuse("squeeze_expansion_ratio", "a number between 0 and 1")
    inputs = _whole_numbers(section, "in_channels")
    outputs, repeats, kernel_sizes, strides, expansions = (
        _whole_numbers(section, key, len(inputs))
        for key in ("out_channels", "num_block_repeats", "kernel_sizes", "strides", "expand_ratios")
    )
    stem, *before = (_rounded(section, channels) for channels in (_STEM_CHANNELS, *inputs))
    widths = tuple(_rounded(section, channels) for channels in outputs)
    if (read := (stem, *widths[:-1])) != tuple(before):
        raise section.refuse("in_channels", f"channels that are {read} when rounded, as the maps before them have")
    if not set(strides) <= {1, 2}:
        raise section.refuse("strides", "1 or 2 for each stage")
    if not all(size % 2 and size > 1 for size in kernel_sizes):
        raise section.refuse("kernel_sizes", "odd numbers, 3 or more")
    layers = tuple(math.ceil(section.number("depth_coefficient") * count) for count in repeats)
    centred_blocks = _whole_numbers(section, "depthwise_padding", least=0)
    return EfficientNetSpec(
        image_size=section.side("image_size"),
        stem_width=stem,
        widths=widths,
        stage_layers=layers,
        kernel_sizes=kernel_sizes,
        strides=strides,
        expansions=expansions,
        # Only the first block of a stage may have a stride, and only with one does the list change the padding.
        centred=tuple(sum(layers[:stage]) in centred_blocks for stage in range(len(layers))),
        squeeze=section.number("squeeze_expansion_ratio"),
        activation=section.activation(),
        norm_eps=section.number("batch_norm_eps"),
        pooling=section.values["pooling_type"],
    )


def _whole_numbers(section: Section, key: str, count: int | None = None, least: int = 1) -> tuple[int, ...]:
    """A list of the configuration: `count` numbers, `least` or more; any number of them where that is None."""
    values = section.values[key]
    is_list = isinstance(values, list | tuple) and len(values) == (len(values) if count is None else count)
    if not is_list or not all(type(value) is int and value >= least for value in values) or (least and not values):
        raise section.refuse(key, f"{'a list of' if count is None else count} whole numbers, {least} or more")
    return tuple(values)


def _rounded(section: Section, channels: int) -> int:
    """Channels times the coefficient, rounded to a multiple of the divisor and never down by more than a tenth."""
    divisor, wanted = section.integer("depth_divisor"), channels * section.number("width_coefficient")
    rounded = max(divisor, int(wanted + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * wanted else rounded


def _vision_rows(spec: EfficientNetSpec, prefix: str) -> list[Row]:
    rows = [Row("vision.stem.kernel", f"{prefix}embeddings.convolution.weight", CONVOLUTION)]
    rows += batch_norm_rows("vision.stem_norm", f"{prefix}embeddings.batchnorm")
    block, number = f"{prefix}encoder.blocks.{{layer}}", 0
    for stage, layers in enumerate(spec.stage_layers):
        ours, expands = f"vision.stage{stage + 1}", spec.expansions[stage] > 1
        rows += _block_rows(f"{ours}.first", block.format(layer=number), expands, 0)
        rows += _block_rows(f"{ours}.blocks.block", block, expands, number + 1) if layers > 1 else []
        number += layers
    return rows


def _block_rows(ours: str, theirs: str, expands: bool, first: int) -> list[Row]:
    gates = f"{theirs}.squeeze_excite"
    maps = [
        *([("expand.kernel", f"{theirs}.expansion.expand_conv.weight", POINT)] if expands else []),
        ("depthwise.kernel", f"{theirs}.depthwise_conv.depthwise_conv.weight", CONVOLUTION),
        ("squeeze.kernel", f"{gates}.reduce.weight", POINT),
        ("excite.kernel", f"{gates}.expand.weight", POINT),
        ("project.kernel", f"{theirs}.projection.project_conv.weight", POINT),
    ]
    rows = [Row(f"{ours}.{our}", their, transform, first) for our, their, transform in maps]
    rows += [
        Row(f"{ours}.{our}.bias", f"{gates}.{their}.bias", first_layer=first)
        for our, their in (("squeeze", "reduce"), ("excite", "expand"))
    ]
    norms = [("expand_norm", "expansion.expand_bn")] if expands else []
    norms += [("depthwise_norm", "depthwise_conv.depthwise_norm"), ("project_norm", "projection.project_bn")]
    for our, their in norms:
        rows += batch_norm_rows(f"{ours}.{our}", f"{theirs}.{their}", first)
    return rows
