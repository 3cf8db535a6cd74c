"""timm's vision transformers as open_clip names them (`visual.trunk.*`): specs from the tensors, and names.

Sources: `vision_transformer.py`, `vision_transformer_hybrid.py`, `eva.py`, `vitamin.py`, `attention_pool.py` of timm.
"""

import re
from typing import Any

import numpy as np

from rococo_jax.checkpoints.fields import Section
from rococo_jax.checkpoints.layouts import (
    PATCH_2X2,
    QUERY_AND_KEY_VALUE_BIAS,
    QUERY_AND_KEY_VALUE_KERNEL,
    constant,
    patch,
)
from rococo_jax.checkpoints.names import NameList, Row, module_rows, names
from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.models import MbConvSpec, RotarySpec, VisionSpec

TRUNK = "visual.trunk."
_HEADS = {
    "tiny": 3, "small": 6, "base": 12, "large": 16, "huge": 16, "so400m": 16, "giantopt": 16, "giant": 16,
    "enormous": 16, "gigantic": 16, "large2": 16, "xlarge": 16,
}  # fmt: skip
_ENDS = names(
    """
    vision.class_token         {vision}cls_token                leading_axes
    vision.positions           {vision}pos_embed                leading_axis
    vision.norm_before         {vision}norm_pre                 norm
    vision.norm                {vision}norm                     norm
    vision.patch               {vision}patch_embed.proj         patch
    vision.pooling.probe       {vision}attn_pool.latent         leading_axes
    vision.pooling.qkv.kernel  {vision}attn_pool.{q,kv}.weight  query_and_key_value_kernel
    vision.pooling.qkv.bias    {vision}attn_pool.{q,kv}.bias    query_and_key_value_bias
    vision.pooling.out         {vision}attn_pool.proj           linear
    vision.pooling.norm        {vision}attn_pool.norm           norm
    vision.pooling.mlp.up      {vision}attn_pool.mlp.fc1        linear
    vision.pooling.mlp.down    {vision}attn_pool.mlp.fc2        linear
    """,
    query_and_key_value_kernel=QUERY_AND_KEY_VALUE_KERNEL,
    query_and_key_value_bias=QUERY_AND_KEY_VALUE_BIAS,
)
VIT_NAMES = _ENDS + names("""
    vision.blocks.block.norm1          {vision}blocks.{layer}.norm1      norm
    vision.blocks.block.attention.qkv  {vision}blocks.{layer}.attn.qkv   linear
    vision.blocks.block.attention.out  {vision}blocks.{layer}.attn.proj  linear
    vision.blocks.block.norm2          {vision}blocks.{layer}.norm2      norm
    vision.blocks.block.mlp.up         {vision}blocks.{layer}.mlp.fc1    linear
    vision.blocks.block.mlp.down       {vision}blocks.{layer}.mlp.fc2    linear
""")
# MobileCLIP-B: convolutions before the patches.
MOBILE_NAMES = VIT_NAMES + names(
    """
    vision.patch             {vision}patch_embed.backbone.2.conv         patch_2x2
    vision.stem.map1.kernel  {vision}patch_embed.backbone.0.conv.weight  kernel_4x4
    vision.stem.norm1        {vision}patch_embed.backbone.0.bn           batch_norm
    vision.stem.map2.kernel  {vision}patch_embed.backbone.1.conv.weight  kernel_2x2
    vision.stem.norm2        {vision}patch_embed.backbone.1.bn           batch_norm
    """,
    kernel_4x4=patch(4),
    kernel_2x2=PATCH_2X2,
)
_EVA_BLOCKS = names("""
    vision.blocks.block.norm1                 {vision}blocks.{layer}.norm1            norm
    vision.blocks.block.attention.qkv.kernel  {vision}blocks.{layer}.attn.qkv.weight  kernel
    vision.blocks.block.attention.qkv.bias    {vision}blocks.{layer}.attn.{q,v}_bias  query_value_bias
    vision.blocks.block.attention.out         {vision}blocks.{layer}.attn.proj        linear
    vision.blocks.block.norm2                 {vision}blocks.{layer}.norm2            norm
    vision.blocks.block.mlp.up                {vision}blocks.{layer}.mlp.fc1          linear
    vision.blocks.block.mlp.down              {vision}blocks.{layer}.mlp.fc2          linear
""")
EVA_NAMES = _ENDS + _EVA_BLOCKS
EVA02_NAMES = EVA_NAMES + names("""
    vision.blocks.block.attention.qkv.kernel  {vision}blocks.{layer}.attn.{q,k,v}_proj.weight  kernel
    vision.blocks.block.attention.qkv.bias    {vision}blocks.{layer}.attn.{q,v}_proj.bias      query_value_bias
    vision.blocks.block.attention.norm        {vision}blocks.{layer}.attn.norm                 norm
    vision.blocks.block.mlp.up                {vision}blocks.{layer}.mlp.{fc1_g,fc1_x}         linear
    vision.blocks.block.mlp.norm              {vision}blocks.{layer}.mlp.norm                  norm
""")
# ViTamin without its positions and the stages of its stem.
VITAMIN_NAMES = names("""
    vision.norm                         {vision}fc_norm                          norm
    vision.blocks.block.norm1           {vision}blocks.{layer}.norm1             norm
    vision.blocks.block.attention.qkv   {vision}blocks.{layer}.attn.qkv          linear
    vision.blocks.block.attention.out   {vision}blocks.{layer}.attn.proj         linear
    vision.blocks.block.norm2           {vision}blocks.{layer}.norm2             norm
    vision.blocks.block.mlp.input_norm  {vision}blocks.{layer}.mlp.norm          norm
    vision.blocks.block.mlp.up          {vision}blocks.{layer}.mlp.{w0,w1}       linear
    vision.blocks.block.mlp.down        {vision}blocks.{layer}.mlp.w2            linear
    vision.stem.conv1                   {vision}patch_embed.backbone.stem.conv1  convolution
    vision.stem.norm1                   {vision}patch_embed.backbone.stem.norm1  norm
    vision.stem.conv2                   {vision}patch_embed.backbone.stem.conv2  convolution
    vision.stem.norm2                   {vision}patch_embed.backbone.pool.norm   norm
    vision.stem.conv3                   {vision}patch_embed.backbone.pool.proj   convolution
""")
_POOLINGS = {"map": "attention", "avg": "mean", "token": "cls"}
# Patches per side of the images that EVA-CLIP's rotary positions were first trained on.
_EVA_GRID = 16


