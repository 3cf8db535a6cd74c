"""DINOv3's ViT (arXiv 2508.10104): an image tower with registers, whose only positions are rotary.

Keys have no bias. `pos_embed_shift` and its like change positions in training alone, and nothing here does.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rococo_jax.checkpoints.families.base import IGNORED, Section, library_defaults
from rococo_jax.checkpoints.families.dinov2 import DINO_VISION, NO_REGISTERS, register_rows
from rococo_jax.checkpoints.families.exportable import ExportableFamily, vision_config
from rococo_jax.checkpoints.tensors import (
    PATCH,
    QUERY_VALUE_BIAS,
    NameTable,
    Row,
    block_rows,
    convolution_rows,
    leading_ones,
    norm_rows,
)
from rococo_jax.models import ModelSpec, RotarySpec, VisionSpec


class Dinov3(ExportableFamily):
    name = "dinov3_vit"
    model_types = ("dinov3_vit",)
    poolings = ("cls", "mean", "cls+mean")
    processor: ClassVar = {"image_processor_type": "DINOv3ViTImageProcessor"}
    # It stores no positions.
    interpolates_positions = True
    processor_classes = ("BitImageProcessor", "DINOv3ViTImageProcessor")
    newer_fields = frozenset(("registers", "rotary", "stores_positions"))

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        section = Section(path, "", config, library_defaults("DINOv3ViTConfig"))
        wanted = {"proj_bias": True, "mlp_bias": True, "key_bias": False, "value_bias": section.flag("query_bias")}
        for key, value in wanted.items():
            if section.flag(key) != value:
                raise section.refuse(key, f"{value}, with query_bias {section.values['query_bias']}".lower())
        if (base := section.number("rope_theta")) % 1:
            raise section.refuse("rope_theta", "a whole number")
        vision = VisionSpec(
            mlp_width=section.integer("intermediate_size"),
            pooling=pooling,
            gated_mlp=section.flag("use_gated_mlp"),
            qkv_bias=section.flag("query_bias"),
            rotary=RotarySpec(1, centred=True, base=int(base)),
            registers=section.count("num_register_tokens"),
            stores_positions=False,
            **DINO_VISION,
            **section.image_sizes(),
        )
        return ModelSpec(vision=vision, text=None)

    def table(self, spec: ModelSpec, vision_prefix: str = "", text_prefix: str = "") -> NameTable:
        vision, theirs, ours = spec.vision, "layer.{layer}", "vision.blocks.block"
        qkv = [f"attention.{name}_proj" for name in "qkv"]
        biases = tuple(f"{theirs}.attention.{name}_proj.bias" for name in "qv")
        mlp = [f"mlp.{name}_proj" for name in ("gate", "up", "down")[not vision.gated_mlp :]]
        rows = (
            *convolution_rows("vision.patch", "embeddings.patch_embeddings", PATCH),
            Row("vision.class_token", "embeddings.cls_token", leading_ones(2)),
            *register_rows(vision, "embeddings.register_tokens"),
            *([Row(f"{ours}.attention.qkv.bias", biases, QUERY_VALUE_BIAS)] if vision.qkv_bias else []),
            *block_rows(
                "vision", theirs, norms=("norm1", "norm2"), qkv=qkv, out="attention.o_proj", mlp=mlp, qkv_bias=False
            ),
            *(Row(f"{ours}.scale{n}", f"{theirs}.layer_scale{n}.lambda1") for n in (1, 2)),
            *norm_rows("vision.norm", "norm"),
        )
        return NameTable(rows, (*IGNORED, *(() if vision.registers else NO_REGISTERS)))

    def notes(self, spec: ModelSpec) -> dict[str, str]:
        rule = "resized in 8 bits; transformers resizes floating-point numbers, which differ by less than 1 in 255"
        return {"preprocessing": rule}

    def has_image_tower(self, tower: VisionSpec) -> bool:
        return not tower.stores_positions

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        vision = spec.vision
        values = {
            **vision_config(vision),
            "use_gated_mlp": vision.gated_mlp,
            "query_bias": vision.qkv_bias,
            "value_bias": vision.qkv_bias,
            "num_register_tokens": vision.registers,
            "rope_theta": float(vision.rotary.base),
        }
        return {"model_type": self.name, "architectures": ["DINOv3ViTModel"], **values}


DINOV3 = Dinov3()
