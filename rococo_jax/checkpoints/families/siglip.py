"""SigLIP (arXiv 2303.15343) and SigLIP 2 of fixed resolution, both towers or one, and SigLIP 2 NaFlex."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rococo_jax.checkpoints.families.base import TOWER_FIELDS, VISION_FIELDS, tower_section
from rococo_jax.checkpoints.families.clip import TWO_TOWERS
from rococo_jax.checkpoints.families.exportable import ExportablePair
from rococo_jax.checkpoints.fields import Section, fields
from rococo_jax.checkpoints.names import names
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec, VisionSpec
from rococo_jax.storage import read_json_object, write_json

SIGLIP_NAMES = TWO_TOWERS + names("""
    vision.patch.bias          {vision}embeddings.patch_embedding.bias
    vision.pooling.probe       {vision}head.probe                     leading_axes
    vision.pooling.qkv.kernel  {vision}head.attention.in_proj_weight  kernel
    vision.pooling.qkv.bias    {vision}head.attention.in_proj_bias
    vision.pooling.out         {vision}head.attention.out_proj        linear
    vision.pooling.norm        {vision}head.layernorm                 norm
    vision.pooling.mlp.up      {vision}head.mlp.fc1                   linear
    vision.pooling.mlp.down    {vision}head.mlp.fc2                   linear
    text_head                  {text}head                             linear
    logit_scale                logit_scale                            leading_axis
    logit_bias                 logit_bias                             leading_axis
""")
SIGLIP_VISION = {
    "class_token": False,
    "patch_bias": True,
    "norm_before_blocks": False,
    "layer_scale": False,
    "pooling": "attention",
}
SIGLIP_TEXT = {"attention": "full", "norm_after_blocks": False, "pooling": "last"}


class Siglip(ExportablePair):
    name = "siglip"
    classes = "Siglip"
    model_types = ("siglip", "siglip_vision_model", "siglip_text_model")
    names = SIGLIP_NAMES
    prefixes = ("vision_model.", "text_model.")
    # Without its pooling head the tower gives no embedding.
    vision_fields = VISION_FIELDS + fields("-  vision_use_head  true")
    fixed_vision: ClassVar = SIGLIP_VISION
    fixed_text: ClassVar = SIGLIP_TEXT
    processor: ClassVar = {"image_processor_type": "SiglipImageProcessor"}
    lower_case = True
    processor_classes = ("CLIPImageProcessor", "SiglipImageProcessor")

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        vision = tower_section(config, path, "vision", f"{self.classes}VisionConfig")
        text = tower_section(config, path, "text", f"{self.classes}TextConfig")
        head = HeadSpec()
        if text is not None:
            size = "hidden_size" if text.values["projection_size"] is None else "projection_size"
            head = HeadSpec("linear", text.integer(size), bias=True)
        is_pair = vision is not None and text is not None
        return ModelSpec(
            vision and self.vision_spec(vision),
            text and self.text_spec(text),
            text_head=head,
            logit_bias=is_pair,
        )

    def has_image_tower(self, tower: VisionSpec) -> bool:
        return tower.pooling == "attention"

    def has_text_tower(self, tower: TextSpec) -> bool:
        return tower.attention == "full"

    def vision_config(self, spec: VisionSpec) -> dict[str, Any]:
        return {**super().vision_config(spec), "vision_use_head": True}

    def text_head_config(self, spec: ModelSpec) -> dict[str, Any]:
        return {"projection_size": spec.text_head.dim}


SIGLIP = Siglip()


class Siglip2(Siglip):
    """The positions stay as they are stored, for a square of `num_patches`.

    How many patches an image has is a setting of the image processor.
    """

    name = "siglip2"
    classes = "Siglip2"
    model_types = ("siglip2", "siglip2_vision_model", "siglip2_text_model")
    # A linear map of patches, not a convolution.
    names = SIGLIP_NAMES + names("vision.patch.kernel  {vision}embeddings.patch_embedding.weight  kernel")
    vision_fields = TOWER_FIELDS + fields("""
        position_grid  num_patches      root
        patch_size     patch_size       side
        -              num_channels     rgb
        -              vision_use_head  true
    """)
    position_rule = "antialiased_linear"
    fixed_vision: ClassVar = {**SIGLIP_VISION, "flexible_grid": True, "position_rule": position_rule}
    processor: ClassVar = {"image_processor_type": "Siglip2ImageProcessor"}
    interpolates_positions = True
    processor_classes = ("Siglip2ImageProcessor",) * 2
    newer_fields = frozenset(("flexible_grid",))

    def vision_spec(self, section: Section, **changes: Any) -> VisionSpec:
        image_size = section.root("num_patches") * section.side("patch_size")
        return super().vision_spec(section, image_size=image_size, **changes)

    def has_image_tower(self, tower: VisionSpec) -> bool:
        return tower.flexible_grid

    def write_tokenizer(self, folder: Path, tokenizer: Tokenizer) -> None:
        super().write_tokenizer(folder, tokenizer)
        # The class that `transformers` uses for every SigLIP 2 rebuilds the tokenizer.
        settings = read_json_object(folder / "tokenizer_config.json", "tokenizer settings")
        write_json(folder / "tokenizer_config.json", {**settings, "tokenizer_class": "Siglip2Tokenizer"})

    def processor_size(self, preprocessing: Preprocessing) -> dict[str, Any]:
        return {"patch_size": preprocessing.patch_size, "max_num_patches": preprocessing.max_patches}


SIGLIP2 = Siglip2()
