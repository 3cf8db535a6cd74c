"""The names of OpenAI's CLIP, which open_clip took over, as tables: our parameter <- their tensor.

    visual.*                   a ViT (`transformer.resblocks`), a ResNet (`layer1` to `layer4`), or timm's (`trunk`)
    transformer.*, ...         the text tower; below `text.` where open_clip keeps it apart ("custom text")
    text.transformer.*         a Hugging Face text tower, with `text.proj` after it

Sources: `clip/model.py` of OpenAI's release; `transformer.py`, `modified_resnet.py`, `coca_model.py` and `hf_model.py`
of open_clip.
"""

from collections.abc import Sequence

import numpy as np

from rococo_jax.checkpoints.families.bert import BERT, Bert
from rococo_jax.checkpoints.tensors import (
    CONVOLUTION,
    KERNEL,
    PATCH,
    NameTable,
    Row,
    Transform,
    batch_norm_rows,
    block_rows,
    leading_ones,
    linear_rows,
    norm_rows,
)
from rococo_jax.models import HeadSpec, ModelSpec, ResNetSpec, VisionSpec

# Counters and masks, and the three numbers that OpenAI stores beside the weights.
_IGNORED = (
    r".*\.num_batches_tracked",
    r"(text\.)?attn_mask",
    r"input_resolution|context_length|vocab_size",
    r"text\.transformer\.(embeddings\.position_ids|embed_positions\.weights|pooler\.dense\.(weight|bias))",
)
# Long-CLIP (arXiv 2403.15378) keeps CLIP's first 20 positions and reads all others from a table of its own.
LONG_CLIP = "positional_embedding_res"
_FIRST_AND_REST = Transform(
    to_ours=lambda theirs: np.concatenate([theirs[0][:20], theirs[1][20:]]),
    to_theirs=lambda ours, _: [ours, ours],
)
# What CoCa writes captions with.
_DECODER = r"text_decoder\..*"


def openai_table(
    spec: ModelSpec,
    *,
    custom_text: bool = False,
    image_rows: list[Row] | None = None,
    probes: int = 1,
    text_family: Bert = BERT,
    scalar_axes: int = 0,
    long_clip: bool = False,
) -> NameTable:
    """The table of a model in the naming of OpenAI and open_clip.

    Args:
        custom_text: the text tower lies below `text.`.
        image_rows: of the image tower and its head where they are timm's.
        probes: how many there are of a CoCa's, ours first.
        text_family: of a text tower with masked attention.
        scalar_axes: 1 where the logit scale and bias are stored as vectors of length 1.
        long_clip: the text's positions lie in two tables.
    """
    if image_rows is not None:
        rows = list(image_rows)
    elif isinstance(spec.vision, ResNetSpec):
        rows = _resnet_rows(spec.vision)
    else:
        rows = _vit_rows(spec.vision, spec.vision_head, probes)
    if spec.text.attention == "masked":
        rows += text_family.text_rows("text.transformer.", spec.text)
        rows += _projection_rows(spec.text_head, "text_head", "text.proj")
    else:
        rows += _text_rows(spec, "text." if custom_text else "", long_clip)
    rows.append(Row("logit_scale", "logit_scale", leading_ones(scalar_axes)))
    if spec.logit_bias:
        rows.append(Row("logit_bias", "logit_bias", leading_ones(scalar_axes)))
    return NameTable(tuple(rows), (*_IGNORED, _DECODER) if spec.text.pooling == "appended" else _IGNORED)


def _block_rows(tower: str, prefix: str, layer_scale: bool = False) -> list[Row]:
    ours, theirs = f"{tower}.blocks.block", f"{prefix}transformer.resblocks.{{layer}}"
    rows = block_rows(tower, theirs, norms=("ln_1", "ln_2"), out="attn.out_proj", mlp=("mlp.c_fc", "mlp.c_proj"))
    rows.append(Row(f"{ours}.attention.qkv.kernel", f"{theirs}.attn.in_proj_weight", KERNEL))
    rows.append(Row(f"{ours}.attention.qkv.bias", f"{theirs}.attn.in_proj_bias"))
    if layer_scale:
        rows += [Row(f"{ours}.scale{number}", f"{theirs}.ls_{number}.gamma") for number in (1, 2)]
    return rows


def _vit_rows(spec: VisionSpec, head: HeadSpec, probes: int) -> list[Row]:
    rows = [
        Row("vision.patch.kernel", "visual.conv1.weight", PATCH),
        Row("vision.positions", "visual.positional_embedding"),
        Row("vision.class_token", "visual.class_embedding"),
        *_block_rows("vision", "visual.", spec.layer_scale),
    ]
    rows += _cross_rows(probes) if spec.pooling == "cross" else norm_rows("vision.norm", "visual.ln_post")
    if spec.norm_before_blocks:
        rows += norm_rows("vision.norm_before", "visual.ln_pre")
    return rows + ([] if head.kind == "none" else [Row("vision_head.kernel", "visual.proj")])


