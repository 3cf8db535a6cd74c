"""SigLIP as big_vision stores it: one `.npz` of Flax parameters, `params/img/...`, `params/txt/...`, `params/t`, `b`.

Shapes tell all but the activation (GELU by tanh, Flax's default), the norms' epsilon (1e-6, Flax's default) and, where
it is no multiple of the patch, the image size (`image_sizes`). Layers are apart (`encoderblock_3/...`) or stacked
(`encoderblock/...`). Images are prepared as the SigLIP processor of `transformers` does it. Source: `models/vit.py`,
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
from rococo_jax.checkpoints.formats.base import Format
from rococo_jax.checkpoints.hub import choose_tokenizer
from rococo_jax.checkpoints.image_sizes import BIG_VISION_SIZES, image_size_of
from rococo_jax.checkpoints.parameters import Checkpoint, ConversionOptions, parameter_shapes
from rococo_jax.checkpoints.tensors import NameTable, Row, Tensors, leading_ones, read_parameters
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec, VisionSpec
from rococo_jax.npz import NpzArrays
from rococo_jax.storage import hash_file, load_arrays

# The vocabulary's size tells the tokenizer.
_TOKENIZERS = {
    32000: "google/siglip-base-patch16-224",
    250000: "google/siglip-base-patch16-256-multilingual",
    256000: "google/siglip2-base-patch16-224",
}
_ATTENTION = "MultiHeadDotProductAttention_0"


def read_big_vision(source: str | Path, options: ConversionOptions) -> Checkpoint:
    """Read a `.npz` file. The default tokenizer is the one that fits the vocabulary."""
    path = Path(source)
    tensors = open_npz(path)
    spec, size_from = _spec(tensors, options.image_size)
    parameters = read_parameters(flattened(tensors), _table(spec), parameter_shapes(spec))
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
    """Return the tensors of a file without `params/` in their names, stacked layers apart, each read when it is needed.

    Raises InputError for a damaged file or Python objects.
    """
    wanted = "a .npz file of numbers"
    arrays = load_arrays(path, wanted)
    if not isinstance(arrays, NpzArrays):
        raise InputError(path, "arrays", "one without a name", wanted)
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
    """A tensor that is made of a stored one."""

    stored: str
    change: Callable[[np.ndarray], np.ndarray]


def _as_it_is(array: np.ndarray) -> np.ndarray:
    return array


def with_views(tensors: Tensors, views: Mapping[str, View]) -> Tensors:
    """Return tensors that are views of stored ones; their shapes are worked out without reading a value."""

    def about(view: View) -> tuple[tuple[int, ...], str]:
        shape, kind = tensors.about(view.stored)
        return view.change(np.broadcast_to(np.float32(0), shape)).shape, kind

    def read(name: str) -> np.ndarray:
        return views[name].change(tensors.stored(views[name].stored))

    return Tensors(tensors.path, {name: about(view) for name, view in views.items()}, read, tensors.close)


def flattened(tensors: Tensors) -> Tensors:
    """Return the tensors as the layers here have them: the values of a patch, and the channels of all heads, along one
    axis.
    """
    return with_views(tensors, {name: View(name, functools.partial(flatten, name)) for name in tensors.names})


def flatten(name: str, array: np.ndarray) -> np.ndarray:
    """Return the array of that name as `flattened` does."""
    if name.endswith(("/embedding/kernel", "/out/kernel")) and array.ndim > 1:
        return array.reshape(-1, array.shape[-1])
    by_head = _ATTENTION in name and not name.endswith("/out/bias") and array.ndim > 1
    return array.reshape(*array.shape[:-2], -1) if by_head else array


def _spec(tensors: Tensors, image_size: int | None) -> tuple[ModelSpec, str]:
    """Return the spec, read off the shapes, and how the image size is known."""
    needed = [f"{tower}pos_embedding" for tower in ("img/", "txt/")] + ["img/embedding/kernel", "txt/Embed_0/embedding"]
    needed += ["img/MAPHead_0/probe", "txt/head/kernel", f"img/Transformer/encoderblock_0/{_ATTENTION}/query/kernel"]
    tensors.require(needed, "the parameters of a SigLIP of big_vision, or of TIPSv2 for JAX")
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
        **block_sizes(tensors, "img/Transformer"),
        **common,
    )
    text = TextSpec(
        vocabulary_size=tensors.shape("txt/Embed_0/embedding")[0],
        context_length=context,
        width=text_width,
        **SIGLIP_TEXT,
        **block_sizes(tensors, "txt/Encoder_0"),
        **common,
    )
    head = HeadSpec("linear", tensors.shape("txt/head/kernel")[-1], bias=True)
    return ModelSpec(vision, text, text_head=head, logit_bias="b" in tensors.names), size_from


def block_sizes(tensors: Tensors, prefix: str, mlp: str = "MlpBlock_0") -> dict[str, int]:
    """The sizes of a tower's blocks."""
    return {
        "layers": tensors.count(rf"{prefix}/encoderblock_(\d+)/"),
        "heads": tensors.shape(f"{prefix}/encoderblock_0/{_ATTENTION}/query/kernel")[1],
        "mlp_width": tensors.shape(f"{prefix}/encoderblock_0/{mlp}/Dense_0/kernel")[-1],
    }


