"""TIPSv2 (arXiv 2604.12012), both towers or one: a DINOv2 with registers and a text tower without stored positions.

    logits = cosine / temperature,  so that the logit scale is -log(temperature)

Its register is a second class token (of synthetic captions); the embedding of an image is the first, as in
`transformers` and in its authors' code. Texts have no special tokens, and their embedding is the mean of their tokens.
No published checkpoint stores the temperature: it is in the configuration. Tensors have the names of the authors'
code, which `transformers` keeps in files. Source: `transformers/models/tipsv2` and its `conversion_mapping.py`.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rococo_jax.checkpoints.families.base import TEXT_FIELDS, library_defaults, tower_section
from rococo_jax.checkpoints.families.dinov2 import DINO_FIELDS, REGISTER_FIELDS, Dino
from rococo_jax.checkpoints.families.exportable import ExportablePair
from rococo_jax.checkpoints.fields import Section, fields
from rococo_jax.checkpoints.layouts import Transform
from rococo_jax.checkpoints.names import names
from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec, TextSpec, VisionSpec

_TEMPERATURE = Transform(
    to_ours=lambda theirs: np.asarray(-np.log(theirs[0].astype(np.float64)), np.float32),
    to_theirs=lambda ours, _: [np.asarray(np.exp(-ours.astype(np.float64)), np.float32)],
)
TIPSV2_NAMES = names(
    """
    vision.patch                            {vision}patch_embed.proj                                 patch
    vision.class_token                      {vision}cls_token                                        leading_axes
    vision.positions                        {vision}pos_embed                                        leading_axis
    vision.registers                        {vision}register_tokens                                  leading_axis
    vision.norm                             {vision}norm                                             norm
    vision.blocks.block.norm1               {vision}blocks.{layer}.norm1                             norm
    vision.blocks.block.attention.qkv       {vision}blocks.{layer}.attn.qkv                          linear
    vision.blocks.block.attention.out       {vision}blocks.{layer}.attn.proj                         linear
    vision.blocks.block.scale1              {vision}blocks.{layer}.ls1.gamma
    vision.blocks.block.norm2               {vision}blocks.{layer}.norm2                             norm
    vision.blocks.block.mlp.up              {vision}blocks.{layer}.mlp.c_fc                          linear
    vision.blocks.block.mlp.down            {vision}blocks.{layer}.mlp.c_proj                        linear
    vision.blocks.block.scale2              {vision}blocks.{layer}.ls2.gamma
    text.words                              {text}token_embedding.weight
    text.norm                               {text}ln_final                                           norm
    text.blocks.block.norm1                 {text}transformer.resblocks.{layer}.ln_1                 norm
    text.blocks.block.attention.qkv.kernel  {text}transformer.resblocks.{layer}.attn.in_proj_weight  kernel
    text.blocks.block.attention.qkv.bias    {text}transformer.resblocks.{layer}.attn.in_proj_bias
    text.blocks.block.attention.out         {text}transformer.resblocks.{layer}.attn.out_proj        linear
    text.blocks.block.norm2                 {text}transformer.resblocks.{layer}.ln_2                 norm
    text.blocks.block.mlp.up                {text}transformer.resblocks.{layer}.mlp.c_fc             linear
    text.blocks.block.mlp.down              {text}transformer.resblocks.{layer}.mlp.c_proj           linear
    logit_scale                             temperature                                              temperature
    """,
    temperature=_TEMPERATURE,
)
GATED_NAMES = TIPSV2_NAMES + names("""
    vision.blocks.block.mlp.up    {vision}blocks.{layer}.mlp.w12  linear
    vision.blocks.block.mlp.down  {vision}blocks.{layer}.mlp.w3   linear
""")
# Lost in float32 when it is added to a number of tokens, 1 or more.
_FLOAT32_HALF_ULP = 2.0**-24


class Tipsv2(ExportablePair, Dino):
    name = "tipsv2"
    classes = "Tipsv2"
    model_types = ("tipsv2", "tipsv2_vision_model", "tipsv2_text_model")
    names = TIPSV2_NAMES
    gated_names = GATED_NAMES
    prefixes = ("vision_encoder.", "text_encoder.")
    vision_fields = DINO_FIELDS + REGISTER_FIELDS
    text_fields = TEXT_FIELDS + fields("scaled_words  scale_sqrt_depth  flag")
    fixed_vision: ClassVar = {**Dino.fixed_vision, "pooling": "cls"}
    fixed_text: ClassVar = {
        "attention": "masked",
        "norm_after_blocks": False,
        "pooling": "mean",
        "sine_positions": True,
    }
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
        return ModelSpec(vision and self.vision_spec(vision), text and self.text_spec(text))

    def vision_spec(self, section: Section, **changes: Any) -> VisionSpec:
        tower = super().vision_spec(section, **changes)
        head_width = tower.width // tower.heads
        section.must_be("head_dim", head_width, f"{head_width}, which is hidden_size / num_attention_heads")
        return tower

    def text_spec(self, section: Section, **changes: Any) -> TextSpec:
        if section.number("pooling_epsilon") > _FLOAT32_HALF_ULP:
            raise section.refuse("pooling_epsilon", f"at most {_FLOAT32_HALF_ULP:.3g}, which changes no mean")
        return super().text_spec(section, **changes)

    def read(
        self, folder: Path, tensors: Tensors, config: Mapping[str, Any], pooling: str | None
    ) -> tuple[ModelSpec, dict[str, np.ndarray]]:
        section = Section(folder / "config.json", "", config, library_defaults("Tipsv2Config"))
        if config["model_type"] == self.name and "temperature" not in tensors.names:
            configured = np.array(section.number("temperature_init_value"), np.float32)
            tensors = tensors.extended("temperature", configured)
        elif "temperature" in tensors.names and not ((temperature := tensors.read("temperature")) > 0).all():
            raise InputError(tensors.path, "temperature", temperature, "a number above 0")
        return super().read(folder, tensors, config, pooling)

    def has_image_tower(self, tower: VisionSpec) -> bool:
        return tower.layer_scale and tower.pooling == "cls"

    def has_text_tower(self, tower: TextSpec) -> bool:
        return tower.sine_positions


TIPSV2 = Tipsv2()
