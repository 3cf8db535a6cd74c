"""timm's image towers inside open_clip's models (`visual.trunk.*`), known by their names.

A name tells what a tower is made of; widths, depths and patches are read off the tensors. A new tower is one entry of
`TOWERS`. Sources: `timm_model.py` of open_clip for the heads; `convnext.py` and `fastvit.py` of timm.

What FastViT sums over branches in training becomes one convolution with a bias (arXiv 2303.14189, section 3.2):

    K = sum of W_b g_b / s_b,   B = sum of beta_b - mean_b g_b / s_b,   s_b = sqrt(variance_b + eps)

over its branches b, convolutions and identities (W the identity) with a batch norm each; smaller kernels are padded.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rococo_jax.checkpoints.families.base import Section
from rococo_jax.checkpoints.formats.timm_transformers import (
    TRUNK,
    count_blocks,
    eva,
    eva_rows,
    mobile_vit,
    pe,
    pooling_of,
    trunk_shape,
    vit,
    vit_rows,
    vitamin,
    vitamin_rows,
)
from rococo_jax.checkpoints.tensors import (
    CONVOLUTION,
    PATCH,
    POINT,
    Row,
    Tensors,
    Transform,
    batch_norm_rows,
    convolution_rows,
    linear_rows,
    norm_rows,
    patch,
)
from rococo_jax.models import ConvNextSpec, ConvolutionalSpec, FastVitSpec, HeadSpec, VisionSpec

_EPS = 1e-5


def convnext(match: re.Match, section: Section, tensors: Tensors) -> ConvNextSpec:
    """Reads ConvNeXt."""
    pooling_of(section, "mean", "mean")
    return ConvNextSpec(
        image_size=section.side("image_size"),
        widths=tuple(trunk_shape(tensors, f"stages.{number}.blocks.0.gamma")[0] for number in range(4)),
        stage_layers=tuple(count_blocks(tensors, rf"stages\.{number}\.blocks") for number in range(4)),
        norm_eps=1e-5 if match["size"] == "xxlarge" else 1e-6,
    )


def convnext_rows(spec: ConvNextSpec) -> list[Row]:
    """The tensors of ConvNeXt."""
    rows = [
        *convolution_rows("vision.stem", f"{TRUNK}.stem.0", PATCH),
        *norm_rows("vision.stem_norm", f"{TRUNK}.stem.1"),
        *norm_rows("vision.norm", f"{TRUNK}.head.norm"),
    ]
    for number in range(4):
        ours, theirs = f"vision.stage{number + 1}", f"{TRUNK}.stages.{number}"
        if number:
            rows += norm_rows(f"{ours}.norm", f"{theirs}.downsample.0")
            rows += convolution_rows(f"{ours}.down", f"{theirs}.downsample.1", patch(2))
        block, their_block = f"{ours}.blocks.block", f"{theirs}.blocks.{{layer}}"
        rows += [
            *convolution_rows(block, f"{their_block}.conv_dw"),
            *norm_rows(f"{block}.norm", f"{their_block}.norm"),
            *linear_rows(f"{block}.mlp.up", f"{their_block}.mlp.fc1"),
            *linear_rows(f"{block}.mlp.down", f"{their_block}.mlp.fc2"),
            Row(f"{block}.scale", f"{their_block}.gamma"),
        ]
    return rows


def fastvit(match: re.Match, section: Section, tensors: Tensors) -> FastVitSpec:
    """Reads MobileCLIP's MCi towers."""
    pooling_of(section, "mean", "mean")
    stages = range(count_blocks(tensors, "stages"))
    up = [trunk_shape(tensors, f"stages.{stage}.blocks.0.mlp.fc1.weight") for stage in stages]
    names, widths = set(tensors.names), tuple(shape[1] for shape in up)
    return FastVitSpec(
        image_size=section.side("image_size"),
        widths=widths,
        stage_layers=tuple(count_blocks(tensors, rf"stages\.{stage}\.blocks") for stage in stages),
        squeezed=tuple(f"{_down(stage)}.0.se.fc1.weight" in names for stage in stages),
        attention_stages=sum(f"{TRUNK}.stages.{stage}.pos_emb.pos_enc.weight" in names for stage in stages),
        mlp_ratio=up[0][0] // widths[0],
        layer_norm=f"{TRUNK}.stages.{stages[-1]}.blocks.0.norm.running_mean" not in names,
    )


