"""A model from a Hugging Face folder or hub name: configuration, weights, image processor, tokenizer."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from rococo_jax.checkpoints.blip import LOGIT_SCALE, blip_table
from rococo_jax.checkpoints.families import table_of
from rococo_jax.checkpoints.hub import find_folder
from rococo_jax.checkpoints.huggingface_config import FAMILIES, spec_from_config
from rococo_jax.checkpoints.name_table import read_parameters
from rococo_jax.checkpoints.parameters import ModelParts, assemble_parts, parameter_shapes
from rococo_jax.checkpoints.safetensors_folder import WEIGHT_FILES, TensorSource
from rococo_jax.checkpoints.sentence_dense import sentence_head
from rococo_jax.checkpoints.sentence_pooling import POOLING_FILES, sentence_pooling
from rococo_jax.checkpoints.tokenizer_choice import TOKENIZER_FILES, choose_tokenizer
from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec
from rococo_jax.storage import read_json

if TYPE_CHECKING:
    from rococo_jax.data.preprocessing import Preprocessing

_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
FILES = ("config.json", *WEIGHT_FILES, *POOLING_FILES, *_PROCESSOR_FILES, *TOKENIZER_FILES)
# Where each family's towers lie in a checkpoint of their own; older releases leave the prefix out, or newer ones do.
_CLIP = ("vision_model.", "text_model.")
_PREFIXES = {"clip": _CLIP, "siglip": _CLIP, "dinov2": ("dinov2.", ""), "bert": ("", "bert.")}
_PREFIXES |= {"roberta": ("", "roberta."), "xlm-roberta": ("", "roberta.")}
# What is done to images where the checkpoint has no file that says so: each family's published setting. DINOv2's is in
# its own repository's evaluation transform (resize to 256, crop 224, ImageNet statistics).
_FAMILY_PROCESSOR = {
    "clip": {"image_processor_type": "CLIPImageProcessor"},
    "siglip": {"image_processor_type": "SiglipImageProcessor"},
    # BLIP squashes to a square, as SigLIP does, with CLIP's statistics.
    "blip": {
        "image_processor_type": "SiglipImageProcessor",
        "size": {"height": 384, "width": 384},
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    },
    "dinov2": {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 256},
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    },
}


def convert_huggingface(
    source: str | Path,
    *,
    pooling: str | None = None,
    tokenizer: str | None = None,
    dtype: DTypeLike = jnp.float32,
    image_size: int | None = None,
) -> ModelParts:
    """The model, its preprocessing (image towers), its tokenizer (text towers), and where it came from.

    The tokenizer is None too where the folder has no file for it; preprocessing is then the family's default, and
    `provenance["preprocessing"]` says so.

    Args:
        source: a folder with `config.json` and safetensors, or a name on the hub.
        pooling: see `spec_from_config`; by default what a sentence-transformers folder says, else `cls`.
        tokenizer: a folder or hub name, `none`, or None for the folder's own.
        dtype: of the compute; parameters are float32 whatever the checkpoint holds.
        image_size: for images of another size than the checkpoint's.

    Raises:
        InputError: anything about the source that is missing, unknown, broken or does not fit together.
    """
    folder = find_folder(source, FILES)
    path = folder / "config.json"
    config = read_json(path, "a Hugging Face config.json")
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in FAMILIES:
        raise InputError(path, "model_type", repr(kind), f"one of {', '.join(sorted(FAMILIES))}")
    family = FAMILIES[kind]
    with TensorSource(folder) as tensors:
        pooling = pooling or (sentence_pooling(folder) if family == "bert" else None)
        spec = spec_from_config(config, path, tensors.names, pooling)
        parameters = _read(tensors, spec, kind)
    if family == "bert":
        head, dense = sentence_head(folder, spec.text)
        spec, parameters = dataclasses.replace(spec, text_head=head), {**parameters, **dense}
    provenance = {"source": str(source), "format": "huggingface", "model_type": kind}
    if family == "blip":
        provenance["logit_scale"] = "1/0.07, where training starts: the checkpoint has none"
        if spec.matching is not None and spec.matching.first_id is not None:
            provenance["matching"] = f"texts begin with [ENC], id {spec.matching.first_id}, as the head was trained"
    preprocessing, chosen = None, None
    if spec.vision is not None:
        preprocessing, provenance["preprocessing"] = _read_preprocessing(folder, family, spec.vision.image_size)
        image_size = image_size or preprocessing.image_size[0]
    if spec.text is not None and (tokenizer or any((folder / name).is_file() for name in TOKENIZER_FILES)):
        settings = {**config, "model_type": "bert"} if family == "blip" else config
        chosen, provenance["tokenizer"] = choose_tokenizer(source, tokenizer, folder, str(folder), settings)
    if preprocessing is not None and preprocessing.image_size[0] != spec.vision.image_size:
        preprocessing = preprocessing.with_image_size(image_size)
    return assemble_parts(spec, parameters, preprocessing, chosen, provenance, dtype, image_size)


def _read(tensors: TensorSource, spec: ModelSpec, kind: str) -> dict[str, np.ndarray]:
    shapes = parameter_shapes(spec)
    if kind == "blip":
        shapes = {path: shape for path, shape in shapes.items() if path not in LOGIT_SCALE}
        return {**read_parameters(tensors, blip_table(spec), shapes), **LOGIT_SCALE}
    name = kind if kind in _PREFIXES else FAMILIES[kind]
    prefixes = (prefix if any(n.startswith(prefix) for n in tensors.names) else "" for prefix in _PREFIXES[name])
    return read_parameters(tensors, table_of(spec, name, *prefixes), shapes)


def _read_preprocessing(folder: Path, family: str, image_size: int) -> tuple["Preprocessing", str]:
    """The preprocessing, and where it was read from: the family's own where the folder has no file for it.

    Raises:
        InputError: the file is unusable, or it makes images of another size than the tower reads.
    """
    from rococo_jax.data.preprocessing import Preprocessing

    for name in _PROCESSOR_FILES:
        if (folder / name).is_file():
            config = read_json(folder / name, "an image processor")
            if family == "blip" and isinstance(config, dict):
                config = {**_FAMILY_PROCESSOR["blip"], **config, "image_processor_type": "SiglipImageProcessor"}
            read = Preprocessing.from_huggingface(config, folder / name)
            # DINOv2 is stored for 518 pixels and used at 224: `transformers` interpolates its positions unasked.
            if read.image_size != (image_size, image_size) and family != "dinov2":
                found = f"images of {read.image_size[0]} x {read.image_size[1]} pixels"
                raise InputError(folder / name, "size", found, f"{image_size} x {image_size}, as in config.json")
            return read, name
    return Preprocessing.from_huggingface(_FAMILY_PROCESSOR[family]).with_image_size(image_size), "the family's default"
