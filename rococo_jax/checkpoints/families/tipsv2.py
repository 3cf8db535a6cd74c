"""TIPSv2 (arXiv 2604.12012), both towers or one: a DINOv2 with registers and a text tower without stored positions.

    logits = cosine / temperature,  so that the logit scale is -log(temperature)

Its register is a second class token (of synthetic captions); the vector of an image is the first, as in `transformers`
and in its authors' code. Texts have no special tokens, and their vector is the mean of their tokens. The temperature is
in no published checkpoint: the configuration has it. Tensors have its authors' names, which `transformers` keeps on the
disk. Source: `transformers/models/tipsv2` and its `conversion_mapping.py`.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rococo_jax.checkpoints.families.base import IGNORED, Section, library_defaults, tower_section
from rococo_jax.checkpoints.families.dinov2 import NO_REGISTERS, dino, dino_config, register_rows
from rococo_jax.checkpoints.families.exportable import ExportablePair, text_config
from rococo_jax.checkpoints.tensors import (
    KERNEL,
    PATCH,
    NameTable,
    Row,
    Tensors,
    Transform,
    block_rows,
    convolution_rows,
    leading_ones,
    norm_rows,
)
from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec, TextSpec, VisionSpec

TEMPERATURE = Transform(
    to_ours=lambda theirs: np.asarray(-np.log(theirs[0].astype(np.float64)), np.float32),
    to_theirs=lambda ours, _: [np.asarray(np.exp(-ours.astype(np.float64)), np.float32)],
)
# What float32 does not see beside a number of tokens, 1 or more.
_SMALLEST_SEEN = 2.0**-24


class Tipsv2(ExportablePair):
    name = "tipsv2"
    classes = "Tipsv2"
    model_types = ("tipsv2", "tipsv2_vision_model", "tipsv2_text_model")
    prefixes = ("vision_encoder.", "text_encoder.")
    processor: ClassVar = {"image_processor_type": "Tipsv2ImageProcessor"}
    interpolates_positions = True
    position_rule = "antialiased_linear"
    lower_case = True
    processor_classes = ("BitImageProcessor", "SiglipImageProcessor")
    end_token = "pad_token"
    newer_fields = frozenset(("registers", "scaled_words", "sine_positions"))

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        vision = tower_section(config, path, "vision", "Tipsv2VisionConfig")
        text = tower_section(config, path, "text", "Tipsv2TextConfig")
        return ModelSpec(vision and _vision(vision), text and _text(text))

    def table(self, spec: ModelSpec, vision_prefix: str = "", text_prefix: str = "") -> NameTable:
        rows: list[Row] = []
        ignored = list(IGNORED)
        if spec.vision is not None:
            rows += _vision_rows(spec.vision, vision_prefix)
            ignored += () if spec.vision.registers else NO_REGISTERS
        if spec.text is not None:
            rows += _text_rows(text_prefix)
        if spec.vision is not None and spec.text is not None:
            rows.append(Row("logit_scale", "temperature", TEMPERATURE))
        return NameTable(tuple(rows), tuple(ignored))

    def read(
        self, folder: Path, tensors: Tensors, config: Mapping[str, Any], pooling: str | None
    ) -> tuple[ModelSpec, dict[str, np.ndarray]]:
        section = Section(folder / "config.json", "", config, library_defaults("Tipsv2Config"))
        if config["model_type"] == self.name and "temperature" not in tensors.names:
            tensors = tensors.extended("temperature", np.array(section.number("temperature_init_value"), np.float32))
        elif "temperature" in tensors.names and not ((found := tensors.read("temperature")) > 0).all():
            raise InputError(tensors.path, "temperature", found, "a number above 0")
        return super().read(folder, tensors, config, pooling)

    def has_image_tower(self, tower: VisionSpec) -> bool:
        return tower.layer_scale and tower.pooling == "cls"

    def has_text_tower(self, tower: TextSpec) -> bool:
        return tower.sine_positions

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        vision = spec.vision and {**dino_config(spec.vision), "num_register_tokens": spec.vision.registers}
        text = spec.text and {**text_config(spec.text), "scale_sqrt_depth": spec.text.scaled_words}
        return self.config_of(vision, text)


TIPSV2 = Tipsv2()


def _vision(section: Section) -> VisionSpec:
    tower = dino(section, "cls", section.count("num_register_tokens"))
    if section.values.setdefault("head_dim", tower.width // tower.heads) != tower.width // tower.heads:
        raise section.refuse("head_dim", "the channels of a head, hidden_size / num_attention_heads")
    return tower


def _text(section: Section) -> TextSpec:
    if section.number("pooling_epsilon") > _SMALLEST_SEEN:
        raise section.refuse("pooling_epsilon", f"at most {_SMALLEST_SEEN:.3g}, which changes no mean")
    return TextSpec(
        attention="masked",
        norm_after_blocks=False,
        pooling="mean",
        scaled_words=section.flag("scale_sqrt_depth"),
        sine_positions=True,
        **section.text_sizes(),
    )


def _vision_rows(spec: VisionSpec, prefix: str) -> list[Row]:
    theirs = f"{prefix}blocks.{{layer}}"
    mlp = ("mlp.w12", "mlp.w3") if spec.gated_mlp else ("mlp.c_fc", "mlp.c_proj")
    layers = {"qkv": ("attn.qkv",), "out": "attn.proj", "mlp": mlp, "qkv_bias": spec.qkv_bias}
    return [
        *convolution_rows("vision.patch", f"{prefix}patch_embed.proj", PATCH),
        Row("vision.class_token", f"{prefix}cls_token", leading_ones(2)),
        Row("vision.positions", f"{prefix}pos_embed", leading_ones(1)),
        *register_rows(spec, f"{prefix}register_tokens"),
        *block_rows("vision", theirs, norms=("norm1", "norm2"), **layers),
        *(Row(f"vision.blocks.block.scale{n}", f"{theirs}.ls{n}.gamma") for n in (1, 2)),
        *norm_rows("vision.norm", f"{prefix}norm"),
    ]


def _text_rows(prefix: str) -> list[Row]:
    theirs, qkv = f"{prefix}transformer.resblocks.{{layer}}", "text.blocks.block.attention.qkv"
    return [
        Row("text.words", f"{prefix}token_embedding.weight"),
        Row(f"{qkv}.kernel", f"{theirs}.attn.in_proj_weight", KERNEL),
        Row(f"{qkv}.bias", f"{theirs}.attn.in_proj_bias"),
        *block_rows("text", theirs, norms=("ln_1", "ln_2"), out="attn.out_proj", mlp=("mlp.c_fc", "mlp.c_proj")),
        *norm_rows("text.norm", f"{prefix}ln_final"),
    ]