def trunk_shape(tensors: Tensors, name: str) -> tuple[int, ...]:
    """Return the shape of a tensor of the trunk. Raises InputError if it is missing."""
    return tensors.shape(f"{TRUNK}{name}")


def count_blocks(tensors: Tensors, prefix: str) -> int:
    """Return the number of blocks below a prefix."""
    return tensors.count(rf"{re.escape(TRUNK)}{prefix}\.(\d+)\.")


def pooling_of(section: Section, default: str, *allowed: str) -> str:
    """Return our name of `timm_pool`. Raises InputError for a pooling that this tower cannot have."""
    timm_pool = section.values["timm_pool"]
    pooling = default if timm_pool == "" else _POOLINGS.get(timm_pool)
    if pooling not in allowed:
        allowed_names = [name for name, ours in _POOLINGS.items() if ours in allowed]
        raise section.refuse("timm_pool", f"{' or '.join(allowed_names)} for this tower")
    return pooling


# The fields of a plain ViT; the functions below change them.
_PLAIN_VIT = {
    "activation": "gelu",
    "norm_eps": 1e-6,
    "class_token": True,
    "patch_bias": True,
    "norm_before_blocks": False,
    "layer_scale": False,
}


def _transformer(
    match: re.Match,
    section: Section,
    tensors: Tensors,
    *,
    mlp_weight: str = "blocks.0.mlp.fc1.weight",
    patch_weight: str = "patch_embed.proj.weight",
    **changes: Any,
) -> VisionSpec:
    """Return the spec of a transformer, with widths from two of its tensors and `changes` to a plain ViT."""
    width, *_, patch_size = trunk_shape(tensors, patch_weight)
    fields = {
        **_PLAIN_VIT,
        "image_size": section.side("image_size"),
        "patch_size": patch_size,
        "width": width,
        "layers": count_blocks(tensors, "blocks"),
        "heads": _HEADS[match["size"]],
        "mlp_width": trunk_shape(tensors, mlp_weight)[0],
    }
    return VisionSpec(**{**fields, **changes})


def vit(match: re.Match, section: Section, tensors: Tensors) -> VisionSpec:
    """Return the spec of a ViT. Averaged patches are refused: timm normalises the average, not the patches."""
    kind = match["kind"] or ""
    is_siglip = kind == "siglip_"
    pooling = pooling_of(section, "attention" if is_siglip else "cls", "attention", "cls")
    changes: dict[str, Any] = {"pooling": pooling, "class_token": not is_siglip}
    if kind.startswith("clip_"):
        changes |= {"norm_before_blocks": True, "patch_bias": False, "norm_eps": 1e-5}
    if kind == "clip_quickgelu_":
        changes["activation"] = "quick_gelu"
    if match["size"] == "giantopt":
        changes["activation"] = "gelu_tanh"
    return _transformer(match, section, tensors, **changes)


def mobile_vit(match: re.Match, section: Section, tensors: Tensors) -> VisionSpec:
    """Return the spec of MobileCLIP-B."""
    return _transformer(
        match,
        section,
        tensors,
        patch_weight="patch_embed.backbone.2.conv.weight",
        patch_size=16,
        pooling=pooling_of(section, "cls", "cls"),
        class_position=False,
        stem_width=trunk_shape(tensors, "patch_embed.backbone.0.conv.weight")[0],
    )


