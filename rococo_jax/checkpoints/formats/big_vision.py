"""SigLIP as big_vision stores it: one `.npz` of Flax parameters, `params/img/...`, `params/txt/...`, `params/t`, `b`.

The spec follows from the shapes, but for Flax's defaults (GELU by tanh, norms with epsilon 1e-6) and for image sizes
that are no multiple of the patch (`image_sizes`). Layers are stored one by one (`encoderblock_3/...`) or stacked
(`encoderblock/...`). Images are prepared as by the SigLIP processor of `transformers`. Source: `models/vit.py`,
`models/proj/image_text/two_towers.py` of big_vision.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from rococo_jax.checkpoints.families.siglip import SIGLIP, SIGLIP_TEXT, SIGLIP_VISION
from rococo_jax.checkpoints.formats.base import Format, choose_tokenizer
from rococo_jax.checkpoints.image_sizes import BIG_VISION_SIZES, image_size_of
from rococo_jax.checkpoints.names import name_table, names, read_parameters
from rococo_jax.checkpoints.parameters import Checkpoint, ConversionOptions, parameter_shapes
from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec, VisionSpec
from rococo_jax.npz import NpzArrays
from rococo_jax.storage import hash_file, load_arrays

# Tokenizers by the size of the vocabulary.
_TOKENIZERS = {
    32000: "google/siglip-base-patch16-224",
    250000: "google/siglip-base-patch16-256-multilingual",
    256000: "google/siglip2-base-patch16-224",
}
_ATTENTION = "MultiHeadDotProductAttention_0"
BIG_VISION_NAMES = names(
    """
    vision.patch                        img/embedding                                               flax
    vision.positions                    img/pos_embedding                                           leading_axis
    vision.pooling.probe                img/MAPHead_0/probe                                         leading_axes
    vision.pooling.qkv                  img/MAPHead_0/{attention}/{query,key,value}                 flax
    vision.pooling.out                  img/MAPHead_0/{attention}/out                               flax
    vision.pooling.norm                 img/MAPHead_0/LayerNorm_0                                   flax_norm
    vision.pooling.mlp.up               img/MAPHead_0/MlpBlock_0/Dense_0                            flax
    vision.pooling.mlp.down             img/MAPHead_0/MlpBlock_0/Dense_1                            flax
    text.words                          txt/Embed_0/embedding
    text.positions                      txt/pos_embedding                                           leading_axis
    text_head                           txt/head                                                    flax
    {tower}.norm                        {prefix}encoder_norm                                        flax_norm
    {tower}.blocks.block.norm1          {prefix}encoderblock_{layer}/LayerNorm_0                    flax_norm
    {tower}.blocks.block.attention.qkv  {prefix}encoderblock_{layer}/{attention}/{query,key,value}  flax
    {tower}.blocks.block.attention.out  {prefix}encoderblock_{layer}/{attention}/out                flax
    {tower}.blocks.block.norm2          {prefix}encoderblock_{layer}/LayerNorm_1                    flax_norm
    {tower}.blocks.block.mlp.up         {prefix}encoderblock_{layer}/MlpBlock_0/Dense_0             flax
    {tower}.blocks.block.mlp.down       {prefix}encoderblock_{layer}/MlpBlock_0/Dense_1             flax
    logit_scale                         t                                                           leading_axis
    logit_bias                          b                                                           leading_axis
    """.replace("{attention}", _ATTENTION)
)


def read_big_vision(source: str | Path, options: ConversionOptions) -> Checkpoint:
    """Read a `.npz` file. The default tokenizer is the one that fits the vocabulary."""
    path = Path(source)
    tensors = open_npz(path)
    spec, size_from = spec_of_arrays(tensors, options.image_size)
    rows = BIG_VISION_NAMES.rows(vision="img/Transformer/", text="txt/Encoder_0/")
    parameters = read_parameters(flattened(tensors), name_table(rows, parameter_shapes(spec)))
    config = {"model_type": "siglip", "text_config": {"max_position_embeddings": spec.text.context_length}}
    default = _TOKENIZERS.get(spec.text.vocabulary_size, _TOKENIZERS[32000])
    tokenizer, tokenizer_from = choose_tokenizer(
        source, options.tokenizer, None, default, functools.partial(SIGLIP.read_tokenizer, config=config)
    )

    preprocessing = Preprocessing.from_huggingface(SIGLIP.processor)
    preprocessing = preprocessing.with_image_size(spec.vision.image_size)
    provenance = {
        "source": str(source),
        "format": "big_vision",
        "model_type": "siglip",
        "file_sha256": hash_file(path),
        "read_from": {
            **dict.fromkeys(("resize", "crop", "interpolation", "mean", "std"), "the family's default"),
            "image size": size_from,
            "other": "big_vision's code and the shapes of the tensors",
        },
        "tokenizer": tokenizer_from,
    }
    return Checkpoint(spec, parameters, preprocessing, tokenizer, provenance)


BIG_VISION = Format("big_vision", read_big_vision, suffixes=(".npz",))


def open_npz(path: Path) -> Tensors:
    """Open a file; names have no `params/`, and stacked layers become one tensor each.

    Raises InputError for a damaged file or Python objects.
    """
    expected = "a .npz file of numbers"
    arrays = load_arrays(path, expected)
    if not isinstance(arrays, NpzArrays):
        raise InputError(path, "arrays", "one without a name", expected)
    views: dict[str, View] = {}
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    for stored, (shape, dtype) in arrays.headers.items():
        name = stored.removeprefix("params/")
        # NumPy stores bfloat16 as an opaque type of two bytes.
        shapes[stored] = (shape, "bfloat16" if dtype == np.dtype("V2") else dtype.name)
        if "encoderblock/" not in name or 0 in (shape or (0,)):
            views[name] = View(stored, _as_it_is)
            continue
        for layer in range(shape[0]):
            views[name.replace("encoderblock/", f"encoderblock_{layer}/")] = View(stored, operator.itemgetter(layer))

    def read(stored: str) -> np.ndarray:
        array = arrays[stored]
        return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array

    return with_views(Tensors(path, shapes, read), views)


class View(NamedTuple):
    """A tensor that is computed from a stored one by `change`."""

    stored: str
    change: Callable[[np.ndarray], np.ndarray]


def _as_it_is(array: np.ndarray) -> np.ndarray:
    return array


def with_views(tensors: Tensors, views: Mapping[str, View]) -> Tensors:
    """Return tensors that are views of stored ones; their shapes are computed without reading a value."""

    def info(view: View) -> tuple[tuple[int, ...], str]:
        shape, kind = tensors.info(view.stored)
        return view.change(np.broadcast_to(np.float32(0), shape)).shape, kind

    def read(name: str) -> np.ndarray:
        return views[name].change(tensors.read_raw(views[name].stored))

    return Tensors(tensors.path, {name: info(view) for name, view in views.items()}, read, tensors.close)


def flattened(tensors: Tensors) -> Tensors:
    """Return the tensors in the shapes of our layers, with the pixels of a patch, and all heads, along one axis."""
    return with_views(tensors, {name: View(name, functools.partial(flatten, name)) for name in tensors.names})


def flatten(name: str, array: np.ndarray) -> np.ndarray:
    """Return the array of that name with the shape of our layer."""
    if name.endswith(("/embedding/kernel", "/out/kernel")) and array.ndim > 1:
        return array.reshape(-1, array.shape[-1])
    by_head = _ATTENTION in name and not name.endswith("/out/bias") and array.ndim > 1
    return array.reshape(*array.shape[:-2], -1) if by_head else array


_REQUIRED = (
    "img/pos_embedding",
    "txt/pos_embedding",
    "img/embedding/kernel",
    "txt/Embed_0/embedding",
    "img/MAPHead_0/probe",
    "txt/head/kernel",
    f"img/Transformer/encoderblock_0/{_ATTENTION}/query/kernel",
)


def spec_of_arrays(tensors: Tensors, image_size: int | None) -> tuple[ModelSpec, str]:
    """Return the spec that the shapes imply, and how the image size is known."""
    tensors.require(_REQUIRED, "the parameters of a SigLIP of big_vision")
    for name, axes in {"img/embedding/kernel": 4, "img/pos_embedding": 3, "txt/pos_embedding": 3}.items():
        if len(tensors.shape(name)) != axes:
            raise InputError(tensors.path, name, f"the shape {tensors.shape(name)}", f"{axes} axes")
    patch, _, _, width = tensors.shape("img/embedding/kernel")
    _, positions, _ = tensors.shape("img/pos_embedding")
    size, size_from = image_size_of(tensors.path, "img/pos_embedding", patch, positions, BIG_VISION_SIZES, image_size)
    _, context, text_width = tensors.shape("txt/pos_embedding")
    common = {"activation": "gelu_tanh", "norm_eps": 1e-6}
    vision = VisionSpec(
        image_size=size,
        patch_size=patch,
        width=width,
        **SIGLIP_VISION,
        **_block_sizes(tensors, "img/Transformer"),
        **common,
    )
    text = TextSpec(
        vocabulary_size=tensors.shape("txt/Embed_0/embedding")[0],
        context_length=context,
        width=text_width,
        **SIGLIP_TEXT,
        **_block_sizes(tensors, "txt/Encoder_0"),
        **common,
    )
    head = HeadSpec("linear", tensors.shape("txt/head/kernel")[-1], bias=True)
    return ModelSpec(vision, text, text_head=head, logit_bias="b" in tensors.names), size_from


def _block_sizes(tensors: Tensors, prefix: str) -> dict[str, int]:
    return {
        "layers": tensors.count(rf"{prefix}/encoderblock_(\d+)/"),
        "heads": tensors.shape(f"{prefix}/encoderblock_0/{_ATTENTION}/query/kernel")[1],
        "mlp_width": tensors.shape(f"{prefix}/encoderblock_0/MlpBlock_0/Dense_0/kernel")[-1],
    }