def _cross_rows(probes: int) -> list[Row]:
    """Rows of the pooling of a CoCa: the norm of the tokens belongs to it, the last norm comes after it."""
    ours, theirs = "vision.pooling", "visual.attn_pool"
    first = Transform(
        to_ours=lambda theirs: theirs[0][0],
        to_theirs=lambda ours, _: [np.concatenate([ours[None], np.zeros((probes - 1, *ours.shape), ours.dtype)])],
    )
    return [
        *norm_rows("vision.norm", f"{theirs}.ln_k"),
        Row(f"{ours}.probe", f"{theirs}.query", first),
        *norm_rows(f"{ours}.probe_norm", f"{theirs}.ln_q"),
        Row(f"{ours}.query.kernel", f"{theirs}.attn.q_proj_weight", KERNEL),
        Row(f"{ours}.key_value.kernel", tuple(f"{theirs}.attn.{name}_proj_weight" for name in "kv"), KERNEL),
        Row(f"{ours}.bias", f"{theirs}.attn.in_proj_bias"),
        *linear_rows(f"{ours}.out", f"{theirs}.attn.out_proj"),
        *norm_rows(f"{ours}.norm", "visual.ln_post"),
    ]


def _text_rows(spec: ModelSpec, prefix: str, long_clip: bool) -> list[Row]:
    head, positions = spec.text_head, f"{prefix}positional_embedding"
    two_tables = Row("text.positions", (positions, LONG_CLIP), _FIRST_AND_REST)
    rows = [
        Row("text.words", f"{prefix}token_embedding.weight"),
        two_tables if long_clip else Row("text.positions", positions),
        *_block_rows("text", prefix),
        *norm_rows("text.norm", f"{prefix}ln_final"),
    ]
    if spec.text.pooling == "appended":
        rows.append(Row("text.appended", f"{prefix}cls_emb"))
    if head.bias:
        return rows + linear_rows("text_head", f"{prefix}text_projection")
    return rows + ([] if head.kind == "none" else [Row("text_head.kernel", f"{prefix}text_projection")])


def _projection_rows(head: HeadSpec, ours: str, theirs: str) -> list[Row]:
    """A linear layer, or an MLP whose middle is an activation."""
    if head.kind == "mlp":
        up = linear_rows(f"{ours}.up", f"{theirs}.0", bias=False)
        return up + linear_rows(f"{ours}.down", f"{theirs}.2", bias=False)
    return [] if head.kind == "none" else linear_rows(ours, theirs, bias=head.bias)


def _bottleneck_rows(ours: str, theirs: str, first_layer: int = 0) -> list[Row]:
    rows = []
    for number in (1, 2, 3):
        kernel = f"{ours}.conv{number}.kernel"
        rows.append(Row(kernel, f"{theirs}.conv{number}.weight", CONVOLUTION, first_layer))
        rows += batch_norm_rows(f"{ours}.norm{number}", f"{theirs}.bn{number}", first_layer)
    return rows


def _stage_rows(stage_layers: Sequence[int]) -> list[Row]:
    rows = []
    for number, layers in enumerate(stage_layers, start=1):
        ours, stage = f"vision.stage{number}", f"visual.layer{number}"
        rows += _bottleneck_rows(f"{ours}.first", f"{stage}.0")
        rows.append(Row(f"{ours}.first.shortcut.kernel", f"{stage}.0.downsample.0.weight", CONVOLUTION))
        rows += batch_norm_rows(f"{ours}.first.shortcut_norm", f"{stage}.0.downsample.1")
        if layers > 1:
            rows += _bottleneck_rows(f"{ours}.blocks.block", f"{stage}.{{layer}}", first_layer=1)
    return rows


def _resnet_rows(spec: ResNetSpec) -> list[Row]:
    rows = [Row("vision.positions", "visual.attnpool.positional_embedding")]
    for number in (1, 2, 3):
        rows.append(Row(f"vision.stem{number}.kernel", f"visual.conv{number}.weight", CONVOLUTION))
        rows += batch_norm_rows(f"vision.norm{number}", f"visual.bn{number}")
    rows += _stage_rows(spec.stage_layers)
    rows += linear_rows("vision.pooling.qkv", *(f"visual.attnpool.{name}_proj" for name in "qkv"))
    # The product after the attention ends in the shared space: our head.
    return rows + linear_rows("vision_head", "visual.attnpool.c_proj")
