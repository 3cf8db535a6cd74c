"""timm's vision transformers as open_clip names them (`visual.trunk.*`): specs off the tensors, and tables of names.

Sources: `vision_transformer.py`, `vision_transformer_hybrid.py`, `eva.py`, `vitamin.py`, `attention_pool.py` of timm.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rococo_jax.checkpoints.families.base import Section
from rococo_jax.checkpoints.tensors import (
    CONVOLUTION,
    KERNEL,
    PATCH,
    POINT,
    QUERY_VALUE_BIAS,
    SAME,
    Row,
    Tensors,
    Transform,
    batch_norm_rows,
    block_rows,
    convolution_rows,
    leading_ones,
    linear_rows,
    norm_rows,
    patch,
)
from rococo_jax.models import MbConvSpec, RotarySpec, VisionSpec

TRUNK = "visual.trunk"
_HEADS = {
    "tiny": 3, "small": 6, "base": 12, "large": 16, "huge": 16, "so400m": 16, "giantopt": 16, "giant": 16,
    "enormous": 16, "gigantic": 16, "large2": 16, "xlarge": 16,
}  # fmt: skip
_OURS, _BLOCKS = "vision.blocks.block", f"{TRUNK}.blocks.{{layer}}"
# A query's weight or bias, and one for keys and values together: one beside the other in ours.
_QUERY_KEY_VALUE_KERNEL = Transform(
    to_ours=KERNEL.to_ours,
    to_theirs=lambda ours, _: [part.T for part in np.split(ours, [ours.shape[-1] // 3], axis=-1)],
)
_QUERY_KEY_VALUE_BIAS = Transform(
    to_ours=SAME.to_ours, to_theirs=lambda ours, _: np.split(ours, [ours.shape[-1] // 3], axis=-1)
)
_POOLINGS = {"map": "attention", "avg": "mean", "token": "cls"}
# The patches a side of the images that EVA-CLIP's rotary positions were first trained on.
_EVA_GRID = 16


def trunk_shape(tensors: Tensors, name: str) -> tuple[int, ...]:
    """The shape of a tensor of the trunk, which tells a width. Raises InputError where it is not there."""
    return tensors.shape(f"{TRUNK}.{name}")


def count_blocks(tensors: Tensors, prefix: str) -> int:
    """The number of blocks below a prefix."""
    return tensors.count(rf"{re.escape(TRUNK)}\.{prefix}\.(\d+)\.")


def pooling_of(section: Section, default: str, *allowed: str) -> str:
    """Our name of `timm_pool`. Raises InputError for one that this tower cannot have."""
    pool = section.values["timm_pool"]
    chosen = default if pool == "" else _POOLINGS.get(pool)
    if chosen not in allowed:
        known = [name for name, ours in _POOLINGS.items() if ours in allowed]
        raise section.refuse("timm_pool", f"{' or '.join(known)} for this tower")
    return chosen


def _transformer(
    match: re.Match,
    section: Section,
    tensors: Tensors,
    up: str = "blocks.0.mlp.fc1.weight",
    patches: str = "patch_embed.proj.weight",
    **fields: Any,
) -> VisionSpec:
    shape = trunk_shape(tensors, patches)
    plain = {
        "activation": "gelu", "norm_eps": 1e-6, "class_token": True, "patch_bias": True, "norm_before_blocks": False,
        "layer_scale": False,
    }  # fmt: skip
    return VisionSpec(
        image_size=section.side("image_size"),
        width=shape[0],
        layers=count_blocks(tensors, "blocks"),
        heads=_HEADS[match["size"]],
        mlp_width=trunk_shape(tensors, up)[0],
        **{"patch_size": shape[-1], **plain, **fields},
    )


def vit(match: re.Match, section: Section, tensors: Tensors) -> VisionSpec:
    """Reads a ViT. timm norms an average, not what is averaged: that pooling is refused."""
    siglip, clip = match["kind"] == "siglip_", (match["kind"] or "").startswith("clip_")
    pooling = pooling_of(section, "attention" if siglip else "cls", "attention", "cls")
    fields: dict[str, Any] = {"pooling": pooling, "class_token": not siglip}
    if clip:
        fields |= {"norm_before_blocks": True, "patch_bias": False, "norm_eps": 1e-5}
    if match["size"] == "giantopt" or match["kind"] == "clip_quickgelu_":
        fields["activation"] = "gelu_tanh" if match["size"] == "giantopt" else "quick_gelu"
    return _transformer(match, section, tensors, **fields)


def mobile_vit(match: re.Match, section: Section, tensors: Tensors) -> VisionSpec:
    """Reads MobileCLIP-B."""
    stem_width = trunk_shape(tensors, "patch_embed.backbone.0.conv.weight")[0]
    return _transformer(
        match, section, tensors, patches="patch_embed.backbone.2.conv.weight", patch_size=16,
        pooling=pooling_of(section, "cls", "cls"), class_position=False, stem_width=stem_width,
    )  # fmt: skip


def eva(match: re.Match, section: Section, tensors: Tensors) -> VisionSpec:
    """Reads EVA and EVA02."""
    fields: dict[str, Any] = {"pooling": pooling_of(section, "cls", "cls")}
    if match["version"] == "02" and match["size"] == "enormous":
        return _transformer(match, section, tensors, norm_changes=True, **fields)
    if match["version"] == "02":
        fields |= {"rotary": RotarySpec(_EVA_GRID), "inner_norms": True, "gated_mlp": True, "activation": "silu"}
        return _transformer(match, section, tensors, "blocks.0.mlp.fc1_g.weight", **fields)
    return _transformer(match, section, tensors, **fields)


def pe(match: re.Match, section: Section, tensors: Tensors) -> VisionSpec:
    """Reads PE-Core."""
    with_class = f"{TRUNK}.cls_token" in tensors.names
    patch_size = trunk_shape(tensors, "patch_embed.proj.weight")[-1]
    return _transformer(
        match, section, tensors, norm_eps=1e-5, class_token=with_class, patch_bias=False, norm_before_blocks=True,
        pooling=pooling_of(section, "attention", "attention"),
        rotary=RotarySpec(int(match["pixels"]) // patch_size, from_one=with_class, columns_first=True), pooling_heads=8,
        pooling_mlp_width=trunk_shape(tensors, "attn_pool.mlp.fc1.weight")[0],
    )  # fmt: skip


def vitamin(match: re.Match, section: Section, tensors: Tensors) -> VisionSpec:
    """Reads ViTamin, whose patches are the cells of a stem of convolutions."""
    stem = "patch_embed.backbone"
    widths = tuple(trunk_shape(tensors, f"{stem}.stages.{number}.0.conv3_1x1.weight")[0] for number in range(2))
    layers = tuple(count_blocks(tensors, rf"patch_embed\.backbone\.stages\.{number}") for number in range(2))
    return _transformer(
        match, section, tensors, "blocks.0.mlp.w0.weight", f"{stem}.pool.proj.weight", patch_size=16, class_token=False,
        pooling=pooling_of(section, "mean", "mean"), gated_mlp=True, norm_after_pooling=True,
        mbconv=MbConvSpec(trunk_shape(tensors, f"{stem}.stem.conv1.weight")[0], widths, layers), mlp_norms=True,
    )  # fmt: skip


def vit_rows(spec: VisionSpec) -> list[Row]:
    """The tensors of a ViT."""
    return [*_ends(spec), *_block_rows(("fc1", "fc2"), ("attn.qkv",))]


def eva_rows(spec: VisionSpec) -> list[Row]:
    """The tensors of EVA and EVA02."""
    suffix = "_proj.bias" if spec.inner_norms else "_bias"
    biases = tuple(f"{_BLOCKS}.attn.{name}{suffix}" for name in "qv")
    rows = [*_ends(spec), Row(f"{_OURS}.attention.qkv.bias", biases, QUERY_VALUE_BIAS)]
    if not spec.inner_norms:
        return rows + _block_rows(("fc1", "fc2"), ("attn.qkv",), qkv_bias=False)
    rows += norm_rows(f"{_OURS}.attention.norm", f"{_BLOCKS}.attn.norm")
    rows += norm_rows(f"{_OURS}.mlp.norm", f"{_BLOCKS}.mlp.norm")
    return rows + _block_rows(("fc1_g", "fc1_x", "fc2"), [f"attn.{name}_proj" for name in "qkv"], qkv_bias=False)


def _block_rows(mlp: tuple[str, ...], qkv: Sequence[str], qkv_bias: bool = True) -> list[Row]:
    names = {"qkv": qkv, "out": "attn.proj", "mlp": [f"mlp.{name}" for name in mlp]}
    return block_rows("vision", _BLOCKS, norms=("norm1", "norm2"), qkv_bias=qkv_bias, **names)


def _ends(spec: VisionSpec) -> list[Row]:
    """All but the blocks."""
    rows = [
        Row("vision.positions", f"{TRUNK}.pos_embed", leading_ones(1)),
        *norm_rows("vision.norm", f"{TRUNK}.norm"),
    ]
    rows += _stem_rows() if spec.stem_width else _patch_rows(spec)
    if spec.class_token:
        rows.append(Row("vision.class_token", f"{TRUNK}.cls_token", leading_ones(2)))
    if spec.norm_before_blocks:
        rows += norm_rows("vision.norm_before", f"{TRUNK}.norm_pre")
    if spec.pooling == "attention":
        ours, theirs = "vision.pooling", f"{TRUNK}.attn_pool"
        rows += [
            Row(f"{ours}.probe", f"{theirs}.latent", leading_ones(2)),
            Row(f"{ours}.qkv.kernel", (f"{theirs}.q.weight", f"{theirs}.kv.weight"), _QUERY_KEY_VALUE_KERNEL),
            Row(f"{ours}.qkv.bias", (f"{theirs}.q.bias", f"{theirs}.kv.bias"), _QUERY_KEY_VALUE_BIAS),
            *linear_rows(f"{ours}.out", f"{theirs}.proj"),
            *norm_rows(f"{ours}.norm", f"{theirs}.norm"),
            *linear_rows(f"{ours}.mlp.up", f"{theirs}.mlp.fc1"),
            *linear_rows(f"{ours}.mlp.down", f"{theirs}.mlp.fc2"),
        ]
    return rows


def _patch_rows(spec: VisionSpec) -> list[Row]:
    rows = convolution_rows("vision.patch", f"{TRUNK}.patch_embed.proj", PATCH)
    return rows if spec.patch_bias else rows[:1]


def _stem_rows() -> list[Row]:
    theirs = f"{TRUNK}.patch_embed.backbone"
    rows = convolution_rows("vision.patch", f"{theirs}.2.conv", patch(2))
    for number, size in enumerate((4, 2)):
        rows.append(Row(f"vision.stem.map{number + 1}.kernel", f"{theirs}.{number}.conv.weight", patch(size)))
        rows += batch_norm_rows(f"vision.stem.norm{number + 1}", f"{theirs}.{number}.bn")
    return rows


def vitamin_rows(spec: VisionSpec, positions: bool = True) -> list[Row]:
    """The tensors of ViTamin. Without stored `positions` (XL) those of the tower are zeros."""
    zeros = Transform(lambda _: np.zeros((spec.grid**2, spec.width), np.float32), lambda *_: [])
    stored = Row("vision.positions", f"{TRUNK}.pos_embed", leading_ones(1))
    ours, theirs, conv = "vision.stem", f"{TRUNK}.patch_embed.backbone", spec.mbconv
    rows = [
        stored if positions else Row("vision.positions", (), zeros),
        *norm_rows("vision.norm", f"{TRUNK}.fc_norm"),
        *_block_rows(("w0", "w1", "w2"), ("attn.qkv",)),
        *norm_rows(f"{_OURS}.mlp.input_norm", f"{_BLOCKS}.mlp.norm"),
        *convolution_rows(f"{ours}.conv1", f"{theirs}.stem.conv1"),
        *norm_rows(f"{ours}.norm1", f"{theirs}.stem.norm1"),
        *convolution_rows(f"{ours}.conv2", f"{theirs}.stem.conv2"),
        *norm_rows(f"{ours}.norm2", f"{theirs}.pool.norm"),
        *convolution_rows(f"{ours}.conv3", f"{theirs}.pool.proj"),
    ]
    for number, (inputs, width, layers) in enumerate(
        zip((conv.stem_width, conv.widths[0]), conv.widths, conv.stage_layers, strict=True)
    ):
        stage, blocks = f"{ours}.stage{number + 1}", f"{theirs}.stages.{number}"
        rows += _mbconv_rows(f"{stage}.first", f"{blocks}.0", 0)
        rows += _mbconv_rows(f"{stage}.blocks.block", f"{blocks}.{{layer}}", 1) if layers > 1 else []
        if inputs != width:
            rows += convolution_rows(f"{stage}.first.shortcut", f"{blocks}.0.shortcut.expand", POINT)
    return rows


def _mbconv_rows(ours: str, theirs: str, first: int) -> list[Row]:
    return [
        *norm_rows(f"{ours}.norm", f"{theirs}.pre_norm", first),
        *convolution_rows(f"{ours}.expand", f"{theirs}.conv1_1x1", POINT, first),
        *convolution_rows(f"{ours}.depthwise", f"{theirs}.conv2_kxk", CONVOLUTION, first),
        *convolution_rows(f"{ours}.project", f"{theirs}.conv3_1x1", POINT, first),
    ]
