"""DINOv2 (arXiv 2304.07193), an image tower, and DINOv2 with registers (2309.16588)."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rococo_jax.checkpoints.families.base import IGNORED, VISION_FIELDS, library_defaults
from rococo_jax.checkpoints.families.exportable import ExportableFamily
from rococo_jax.checkpoints.fields import FieldList, Section, fields
from rococo_jax.checkpoints.names import names
from rococo_jax.models import ModelSpec, VisionSpec

DINOV2_NAMES = names("""
    vision.patch                       {vision}embeddings.patch_embeddings.projection                       patch
    vision.class_token                 {vision}embeddings.cls_token                                         leading_axes
    vision.positions                   {vision}embeddings.position_embeddings                               leading_axis
    vision.registers                   {vision}embeddings.register_tokens                                   leading_axis
    vision.norm                        {vision}layernorm                                                    norm
    vision.blocks.block.norm1          {vision}encoder.layer.{layer}.norm1                                  norm
    vision.blocks.block.attention.qkv  {vision}encoder.layer.{layer}.attention.attention.{query,key,value}  linear
    vision.blocks.block.attention.out  {vision}encoder.layer.{layer}.attention.output.dense                 linear
    vision.blocks.block.scale1         {vision}encoder.layer.{layer}.layer_scale1.lambda1
    vision.blocks.block.norm2          {vision}encoder.layer.{layer}.norm2                                  norm
    vision.blocks.block.mlp.up         {vision}encoder.layer.{layer}.mlp.fc1                                linear
    vision.blocks.block.mlp.down       {vision}encoder.layer.{layer}.mlp.fc2                                linear
    vision.blocks.block.scale2         {vision}encoder.layer.{layer}.layer_scale2.lambda1
""")
GATED_NAMES = DINOV2_NAMES + names("""
    vision.blocks.block.mlp.up    {vision}encoder.layer.{layer}.mlp.weights_in   linear
    vision.blocks.block.mlp.down  {vision}encoder.layer.{layer}.mlp.weights_out  linear
""")
# The width of the MLP follows from `mlp_ratio`.
DINO_FIELDS = FieldList(line for line in VISION_FIELDS.lines if line.ours != "mlp_width") + fields("""
    qkv_bias   qkv_bias        flag
    gated_mlp  use_swiglu_ffn  flag
""")
REGISTER_FIELDS = fields("registers  num_register_tokens  count")
DINO_VISION = {"class_token": True, "patch_bias": True, "norm_before_blocks": False, "layer_scale": True}
# An empty array, which checkpoints without registers store.
NO_REGISTERS = r"(.*\.)?register_tokens"


class Dino(ExportableFamily):
    """A family with the image tower of DINOv2 in DINOv2's keys.

    A gated MLP has two thirds of the width that `mlp_ratio` gives, always with silu.
    """

    vision_fields = DINO_FIELDS
    fixed_vision: ClassVar = DINO_VISION
    ignored = (*IGNORED, NO_REGISTERS)

    def vision_spec(self, section: Section, **changes: Any) -> VisionSpec:
        mlp_width = int(section.integer("hidden_size") * section.number("mlp_ratio"))
        if section.flag("use_swiglu_ffn"):
            changes |= {"activation": "silu"}
            mlp_width = _gated_width(mlp_width)
        return super().vision_spec(section, mlp_width=mlp_width, **changes)

    def vision_config(self, spec: VisionSpec) -> dict[str, Any]:
        config = {**super().vision_config(spec), "mlp_ratio": _mlp_ratio(spec)}
        return {**config, "hidden_act": "gelu"} if spec.gated_mlp else config  # not used in a gated MLP


class Dinov2(Dino):
    name = "dinov2"
    model_types = ("dinov2",)
    names = DINOV2_NAMES
    gated_names = GATED_NAMES
    prefixes = ("dinov2.", "")
    poolings = ("cls", "mean", "cls+mean")
    # The evaluation transform of its own repository: resize to 256, crop 224, ImageNet statistics.
    processor: ClassVar = {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 256},
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    # Stored for 518 pixels and used at 224.
    interpolates_positions = True
    processor_classes = ("BitImageProcessor", "BitImageProcessor")
    config_class = "Dinov2Config"

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        section = Section(path, "", config, library_defaults(self.config_class))
        return ModelSpec(vision=self.vision_spec(section, pooling=pooling), text=None)

    def has_image_tower(self, tower: VisionSpec) -> bool:
        return tower.layer_scale and tower.pooling != "attention"

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        architectures = [self.config_class.replace("Config", "Model")]
        return {"model_type": self.name, "architectures": architectures, **self.vision_config(spec.vision)}


class Dinov2WithRegisters(Dinov2):
    name = "dinov2_with_registers"
    model_types = ("dinov2_with_registers",)
    prefixes = ("dinov2_with_registers.", "")
    vision_fields = DINO_FIELDS + REGISTER_FIELDS
    position_rule = "antialiased"
    newer_fields = frozenset(("registers",))
    config_class = "Dinov2WithRegistersConfig"


DINOV2, DINOV2_WITH_REGISTERS = Dinov2(), Dinov2WithRegisters()


def _gated_width(hidden: int) -> int:
    """Return two thirds, in multiples of eight: a gated MLP then has about as many parameters as a plain one."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8


def _mlp_ratio(vision: VisionSpec) -> float | int:
    """Return the `mlp_ratio` that is read back as the tower's width."""
    hidden = vision.mlp_width * 3 / 2 if vision.gated_mlp else vision.mlp_width
    ratio = hidden / vision.width
    if vision.gated_mlp:
        for rounded in (int(ratio), round(ratio)):
            if _gated_width(rounded * vision.width) == vision.mlp_width:
                return rounded
    return int(ratio) if ratio == int(ratio) else ratio
