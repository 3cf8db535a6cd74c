"""DINOv2 (arXiv 2304.07193), an image tower, and DINOv2 with registers (2309.16588)."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rococo_jax.checkpoints.families.base import IGNORED, Section, library_defaults
from rococo_jax.checkpoints.families.exportable import ExportableFamily, vision_config
from rococo_jax.checkpoints.tensors import PATCH, NameTable, Row, block_rows, leading_ones, norm_rows
from rococo_jax.models import ModelSpec, VisionSpec

# What distinguishes its towers, whatever their sizes.
DINO_VISION = {"class_token": True, "patch_bias": True, "norm_before_blocks": False, "layer_scale": True}
# What a checkpoint without registers stores: an array of no values.
NO_REGISTERS = (r"(.*\.)?register_tokens",)


class Dinov2(ExportableFamily):
    name = "dinov2"
    model_types = ("dinov2",)
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
        registers = section.count("num_register_tokens") if self.newer_fields else 0
        return ModelSpec(vision=dino(section, pooling, registers), text=None)

    def table(self, spec: ModelSpec, vision_prefix: str = "", text_prefix: str = "") -> NameTable:
        theirs, embeddings = f"{vision_prefix}encoder.layer.{{layer}}", f"{vision_prefix}embeddings"
        layers = {
            "qkv": [f"attention.attention.{name}" for name in ("query", "key", "value")],
            "out": "attention.output.dense",
            "mlp": ("mlp.weights_in", "mlp.weights_out") if spec.vision.gated_mlp else ("mlp.fc1", "mlp.fc2"),
        }
        rows = (
            Row("vision.patch.kernel", f"{embeddings}.patch_embeddings.projection.weight", PATCH),
            Row("vision.patch.bias", f"{embeddings}.patch_embeddings.projection.bias"),
            Row("vision.class_token", f"{embeddings}.cls_token", leading_ones(2)),
            Row("vision.positions", f"{embeddings}.position_embeddings", leading_ones(1)),
            *register_rows(spec.vision, f"{embeddings}.register_tokens"),
            *block_rows("vision", theirs, norms=("norm1", "norm2"), qkv_bias=spec.vision.qkv_bias, **layers),
            *(Row(f"vision.blocks.block.scale{n}", f"{theirs}.layer_scale{n}.lambda1") for n in (1, 2)),
            *norm_rows("vision.norm", f"{vision_prefix}layernorm"),
        )
        return NameTable(rows, (*IGNORED, *(NO_REGISTERS if self.newer_fields and not spec.vision.registers else ())))

    def has_image_tower(self, tower: VisionSpec) -> bool:
        return tower.layer_scale and tower.pooling != "attention"

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        architectures = [self.config_class.replace("Config", "Model")]
        registers = {"num_register_tokens": spec.vision.registers} if self.newer_fields else {}
        return {"model_type": self.name, "architectures": architectures, **dino_config(spec.vision), **registers}


class Dinov2WithRegisters(Dinov2):
    name = "dinov2_with_registers"
    model_types = ("dinov2_with_registers",)
    prefixes = ("dinov2_with_registers.", "")
    position_rule = "antialiased"
    newer_fields = frozenset(("registers",))
    config_class = "Dinov2WithRegistersConfig"


DINOV2, DINOV2_WITH_REGISTERS = Dinov2(), Dinov2WithRegisters()


def dino(section: Section, pooling: str, registers: int) -> VisionSpec:
    """The image tower of a section in DINOv2's keys."""
    hidden = int(section.integer("hidden_size") * section.number("mlp_ratio"))
    sizes, gated = section.image_sizes(), section.flag("use_swiglu_ffn")
    if gated:
        hidden, sizes["activation"] = _gated_width(hidden), "silu"
    return VisionSpec(
        mlp_width=hidden,
        pooling=pooling,
        **DINO_VISION,
        gated_mlp=gated,
        qkv_bias=section.flag("qkv_bias"),
        registers=registers,
        **sizes,
    )


def dino_config(vision: VisionSpec) -> dict[str, Any]:
    """The fields of an exportable tower in DINOv2's keys."""
    values = {key: value for key, value in vision_config(vision).items() if key != "intermediate_size"}
    values["mlp_ratio"] = _mlp_ratio(vision)
    if vision.gated_mlp:
        values["hidden_act"] = "gelu"  # not used; a gated MLP always has silu
    return {**values, "qkv_bias": vision.qkv_bias, "use_swiglu_ffn": vision.gated_mlp}


def register_rows(spec: VisionSpec, theirs: str) -> list[Row]:
    """The row of registers, if any."""
    return [Row("vision.registers", theirs, leading_ones(1))] if spec.registers else []


def _gated_width(hidden: int) -> int:
    """Two thirds, so that a gated MLP has as many parameters as a plain one, in multiples of eight."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8


def _mlp_ratio(vision: VisionSpec) -> float | int:
    """Hidden channels over channels; for a gated MLP a ratio that `_gated_width` makes the same width of."""
    hidden = vision.mlp_width * 3 / 2 if vision.gated_mlp else vision.mlp_width
    ratio = hidden / vision.width
    if vision.gated_mlp:
        for rounded in (int(ratio), round(ratio)):
            if _gated_width(rounded * vision.width) == vision.mlp_width:
                return rounded
    return int(ratio) if ratio == int(ratio) else ratio
