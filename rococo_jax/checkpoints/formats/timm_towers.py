"""timm's image towers inside open_clip's models (`visual.trunk.*`), known by their names.

A name tells what a tower is made of; widths, depths and patches are read off the tensors. A new tower is one entry of
`TOWERS`. Sources: `vision_transformer.py`, `vision_transformer_hybrid.py`, `eva.py`, `convnext.py` and
`attention_pool.py` of timm, `timm_model.py` of open_clip.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from rococo_jax.checkpoints.families.base import Section
from rococo_jax.checkpoints.tensors import (
    CONVOLUTION,
    PATCH,
    QUERY_KEY_VALUE_BIAS,
    QUERY_KEY_VALUE_KERNEL,
    QUERY_VALUE_BIAS,
    Row,
    Tensors,
    batch_norm_rows,
    leading_ones,
    linear_rows,
    norm_rows,
    patch,
)
from rococo_jax.errors import InputError
from rococo_jax.models import ConvNextSpec, HeadSpec, RotarySpec, VisionSpec

_TRUNK = "visual.trunk"
_HEADS = {
    "tiny": 3, "small": 6, "base": 12, "large": 16, "huge": 16, "so400m": 16, "giantopt": 16, "giant": 16,
    "enormous": 16, "gigantic": 16,
}  # fmt: skip
_POOLINGS = {"map": "attention", "avg": "mean", "token": "cls"}
# The patches a side of the images that EVA-CLIP's rotary positions were first trained on.
_EVA_GRID = 16


@dataclasses.dataclass(frozen=True)
class TimmTower:
    """One architecture.

    Attributes:
        pattern: of its names, whole; the group `size` names its size.
        spec: from the match, the configuration and the tensors.
        rows: the names of all tensors of the trunk but its head's.
        quick_gelu: whether open_clip's `quick_gelu` was ever used beside it, so that a text tower may have it.
    """

    pattern: str
    spec: Callable[[re.Match, Section, Tensors], VisionSpec | ConvNextSpec]
    rows: Callable[[Any], list[Row]]
    quick_gelu: bool = False


def find_timm_tower(name: str) -> tuple[TimmTower, re.Match] | None:
    """The tower of this name and the match of its pattern, None for an unknown one."""
    found = ((tower, re.fullmatch(tower.pattern, name)) for tower in TOWERS)
    return next(((tower, match) for tower, match in found if match), None)


def timm_tower(section: Section, tensors: Tensors, dim: int) -> tuple[VisionSpec | ConvNextSpec, HeadSpec]:
    """The spec of the image tower and its head. Raises InputError where they are none that are known here."""
    found = find_timm_tower(str(section.values["timm_model_name"]))
    if found is None:
        raise section.refuse("timm_model_name", "a ViT, SigLIP, CLIP, EVA, PE-Core, MobileCLIP-B or ConvNeXt tower")
    tower, match = found
    return tower.spec(match, section, tensors), _head(section, tensors, dim)


def timm_rows(name: str, spec: VisionSpec | ConvNextSpec, head: HeadSpec, names: list[str]) -> list[Row]:
    """The rows of the image tower of this name and of its head; `names` are the checkpoint's tensors."""
    rows = find_timm_tower(name)[0].rows(spec)
    if head.kind == "mlp":
        up = linear_rows("vision_head.up", "visual.head.mlp.fc1", bias=head.hidden_bias)
        return rows + up + linear_rows("vision_head.down", "visual.head.mlp.fc2", bias=head.bias)
    theirs = f"{_TRUNK}.head" if f"{_TRUNK}.head.weight" in names else "visual.head.proj"
    return rows + ([] if head.kind == "none" else linear_rows("vision_head", theirs, bias=head.bias))


def _head(section: Section, tensors: Tensors, dim: int) -> HeadSpec:
    projection, bias = section.values["timm_proj"], section.flag("timm_proj_bias")
    if projection == "mlp":
        return HeadSpec("mlp", dim, bias=bias, hidden=2 * dim, hidden_bias=True)
    if projection in (None, ""):
        return HeadSpec("linear", dim, bias=f"{_TRUNK}.head.bias" in tensors.names)
    if projection not in ("none", "linear"):
        raise section.refuse("timm_proj", "null, none, linear or mlp")
    return HeadSpec() if projection == "none" else HeadSpec("linear", dim, bias=bias)


