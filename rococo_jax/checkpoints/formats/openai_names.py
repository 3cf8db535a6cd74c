"""The names of OpenAI's CLIP, which open_clip took over.

    visual.*                   a ViT (`transformer.resblocks`), a ResNet (`layer1` to `layer4`), or timm's (`trunk`)
    transformer.*, ...         the text tower; below `text.` where open_clip keeps it apart ("custom text")
    text.transformer.*         a Hugging Face text tower, with `text.proj` after it

Sources: `clip/model.py` of OpenAI's release; `transformer.py`, `modified_resnet.py`, `coca_model.py` and `hf_model.py`
of open_clip.
"""

import numpy as np

from rococo_jax.checkpoints.families.bert import BERT, Bert
from rococo_jax.checkpoints.layouts import CONVOLUTION, Transform, leading_ones
from rococo_jax.checkpoints.names import NameTable, Row, module_rows, name_table, names
from rococo_jax.checkpoints.parameters import parameter_shapes
from rococo_jax.models import ModelSpec, ResNetSpec

# Counters and masks, and the three numbers that OpenAI stores beside the weights.
_IGNORED = (
    r".*\.num_batches_tracked",
    r"(text\.)?attn_mask",
    r"input_resolution|context_length|vocab_size",
    r"text\.transformer\.(embeddings\.position_ids|embed_positions\.weights|pooler\.dense\.(weight|bias))",
)
# CoCa writes captions with it.
_DECODER = r"text_decoder\..*"
# Long-CLIP (arXiv 2403.15378) keeps CLIP's first 20 positions and reads all others from a second table.
LONG_CLIP = "positional_embedding_res"
_FIRST_AND_REST = Transform(
    to_ours=lambda theirs: np.concatenate([theirs[0][:20], theirs[1][20:]]),
    to_theirs=lambda ours, _: [ours, ours],
)
OPENAI_NAMES = names("""
    vision.patch.kernel                        {vision}conv1.weight                                       patch_kernel
    vision.class_token                         {vision}class_embedding
    vision.positions                           {vision}positional_embedding
    vision.norm_before                         {vision}ln_pre                                             norm
    vision.norm                                {vision}ln_post                                            norm
    vision.blocks.block.scale1                 {vision}transformer.resblocks.{layer}.ls_1.gamma
    vision.blocks.block.scale2                 {vision}transformer.resblocks.{layer}.ls_2.gamma
    vision_head.kernel                         {vision}proj
    text.words                                 {text}token_embedding.weight
    text.positions                             {text}positional_embedding
    text.norm                                  {text}ln_final                                             norm
    text.appended                              {text}cls_emb
    text_head.kernel                           {text}text_projection
    {tower}.blocks.block.norm1                 {prefix}transformer.resblocks.{layer}.ln_1                 norm
    {tower}.blocks.block.attention.qkv.kernel  {prefix}transformer.resblocks.{layer}.attn.in_proj_weight  kernel
    {tower}.blocks.block.attention.qkv.bias    {prefix}transformer.resblocks.{layer}.attn.in_proj_bias
    {tower}.blocks.block.attention.out         {prefix}transformer.resblocks.{layer}.attn.out_proj        linear
    {tower}.blocks.block.norm2                 {prefix}transformer.resblocks.{layer}.ln_2                 norm
    {tower}.blocks.block.mlp.up                {prefix}transformer.resblocks.{layer}.mlp.c_fc             linear
    {tower}.blocks.block.mlp.down              {prefix}transformer.resblocks.{layer}.mlp.c_proj           linear
""")
# The pooling of a CoCa: the norm of the tokens belongs to it, and the last norm comes after it.
COCA_NAMES = OPENAI_NAMES + names("""
    vision.norm                      {vision}attn_pool.ln_k                    norm
    vision.pooling.probe_norm        {vision}attn_pool.ln_q                    norm
    vision.pooling.query.kernel      {vision}attn_pool.attn.q_proj_weight      kernel
    vision.pooling.key_value.kernel  {vision}attn_pool.attn.{k,v}_proj_weight  kernel
    vision.pooling.bias              {vision}attn_pool.attn.in_proj_bias
    vision.pooling.out               {vision}attn_pool.attn.out_proj           linear
    vision.pooling.norm              {vision}ln_post                           norm
""")
_TEXT_HEAD_WITH_BIAS = names("""
    text_head.kernel  {text}text_projection.weight  kernel
    text_head.bias    {text}text_projection.bias
""")
# The head of a Hugging Face text tower is linear, or an MLP with an activation in its middle.
_HUGGINGFACE_TEXT_HEAD = names("""
    text_head.kernel       {text}proj.weight    kernel
    text_head.up.kernel    {text}proj.0.weight  kernel
    text_head.down.kernel  {text}proj.2.weight  kernel
""")
_LONG_TEXT = names(
    "text.positions  {text}{positional_embedding,positional_embedding_res}  first_and_rest",
    first_and_rest=_FIRST_AND_REST,
)


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
    """Return the names of a model as OpenAI and open_clip give them.

    Args:
        custom_text: whether the text tower lies below `text.`.
        image_rows: the names of the image tower and its head if they are timm's.
        probes: the number of probes of a CoCa; ours is the first.
        text_family: the family of a text tower with masked attention.
        scalar_axes: 1 if the logit scale and bias are stored as vectors of length 1, else 0.
        long_clip: whether the positions of texts lie in two tables.
    """
    has_own_vit = image_rows is None and not isinstance(spec.vision, ResNetSpec)
    has_own_text = spec.text.attention != "masked"
    listed = COCA_NAMES if has_own_vit and spec.vision.pooling == "cross" else OPENAI_NAMES
    if spec.text_head.bias:
        listed += _TEXT_HEAD_WITH_BIAS
    if long_clip:
        listed += _LONG_TEXT
    text_prefix = "text." if custom_text else ""
    rows = listed.rows("visual." if has_own_vit else None, text_prefix if has_own_text else None)
    if image_rows is not None:
        rows += image_rows
    elif isinstance(spec.vision, ResNetSpec):
        rows += _resnet_rows(spec.vision)
    elif spec.vision.pooling == "cross":
        rows += module_rows("vision.pooling.probe", "visual.attn_pool.query", _first_probe(probes))
    if not has_own_text:
        rows += text_family.rows(spec, text_prefix="text.transformer.")
        rows += _HUGGINGFACE_TEXT_HEAD.rows(text="text.")
    for scalar in ("logit_scale", "logit_bias"):
        rows += module_rows(scalar, scalar, leading_ones(scalar_axes))
    ignored = (*_IGNORED, _DECODER) if spec.text.pooling == "appended" else _IGNORED
    return name_table(rows, parameter_shapes(spec), ignored)


