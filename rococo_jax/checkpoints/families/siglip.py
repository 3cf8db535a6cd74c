"""SigLIP (arXiv 2303.15343) and SigLIP 2 of fixed resolution: both towers or one."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rococo_jax.checkpoints.families.base import IGNORED, Section, tower_section
from rococo_jax.checkpoints.families.clip import text_rows, vision_rows
from rococo_jax.checkpoints.families.exportable import ExportablePair, text_config, vision_config
from rococo_jax.checkpoints.tensors import KERNEL, NameTable, Row, leading_ones, linear_rows, norm_rows
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec, VisionSpec

# What distinguishes its towers, whatever their sizes.
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
    model_types = ("siglip", "siglip_vision_model", "siglip_text_model")
    prefixes = ("vision_model.", "text_model.")
    processor: ClassVar = {"image_processor_type": "SiglipImageProcessor"}
    lower_case = True
    classes = "Siglip"
    processor_classes = ("CLIPImageProcessor", "SiglipImageProcessor")

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        vision = tower_section(config, path, "vision", f"{self.classes}VisionConfig")
        text = tower_section(config, path, "text", f"{self.classes}TextConfig")
        head = HeadSpec()
        if text is not None:
            size = "hidden_size" if text.values["projection_size"] is None else "projection_size"
            head = HeadSpec("linear", text.integer(size), bias=True)
        both = vision is not None and text is not None
        return ModelSpec(vision and self.vision_tower(vision), text and _text(text), text_head=head, logit_bias=both)

    def vision_tower(self, section: Section) -> VisionSpec:
        """The image tower of a section."""
        section.values.setdefault("vision_use_head", True)  # not a field in every release of `transformers`
        if not section.flag("vision_use_head"):
            raise section.refuse("vision_use_head", "true: without its pooling head the tower gives no vector")
        return VisionSpec(
            mlp_width=section.integer("intermediate_size"),
            **SIGLIP_VISION,
            **section.image_sizes(),
        )

    def table(self, spec: ModelSpec, vision_prefix: str = "", text_prefix: str = "") -> NameTable:
        rows: list[Row] = []
        if spec.vision is not None:
            rows += vision_rows(vision_prefix)
            rows.append(Row("vision.patch.bias", f"{vision_prefix}embeddings.patch_embedding.bias"))
            rows += _pooling_rows("vision.pooling", f"{vision_prefix}head")
        if spec.text is not None:
            rows += text_rows(text_prefix) + linear_rows("text_head", f"{text_prefix}head")
        if spec.vision is not None and spec.text is not None:
            rows += [Row(name, name, leading_ones(1)) for name in ("logit_scale", "logit_bias")]
        return NameTable(tuple(rows), IGNORED)

    def has_image_tower(self, tower: VisionSpec) -> bool:
        return tower.pooling == "attention"

    def has_text_tower(self, tower: TextSpec) -> bool:
        return tower.attention == "full"

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        vision = spec.vision and {**vision_config(spec.vision), "vision_use_head": True}
        text = spec.text and {**text_config(spec.text), "projection_size": spec.text_head.dim}
        return self.config_of(vision, text)


SIGLIP = Siglip()


def _text(section: Section) -> TextSpec:
    return TextSpec(**SIGLIP_TEXT, **section.text_sizes())


def _pooling_rows(ours: str, theirs: str) -> list[Row]:
    return [
        Row(f"{ours}.probe", f"{theirs}.probe", leading_ones(2)),
        Row(f"{ours}.qkv.kernel", f"{theirs}.attention.in_proj_weight", KERNEL),
        Row(f"{ours}.qkv.bias", f"{theirs}.attention.in_proj_bias"),
        *linear_rows(f"{ours}.out", f"{theirs}.attention.out_proj"),
        *norm_rows(f"{ours}.norm", f"{theirs}.layernorm"),
        *linear_rows(f"{ours}.mlp.up", f"{theirs}.mlp.fc1"),
        *linear_rows(f"{ours}.mlp.down", f"{theirs}.mlp.fc2"),
    ]