def _shapes(section: Section, tensors: Tensors, **wanted: str) -> dict[str, tuple[int, ...]]:
    """The shapes of tensors of the trunk that tell a width. Raises InputError where one is not there."""
    names = {key: f"{_TRUNK}.{name}" for key, name in wanted.items()}
    if missing := [name for name in names.values() if name not in tensors.names]:
        found = f"the weights of {section.values['timm_model_name']}"
        raise InputError(tensors.path, "tensors", f"no {', '.join(missing)}", found)
    return {key: tensors.shape(name) for key, name in names.items()}


def _count(tensors: Tensors, prefix: str) -> int:
    pattern = re.compile(rf"{re.escape(_TRUNK)}\.{prefix}\.(\d+)\.")
    return len({found[1] for name in tensors.names if (found := pattern.match(name))})


def _pooling(section: Section, default: str, *allowed: str) -> str:
    pool = section.values["timm_pool"]
    chosen = default if pool == "" else _POOLINGS.get(pool)
    if chosen not in allowed:
        known = [name for name, ours in _POOLINGS.items() if ours in allowed]
        raise section.refuse("timm_pool", f"{' or '.join(known)} for this tower")
    return chosen


def _transformer(
    match: re.Match, section: Section, tensors: Tensors, up: str = "blocks.0.mlp.fc1.weight", **fields: Any
) -> VisionSpec:
    shapes = _shapes(section, tensors, patch="patch_embed.proj.weight", up=up)
    plain = {
        "activation": "gelu", "norm_eps": 1e-6, "class_token": True, "patch_bias": True, "norm_before_blocks": False,
        "layer_scale": False,
    }  # fmt: skip
    return VisionSpec(
        image_size=section.side("image_size"),
        width=shapes["patch"][0],
        layers=_count(tensors, "blocks"),
        heads=_HEADS[match["size"]],
        mlp_width=shapes["up"][0],
        **{"patch_size": shapes["patch"][-1], **plain, **fields},
    )


def _vit(match: re.Match, section: Section, tensors: Tensors) -> VisionSpec:
    """timm norms an average, not what is averaged: that pooling is not taken."""
    siglip, clip = match["kind"] == "siglip_", (match["kind"] or "").startswith("clip_")
    pooling = _pooling(section, "attention" if siglip else "cls", "attention", "cls")
    fields: dict[str, Any] = {"pooling": pooling, "class_token": not siglip}
    if clip:
        fields |= {"norm_before_blocks": True, "patch_bias": False, "norm_eps": 1e-5}
    if match["size"] == "giantopt" or match["kind"] == "clip_quickgelu_":
        fields["activation"] = "gelu_tanh" if match["size"] == "giantopt" else "quick_gelu"
    return _transformer(match, section, tensors, **fields)


def _mobile_vit(match: re.Match, section: Section, tensors: Tensors) -> VisionSpec:
    shapes = _shapes(
        section, tensors, stem="patch_embed.backbone.0.conv.weight", last="patch_embed.backbone.2.conv.weight",
        up="blocks.0.mlp.fc1.weight",
    )  # fmt: skip
    return VisionSpec(
        image_size=section.side("image_size"), patch_size=16, width=shapes["last"][0],
        layers=_count(tensors, "blocks"), heads=_HEADS[match["size"]], mlp_width=shapes["up"][0], activation="gelu",
        norm_eps=1e-6, class_token=True, patch_bias=True, norm_before_blocks=False, layer_scale=False,
        pooling=_pooling(section, "cls", "cls"), class_position=False, stem_width=shapes["stem"][0],
    )  # fmt: skip


def _eva(match: re.Match, section: Section, tensors: Tensors) -> VisionSpec:
    fields: dict[str, Any] = {"pooling": _pooling(section, "cls", "cls")}
    if match["version"] == "02" and match["size"] == "enormous":
        return _transformer(match, section, tensors, norm_changes=True, **fields)
    if match["version"] == "02":
        fields |= {"rotary": RotarySpec(_EVA_GRID), "inner_norms": True, "gated_mlp": True, "activation": "silu"}
        return _transformer(match, section, tensors, "blocks.0.mlp.fc1_g.weight", **fields)
    return _transformer(match, section, tensors, **fields)