def fastvit_rows(spec: FastVitSpec) -> list[Row]:
    """The tensors of FastViT. Those with layer norms (MCi3, MCi4) have no branches of 1 x 1 in their stem."""
    rows: list[Row] = []
    for number in range(3):
        theirs = f"{TRUNK}.stem.{number}"
        branches = [_first(theirs)] if spec.layer_norm or number == 2 else [_first(theirs), _scale(theirs)]
        rows += fused_rows(f"vision.stem{number + 1}", *branches, *([_identity(theirs)] if number == 2 else []))
    for stage, attends in ((stage, spec.attends(stage)) for stage in range(len(spec.widths))):
        ours, theirs, down = f"vision.stage{stage + 1}", f"{TRUNK}.stages.{stage}", _down(stage)
        if stage:
            large, small = f"{down}.0.large_conv", f"{down}.0.small_conv"
            branches = (
                Branch(f"{large}.conv.weight", f"{large}.bn"),
                Branch(f"{small}.conv.weight", f"{small}.bn", size=3),
            )
            rows += fused_rows(f"{ours}.down", *branches)
            rows += fused_rows(f"{ours}.point", _first(f"{down}.1"), _identity(f"{down}.1"))
        if spec.squeezed[stage]:
            rows += _gate_rows(f"{ours}.gates", f"{down}.0.se")
        if attends:
            conv, kernel = f"{theirs}.pos_emb.pos_enc", f"{ours}.positions.kernel"
            rows += [Row(kernel, f"{conv}.weight", _WITH_SHORTCUT), Row(f"{ours}.positions.bias", f"{conv}.bias")]
        rows += _fastvit_block_rows(f"{ours}.blocks.block", f"{theirs}.blocks.{{layer}}", attends, spec.layer_norm)
    end = f"{TRUNK}.final_conv"
    return [*rows, *fused_rows("vision.end", _first(end), _scale(end)), *_gate_rows("vision.gates", f"{end}.se")]


def _fastvit_block_rows(ours: str, theirs: str, attends: bool, layer_norm: bool) -> list[Row]:
    mixer = f"{theirs}.token_mixer"
    if attends:
        rows = (norm_rows if layer_norm else batch_norm_rows)(f"{ours}.norm", f"{theirs}.norm")
        rows += linear_rows(f"{ours}.mixer.qkv", f"{mixer}.qkv", bias=False)
        rows += linear_rows(f"{ours}.mixer.out", f"{mixer}.proj")
        rows += [Row(f"{ours}.scale{n}", f"{theirs}.layer_scale_{n}.gamma", _TRAILING_ONES) for n in (1, 2)]
    else:
        branches = (build(f"{mixer}.mixer") for build in (_first, _scale, _identity))
        less = dataclasses.replace(_identity(f"{mixer}.norm"), sign=-1)
        rows = fused_rows(f"{ours}.mixer", *branches, less, scale=f"{mixer}.layer_scale.gamma")
        rows.append(Row(f"{ours}.scale2", f"{theirs}.layer_scale.gamma", _TRAILING_ONES))
    rows += fused_rows(f"{ours}.depthwise", _conv_norm(f"{theirs}.mlp.conv"))
    rows += convolution_rows(f"{ours}.up", f"{theirs}.mlp.fc1", POINT)
    return rows + convolution_rows(f"{ours}.down", f"{theirs}.mlp.fc2", POINT)


def _down(stage: int) -> str:
    return f"{TRUNK}.stages.{stage}.downsample.proj"


def _gate_rows(ours: str, theirs: str) -> list[Row]:
    rows = convolution_rows(f"{ours}.squeeze", f"{theirs}.fc1", POINT)
    return rows + convolution_rows(f"{ours}.excite", f"{theirs}.fc2", POINT)


@dataclasses.dataclass(frozen=True)
class Branch:
    """A convolution (None for the identity) with a batch norm; the names of its tensors, `size` its side if smaller."""

    weight: str | None
    norm: str
    size: int | None = None
    sign: int = 1


def _conv_norm(theirs: str, size: int | None = None) -> Branch:
    return Branch(f"{theirs}.conv.weight", f"{theirs}.bn", size)


def _first(theirs: str) -> Branch:
    return _conv_norm(f"{theirs}.conv_kxk.0")


def _scale(theirs: str) -> Branch:
    return _conv_norm(f"{theirs}.conv_scale", 1)


