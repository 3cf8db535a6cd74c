"""VSE-infinity (arXiv 2011.04305): the `.pth` files of its release, over grids of a ResNet or regions of a detector.

A file holds the states of an image and of a text encoder, and the options of the training run. The text encoder is a
BERT; both end in a map into the space and in GPO (`models.generalized_pooling`). The temperature is not in it, since it
was trained by a triplet loss: the logit scale is 1/0.07 and provenance tells so.

Images are squashed to a square. The release does so by OpenCV's linear filter, which takes the four nearest pixels
only; here it is Pillow's, which averages over all that a new pixel covers: the vectors are not those of the release.

A checkpoint over regions has no image tower: `rococo embed-regions` takes the features that a detector gave.
Source: `lib/encoders.py`, `lib/modules/`, `lib/datasets/image_caption.py` of the release.
"""

import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from rococo_jax.checkpoints.families.bert import ALIASES, BERT
from rococo_jax.checkpoints.formats.openai_names import stage_rows
from rococo_jax.checkpoints.formats.torch_archive import Module, read_torch_archive
from rococo_jax.checkpoints.hub import choose_tokenizer
from rococo_jax.checkpoints.parameters import Checkpoint, Choices, parameter_shapes
from rococo_jax.checkpoints.tensors import (
    CONVOLUTION,
    KERNEL,
    NameTable,
    Row,
    Tensors,
    Transform,
    batch_norm_rows,
    linear_rows,
    read_parameters,
)
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError, is_number
from rococo_jax.models import GridResNetSpec, ModelSpec, TextSpec
from rococo_jax.models.generalized_pooling import RegionPooling

TOKENIZER = "bert-base-uncased"
_SCALE = np.float32(math.log(1 / 0.07))
_IMAGE, _TEXT = "0", "1"
_RESNET = f"{_IMAGE}.backbone.resnet"
_IGNORED = (
    rf"{_IMAGE}\.backbone\.(base|top)\..*",  # the same tensors, under the names of the parts they were put into
    rf"{_IMAGE}\.backbone\.resnet\.fc\..*",
    r".*\.num_batches_tracked",
    rf"{_TEXT}\.bert\.(embeddings\.position_ids|pooler\..*)",
)
_SIDE = 256
_DETECTOR_MEAN = (122.7717, 115.9465, 102.9801)
# Detectors read blue first: the first convolution is turned round, and not the images.
_BLUE_FIRST = Transform(
    to_ours=lambda theirs: np.ascontiguousarray(CONVOLUTION.to_ours(theirs)[:, :, ::-1]),
    to_theirs=lambda ours, count: CONVOLUTION.to_theirs(ours[:, :, ::-1], count),
)


def is_vse_infinity(path: Path) -> bool:
    """Whether a torch archive has the parts of VSE-infinity. False for a file that cannot be read."""
    try:
        _, tensors = read_torch_archive(path)
    except InputError:
        return False
    with tensors:
        return any(re.fullmatch(rf"{_TEXT}\.(module\.)?gpool\.gru\.weight_ih_l0", name) for name in tensors.names)


def read_vse_infinity(source: str | Path, choices: Choices) -> Checkpoint:
    """Reads a checkpoint over grids. Raises InputError for one over regions."""
    path, (options, tensors) = Path(source), _open(source)
    with tensors:
        if f"{_RESNET}.conv1.weight" not in tensors.names:
            wanted = "one over grids; for this one, `rococo embed-regions` with the features of the regions"
            raise InputError(path, "image encoder", "one over regions, without a network for pixels", wanted)
        detector = "detector" in str(options.get("backbone_source", ""))
        scale = options.get("input_scale_factor", 1)
        if not is_number(scale) or not 0 < scale < 64:
            raise InputError(path, "opt.input_scale_factor", repr(scale), "a number above 0")
        size = int(_SIDE * scale)
        spec = ModelSpec(_grid_spec(tensors, size), _text_spec(tensors))
        rows = [*_resnet_rows(spec.vision, detector), *pooling_rows("vision.pooling", f"{_IMAGE}.image_encoder", "fc")]
        parameters = _read(tensors, spec, [*rows, *_text_rows(spec)])
    provenance = {
        "source": str(source),
        "format": "vse_infinity",
        "model_type": f"vse_infinity over grids of {options.get('backbone_source', 'a ResNet')}",
        "logit_scale": "1/0.07, ours: the checkpoint was trained by a triplet loss and has none",
        "preprocessing": "the release's, resized by Pillow where it took OpenCV's linear filter",
    }
    tokenizer, provenance["tokenizer"] = _read_tokenizer(source, choices.tokenizer, spec.text)
    return Checkpoint(spec, parameters, _preprocessing(size, detector), tokenizer, provenance)


