"""SigLIP as big_vision stores it: one `.npz` of Flax parameters, `params/img/...`, `params/txt/...`, `params/t`, `b`.

Shapes tell all but the activation (GELU by tanh, Flax's default) and the norms' epsilon (1e-6, Flax's default).
Layers are apart (`encoderblock_3/...`) or stacked (`encoderblock/...`). Images are prepared as the SigLIP processor of
`transformers` does it. Source: `models/vit.py`, `models/proj/image_text/two_towers.py` of big_vision.
"""

import functools
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from rococo_jax.checkpoints.families.siglip import SIGLIP, SIGLIP_TEXT, SIGLIP_VISION
from rococo_jax.checkpoints.hub import choose_tokenizer
from rococo_jax.checkpoints.parameters import Checkpoint, Choices, parameter_shapes
from rococo_jax.checkpoints.tensors import NameTable, Row, Tensors, leading_ones, read_parameters
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec, VisionSpec
from rococo_jax.storage import hash_file, load_arrays

# The vocabulary's size tells the tokenizer.
_TOKENIZERS = {
    32000: "google/siglip-base-patch16-224",
    250000: "google/siglip-base-patch16-256-multilingual",
    256000: "google/siglip2-base-patch16-224",
}
_ATTENTION = "MultiHeadDotProductAttention_0"


def read_big_vision(source: str | Path, choices: Choices) -> Checkpoint:
    """Reads a `.npz` file. The default tokenizer is the one that fits the vocabulary."""
    path = Path(source)
    arrays = read_npz(path)
    spec = _spec(tensors_of(path, arrays))
    flat = tensors_of(path, {name: flattened(name, array) for name, array in arrays.items()})
    parameters = read_parameters(flat, _table(spec), parameter_shapes(spec))
    config = {"model_type": "siglip", "text_config": {"max_position_embeddings": spec.text.context_length}}
    default = _TOKENIZERS.get(spec.text.vocabulary_size, _TOKENIZERS[32000])
    tokenizer, tokenizer_from = choose_tokenizer(
        source, choices.tokenizer, None, default, functools.partial(SIGLIP.read_tokenizer, config=config)
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
            "other": "big_vision's code and the shapes of the tensors",
        },
        "tokenizer": tokenizer_from,
    }
    return Checkpoint(spec, parameters, preprocessing, tokenizer, provenance)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays by name without `params/`, stacked layers apart. Raises InputError for a damaged file or Python
    objects.
    """
    wanted = "a .npz file of numbers"
    loaded = load_arrays(path, wanted)
    if not isinstance(loaded, dict):
        raise InputError(path, "arrays", "one without a name", wanted)
    arrays = {name.removeprefix("params/"): array for name, array in loaded.items()}
    apart = {}
    for name, array in arrays.items():
        # NumPy stores bfloat16 as an opaque type of two bytes.
        array = array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array
        if "encoderblock/" not in name:
            apart[name] = array
            continue
        apart |= {name.replace("encoderblock/", f"encoderblock_{n}/"): layer for n, layer in enumerate(array)}
    return apart


def tensors_of(path: Path, arrays: Mapping[str, np.ndarray]) -> Tensors:
    """Arrays in memory as the tensors of a checkpoint."""
    return Tensors(path, {name: (array.shape, array.dtype.name) for name, array in arrays.items()}, arrays.__getitem__)


def flattened(name: str, array: np.ndarray) -> np.ndarray:
    """As the layers here have it: the values of a patch, and the channels of all heads, along one axis."""
    if name.endswith(("/embedding/kernel", "/out/kernel")) and array.ndim > 1:
        return array.reshape(-1, array.shape[-1])
    by_head = _ATTENTION in name and not name.endswith("/out/bias")
    return array.reshape(*array.shape[:-2], -1) if by_head else array


def _spec(tensors: Tensors) -> ModelSpec:
    needed = [f"{tower}pos_embedding" for tower in ("img/", "txt/")] + ["img/embedding/kernel", "txt/Embed_0/embedding"]
    needed += ["img/MAPHead_0/probe", "txt/head/kernel", f"img/Transformer/encoderblock_0/{_ATTENTION}/query/kernel"]
    tensors.require(needed, "the parameters of a SigLIP of big_vision, or of TIPSv2 for JAX")
    for name, axes in {"img/embedding/kernel": 4, "img/pos_embedding": 3, "txt/pos_embedding": 3}.items():
        if len(tensors.shape(name)) != axes:
            raise InputError(tensors.path, name, f"the shape {tensors.shape(name)}", f"{axes} axes")
    patch, _, _, width = tensors.shape("img/embedding/kernel")
    _, patches, _ = tensors.shape("img/pos_embedding")
    _, context, text_width = tensors.shape("txt/pos_embedding")
    common = {"activation": "gelu_tanh", "norm_eps": 1e-6}
    vision = VisionSpec(
        image_size=patch * round(patches**0.5),
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
    return ModelSpec(vision, text, text_head=head, logit_bias="b" in tensors.names)


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
