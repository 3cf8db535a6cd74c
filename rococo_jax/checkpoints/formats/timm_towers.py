"""timm's image towers inside open_clip's models (`visual.trunk.*`), known by their names.

A name tells what a tower is made of; widths, depths and patches are read off the tensors. A new tower is one entry of
`TOWERS`. Source of the heads: `timm_model.py` of open_clip.
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

from rococo_jax.checkpoints.families.base import Section
from rococo_jax.checkpoints.formats.timm_convolutions import convnext, convnext_rows, fastvit, fastvit_rows
from rococo_jax.checkpoints.formats.timm_transformers import (
    TRUNK,
    eva,
    eva_rows,
    mobile_vit,
    pe,
    vit,
    vit_rows,
    vitamin,
    vitamin_rows,
)
from rococo_jax.checkpoints.tensors import Row, Tensors, linear_rows
from rococo_jax.models import ConvolutionalSpec, HeadSpec, VisionSpec


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
    spec: Callable[[re.Match, Section, Tensors], VisionSpec | ConvolutionalSpec]
    rows: Callable[[Any], list[Row]]
    quick_gelu: bool = False


def find_timm_tower(name: str) -> tuple[TimmTower, re.Match] | None:
    """The tower of this name and the match of its pattern, None for an unknown one."""
    matches = ((tower, re.fullmatch(tower.pattern, name)) for tower in TOWERS)
    return next(((tower, match) for tower, match in matches if match), None)


def timm_tower(section: Section, tensors: Tensors, dim: int) -> tuple[VisionSpec | ConvolutionalSpec, HeadSpec]:
    """The spec of the image tower and its head. Raises InputError where they are none that are known here."""
    known = find_timm_tower(str(section.values["timm_model_name"]))
    if known is None:
        raise section.refuse("timm_model_name", "a ViT, SigLIP, EVA, PE-Core, MobileCLIP, ViTamin or ConvNeXt tower")
    tower, match = known
    return tower.spec(match, section, tensors), _head(section, tensors, dim)


def timm_rows(name: str, spec: VisionSpec | ConvolutionalSpec, head: HeadSpec, names: list[str]) -> list[Row]:
    """The rows of the image tower of this name and of its head; `names` are the checkpoint's tensors."""
    rows = find_timm_tower(name)[0].rows(spec)
    if head.kind == "mlp":
        up = linear_rows("vision_head.up", "visual.head.mlp.fc1", bias=head.hidden_bias)
        return rows + up + linear_rows("vision_head.down", "visual.head.mlp.fc2", bias=head.bias)
    places = (f"{TRUNK}.head", f"{TRUNK}.head.fc", "visual.head.proj")
    theirs = next((place for place in places if f"{place}.weight" in names), places[-1])
    return rows + ([] if head.kind == "none" else linear_rows("vision_head", theirs, bias=head.bias))


def _head(section: Section, tensors: Tensors, dim: int) -> HeadSpec:
    projection, bias = section.values["timm_proj"], section.flag("timm_proj_bias")
    if projection == "mlp":
        return HeadSpec("mlp", dim, bias=bias, hidden=2 * dim, hidden_bias=True)
    if projection in (None, ""):
        return HeadSpec("linear", dim, bias=bool({f"{TRUNK}.head.bias", f"{TRUNK}.head.fc.bias"} & set(tensors.names)))
    if projection not in ("none", "linear"):
        raise section.refuse("timm_proj", "null, none, linear or mlp")
    return HeadSpec() if projection == "none" else HeadSpec("linear", dim, bias=bias)


_SIZES = "(?P<size>tiny|small|base|large|huge|so400m|giantopt)"
_SMALL = "(?P<size>tiny|small|base|large|gigantic)"
TOWERS = (
    TimmTower(rf"vit_{_SIZES}_patch\d+_(?P<kind>siglip_|clip_|clip_quickgelu_)?\d+", vit, vit_rows, quick_gelu=True),
    TimmTower(r"vit_(?P<size>base)_mci_\d+", mobile_vit, vit_rows),
    TimmTower(rf"vit_pe_core_{_SMALL}_patch\d+_(?P<pixels>\d+)", pe, vit_rows),
    TimmTower(r"eva(?P<version>)_(?P<size>giant)_patch14_(clip_)?\d+", eva, eva_rows),
    TimmTower(r"eva(?P<version>02)_(?P<size>base|large|enormous)_patch\d+_clip_\d+", eva, eva_rows),
    TimmTower(r"vitamin_(?P<size>small|base|large|large2)_\d+", vitamin, vitamin_rows),
    TimmTower(r"vitamin_(?P<size>xlarge)_\d+", vitamin, functools.partial(vitamin_rows, positions=False)),
    TimmTower(r"convnext_(?P<size>tiny|small|base|large|xlarge|xxlarge)", convnext, convnext_rows),
    TimmTower(r"fastvit_mci\d", fastvit, fastvit_rows),
)