def read_vse_text(source: str | Path, choices: Choices) -> Checkpoint:
    """Reads the text encoder alone, of either kind of checkpoint."""
    _, tensors = _open(source)
    with tensors:
        spec = ModelSpec(None, _text_spec(tensors))
        parameters = _read(tensors, spec, _text_rows(spec), ignored=(rf"{_IMAGE}\..*",))
    tokenizer, origin = _read_tokenizer(source, choices.tokenizer, spec.text)
    provenance = {"source": str(source), "format": "vse_infinity", "model_type": "vse_infinity", "tokenizer": origin}
    return Checkpoint(spec, parameters, None, tokenizer, provenance)


def read_region_pooling(source: str | Path) -> RegionPooling:
    """The image encoder of a checkpoint over regions. Raises InputError for one over grids."""
    path, (_, tensors) = Path(source), _open(source)
    with tensors:
        if f"{_IMAGE}.mlp.layers.0.weight" not in tensors.names:
            wanted = "one over regions; one over grids reads images as any other model does"
            raise InputError(path, "image encoder", "no MLP over regions", wanted)
        width, inputs = tensors.shape(f"{_IMAGE}.fc.weight")
        graph, state = nnx.split(nnx.eval_shape(lambda: RegionPooling(inputs, width, rngs=nnx.Rngs(0))))
        shapes = {name: leaf.shape for name, leaf in flatten_dict(nnx.to_pure_dict(state), sep=".").items()}
        rows = [
            *pooling_rows("pooling", _IMAGE, "fc"),
            *linear_rows("up", f"{_IMAGE}.mlp.layers.0"),
            *batch_norm_rows("norm", f"{_IMAGE}.mlp.bns.0"),
            *linear_rows("down", f"{_IMAGE}.mlp.layers.1"),
        ]
        # Nothing reads the second batch norm of the MLP.
        ignored = (*_IGNORED, rf"{_TEXT}\..*", rf"{_IMAGE}\.mlp\.bns\.1\..*")
        parameters = read_parameters(tensors, NameTable(tuple(rows), ignored, ALIASES), shapes)
    nnx.replace_by_pure_dict(state, unflatten_dict({k: jnp.asarray(v) for k, v in parameters.items()}, sep="."))
    return nnx.merge(graph, state)


def _open(source: str | Path) -> tuple[Mapping[str, Any], Tensors]:
    """The options of the training run, and the tensors; either part may have been wrapped for several GPUs.

    Raises InputError where vectors were compared by their products, not by cosines.
    """
    value, tensors = read_torch_archive(Path(source))
    options = vars(value["opt"]) if isinstance(value, dict) and isinstance(value.get("opt"), Module) else {}
    for name in ("no_imgnorm", "no_txtnorm"):
        if options.get(name):
            raise InputError(source, f"opt.{name}", "true", "false: vectors are compared by their cosine here")
    return options, tensors.renamed([(r"^(\d)\.module\.", r"\1.")])