def _identity(theirs: str) -> Branch:
    return Branch(None, f"{theirs}.identity")


def fused_rows(ours: str, *branches: Branch, scale: str | None = None) -> list[Row]:
    """One convolution with a bias for the sum of branches, the first a whole kernel; with `scale`, `x + scale sum(x)`.

    No form exports them: the way back has the shapes of theirs alone.
    """
    factors = [f"{branch.norm}.{name}" for branch in branches for name in ("weight", "running_var")]
    factors += [scale] if scale else []
    weights = [branch.weight for branch in branches if branch.weight is not None]
    shifts = [f"{branch.norm}.{name}" for branch in branches for name in ("bias", "running_mean")]
    fusion = _Fusion(branches, scale is not None)
    return [
        Row(f"{ours}.kernel", (*factors, *weights), Transform(fusion.kernel, fusion.kernel_back)),
        Row(f"{ours}.bias", (*factors, *shifts), Transform(fusion.bias, fusion.bias_back)),
    ]


@dataclasses.dataclass(frozen=True)
class _Fusion:
    branches: tuple[Branch, ...]
    scaled: bool

    def _factors(self, theirs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
        """Sign and scale of each branch, float64, and with them the batch norm's factor; and the other tensors."""
        wide = [array.astype(np.float64) for array in theirs]
        count = 2 * len(self.branches)
        scale = wide[count].reshape(-1) if self.scaled else np.ones(len(wide[0]))
        signed = [branch.sign * scale for branch in self.branches]
        norms = zip(signed, wide[:count:2], wide[1:count:2], strict=True)
        factors = [sign * weight / np.sqrt(variance + _EPS) for sign, weight, variance in norms]
        return signed, factors, wide[count + self.scaled :]

    def kernel(self, theirs: Sequence[np.ndarray]) -> np.ndarray:
        _, factors, weights = self._factors(theirs)
        size, identity = weights[0].shape[-1], _identity_kernel(weights[0].shape)
        remaining, total = iter(weights), identity * self.scaled
        for branch, factor in zip(self.branches, factors, strict=True):
            weight = identity if branch.weight is None else next(remaining)
            around = ((size - weight.shape[-1]) // 2,) * 2
            total = total + np.pad(weight, ((0, 0), (0, 0), around, around)) * factor.reshape(-1, 1, 1, 1)
        return CONVOLUTION.to_ours([total.astype(np.float32)])

    def bias(self, theirs: Sequence[np.ndarray]) -> np.ndarray:
        signed, factors, shifts = self._factors(theirs)
        terms = zip(signed, factors, shifts[::2], shifts[1::2], strict=True)
        return sum(sign * bias - mean * factor for sign, factor, bias, mean in terms).astype(np.float32)

    def kernel_back(self, ours: np.ndarray, _: int) -> list[np.ndarray]:
        (kernel,) = CONVOLUTION.to_theirs(ours, 1)
        small = [branch.size for branch in self.branches[1:] if branch.weight is not None]
        return [*self._factors_back(len(kernel)), kernel, *(np.zeros((*kernel.shape[:2], n, n)) for n in small)]

    def bias_back(self, ours: np.ndarray, _: int) -> list[np.ndarray]:
        return [*self._factors_back(len(ours)), *[ours] * 2 * len(self.branches)]

    def _factors_back(self, width: int) -> list[np.ndarray]:
        return [np.zeros(width)] * 2 * len(self.branches) + [np.zeros((width, 1, 1))] * self.scaled


def _identity_kernel(shape: tuple[int, ...]) -> np.ndarray:
    """The convolution of (outputs, inputs of a group, rows, columns) that changes nothing."""
    outputs, inputs, rows, columns = shape
    kernel = np.zeros(shape)
    kernel[np.arange(outputs), np.arange(outputs) % inputs, rows // 2, columns // 2] = 1
    return kernel


_WITH_SHORTCUT = Transform(
    to_ours=lambda theirs: CONVOLUTION.to_ours([(theirs[0] + _identity_kernel(theirs[0].shape)).astype(np.float32)]),
    to_theirs=CONVOLUTION.to_theirs,
)
_TRAILING_ONES = Transform(
    to_ours=lambda theirs: theirs[0].reshape(-1), to_theirs=lambda ours, _: [ours.reshape(-1, 1, 1)]
)


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
