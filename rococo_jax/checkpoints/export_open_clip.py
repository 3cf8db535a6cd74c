"""A CLIP back as an open_clip folder: exact, or refused.

The form can express what Hugging Face's cannot: ResNets, averaged patches, layer scale, norms left out.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from rococo_jax.checkpoints.export_files import write_tokenizer
from rococo_jax.checkpoints.name_table import write_tensors
from rococo_jax.checkpoints.open_clip import CONFIG, SAFETENSORS, convert_open_clip
from rococo_jax.checkpoints.openai_names import openai_table
from rococo_jax.checkpoints.parameters import HasModelParts, hash_parameters, parameters_of
from rococo_jax.errors import InputError
from rococo_jax.models import HeadSpec, ModelSpec, ResNetSpec, TextSpec, VisionSpec
from rococo_jax.storage import atomic_directory, check_free_space, write_json

if TYPE_CHECKING:
    from rococo_jax.data.preprocessing import Preprocessing

_FORM = "only what open_clip's own towers can express"


def export_open_clip(encoder: HasModelParts, out: str | os.PathLike) -> str:
    """Writes `open_clip_config.json`, `open_clip_model.safetensors` and the tokenizer's files. Returns `open_clip`.

    Raises:
        InputError: the form cannot express the model, `out` is taken, or the disk has no room.
    """
    out, spec, name = Path(out), encoder.model.spec, getattr(encoder, "name", "model")
    config = {"model_cfg": _model_config(spec, name)}
    if encoder.preprocessing is not None:
        config["preprocess_cfg"] = _preprocess_config(encoder.preprocessing, name)
    parameters = {path: np.asarray(array) for path, array in parameters_of(encoder.model).items()}
    tensors = write_tensors(parameters, openai_table(spec, custom_text="custom_text" in config["model_cfg"]))
    check_free_space(out, sum(array.nbytes for array in tensors.values()))
    with atomic_directory(out) as folder:
        write_json(folder / CONFIG, config)
        contiguous = {name: np.array(array, order="C") for name, array in tensors.items()}
        save_file(contiguous, folder / SAFETENSORS[0], metadata={"format": "pt"})
        if encoder.tokenizer is not None:
            write_tokenizer(folder, encoder.tokenizer, "clip")
        asked = None if encoder.tokenizer is not None else "none"
        model, preprocessing, tokenizer, provenance = convert_open_clip(name, folder, tokenizer=asked)
        same = {
            "specification": model.spec == spec,
            "weights": provenance["weights_sha256"] == hash_parameters(parameters),
            "preprocessing": preprocessing == encoder.preprocessing or encoder.preprocessing is None,
            "tokenizer": (tokenizer and tokenizer.hash()) == (encoder.tokenizer and encoder.tokenizer.hash()),
        }
        if wrong := [what for what, agrees in same.items() if not agrees]:
            found = f"{', '.join(wrong)} that would not come back the same"
            raise InputError(name, "export", found, _FORM)
    return "open_clip"


def _model_config(spec: ModelSpec, name: str) -> dict[str, Any]:
    """`model_cfg`.

    Raises:
        InputError: the model is none of open_clip's own towers.
    """
    vision, text = spec.vision, spec.text
    if vision is None or text is None or text.attention != "causal":
        raise InputError(name, "towers", "one alone, or a text tower that is not CLIP's", _FORM)
    resnet = isinstance(vision, ResNetSpec)
    if vision.position_grid is not None:
        raise InputError(name, "vision.position_grid", vision.position_grid, f"null: {_FORM}")
    if not resnet and (vision.patch_bias or not vision.class_token or vision.gated_mlp):
        raise InputError(name, "vision", "patches with biases, no class token, or gated MLPs", _FORM)
    activations = {text.activation} | (set() if resnet else {vision.activation})
    if len(activations) > 1 or not activations <= {"quick_gelu", "gelu"}:
        raise InputError(name, "activation", ", ".join(sorted(activations)), f"quick_gelu or gelu in both: {_FORM}")
    heads = HeadSpec("linear", spec.dim, bias=resnet), HeadSpec("linear", spec.dim, bias=spec.text_head.bias)
    for part, wanted in zip(("vision_head", "text_head"), heads, strict=True):
        if getattr(spec, part) != wanted:
            raise InputError(name, part, json.dumps(getattr(spec, part).to_json()), f"an affine map: {_FORM}")
    config: dict[str, Any] = {"embed_dim": spec.dim, "quick_gelu": activations == {"quick_gelu"}}
    if text.pooling == "first_eos" or spec.text_head.bias:
        config["custom_text"] = True
    if spec.logit_bias:
        config["init_logit_bias"] = -10.0
    return {**config, "vision_cfg": _vision_config(vision, name), "text_cfg": _text_config(spec, text)}


def _vision_config(spec: VisionSpec | ResNetSpec, name: str) -> dict[str, Any]:
    if isinstance(spec, ResNetSpec):
        head_width = spec.features // spec.heads
        layers = list(spec.stage_layers)
        return {"image_size": spec.image_size, "layers": layers, "width": spec.width, "head_width": head_width}
    poolings = {"cls": "tok", "mean": "avg"}
    if spec.pooling not in poolings:
        raise InputError(name, "vision.pooling", spec.pooling, f"cls or mean: {_FORM}")
    config = {
        "image_size": spec.image_size,
        "layers": spec.layers,
        "width": spec.width,
        "head_width": spec.width // spec.heads,
        "mlp_ratio": spec.mlp_width / spec.width,
        "patch_size": spec.patch_size,
        "pool_type": poolings[spec.pooling],
        "no_ln_pre": not spec.norm_before_blocks,
        "norm_kwargs": {"eps": spec.norm_eps},
    }
    return {**config, "ls_init_value": 1.0} if spec.layer_scale else config


def _text_config(spec: ModelSpec, text: TextSpec) -> dict[str, Any]:
    config = {
        "context_length": text.context_length,
        "vocab_size": text.vocabulary_size,
        "width": text.width,
        "heads": text.heads,
        "layers": text.layers,
        "mlp_ratio": text.mlp_width / text.width,
        "pool_type": "eos" if text.pooling == "first_eos" else "argmax",
        "proj_bias": spec.text_head.bias,
        "norm_kwargs": {"eps": text.norm_eps},
    }
    return config if text.eos_id is None else {**config, "eos_id": text.eos_id}


def _preprocess_config(preprocessing: "Preprocessing", name: str) -> dict[str, Any]:
    size = preprocessing.image_size
    shortest = preprocessing.shortest_edge is not None
    square = size[0] == size[1] == (preprocessing.shortest_edge or size[0])
    if not square or abs(preprocessing.rescale_factor - 1 / 255) > 1e-12:
        raise InputError(name, "preprocessing", preprocessing.describe(), _FORM)
    return {
        "size": list(size),
        "mode": "RGB",
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "interpolation": preprocessing.resample,
        "resize_mode": "shortest" if shortest else "squash",
        "fill_color": 0,
    }
