"""TIPSv2 as its authors store it for JAX: Flax parameters in `NAME_vision.npz` and `NAME_text.npz`, the names by `/`.

Either file names both where they lie side by side, else a lone tower. Shapes tell all but the activations (GELU by
tanh, relu in texts) and the epsilon of norms (1e-6, Flax's default). Scales of layers and the position of the class
token are in the weights: here they are ones and zeros, as the form of `transformers` can have them. TIPS of 2024
(2410.16512) has the same form, and but for `lowres` is used at `--image-size 448`.
Source: `scenic/models/{tips,vit,text}.py` and `scenic/utils/checkpoint.py` of google-deepmind/tips.
"""

import contextlib
import functools
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rococo_jax.checkpoints.families.tipsv2 import TEMPERATURE, TIPSV2
from rococo_jax.checkpoints.formats.big_vision import (
    View,
    block_sizes,
    flatten,
    layer_rows,
    open_npz,
    tower_rows,
    with_views,
)
from rococo_jax.checkpoints.hub import choose_tokenizer
from rococo_jax.checkpoints.image_sizes import image_size_of
from rococo_jax.checkpoints.parameters import Checkpoint, Choices, parameter_shapes
from rococo_jax.checkpoints.tensors import NameTable, Row, Tensors, Transform, read_parameters
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec, TextSpec, VisionSpec
from rococo_jax.storage import hash_file

_TOKENS, _IMAGES, _TEXTS = "encoder/ToTokenSequence_0", "encoder/transformer", "transformer"
_NORMS = {"encoder/encoder_norm/": f"{_IMAGES}/encoder_norm/", "text_encoder_norm/": f"{_TEXTS}/encoder_norm/"}
_GATED = "FFNSwiGluFused_0"
# After no position for the class token.
_POSITIONS = Transform(lambda theirs: np.pad(theirs[0], ((1, 0), (0, 0))), lambda ours, _: [ours[1:]])
_TOKENIZER, _CONTEXT = "google/tipsv2-b14", 64


def is_tips(path: Path) -> bool:
    """Whether a `.npz` file has the names of a tower of TIPS."""
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as file:
        return any(f"{norm}scale.npy" in file.namelist() for norm in _NORMS)
    return False


def read_tips(source: str | Path, choices: Choices) -> Checkpoint:
    """Read a `.npz` file, and that of the other tower if it lies beside it."""
    path = Path(source)
    sides = (path.with_name(re.sub(r"_(vision|text)\.npz$", f"_{side}.npz", path.name)) for side in ("vision", "text"))
    paths = sorted({path, *filter(Path.is_file, sides)})
    tensors = _merged(path, [open_npz(each) for each in paths])
    spec, size_from = _spec(tensors, choices.image_size)
    parameters = read_parameters(with_views(tensors, _views(tensors)), _table(spec), parameter_shapes(spec))
    hashes = {f"{each.stem}_sha256": hash_file(each) for each in paths}
    provenance = {"source": str(source), "format": "tips", "model_type": TIPSV2.name, **hashes}
    provenance["position_rule"] = TIPSV2.position_rule
    provenance["read_from"] = {
        **({} if spec.vision is None else {"image size": size_from}),
        "other": "its authors' code and the shapes of the tensors",
    }
    tokenizer, preprocessing = None, None
    if spec.text is not None:
        config = {"model_type": TIPSV2.name, "text_config": {"max_position_embeddings": _CONTEXT}}
        read = functools.partial(TIPSV2.read_tokenizer, config=config)
        folder = path.parent if (path.parent / "tokenizer.model").is_file() else None
        tokenizer, provenance["tokenizer"] = choose_tokenizer(source, choices.tokenizer, folder, _TOKENIZER, read)
    if spec.vision is not None:
        preprocessing = Preprocessing.from_huggingface(TIPSV2.processor).with_image_size(spec.vision.image_size)
    return Checkpoint(spec, parameters, preprocessing, tokenizer, provenance)


def _merged(path: Path, files: Sequence[Tensors]) -> Tensors:
    """Return the tensors of several files, whose names differ."""
    places = {name: file for file in files for name in file.names}
    about = {name: file.about(name) for name, file in places.items()}
    return Tensors(path, about, lambda name: places[name].stored(name))


