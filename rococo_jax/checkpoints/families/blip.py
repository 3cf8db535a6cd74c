"""BLIP for image-text retrieval (arXiv 2201.12086): a ViT, a BERT without token types, and the matching head.

The matching head scores pairs; a checkpoint may leave it out. The checkpoint does not store the temperature. The logit
scale is the one that training starts from, 1/0.07, and provenance says so.

BLIP adds two words to BERT's, [DEC] (`bos_token_id`) and after it [ENC]. The matching head was trained on texts that
begin with [ENC] in place of [CLS], and its published evaluation (`train_retrieval.py`) puts it there; `transformers`
leaves that to the caller.
"""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rococo_jax.checkpoints.families.base import Family, library_defaults, part_section
from rococo_jax.checkpoints.families.bert import BERT, BERT_NAMES
from rococo_jax.checkpoints.fields import Section
from rococo_jax.checkpoints.names import names
from rococo_jax.data.image_processors import CLIP_MEAN, CLIP_STD
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.errors import InputError
from rococo_jax.models import HeadSpec, MatchingSpec, ModelSpec

BLIP_NAMES = BERT_NAMES + names("""
    vision.patch                       {vision}embeddings.patch_embedding                           patch
    vision.class_token                 {vision}embeddings.class_embedding                           leading_axes
    vision.positions                   {vision}embeddings.position_embedding                        leading_axis
    vision.norm                        {vision}post_layernorm                                       norm
    vision.blocks.block.norm1          {vision}encoder.layers.{layer}.layer_norm1                   norm
    vision.blocks.block.attention.qkv  {vision}encoder.layers.{layer}.self_attn.qkv                 linear
    vision.blocks.block.attention.out  {vision}encoder.layers.{layer}.self_attn.projection          linear
    vision.blocks.block.norm2          {vision}encoder.layers.{layer}.layer_norm2                   norm
    vision.blocks.block.mlp.up         {vision}encoder.layers.{layer}.mlp.fc1                       linear
    vision.blocks.block.mlp.down       {vision}encoder.layers.{layer}.mlp.fc2                       linear
    vision_head                        vision_proj                                                  linear
    text_head                          text_proj                                                    linear
    matching.blocks.block.query        {text}encoder.layer.{layer}.crossattention.self.query        linear
    matching.blocks.block.key_value    {text}encoder.layer.{layer}.crossattention.self.{key,value}  linear
    matching.blocks.block.out          {text}encoder.layer.{layer}.crossattention.output.dense      linear
    matching.blocks.block.norm         {text}encoder.layer.{layer}.crossattention.output.LayerNorm  norm
    matching.head                      itm_head                                                     linear
""")
_NEEDED_TO_MATCH = {"itm_head.weight", "text_encoder.encoder.layer.0.crossattention.self.query.weight"}


class Blip(Family):
    """BLIP can be read and not exported."""

    name = "blip"
    model_types = ("blip",)
    names = BLIP_NAMES
    # A checkpoint with an incomplete matching head is read without it.
    ignored = (
        r"text_encoder\.encoder\.layer\.\d+\.crossattention\..*",
        r"itm_head\.(weight|bias)",
        r"text_encoder\.(embeddings\.position_ids|pooler\..*)",
    )
    prefixes = ("vision_model.", "text_encoder.")
    fixed_vision: ClassVar = {
        "class_token": True,
        "patch_bias": True,
        "norm_before_blocks": False,
        "layer_scale": False,
        "pooling": "cls",
    }
    fixed_text: ClassVar = {"attention": "masked", "norm_after_blocks": True, "pooling": "cls"}
    constants: ClassVar = {"logit_scale": np.float32(math.log(1 / 0.07))}
    # Resized to a square as SigLIP's images are, with CLIP's statistics.
    processor: ClassVar = {
        "image_processor_type": "SiglipImageProcessor",
        "size": {"height": 384, "width": 384},
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
    }

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        if "text_proj.weight" not in names or "vision_proj.weight" not in names:
            raise InputError(path, "tensors", "no vision_proj and text_proj", "a BLIP for image-text retrieval")
        vision = part_section(path, "vision_config", config, "BlipVisionConfig")
        text = part_section(path, "text_config", config, "BlipTextConfig")
        dim = Section(path, "", config, library_defaults("BlipConfig")).integer("image_text_hidden_size")
        head = HeadSpec("linear", dim, bias=True)
        matching = MatchingSpec(_encoder_token(text)) if set(names) >= _NEEDED_TO_MATCH else None
        return ModelSpec(self.vision_spec(vision), self.text_spec(text), head, head, matching=matching)

    def notes(self, spec: ModelSpec) -> dict[str, str]:
        notes = {"logit_scale": "1/0.07, where training starts: the checkpoint has none"}
        if spec.matching is not None and spec.matching.first_id is not None:
            notes["matching"] = f"texts begin with [ENC], id {spec.matching.first_id}, as the head was trained"
        return notes

    def processor_settings(self, config: Any) -> Any:
        return {**self.processor, **config, "image_processor_type": self.processor["image_processor_type"]}

    def read_tokenizer(self, source: str | Path, config: Mapping[str, Any]) -> Tokenizer:
        return BERT.read_tokenizer(source, {**config, "model_type": "bert"})


BLIP = Blip()


def _encoder_token(text: Section) -> int | None:
    """Return the id of [ENC], the last word and the one after [DEC]; None for another vocabulary."""
    last_word = text.integer("vocab_size") - 1
    return last_word if text.values["bos_token_id"] == last_word - 1 else None
