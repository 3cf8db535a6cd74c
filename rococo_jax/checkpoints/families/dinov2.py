"""DINOv2 (arXiv 2304.07193): an image tower."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rococo_jax.checkpoints.families.base import IGNORED, Section, library_defaults
from rococo_jax.checkpoints.families.exported import Exported, vision_config
from rococo_jax.checkpoints.tensors import PATCH, NameTable, Row, block_rows, leading_ones, norm_rows
from rococo_jax.models import ModelSpec, VisionSpec


class Dinov2(Exported):
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

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        section = Section(path, "", config, library_defaults("Dinov2Config"))
        hidden = int(section.integer("hidden_size") * section.number("mlp_ratio"))
        sizes, gated = section.image_sizes(), section.flag("use_swiglu_ffn")
        if gated:
            hidden, sizes["activation"] = _gated_width(hidden), "silu"
        vision = VisionSpec(
            mlp_width=hidden,
            class_token=True,
            patch_bias=True,
            norm_before_blocks=False,
            layer_scale=True,
            pooling=pooling,
            gated_mlp=gated,
            qkv_bias=section.flag("qkv_bias"),
            **sizes,
        )
        return ModelSpec(vision=vision, text=None)

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
            *block_rows("vision", theirs, norms=("norm1", "norm2"), qkv_bias=spec.vision.qkv_bias, **layers),
            *(Row(f"vision.blocks.block.scale{n}", f"{theirs}.layer_scale{n}.lambda1") for n in (1, 2)),
            *norm_rows("vision.norm", f"{vision_prefix}layernorm"),
        )
        return NameTable(rows, IGNORED)

    def has_image_tower(self, tower: VisionSpec) -> bool:
        return tower.layer_scale and tower.pooling != "attention"

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        vision = spec.vision
        values = {key: value for key, value in vision_config(vision).items() if key != "intermediate_size"}
        values["mlp_ratio"] = _mlp_ratio(vision)
        if vision.gated_mlp:
            values["hidden_act"] = "gelu"  # not used; a gated MLP always has silu
        flags = {"qkv_bias": vision.qkv_bias, "use_swiglu_ffn": vision.gated_mlp}
        return {"model_type": "dinov2", "architectures": ["Dinov2Model"], **values, **flags}


DINOV2 = Dinov2()


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