def _views(tensors: Tensors) -> dict[str, View]:
    """Return the tensors as the table below has them: first class token and others apart, heads and cells along one
    axis.
    """
    views: dict[str, View] = {}
    for stored in tensors.names:
        name = stored
        for theirs, ours in _NORMS.items():
            name = name.replace(theirs, ours) if name.startswith(theirs) else name
        if name == f"{_TOKENS}/cls":
            views[name] = View(stored, lambda array: array[0, 0])
            views[f"{_TOKENS}/registers"] = View(stored, lambda array: array[0, 1:])
        elif name.endswith("/posembed_input"):
            views[name] = View(stored, lambda array: array.reshape(-1, array.shape[-1]))
        else:
            views[name] = View(stored, functools.partial(flatten, name))
    return views


def _spec(tensors: Tensors, image_size: int | None) -> tuple[ModelSpec, str]:
    """Return the spec, read off the shapes, and how the image size is known."""
    heads = {name.partition("/")[0] for name in tensors.names}
    vision, size_from = _vision(tensors, image_size) if "encoder" in heads else (None, "")
    return ModelSpec(vision, _text(tensors) if _TEXTS in heads else None), size_from


def _vision(tensors: Tensors, image_size: int | None) -> tuple[VisionSpec, str]:
    for name, axes in {"embedding/kernel": 4, "posembed_input": 4, "cls": 3}.items():
        if len(shape := tensors.shape(f"{_TOKENS}/{name}")) != axes:
            raise InputError(tensors.path, f"{_TOKENS}/{name}", f"the shape {shape}", f"{axes} axes")
    patch, _, _, width = tensors.shape(f"{_TOKENS}/embedding/kernel")
    _, rows, columns, _ = tensors.shape(f"{_TOKENS}/posembed_input")
    if rows != columns:
        raise InputError(tensors.path, f"{_TOKENS}/posembed_input", f"{rows} x {columns} positions", "a square of them")
    size, size_from = image_size_of(tensors.path, f"{_TOKENS}/posembed_input", patch, rows * columns, None, image_size)
    gated = any(_GATED in name for name in tensors.names)
    vision = VisionSpec(
        image_size=size,
        patch_size=patch,
        width=width,
        activation="silu" if gated else "gelu_tanh",
        norm_eps=1e-6,
        class_token=True,
        patch_bias=True,
        norm_before_blocks=False,
        layer_scale=True,
        pooling="cls",
        gated_mlp=gated,
        registers=tensors.shape(f"{_TOKENS}/cls")[1] - 1,
        **block_sizes(tensors, _IMAGES, _GATED if gated else "MlpBlock_0"),
    )
    return vision, size_from


def _text(tensors: Tensors) -> TextSpec:
    words, width = tensors.shape("token_emb/emb_var")
    return TextSpec(
        vocabulary_size=words,
        context_length=_CONTEXT,
        width=width,
        activation="relu",
        norm_eps=1e-6,
        attention="masked",
        norm_after_blocks=False,
        pooling="mean",
        scaled_words=True,
        sine_positions=True,
        **block_sizes(tensors, _TEXTS),
    )


def _table(spec: ModelSpec) -> NameTable:
    rows: list[Row] = []
    if spec.vision is not None:
        ones = Transform(lambda _: np.ones(spec.vision.width, np.float32), lambda *_: [])
        rows += [Row(f"vision.blocks.block.scale{n}", (), ones) for n in (1, 2)]
        rows += [Row("vision.positions", f"{_TOKENS}/posembed_input", _POSITIONS)]
        rows += [Row("vision.class_token", f"{_TOKENS}/cls")]
        rows += [Row("vision.registers", f"{_TOKENS}/registers")] if spec.vision.registers else []
        rows += layer_rows("vision.patch", f"{_TOKENS}/embedding")
        rows += tower_rows("vision", _IMAGES, _GATED if spec.vision.gated_mlp else None)
    if spec.text is not None:
        rows += [Row("text.words", "token_emb/emb_var"), *tower_rows("text", _TEXTS)]
    both = spec.vision is not None and spec.text is not None
    rows += [Row("logit_scale", "temperature_contrastive", TEMPERATURE)] if both else []
    return NameTable(tuple(rows), () if both else ("temperature_contrastive",))