def _table(spec: ModelSpec) -> NameTable:
    rows = [
        *layer_rows("vision.patch", "img/embedding"),
        Row("vision.positions", "img/pos_embedding", leading_ones(1)),
        Row("vision.pooling.probe", "img/MAPHead_0/probe", leading_ones(2)),
        *_attention_rows("vision.pooling", f"img/MAPHead_0/{_ATTENTION}"),
        *_norm_rows("vision.pooling.norm", "img/MAPHead_0/LayerNorm_0"),
        *_mlp_rows("vision.pooling.mlp", "img/MAPHead_0/MlpBlock_0"),
        *tower_rows("vision", "img/Transformer"),
        Row("text.words", "txt/Embed_0/embedding"),
        Row("text.positions", "txt/pos_embedding", leading_ones(1)),
        *tower_rows("text", "txt/Encoder_0"),
        *layer_rows("text_head", "txt/head"),
        Row("logit_scale", "t", leading_ones(1)),
    ]
    return NameTable(tuple(rows + ([Row("logit_bias", "b", leading_ones(1))] if spec.logit_bias else [])))


def tower_rows(tower: str, prefix: str, gated: str | None = None) -> list[Row]:
    """Rows of a tower's blocks and of its last norm; `gated` is the name of an MLP with a gate."""
    ours, theirs = f"{tower}.blocks.block", f"{prefix}/encoderblock_{{layer}}"
    return [
        *_norm_rows(f"{ours}.norm1", f"{theirs}/LayerNorm_0"),
        *_attention_rows(f"{ours}.attention", f"{theirs}/{_ATTENTION}"),
        *_norm_rows(f"{ours}.norm2", f"{theirs}/LayerNorm_1"),
        *_mlp_rows(f"{ours}.mlp", f"{theirs}/{gated or 'MlpBlock_0'}", 2 if gated else 1),
        *_norm_rows(f"{tower}.norm", f"{prefix}/encoder_norm"),
    ]


def _norm_rows(ours: str, theirs: str) -> list[Row]:
    return [Row(f"{ours}.{name}", f"{theirs}/{name}") for name in ("scale", "bias")]


def layer_rows(ours: str, *theirs: str) -> list[Row]:
    """Rows of a layer of Flax, or of several that lie side by side in ours."""
    return [Row(f"{ours}.{name}", tuple(f"{each}/{name}" for each in theirs)) for name in ("kernel", "bias")]


def _mlp_rows(ours: str, theirs: str, ups: int = 1) -> list[Row]:
    up = [f"{theirs}/Dense_{number}" for number in range(ups)]
    return layer_rows(f"{ours}.up", *up) + layer_rows(f"{ours}.down", f"{theirs}/Dense_{ups}")


def _attention_rows(ours: str, theirs: str) -> list[Row]:
    qkv = (f"{theirs}/{name}" for name in ("query", "key", "value"))
    return layer_rows(f"{ours}.qkv", *qkv) + layer_rows(f"{ours}.out", f"{theirs}/out")
