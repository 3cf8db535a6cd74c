"""DINOv3's ViT (arXiv 2508.10104): an image tower with registers, whose only positions are rotary.

Keys have no bias. `pos_embed_shift`, `pos_embed_jitter` and `pos_embed_rescale` change positions in training alone.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rococo_jax.checkpoints.families.base import IGNORED, VISION_FIELDS, library_defaults
from rococo_jax.checkpoints.families.dinov2 import DINO_VISION, NO_REGISTERS, REGISTER_FIELDS
from rococo_jax.checkpoints.families.exportable import ExportableFamily
from rococo_jax.checkpoints.fields import Section, fields
from rococo_jax.checkpoints.names import names
from rococo_jax.models import ModelSpec, RotarySpec, VisionSpec

DINOV3_NAMES = names("""
    vision.patch                              embeddings.patch_embeddings                  patch
    vision.class_token                        embeddings.cls_token                         leading_axes
    vision.registers                          embeddings.register_tokens                   leading_axis
    vision.norm                               norm                                         norm
    vision.blocks.block.norm1                 layer.{layer}.norm1                          norm
    vision.blocks.block.attention.qkv.kernel  layer.{layer}.attention.{q,k,v}_proj.weight  kernel
    vision.blocks.block.attention.qkv.bias    layer.{layer}.attention.{q,v}_proj.bias      query_value_bias
    vision.blocks.block.attention.out         layer.{layer}.attention.o_proj               linear
    vision.blocks.block.scale1                layer.{layer}.layer_scale1.lambda1
    vision.blocks.block.norm2                 layer.{layer}.norm2                          norm
    vision.blocks.block.mlp.up                layer.{layer}.mlp.up_proj                    linear
    vision.blocks.block.mlp.down              layer.{layer}.mlp.down_proj                  linear
    vision.blocks.block.scale2                layer.{layer}.layer_scale2.lambda1
""")
GATED_NAMES = DINOV3_NAMES + names("""
    vision.blocks.block.mlp.up  layer.{layer}.mlp.{gate,up}_proj  linear
""")


class Dinov3(ExportableFamily):
    name = "dinov3_vit"
    model_types = ("dinov3_vit",)
    names = DINOV3_NAMES
    gated_names = GATED_NAMES
    ignored = (*IGNORED, NO_REGISTERS)
    vision_fields = (
        VISION_FIELDS
        + REGISTER_FIELDS
        + fields("""
        gated_mlp  use_gated_mlp  flag
        qkv_bias   query_bias     flag
        qkv_bias   value_bias     flag
        -          key_bias       false
        -          proj_bias      true
        -          mlp_bias       true
    """)
    )
    fixed_vision: ClassVar = {**DINO_VISION, "stores_positions": False}
    poolings = ("cls", "mean", "cls+mean")
    processor: ClassVar = {"image_processor_type": "DINOv3ViTImageProcessor"}
    # It stores no positions.
    interpolates_positions = True
    processor_classes = ("BitImageProcessor", "DINOv3ViTImageProcessor")
    newer_fields = frozenset(("registers", "rotary", "stores_positions"))

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        section = Section(path, "", config, library_defaults("DINOv3ViTConfig"))
        rotary = RotarySpec(1, centred=True, base=section.whole_float("rope_theta"))
        return ModelSpec(vision=self.vision_spec(section, pooling=pooling, rotary=rotary), text=None)

    def notes(self, spec: ModelSpec) -> dict[str, str]:
        note = "resized in 8 bits; transformers resizes floating-point numbers, which differ by less than 1 in 255"
        return {"preprocessing": note}

    def has_image_tower(self, tower: VisionSpec) -> bool:
        return not tower.stores_positions

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        values = {**self.vision_config(spec.vision), "rope_theta": float(spec.vision.rotary.base)}
        return {"model_type": self.name, "architectures": ["DINOv3ViTModel"], **values}


DINOV3 = Dinov3()
