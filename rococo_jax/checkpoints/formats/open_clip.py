"""open_clip folders and hub names: `open_clip_config.json` beside `open_clip_model.safetensors` (or `.bin`)."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.checkpoints.families.clip import CLIP
from rococo_jax.checkpoints.formats.activation import activation_of_open_clip
from rococo_jax.checkpoints.formats.base import Format, choose_tokenizer
from rococo_jax.checkpoints.formats.huggingface import as_library, check_round_trip
from rococo_jax.checkpoints.formats.open_clip_config import (
    EXPRESSIBLE,
    TEXT_FAMILIES,
    model_config,
    preprocess_config,
    spec_from_open_clip,
)
from rococo_jax.checkpoints.formats.openai import TOKENIZER
from rococo_jax.checkpoints.formats.openai_names import openai_table
from rococo_jax.checkpoints.formats.timm_towers import timm_rows
from rococo_jax.checkpoints.lora import ADAPTER
from rococo_jax.checkpoints.names import NameTable, read_parameters, write_tensors
from rococo_jax.checkpoints.parameters import (
    Checkpoint,
    ConversionOptions,
    checkpoint_of,
    sources_of_settings,
    with_interpolated_positions,
)
from rococo_jax.checkpoints.tensors import Tensors, write_safetensors
from rococo_jax.checkpoints.weight_files import open_weights
from rococo_jax.data.image_processors import CLIP_MEAN, CLIP_STD
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizer_files import TOKENIZER_FILES, read_open_clip_tokenizer
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.data.training_images import write_training_images
from rococo_jax.errors import InputError
from rococo_jax.hub_files import commit_of, find_folder
from rococo_jax.models import ModelSpec
from rococo_jax.models.spec import Activation
from rococo_jax.storage import atomic_directory, check_free_space, read_json_object, write_json

CONFIG = "open_clip_config.json"
# In the order in which open_clip looks for them.
_WEIGHTS = tuple(
    f"open_clip_{name}" for name in ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin")
)
_WEIGHTS += tuple(f"open_clip_pytorch_model.{suffix}" for suffix in ("pth", "pt"))
_FILES = (CONFIG, *_WEIGHTS, *TOKENIZER_FILES, "text_config/*")
# The keys that record a setting; the first that is present counts.
_TOWER_KEYS = {
    "image heads": "vision_cfg.timm_model_name vision_cfg.head_width vision_cfg.width",
    "text heads": "text_cfg.hf_model_name text_cfg.heads",
    "image pooling": "vision_cfg.timm_pool vision_cfg.attentional_pool vision_cfg.pool_type",
    "text pooling": "text_cfg.hf_pooler_type text_cfg.embed_cls text_cfg.pool_type",
    "image size": "vision_cfg.image_size",
}
_PIXEL_KEYS = {name: f"preprocess_cfg.{name}" for name in ("interpolation", "mean", "std")}
_PIXEL_KEYS |= dict.fromkeys(("resize", "crop"), "preprocess_cfg.resize_mode")
_FILTERS = {"bicubic": 3, "bilinear": 2}


def read_open_clip(source: str | Path, options: ConversionOptions, folder: Path | None = None) -> Checkpoint:
    """Read an open_clip folder or hub name.

    With `folder`, the files are read from there, and `source` is only the name of the checkpoint.
    """
    folder = folder or find_folder(source, _FILES, required=_WEIGHTS)
    path = folder / CONFIG
    config = read_json_object(path, "an open_clip configuration")
    model = config.get("model_cfg", config)
    if not isinstance(model, Mapping) or not all(isinstance(model.get(k), Mapping) for k in ("vision_cfg", "text_cfg")):
        raise InputError(path, "model_cfg", "no vision_cfg and text_cfg", "the configuration of an image-text model")
    hf_text = hf_config(model["text_cfg"], path)
    if (folder / ADAPTER).is_file():
        expected = "no adapter: the weights that merge_and_unload() of PEFT gives"
        raise InputError(folder / ADAPTER, "adapter", "one beside an open_clip model", expected)
    with open_weights(folder, _WEIGHTS) as tensors:
        towers = towers_of_open_clip(config, model, path, tensors, source, options.activation, hf_text)
        spec, table, activation_from = towers
        parameters = read_parameters(tensors, table)
    preprocess_cfg = config.get("preprocess_cfg") or {}
    preprocessing = preprocessing_of_open_clip(preprocess_cfg, path, spec)
    kind = _tokenizer_kind(model["text_cfg"], spec, hf_text)
    tokenizer, tokenizer_from = _tokenizer(source, path, model["text_cfg"], spec, kind, options.tokenizer)
    provenance = {
        "source": str(source),
        "format": "open_clip",
        "model_type": "siglip" if spec.logit_bias else "clip",
        "weights": tensors.origin,
        "read_from": {
            **sources_of_settings(CONFIG, model, _TOWER_KEYS, "open_clip's default"),
            **sources_of_settings(CONFIG, {"preprocess_cfg": preprocess_cfg}, _PIXEL_KEYS, "open_clip's default"),
            "rescale factor": "open_clip's default",
            "image activation": activation_from,
            "text activation": activation_from,
        },
        "tokenizer": tokenizer_from,
    }
    if commit := commit_of(folder):
        provenance["commit"] = commit
    return Checkpoint(spec, parameters, preprocessing, tokenizer, provenance)


OPEN_CLIP = Format(
    "open_clip",
    read_open_clip,
    descriptions=(CONFIG,),
    is_folder=lambda folder, has_weights: (folder / CONFIG).is_file(),
    options=frozenset(("activation",)),
)


def towers_of_open_clip(
    config: Mapping[str, Any],
    model: Mapping[str, Any],
    path: Path,
    tensors: Tensors,
    source: object,
    activation: str | None,
    hf_config: Mapping[str, Any] | None,
) -> tuple[ModelSpec, NameTable, str]:
    """Return the spec, the names of its tensors, and where the activation was read.

    `model` is the `model_cfg` of `config`, `hf_config` the `config.json` of a Hugging Face text tower. Raises
    InputError if the towers here cannot follow the configuration, or nothing records the activation.
    """
    activation_from = "fixed by the towers' kind"

    def choose_activation() -> Activation:
        nonlocal activation_from
        chosen_activation, activation_from = activation_of_open_clip({**config, **model}, source, activation)
        return chosen_activation

    spec = spec_from_open_clip(model, path, tensors, choose_activation, hf_config)
    timm_name = model["vision_cfg"].get("timm_model_name")
    table = openai_table(
        spec,
        custom_text=any(name.startswith("text.") for name in tensors.names),
        image_rows=timm_rows(timm_name, spec.vision, spec.vision_head, tensors.names) if timm_name else None,
        probes=model["vision_cfg"].get("attn_pooler_queries", 256),
        **({} if hf_config is None else {"text_family": TEXT_FAMILIES[hf_config["model_type"]]}),
        scalar_axes=len(tensors.shape("logit_scale")) if "logit_scale" in tensors.names else 0,
    )
    return spec, table, activation_from


def hf_config(text: Mapping[str, Any], path: Path) -> Mapping[str, Any] | None:
    """Return the `config.json` of a Hugging Face text tower, of which open_clip stores only the name."""
    name = text.get("hf_model_name")
    if not name:
        return None
    folder = path.parent / str(name)
    if not (folder / "config.json").is_file():
        field, expected = "text_cfg.hf_model_name", "a name on the hub that can be reached, or a folder"
        folder = find_folder(str(name), ["config.json"], f"{field} of {path}", expected, ["config.json"])
    return read_json_object(folder / "config.json", "the configuration of a text tower")


def preprocessing_of_open_clip(preprocess_cfg: Mapping[str, Any], path: Path, spec: ModelSpec) -> Preprocessing:
    """Return the preprocessing of a `preprocess_cfg`. Raises InputError for values that are not known here."""
    values = {"mean": CLIP_MEAN, "std": CLIP_STD, "interpolation": "bicubic", "resize_mode": "shortest"}
    values |= {key: value for key, value in preprocess_cfg.items() if value is not None}
    # `random` applies in training alone.
    filter_name = "bicubic" if values["interpolation"] == "random" else values["interpolation"]
    colours = {key: tuple(v) if isinstance(v := values[key], list | tuple) else (v,) * 3 for key in ("mean", "std")}
    if filter_name not in _FILTERS:
        raise InputError(path, "preprocess_cfg.interpolation", values["interpolation"], " or ".join(_FILTERS))
    if values.get("mode", "RGB") != "RGB":
        raise InputError(path, "preprocess_cfg.mode", values["mode"], "RGB")
    size = spec.vision.image_size
    common = {"resample": filter_name, "library": "open_clip", **colours}
    if values["resize_mode"] == "shortest":
        return Preprocessing(shortest_edge=size, crop_size=(size, size), **common)
    if values["resize_mode"] == "squash":
        return Preprocessing(exact_size=(size, size), **common)
    raise InputError(path, "preprocess_cfg.resize_mode", values["resize_mode"], "shortest or squash")


def _tokenizer_kind(text: Mapping[str, Any], spec: ModelSpec, hf: Mapping | None) -> str:
    """Return the family of the tokenizer; without `hf_tokenizer_name` it is open_clip's own, that of CLIP."""
    if hf is not None:
        return hf["model_type"]
    if not text.get("hf_tokenizer_name"):
        return "clip"
    arguments = text.get("tokenizer_kwargs") or {}
    if arguments.get("strip_sep_token"):
        return "bert"
    if arguments.get("clean") == "canonicalize" or spec.text.pooling == "last":
        return "siglip"
    # MetaCLIP 2 reads XLM-V's vocabulary.
    return "xlm-roberta" if "xlm" in str(text.get("hf_tokenizer_name")) else "clip"


