"""CLIP (arXiv 2103.00020), both towers or one, with projections or without; and MetaCLIP 2 (arXiv 2507.22062)."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rococo_jax.checkpoints.families.base import library_defaults, tower_section
from rococo_jax.checkpoints.families.bert import ROBERTA
from rococo_jax.checkpoints.families.exportable import ExportablePair
from rococo_jax.checkpoints.fields import Section
from rococo_jax.checkpoints.names import names
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec, VisionSpec

# Names that CLIP and SigLIP share.
TWO_TOWERS = names("""
    vision.patch.kernel                 {vision}embeddings.patch_embedding.weight              patch_kernel
    vision.positions                    {vision}embeddings.position_embedding.weight
    vision.norm                         {vision}post_layernorm                                 norm
    text.words                          {text}embeddings.token_embedding.weight
    text.positions                      {text}embeddings.position_embedding.weight
    text.norm                           {text}final_layer_norm                                 norm
    {tower}.blocks.block.norm1          {prefix}encoder.layers.{layer}.layer_norm1             norm
    {tower}.blocks.block.attention.qkv  {prefix}encoder.layers.{layer}.self_attn.{q,k,v}_proj  linear
    {tower}.blocks.block.attention.out  {prefix}encoder.layers.{layer}.self_attn.out_proj      linear
    {tower}.blocks.block.norm2          {prefix}encoder.layers.{layer}.layer_norm2             norm
    {tower}.blocks.block.mlp.up         {prefix}encoder.layers.{layer}.mlp.fc1                 linear
    {tower}.blocks.block.mlp.down       {prefix}encoder.layers.{layer}.mlp.fc2                 linear
""")
CLIP_NAMES = TWO_TOWERS + names("""
    vision.class_token  {vision}embeddings.class_embedding
    vision.norm_before  {vision}pre_layrnorm      norm
    vision_head.kernel  visual_projection.weight  kernel
    text_head.kernel    text_projection.weight    kernel
    logit_scale         logit_scale
""")
CLIP_VISION = {
    "class_token": True,
    "patch_bias": False,
    "norm_before_blocks": True,
    "layer_scale": False,
    "pooling": "cls",
}


class Clip(ExportablePair):
    """Configurations before July 2023 all have the end token 2; the reference then pools at the highest id of a text.

    Attributes:
        highest_id_of_eos: the end token that means this pooling, None if no end token does.
    """

    name = "clip"
    model_types = ("clip", "clip_vision_model", "clip_text_model")
    names = CLIP_NAMES
    prefixes = ("vision_model.", "text_model.")
    fixed_vision: ClassVar = CLIP_VISION
    fixed_text: ClassVar = {"attention": "causal", "norm_after_blocks": False}
    processor: ClassVar = {"image_processor_type": "CLIPImageProcessor"}
    lower_case = True
    classes: ClassVar = "CLIP"
    class_with_head: ClassVar = "WithProjection"
    highest_id_of_eos: ClassVar[int | None] = 2

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        vision = tower_section(config, path, "vision", f"{self.classes}VisionConfig")
        text = tower_section(config, path, "text", f"{self.classes}TextConfig")
        defaults = library_defaults(f"{self.classes}Config")
        head = HeadSpec("linear", Section(path, "", config, defaults).integer("projection_dim"))
        is_pair = vision is not None and text is not None
        return ModelSpec(
            vision=vision and self.vision_spec(vision),
            text=text and self.text_spec(text),
            vision_head=head if vision and (is_pair or "visual_projection.weight" in names) else HeadSpec(),
            text_head=head if text and (is_pair or "text_projection.weight" in names) else HeadSpec(),
        )

    def text_spec(self, section: Section, **changes: Any) -> TextSpec:
        eos_id = section.integer("eos_token_id")
        if eos_id == self.highest_id_of_eos:
            return super().text_spec(section, pooling="highest_id", **changes)
        return super().text_spec(section, pooling="first_eos", eos_id=eos_id, **changes)

    def has_image_tower(self, tower: VisionSpec) -> bool:
        return tower.pooling != "attention" and not tower.layer_scale

    def has_text_tower(self, tower: TextSpec) -> bool:
        is_read_differently = tower.pooling == "first_eos" and tower.eos_id == self.highest_id_of_eos
        return tower.attention == "causal" and not is_read_differently

    def text_config(self, spec: TextSpec) -> dict[str, Any]:
        return {**super().text_config(spec), "eos_token_id": 2 if spec.pooling == "highest_id" else spec.eos_id}

    def head_config(self, spec: ModelSpec) -> dict[str, Any]:
        return {"projection_dim": spec.dim}


class MetaClip2(Clip):
    """MetaCLIP 2: the towers of CLIP with the vocabulary of XLM-V.

    Texts are pooled at the first end token for every id. In a configuration of CLIP the id 2, which is XLM-V's, means
    another pooling; a model that ends its texts with another id is exported as a CLIP.
    """

    name = "metaclip2"
    model_types = ("metaclip_2", "metaclip_2_vision_model", "metaclip_2_text_model")
    classes: ClassVar = "MetaClip2"
    highest_id_of_eos: ClassVar = None
    lower_case = False

    def read_tokenizer(self, source: str | Path, config: Mapping[str, Any]) -> Tokenizer:
        text = config.get("text_config") or config
        limit = {"max_position_embeddings": text.get("max_position_embeddings", 77)}
        return ROBERTA.read_tokenizer(source, {"model_type": "xlm-roberta", "text_config": limit})


CLIP, METACLIP2 = Clip(), MetaClip2()