def _grid_spec(tensors: Tensors, size: int) -> GridResNetSpec:
    width = tensors.shape(f"{_RESNET}.conv1.weight")[0]
    outputs, per_group = tensors.shape(f"{_RESNET}.layer1.0.conv2.weight")[:2]
    groups = outputs // per_group
    return GridResNetSpec(
        image_size=size,
        width=width,
        stage_layers=tuple(tensors.count(rf"{_RESNET}\.layer{number}\.(\d+)\.") for number in (1, 2, 3, 4)),
        groups=groups,
        group_width=per_group,
        # The release's own ResNet has its strides where Caffe's had them; ResNeXt comes from torchvision.
        caffe=groups == 1,
        pooling_width=tensors.shape(f"{_IMAGE}.image_encoder.fc.weight")[0],
    )


def _text_spec(tensors: Tensors) -> TextSpec:
    vocabulary, width = tensors.shape(f"{_TEXT}.bert.embeddings.word_embeddings.weight")
    return TextSpec(
        vocabulary_size=vocabulary,
        context_length=tensors.shape(f"{_TEXT}.bert.embeddings.position_embeddings.weight")[0],
        width=width,
        layers=tensors.count(rf"{_TEXT}\.bert\.encoder\.layer\.(\d+)\."),
        heads=max(1, width // 64),
        mlp_width=tensors.shape(f"{_TEXT}.bert.encoder.layer.0.intermediate.dense.weight")[0],
        activation="gelu",
        norm_eps=1e-12,
        attention="masked",
        norm_after_blocks=True,
        pooling="generalized",
        token_types=tensors.shape(f"{_TEXT}.bert.embeddings.token_type_embeddings.weight")[0],
        pooling_width=tensors.shape(f"{_TEXT}.linear.weight")[0],
    )


def _text_rows(spec: ModelSpec) -> list[Row]:
    return [*BERT.text_rows(f"{_TEXT}.bert.", spec.text), *pooling_rows("text.pooling", _TEXT, "linear")]


def pooling_rows(ours: str, theirs: str, mapped_by: str) -> list[Row]:
    """Rows of GPO and of the map before it."""
    rows = [
        *linear_rows(f"{ours}.map", f"{theirs}.{mapped_by}"),
        Row(f"{ours}.score.kernel", f"{theirs}.gpool.linear.weight", KERNEL),
    ]
    for direction, suffix in (("onward", ""), ("back", "_reverse")):
        for part, kind in (("inputs", "ih"), ("states", "hh")):
            gate = f"{ours}.{direction}.{part}"
            rows.append(Row(f"{gate}.kernel", f"{theirs}.gpool.gru.weight_{kind}_l0{suffix}", KERNEL))
            rows.append(Row(f"{gate}.bias", f"{theirs}.gpool.gru.bias_{kind}_l0{suffix}"))
    return rows


def _resnet_rows(spec: GridResNetSpec, detector: bool) -> list[Row]:
    stem = Row("vision.stem.kernel", f"{_RESNET}.conv1.weight", _BLUE_FIRST if detector else CONVOLUTION)
    return [stem, *batch_norm_rows("vision.stem_norm", f"{_RESNET}.bn1"), *stage_rows(spec.stage_layers, _RESNET)]


def _read(tensors: Tensors, spec: ModelSpec, rows: list[Row], ignored: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    shapes = {path: shape for path, shape in parameter_shapes(spec).items() if path != "logit_scale"}
    parameters = read_parameters(tensors, NameTable(tuple(rows), (*_IGNORED, *ignored), ALIASES), shapes)
    return {**parameters, "logit_scale": _SCALE} if spec.vision is not None else parameters


def _preprocessing(size: int, detector: bool) -> Preprocessing:
    square = {"exact_size": (size, size), "resample": "bilinear"}
    if detector:  # 8-bit values, centred and not scaled
        return Preprocessing(**square, mean=tuple(value / 255 for value in _DETECTOR_MEAN), std=(1 / 255,) * 3)
    return Preprocessing(**square, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def _read_tokenizer(source: object, requested: str | None, text: TextSpec):
    config = {"model_type": BERT.name, "max_position_embeddings": text.context_length}
    return choose_tokenizer(source, requested, None, TOKENIZER, partial(BERT.read_tokenizer, config=config))