def _tokenizer(
    source: object, path: Path, text: Mapping[str, Any], spec: ModelSpec, kind: str, requested: str | None
) -> tuple[Tokenizer | None, str]:
    """Return the tokenizer and where it was read. Texts of a Hugging Face tower are cut at open_clip's own default."""
    is_hf_tower = spec.text.attention == "masked"
    length = spec.text.context_length
    if is_hf_tower:
        length = min(length, text.get("context_length", 77))
    arguments = text.get("tokenizer_kwargs") or {}
    is_simple = not is_hf_tower and not text.get("hf_tokenizer_name")

    def read(place: str | Path) -> Tokenizer:
        tokenizer = read_open_clip_tokenizer(place, kind, length, arguments, simple=is_simple, config=path)
        if spec.text.attention != "full" or tokenizer.spec.fixed_length is not None:
            return tokenizer
        # Full attention reads the padding; open_clip's own tokenizer pads with 0.
        padding = {"pad_id": 0} if is_simple else {}
        padded_spec = dataclasses.replace(tokenizer.spec, fixed_length=length, **padding)
        return Tokenizer(tokenizer.rust, padded_spec, tokenizer.read_from)

    return choose_tokenizer(source, requested, path.parent, text.get("hf_tokenizer_name") or TOKENIZER, read)