def _pe(match: re.Match, section: Section, tensors: Tensors) -> VisionSpec:
    with_class = f"{_TRUNK}.cls_token" in tensors.names
    patch_size, size = _shapes(section, tensors, patch="patch_embed.proj.weight")["patch"][-1], int(match["pixels"])
    return _transformer(
        match, section, tensors, norm_eps=1e-5, class_token=with_class, patch_bias=False, norm_before_blocks=True,
        pooling=_pooling(section, "attention", "attention"),
        rotary=RotarySpec(size // patch_size, from_one=with_class, columns_first=True), pooling_heads=8,
        pooling_mlp_width=_shapes(section, tensors, up="attn_pool.mlp.fc1.weight")["up"][0],
    )  # fmt: skip


def _convnext(match: re.Match, section: Section, tensors: Tensors) -> ConvNextSpec:
    shapes = _shapes(section, tensors, **{f"w{n}": f"stages.{n}.blocks.0.gamma" for n in range(4)})
    _pooling(section, "mean", "mean")
    return ConvNextSpec(
        image_size=section.side("image_size"),
        widths=tuple(shapes[f"w{number}"][0] for number in range(4)),
        stage_layers=tuple(_count(tensors, rf"stages\.{number}\.blocks") for number in range(4)),
        norm_eps=1e-5 if match["size"] == "xxlarge" else 1e-6,
    )


def _vit_rows(spec: VisionSpec) -> list[Row]:
    ours, theirs = "vision.blocks.block", f"{_TRUNK}.blocks.{{layer}}"
    return [
        *_ends(spec),
        *linear_rows(f"{ours}.attention.qkv", f"{theirs}.attn.qkv"),
        *_block_rows(ours, theirs),
        *linear_rows(f"{ours}.mlp.up", f"{theirs}.mlp.fc1"),
    ]


def _eva_rows(spec: VisionSpec) -> list[Row]:
    ours, theirs = "vision.blocks.block", f"{_TRUNK}.blocks.{{layer}}"
    rows = [*_ends(spec), *_block_rows(ours, theirs)]
    attention = f"{ours}.attention.qkv"
    if not spec.inner_norms:
        biases = (f"{theirs}.attn.q_bias", f"{theirs}.attn.v_bias")
        rows += linear_rows(attention, f"{theirs}.attn.qkv", bias=False)
        return [
            *rows,
            Row(f"{attention}.bias", biases, QUERY_VALUE_BIAS),
            *linear_rows(f"{ours}.mlp.up", f"{theirs}.mlp.fc1"),
        ]
    rows += linear_rows(attention, *(f"{theirs}.attn.{name}_proj" for name in "qkv"), bias=False)
    rows.append(Row(f"{attention}.bias", tuple(f"{theirs}.attn.{name}_proj.bias" for name in "qv"), QUERY_VALUE_BIAS))
    rows += norm_rows(f"{ours}.attention.norm", f"{theirs}.attn.norm") + norm_rows(
        f"{ours}.mlp.norm", f"{theirs}.mlp.norm"
    )
    return rows + linear_rows(f"{ours}.mlp.up", f"{theirs}.mlp.fc1_g", f"{theirs}.mlp.fc1_x")


def _block_rows(ours: str, theirs: str) -> list[Row]:
    return [
        *norm_rows(f"{ours}.norm1", f"{theirs}.norm1"),
        *linear_rows(f"{ours}.attention.out", f"{theirs}.attn.proj"),
        *norm_rows(f"{ours}.norm2", f"{theirs}.norm2"),
        *linear_rows(f"{ours}.mlp.down", f"{theirs}.mlp.fc2"),
    ]


def _ends(spec: VisionSpec) -> list[Row]:
    """All but the blocks."""
    rows = [
        Row("vision.positions", f"{_TRUNK}.pos_embed", leading_ones(1)),
        *norm_rows("vision.norm", f"{_TRUNK}.norm"),
    ]
    rows += _stem_rows() if spec.stem_width else _patch_rows(spec)
    if spec.class_token:
        rows.append(Row("vision.class_token", f"{_TRUNK}.cls_token", leading_ones(2)))
    if spec.norm_before_blocks:
        rows += norm_rows("vision.norm_before", f"{_TRUNK}.norm_pre")
    if spec.pooling == "attention":
        ours, theirs = "vision.pooling", f"{_TRUNK}.attn_pool"
        rows += [
            Row(f"{ours}.probe", f"{theirs}.latent", leading_ones(2)),
            Row(f"{ours}.qkv.kernel", (f"{theirs}.q.weight", f"{theirs}.kv.weight"), QUERY_KEY_VALUE_KERNEL),
            Row(f"{ours}.qkv.bias", (f"{theirs}.q.bias", f"{theirs}.kv.bias"), QUERY_KEY_VALUE_BIAS),
            *linear_rows(f"{ours}.out", f"{theirs}.proj"),
            *norm_rows(f"{ours}.norm", f"{theirs}.norm"),
            *linear_rows(f"{ours}.mlp.up", f"{theirs}.mlp.fc1"),
            *linear_rows(f"{ours}.mlp.down", f"{theirs}.mlp.fc2"),
        ]
    return rows


def _patch_rows(spec: VisionSpec) -> list[Row]:
    theirs = f"{_TRUNK}.patch_embed.proj"
    kernel = Row("vision.patch.kernel", f"{theirs}.weight", PATCH)
    return [kernel, Row("vision.patch.bias", f"{theirs}.bias")] if spec.patch_bias else [kernel]


def _stem_rows() -> list[Row]:
    theirs = f"{_TRUNK}.patch_embed.backbone"
    rows = [Row("vision.patch.kernel", f"{theirs}.2.conv.weight", patch(2))]
    rows.append(Row("vision.patch.bias", f"{theirs}.2.conv.bias"))
    for number, size in enumerate((4, 2)):
        rows.append(Row(f"vision.stem.map{number + 1}.kernel", f"{theirs}.{number}.conv.weight", patch(size)))
        rows += batch_norm_rows(f"vision.stem.norm{number + 1}", f"{theirs}.{number}.bn")
    return rows


def _convnext_rows(spec: ConvNextSpec) -> list[Row]:
    rows = [
        Row("vision.stem.kernel", f"{_TRUNK}.stem.0.weight", PATCH),
        Row("vision.stem.bias", f"{_TRUNK}.stem.0.bias"),
        *norm_rows("vision.stem_norm", f"{_TRUNK}.stem.1"),
        *norm_rows("vision.norm", f"{_TRUNK}.head.norm"),
    ]
    for number in range(4):
        ours, theirs = f"vision.stage{number + 1}", f"{_TRUNK}.stages.{number}"
        if number:
            rows += norm_rows(f"{ours}.norm", f"{theirs}.downsample.0")
            rows.append(Row(f"{ours}.down.kernel", f"{theirs}.downsample.1.weight", patch(2)))
            rows.append(Row(f"{ours}.down.bias", f"{theirs}.downsample.1.bias"))
        block, their_block = f"{ours}.blocks.block", f"{theirs}.blocks.{{layer}}"
        rows += [
            Row(f"{block}.kernel", f"{their_block}.conv_dw.weight", CONVOLUTION),
            Row(f"{block}.bias", f"{their_block}.conv_dw.bias"),
            *norm_rows(f"{block}.norm", f"{their_block}.norm"),
            *linear_rows(f"{block}.mlp.up", f"{their_block}.mlp.fc1"),
            *linear_rows(f"{block}.mlp.down", f"{their_block}.mlp.fc2"),
            Row(f"{block}.scale", f"{their_block}.gamma"),
        ]
    return rows


_SIZES = "(?P<size>tiny|small|base|large|huge|so400m|giantopt)"
TOWERS = (
    TimmTower(rf"vit_{_SIZES}_patch\d+_(?P<kind>siglip_|clip_|clip_quickgelu_)?\d+", _vit, _vit_rows, quick_gelu=True),
    TimmTower(r"vit_(?P<size>base)_mci_\d+", _mobile_vit, _vit_rows),
    TimmTower(r"vit_pe_core_(?P<size>tiny|small|base|large|gigantic)_patch\d+_(?P<pixels>\d+)", _pe, _vit_rows),
    TimmTower(r"eva(?P<version>)_(?P<size>giant)_patch14_(clip_)?\d+", _eva, _eva_rows),
    TimmTower(r"eva(?P<version>02)_(?P<size>base|large|enormous)_patch\d+_clip_\d+", _eva, _eva_rows),
    TimmTower(r"convnext_(?P<size>tiny|small|base|large|xlarge|xxlarge)", _convnext, _convnext_rows),
)