def _first_probe(probes: int) -> Transform:
    """Return the transform for a table of probes of which ours is the first; the others are exported as zeros."""
    return Transform(
        to_ours=lambda theirs: theirs[0][0],
        to_theirs=lambda ours, _: [np.concatenate([ours[None], np.zeros((probes - 1, *ours.shape), ours.dtype)])],
    )


def _resnet_rows(spec: ResNetSpec) -> list[Row]:
    rows = module_rows("vision.positions", "visual.attnpool.positional_embedding")
    for number in (1, 2, 3):
        rows += module_rows(f"vision.stem{number}.kernel", f"visual.conv{number}.weight", CONVOLUTION)
        rows += module_rows(f"vision.norm{number}", f"visual.bn{number}", "batch_norm")
    for number, layers in enumerate(spec.stage_layers, start=1):
        ours, stage = f"vision.stage{number}", f"visual.layer{number}"
        rows += _bottleneck_rows(f"{ours}.first", f"{stage}.0")
        rows += module_rows(f"{ours}.first.shortcut.kernel", f"{stage}.0.downsample.0.weight", CONVOLUTION)
        rows += module_rows(f"{ours}.first.shortcut_norm", f"{stage}.0.downsample.1", "batch_norm")
        if layers > 1:
            rows += _bottleneck_rows(f"{ours}.blocks.block", f"{stage}.{{layer}}", first_layer=1)
    rows += module_rows("vision.pooling.qkv", "visual.attnpool.{q,k,v}_proj", "linear")
    # The product after the attention gives the embedding, so that it is our head.
    return rows + module_rows("vision_head", "visual.attnpool.c_proj", "linear")


def _bottleneck_rows(ours: str, theirs: str, first_layer: int = 0) -> list[Row]:
    rows = []
    for number in (1, 2, 3):
        rows += module_rows(f"{ours}.conv{number}.kernel", f"{theirs}.conv{number}.weight", CONVOLUTION, first_layer)
        rows += module_rows(f"{ours}.norm{number}", f"{theirs}.bn{number}", "batch_norm", first_layer)
    return rows
