"""timm's image towers inside open_clip's models (`visual.trunk.*`), known by their names.

A name tells what a tower is made of; widths, depths and patch sizes are read from the tensors. To add a tower, add an
entry to `TOWERS`. Sources: `timm_model.py` of open_clip for the heads; `convnext.py` of timm.
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

from rococo_jax.checkpoints.fields import Section
from rococo_jax.checkpoints.formats.timm_transformers import (
    TRUNK,
    count_blocks,
    eva,
    mobile_vit,
    names_of_eva,
    names_of_vit,
    pe,
    pooling_of,
    trunk_shape,
    vit,
    vitamin,
    vitamin_rows,
)
from rococo_jax.checkpoints.names import NameList, Row, module_rows, names
from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.models import ConvNextSpec, ConvolutionalSpec, HeadSpec, VisionSpec

_CONVNEXT_ENDS = names("""
    vision.stem       {vision}stem.0     patch
    vision.stem_norm  {vision}stem.1     norm
    vision.norm       {vision}head.norm  norm
""")


def convnext(match: re.Match, section: Section, tensors: Tensors) -> ConvNextSpec:
    """Return the spec of ConvNeXt."""
    pooling_of(section, "mean", "mean")
    return ConvNextSpec(
        image_size=section.side("image_size"),
        widths=tuple(trunk_shape(tensors, f"stages.{number}.blocks.0.gamma")[0] for number in range(4)),
        stage_layers=tuple(count_blocks(tensors, rf"stages\.{number}\.blocks") for number in range(4)),
        norm_eps=1e-5 if match["size"] == "xxlarge" else 1e-6,
    )


def convnext_rows(spec: ConvNextSpec) -> list[Row]:
    """Return the names of ConvNeXt."""
    rows = _CONVNEXT_ENDS.rows(vision=TRUNK)
    for number in range(4):
        ours, theirs = f"vision.stage{number + 1}", f"{TRUNK}stages.{number}"
        if number:
            rows += module_rows(f"{ours}.norm", f"{theirs}.downsample.0", "norm")
            rows += module_rows(f"{ours}.down", f"{theirs}.downsample.1", "patch_2x2")
        block, their_block = f"{ours}.blocks.block", f"{theirs}.blocks.{{layer}}"
        rows += module_rows(block, f"{their_block}.conv_dw", "convolution")
        rows += module_rows(f"{block}.norm", f"{their_block}.norm", "norm")
        rows += module_rows(f"{block}.mlp.up", f"{their_block}.mlp.fc1", "linear")
        rows += module_rows(f"{block}.mlp.down", f"{their_block}.mlp.fc2", "linear")
        rows += module_rows(f"{block}.scale", f"{their_block}.gamma")
    return rows


def rows_of_names(names_of: Callable[[VisionSpec], NameList]) -> Callable[[VisionSpec], list[Row]]:
    """Return the function from a spec to the rows of its list of names."""
    return lambda spec: names_of(spec).rows(vision=TRUNK)


@dataclasses.dataclass(frozen=True)
class TimmTower:
    """An architecture of timm.

    Attributes:
        pattern: regular expression of its names; the group `size` is its size.
        spec: computes the spec from the match, the configuration and the tensors.
        rows: computes the names of all tensors of the trunk without its head.
        quick_gelu: whether a model with this tower was ever trained with open_clip's `quick_gelu`.
    """

    pattern: str
    spec: Callable[[re.Match, Section, Tensors], VisionSpec | ConvolutionalSpec]
    rows: Callable[[Any], list[Row]]
    quick_gelu: bool = False


def find_timm_tower(name: str) -> tuple[TimmTower, re.Match] | None:
    """Return the tower of this name and the match of its pattern, None for an unknown name."""
    matches = ((tower, re.fullmatch(tower.pattern, name)) for tower in TOWERS)
    return next(((tower, match) for tower, match in matches if match), None)


def timm_tower(section: Section, tensors: Tensors, dim: int) -> tuple[VisionSpec | ConvolutionalSpec, HeadSpec]:
    """Return the specs of the image tower and its head. Raises InputError for towers that are not known here."""
    entry = find_timm_tower(str(section.values["timm_model_name"]))
    if entry is None:
        expected = "a ViT, SigLIP, EVA, PE-Core, MobileCLIP-B, ViTamin or ConvNeXt tower"
        raise section.refuse("timm_model_name", f"{expected}; open_clip:ARCHITECTURE/TAG runs open_clip itself")
    tower, match = entry
    return tower.spec(match, section, tensors), _head(section, tensors, dim)


def timm_rows(name: str, spec: VisionSpec | ConvolutionalSpec, head: HeadSpec, names: list[str]) -> list[Row]:
    """Return the rows of the image tower of this name and of its head; `names` are the checkpoint's tensors."""
    rows = find_timm_tower(name)[0].rows(spec)
    if head.kind == "mlp":
        up = module_rows("vision_head.up", "visual.head.mlp.fc1", "linear")
        down = module_rows("vision_head.down", "visual.head.mlp.fc2", "linear")
        return rows + up + (down if head.bias else down[:1])
    modules = (f"{TRUNK}head", f"{TRUNK}head.fc", "visual.head.proj")
    theirs = next((module for module in modules if f"{module}.weight" in names), modules[-1])
    return rows + module_rows("vision_head", theirs, "linear")


def _head(section: Section, tensors: Tensors, dim: int) -> HeadSpec:
    projection, bias = section.values["timm_proj"], section.flag("timm_proj_bias")
    if projection == "mlp":
        return HeadSpec("mlp", dim, bias=bias, hidden=2 * dim, hidden_bias=True)
    if projection in (None, ""):
        return HeadSpec("linear", dim, bias=bool({f"{TRUNK}head.bias", f"{TRUNK}head.fc.bias"} & set(tensors.names)))
    if projection not in ("none", "linear"):
        raise section.refuse("timm_proj", "null, none, linear or mlp")
    return HeadSpec() if projection == "none" else HeadSpec("linear", dim, bias=bias)


_SIZES = "(?P<size>tiny|small|base|large|huge|so400m|giantopt)"
_SMALL = "(?P<size>tiny|small|base|large|gigantic)"
_VIT, _EVA = rows_of_names(names_of_vit), rows_of_names(names_of_eva)
TOWERS = (
    TimmTower(rf"vit_{_SIZES}_patch\d+_(?P<kind>siglip_|clip_|clip_quickgelu_)?\d+", vit, _VIT, quick_gelu=True),
    TimmTower(r"vit_(?P<size>base)_mci_\d+", mobile_vit, _VIT),
    TimmTower(rf"vit_pe_core_{_SMALL}_patch\d+_(?P<pixels>\d+)", pe, _VIT),
    TimmTower(r"eva(?P<version>)_(?P<size>giant)_patch14_(clip_)?\d+", eva, _EVA),
    TimmTower(r"eva(?P<version>02)_(?P<size>base|large|enormous)_patch\d+_clip_\d+", eva, _EVA),
    TimmTower(r"vitamin_(?P<size>small|base|large|large2)_\d+", vitamin, vitamin_rows),
    TimmTower(r"vitamin_(?P<size>xlarge)_\d+", vitamin, functools.partial(vitamin_rows, has_positions=False)),
    TimmTower(r"convnext_(?P<size>tiny|small|base|large|xlarge|xxlarge)", convnext, convnext_rows),
)
