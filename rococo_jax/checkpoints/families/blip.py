"""BLIP for image-text retrieval (arXiv 2201.12086): its contrastive pair, a ViT and a BERT without token types, and the
matching head that judges pairs, where the checkpoint has all of it.

The temperature is not in the checkpoint; the logit scale is the one that training starts from, 1/0.07, and provenance
tells so.

BLIP adds two words to BERT's, [DEC] (`bos_token_id`) and after it [ENC]. The matching head was trained on texts that
begin with [ENC] in place of [CLS], and its published evaluation (`train_retrieval.py`) puts it there; `transformers`
leaves that to the caller.
"""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rococo_jax.checkpoints.families.base import Family, Section, library_defaults, part_section
from rococo_jax.checkpoints.families.bert import BERT
from rococo_jax.checkpoints.tensors import PATCH, NameTable, Row, block_rows, leading_ones, linear_rows, norm_rows
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.errors import InputError
from rococo_jax.models import HeadSpec, MatchingSpec, ModelSpec, TextSpec, VisionSpec

_IGNORED = (
    r"text_encoder\.encoder\.layer\.\d+\.crossattention\..*",
    r"itm_head\.(weight|bias)",
    r"text_encoder\.(embeddings\.position_ids|pooler\..*)",
)
_CROSS = "text_encoder.encoder.layer.{layer}.crossattention"
_NEEDED_TO_MATCH = {"itm_head.weight", f"{_CROSS}.self.query.weight".format(layer=0)}


class Blip(Family):
    """Read only: no export."""

    name = "blip"
    model_types = ("blip",)
    constants: ClassVar = {"logit_scale": np.float32(math.log(1 / 0.07))}
    # Resized to a square as SigLIP's images are, with CLIP's statistics.
    processor: ClassVar = {
        "image_processor_type": "SiglipImageProcessor",
        "size": {"height": 384, "width": 384},
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        if "text_proj.weight" not in names or "vision_proj.weight" not in names:
            raise InputError(path, "tensors", "no vision_proj and text_proj", "a BLIP for image-text retrieval")
        vision = part_section(path, "vision_config", config, "BlipVisionConfig")
        text = part_section(path, "text_config", config, "BlipTextConfig")
        dim = Section(path, "", config, library_defaults("BlipConfig")).integer("image_text_hidden_size")
        head = HeadSpec("linear", dim, bias=True)
        image_tower = VisionSpec(
            mlp_width=vision.integer("intermediate_size"),
            class_token=True,
            patch_bias=True,
            norm_before_blocks=False,
            layer_scale=False,
            pooling="cls",
            **vision.image_sizes(),
        )
        text_tower = TextSpec(attention="masked", norm_after_blocks=True, pooling="cls", **text.text_sizes())
        matching = MatchingSpec(_encoder_token(text)) if set(names) >= _NEEDED_TO_MATCH else None
        return ModelSpec(image_tower, text_tower, head, head, matching=matching)

    def table(self, spec: ModelSpec, vision_prefix: str = "", text_prefix: str = "") -> NameTable:
        """The names of both towers and heads, and of the matching head; the logit scale is not among them."""
        layers = {"qkv": ["self_attn.qkv"], "out": "self_attn.projection", "mlp": ("mlp.fc1", "mlp.fc2")}
        blocks = "vision_model.encoder.layers.{layer}"
        rows = (
            Row("vision.patch.kernel", "vision_model.embeddings.patch_embedding.weight", PATCH),
            Row("vision.patch.bias", "vision_model.embeddings.patch_embedding.bias"),
            Row("vision.class_token", "vision_model.embeddings.class_embedding", leading_ones(2)),
            Row("vision.positions", "vision_model.embeddings.position_embedding", leading_ones(1)),
            *block_rows("vision", blocks, norms=("layer_norm1", "layer_norm2"), **layers),
            *norm_rows("vision.norm", "vision_model.post_layernorm"),
            *linear_rows("vision_head", "vision_proj"),
            *BERT.text_rows("text_encoder.", spec.text),
            *linear_rows("text_head", "text_proj"),
            *(_matching_rows() if spec.matching is not None else ()),
        )
        return NameTable(rows, _IGNORED)

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
    """The id of [ENC], the last word and the one after [DEC]; None where the vocabulary is another."""
    last = text.integer("vocab_size") - 1
    return last if text.values["bos_token_id"] == last - 1 else None


def _matching_rows() -> list[Row]:
    ours = "matching.blocks.block"
    return [
        *linear_rows(f"{ours}.query", f"{_CROSS}.self.query"),
        *linear_rows(f"{ours}.key_value", f"{_CROSS}.self.key", f"{_CROSS}.self.value"),
        *linear_rows(f"{ours}.out", f"{_CROSS}.output.dense"),
        *norm_rows(f"{ours}.norm", f"{_CROSS}.output.LayerNorm"),
        *linear_rows("matching.head", "itm_head"),
    ]