def eva(match: re.Match, section: Section, tensors: Tensors) -> VisionSpec:
    """Return the spec of EVA and EVA02."""
    pooling = pooling_of(section, "cls", "cls")
    if match["version"] != "02":
        return _transformer(match, section, tensors, pooling=pooling)
    if match["size"] == "enormous":
        return _transformer(match, section, tensors, pooling=pooling, norm_changes=True)
    return _transformer(
        match,
        section,
        tensors,
        mlp_weight="blocks.0.mlp.fc1_g.weight",
        pooling=pooling,
        rotary=RotarySpec(_EVA_GRID),
        inner_norms=True,
        gated_mlp=True,
        activation="silu",
    )


def pe(match: re.Match, section: Section, tensors: Tensors) -> VisionSpec:
    """Return the spec of PE-Core."""
    has_class_token = f"{TRUNK}cls_token" in tensors.names
    patch_size = trunk_shape(tensors, "patch_embed.proj.weight")[-1]
    grid = int(match["pixels"]) // patch_size
    return _transformer(
        match,
        section,
        tensors,
        norm_eps=1e-5,
        class_token=has_class_token,
        patch_bias=False,
        norm_before_blocks=True,
        rotary=RotarySpec(grid, from_one=has_class_token, columns_first=True),
        pooling=pooling_of(section, "attention", "attention"),
        pooling_heads=8,
        pooling_mlp_width=trunk_shape(tensors, "attn_pool.mlp.fc1.weight")[0],
    )


def vitamin(match: re.Match, section: Section, tensors: Tensors) -> VisionSpec:
    """Return the spec of ViTamin, whose patches are the cells of a stem of convolutions."""
    stem = "patch_embed.backbone"
    stem_width = trunk_shape(tensors, f"{stem}.stem.conv1.weight")[0]
    widths = tuple(trunk_shape(tensors, f"{stem}.stages.{number}.0.conv3_1x1.weight")[0] for number in range(2))
    layers = tuple(count_blocks(tensors, rf"patch_embed\.backbone\.stages\.{number}") for number in range(2))
    return _transformer(
        match,
        section,
        tensors,
        mlp_weight="blocks.0.mlp.w0.weight",
        patch_weight=f"{stem}.pool.proj.weight",
        patch_size=16,
        class_token=False,
        pooling=pooling_of(section, "mean", "mean"),
        gated_mlp=True,
        norm_after_pooling=True,
        mbconv=MbConvSpec(stem_width, widths, layers),
        mlp_norms=True,
    )


def names_of_vit(spec: VisionSpec) -> NameList:
    """Return the names of a ViT."""
    return MOBILE_NAMES if spec.stem_width else VIT_NAMES


def names_of_eva(spec: VisionSpec) -> NameList:
    """Return the names of EVA and EVA02."""
    return EVA02_NAMES if spec.inner_norms else EVA_NAMES


def vitamin_rows(spec: VisionSpec, has_positions: bool = True) -> list[Row]:
    """Return the names of ViTamin. Without stored positions (XL) those of the tower are zeros."""
    ours, theirs, stem = "vision.stem", f"{TRUNK}patch_embed.backbone", spec.mbconv
    rows = VITAMIN_NAMES.rows(vision=TRUNK)
    if has_positions:
        rows += module_rows("vision.positions", f"{TRUNK}pos_embed", "leading_axis")
    else:
        rows += module_rows("vision.positions", "", constant(np.zeros((spec.grid**2, spec.width), np.float32)))
    stage_inputs = (stem.stem_width, stem.widths[0])
    for number, (inputs, width, layers) in enumerate(zip(stage_inputs, stem.widths, stem.stage_layers, strict=True)):
        stage, blocks = f"{ours}.stage{number + 1}", f"{theirs}.stages.{number}"
        rows += _mbconv_rows(f"{stage}.first", f"{blocks}.0")
        if layers > 1:
            rows += _mbconv_rows(f"{stage}.blocks.block", f"{blocks}.{{layer}}", first_layer=1)
        if inputs != width:
            rows += module_rows(f"{stage}.first.shortcut", f"{blocks}.0.shortcut.expand", "point")
    return rows


def _mbconv_rows(ours: str, theirs: str, first_layer: int = 0) -> list[Row]:
    return [
        *module_rows(f"{ours}.norm", f"{theirs}.pre_norm", "norm", first_layer),
        *module_rows(f"{ours}.expand", f"{theirs}.conv1_1x1", "point", first_layer),
        *module_rows(f"{ours}.depthwise", f"{theirs}.conv2_kxk", "convolution", first_layer),
        *module_rows(f"{ours}.project", f"{theirs}.conv3_1x1", "point", first_layer),
    ]