def export_open_clip(encoder: Any, out: str | os.PathLike) -> str:
    """Write an `Encoder` as an open_clip folder and return `open_clip`.

    The folder has `open_clip_config.json`, `open_clip_model.safetensors` and the tokenizer's files. The export is
    exact, or refused. The format can express what Hugging Face's cannot: ResNets, averaged patches, layer scale, a
    ViT without its first norm.

    Raises InputError: the format cannot express the model, `out` exists, or the disk is full.
    """
    out, name, checkpoint = Path(out), encoder.name, checkpoint_of(encoder)
    spec, parameters = with_interpolated_positions(checkpoint.spec, checkpoint.parameters)
    config = {"model_cfg": model_config(spec, name)}
    checkpoint = as_library("open_clip", checkpoint._replace(spec=spec, parameters=parameters), name)
    if checkpoint.preprocessing is not None:
        config["preprocess_cfg"] = preprocess_config(checkpoint.preprocessing, name)
    parameters = {path: np.asarray(array) for path, array in parameters.items()}
    tensors = write_tensors(parameters, openai_table(spec, custom_text="custom_text" in config["model_cfg"]))
    check_free_space(out, sum(array.nbytes for array in tensors.values()))
    with atomic_directory(out) as folder:
        write_json(folder / CONFIG, config)
        write_safetensors(folder / _WEIGHTS[0], tensors)
        write_training_images(folder, checkpoint.training_images)
        if checkpoint.tokenizer is not None:
            CLIP.write_tokenizer(folder, checkpoint.tokenizer)
        options = ConversionOptions(tokenizer=None if checkpoint.tokenizer is not None else "none")
        check_round_trip(read_open_clip(name, options, folder), checkpoint, name, EXPRESSIBLE)
    return "open_clip"
