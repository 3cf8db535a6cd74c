"""Hugging Face folders and hub names, in and out: configuration, weights, image processor, tokenizer.

What only one family has is in `families`. An export is exact, or refused: what a family's files cannot express
(pooling of both kinds, a residual head, towers of two families) is refused before anything is written, and what was
written is read back and compared before it gets its name.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.checkpoints.families import FAMILIES, family_of_config, family_of_spec, naming_other_tasks
from rococo_jax.checkpoints.families.base import Family
from rococo_jax.checkpoints.families.bert import SENTENCE_FILES
from rococo_jax.checkpoints.formats.base import Format
from rococo_jax.checkpoints.hub import TOKENIZER_FILES, choose_tokenizer, has_tokenizer
from rococo_jax.checkpoints.lora import ADAPTER, ADAPTER_FILES, base_folder, with_adapter
from rococo_jax.checkpoints.parameters import (
    Checkpoint,
    ConversionOptions,
    checkpoint_of,
    finish_checkpoint,
    hash_parameters,
    sources_of_settings,
    with_interpolated_positions,
)
from rococo_jax.checkpoints.sentence_folder import MODULES, check_modules, find_model_path
from rococo_jax.checkpoints.tensors import write_safetensors, write_tensors
from rococo_jax.checkpoints.weight_files import PICKLES, SAFETENSORS, find_weights, open_weights
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizer_files import for_open_clip, for_transformers
from rococo_jax.data.training_images import write_training_images
from rococo_jax.errors import InputError
from rococo_jax.hub_files import commit_of, find_folder
from rococo_jax.models import ModelSpec
from rococo_jax.progress import say
from rococo_jax.storage import atomic_directory, check_free_space, read_json_object, write_json

# In the order of `transformers`, which takes the second where the first has no part of an image processor.
_OPEN_CLIP_CONFIG = "open_clip_config.json"
_NESTED = "processor_config.json"
_PROCESSOR_FILES = (_NESTED, "preprocessor_config.json")
# Keys that tell a rule, the first that is there first.
_TOWER_KEYS = {
    f"{kind} {rule}": f"{part}_config_dict.{key} {part}_config.{key} {key}"
    for kind, part in (("image", "vision"), ("text", "text"))
    for rule, key in (("activation", "hidden_act"), ("heads", "num_attention_heads"), ("pooling", "eos_token_id"))
}
_TOWER_KEYS |= {"image pooling": "vision_config.pooling_type", "image size": "vision_config.image_size image_size"}
_PIXEL_KEYS = {
    "image size": "max_num_patches crop_size size", "resize": "max_num_patches size", "crop": "do_center_crop",
    "interpolation": "resample",
    "rescale factor": "do_rescale rescale_factor", "mean": "do_normalize image_mean", "std": "do_normalize image_std",
}  # fmt: skip
_FILES = ("config.json", *SAFETENSORS, *SENTENCE_FILES, *_PROCESSOR_FILES, *TOKENIZER_FILES)


def read_huggingface(source: str | Path, options: ConversionOptions) -> Checkpoint:
    """Read a folder with `config.json` and weights, or a name on the hub.

    The pooling is by default what a sentence-transformers folder names, else the family's first. An adapter of PEFT is
    merged (`lora`). The tokenizer is None where the folder has no file for it; preprocessing is then the family's
    default, and provenance tells so.
    """
    root = folder = find_folder(source, (*_FILES, *ADAPTER_FILES))
    inner = find_model_path(root)
    if inner is not None:
        within = [f"{inner}/{name}" for name in (*_FILES, *PICKLES)]
        weights = [f"{inner}/{name}" for name in (*SAFETENSORS, *PICKLES)]
        folder = find_folder(source, within, required=weights) / inner
    base = base_folder(folder, _FILES, (*SAFETENSORS, *PICKLES))
    path = base / "config.json"
    config = read_json_object(path, "a Hugging Face config.json")
    family = family_of_config(config, path)
    if config.get("quantization_config") is not None:
        raise InputError(path, "quantization_config", "quantized weights", "weights of floating-point numbers")
    if base == folder and inner is None and find_weights(folder) is None:  # on the hub, perhaps older ones
        find_folder(source, PICKLES, required=(*SAFETENSORS, *PICKLES))
    pipeline = root if inner is not None else base
    check_modules(pipeline)
    with open_weights(base) as stored:
        tensors = with_adapter(stored, folder)
        with naming_other_tasks(path, config):
            spec, parameters = family.read(base, tensors, config, options.pooling)
    provenance = {"source": str(source), "format": "huggingface", "model_type": config["model_type"]}
    provenance["weights"] = tensors.origin
    places = sources_of_settings("config.json", config, _TOWER_KEYS, "the library's default")
    if spec.text is not None and spec.text.attention != "causal":
        places["text pooling"] = "the library's default"
    pooled = next((f"{place.parent.name}/{place.name}" for place in pipeline.glob("*_Pooling/config.json")), None)
    if pooled := "the argument pooling" if options.pooling else pooled:
        places |= {"image pooling": pooled, "text pooling": pooled}
    provenance |= family.notes(spec)
    provenance |= {} if family.position_rule == "bicubic" else {"position_rule": family.position_rule}
    preprocessing, tokenizer = None, None
    if spec.vision is not None:
        place = folder if any((folder / name).is_file() for name in _PROCESSOR_FILES) else base
        preprocessing, more = _read_preprocessing(place, family, spec.vision.image_size)
        places |= more
    place = folder if has_tokenizer(folder) else base
    if spec.text is not None and (options.tokenizer or has_tokenizer(place)):
        read = functools.partial(family.read_tokenizer, config=config)
        tokenizer, provenance["tokenizer"] = choose_tokenizer(source, options.tokenizer, place, str(place), read)
    provenance["read_from"] = places
    if commit := commit_of(root):
        provenance["commit"] = commit
    return Checkpoint(spec, parameters, preprocessing, tokenizer, provenance)


def is_huggingface_folder(folder: Path, has_weights: bool) -> bool:
    """Return whether a folder is read as a Hugging Face model, also where it is one of open_clip as well."""
    is_described = any((folder / name).is_file() for name in ("config.json", ADAPTER))
    if not is_described and find_model_path(folder) is None:
        return False
    if not (folder / _OPEN_CLIP_CONFIG).is_file():
        return True
    # Repositories of open_clip have a config.json too, some of them of a model that transformers does not have.
    if not (folder / "config.json").is_file():
        return False
    model_type = read_json_object(folder / "config.json", "a Hugging Face config.json").get("model_type")
    return model_type in FAMILIES and (not has_weights or find_weights(folder) is not None)


HUGGINGFACE = Format(
    "huggingface",
    read_huggingface,
    descriptions=("config.json", ADAPTER, MODULES),
    is_folder=is_huggingface_folder,
    options=frozenset(("pooling",)),
)


def _read_preprocessing(folder: Path, family: Family, image_size: int) -> tuple[Preprocessing, Mapping[str, str]]:
    """The preprocessing, and where its rules were read: the family's where the folder has no file for it."""
    for name in _PROCESSOR_FILES:
        config = read_json_object(folder / name, "an image processor") if (folder / name).is_file() else {}
        if config and (name != _NESTED or "image_processor" in config):
            given = config.get("image_processor", config)
            config = family.processor_settings(given)
            read = Preprocessing.from_huggingface(config, folder / name)
            if read.image_size != (image_size, image_size) and not family.interpolates_positions:
                found = f"images of {read.image_size[0]} x {read.image_size[1]} pixels"
                raise InputError(folder / name, "size", found, f"{image_size} x {image_size}, as in config.json")
            return read, sources_of_settings(name, given, _PIXEL_KEYS, "the library's default")
    preprocessing = Preprocessing.from_huggingface(family.processor).with_image_size(image_size)
    return preprocessing, {rule: "the family's default" for rule in _PIXEL_KEYS if rule != "image size"}


def export_huggingface(encoder: Any, out: str | os.PathLike) -> str:
    """Write an `Encoder` as a folder (`config.json`, `model.safetensors`, image processor, tokenizer). Returns the
    family's name.

    A model that is used at another size than it was stored for gets its position embeddings interpolated, unless
    `transformers` does so on reading it; every other export converts back to the same bits.

    Raises InputError: the Hugging Face form cannot express the model, `out` is taken, or the disk has no room.
    """
    out, name, checkpoint = Path(out), encoder.name, checkpoint_of(encoder)
    own_spec, own_parameters = with_interpolated_positions(checkpoint.spec, checkpoint.parameters)
    family, checkpoint = family_of_spec(checkpoint.spec, name), as_library("transformers", checkpoint, name)
    if not family.interpolates_positions:
        checkpoint = checkpoint._replace(spec=own_spec, parameters=own_parameters)
    spec, preprocessing, tokenizer = checkpoint.spec, checkpoint.preprocessing, checkpoint.tokenizer
    parameters = {path: np.asarray(array) for path, array in checkpoint.parameters.items()}
    config = {**family.config(spec), "dtype": "float32"}
    back = family.spec_of_export(config, spec, Path(name))
    if back.vision is not None and family.interpolates_positions:
        # Its size is that of the stored positions; the image processor tells at which size it is used.
        sizes = {name: getattr(spec.vision, name) for name in ("image_size", "position_grid", "position_rule")}
        back = dataclasses.replace(back, vision=dataclasses.replace(back.vision, **sizes))
    check_spec_round_trip(back, spec, name, f"only what the Hugging Face form of {family.name} can express")
    tensors = write_tensors(parameters, family.table(spec, *family.export_prefixes(spec)))
    check_free_space(out, sum(array.nbytes for array in tensors.values()))
    with atomic_directory(out) as folder:
        write_json(folder / "config.json", config)
        write_safetensors(folder / "model.safetensors", tensors)
        if preprocessing is not None and spec.vision is not None:
            family.write_processor(folder, preprocessing)
        if tokenizer is not None and spec.text is not None:
            family.write_tokenizer(folder, tokenizer)
        family.write_more(folder, spec, parameters)
        write_training_images(folder, checkpoint.training_images)
        wanted = "what the Hugging Face form can express"
        check_round_trip(read_huggingface(folder, ConversionOptions()), checkpoint, name, wanted)
    return family.name


def check_spec_round_trip(back: ModelSpec, spec: ModelSpec, name: str, wanted: str) -> None:
    """Raises InputError, which names the field, where the spec that an export would be read `back` with differs."""
    for part in ("vision_head", "text_head", "vision", "text", "logit_bias"):
        ours, theirs = getattr(spec, part), getattr(back, part)
        if ours == theirs:
            continue
        if not dataclasses.is_dataclass(ours) or not dataclasses.is_dataclass(theirs):
            raise InputError(name, part, repr(ours), f"{theirs!r}: {wanted}")
        field = next(f.name for f in dataclasses.fields(ours) if getattr(ours, f.name) != getattr(theirs, f.name))
        found, expressed = repr(getattr(ours, field)), repr(getattr(theirs, field))
        raise InputError(name, f"{part}.{field}", found, f"{expressed}: {wanted}")


def as_library(library: str, checkpoint: Checkpoint, name: str) -> Checkpoint:
    """The model `name` with another library's rules for texts and pixels; says so where that is a change.

    Raises InputError where the library has no such cleaning.
    """
    tokenizer, preprocessing = checkpoint.tokenizer, checkpoint.preprocessing
    if tokenizer is not None:
        tokenizer = (for_transformers if library == "transformers" else for_open_clip)(tokenizer)
        if tokenizer is not checkpoint.tokenizer:
            say(f"{name}: texts will be cleaned as {library} does; broken Unicode and entities change tokens")
    if preprocessing is not None and preprocessing.library != library:
        preprocessing = dataclasses.replace(preprocessing, library=library)
        say(f"{name}: images will be prepared by the rule of {preprocessing.describe_library_behaviour()}")
    return checkpoint._replace(tokenizer=tokenizer, preprocessing=preprocessing)


def check_round_trip(read_back: Checkpoint, exported: Checkpoint, name: str, wanted: str) -> None:
    """Raises InputError where an export of the model `name` that was read back differs from what was exported."""
    back = finish_checkpoint(read_back)
    same = {
        "specification": back.spec == exported.spec,
        "weights": back.provenance["weights_sha256"] == hash_parameters(exported.parameters),
        "preprocessing": exported.preprocessing is None or back.preprocessing == exported.preprocessing,
        "tokenizer": (back.tokenizer and back.tokenizer.hash()) == (exported.tokenizer and exported.tokenizer.hash()),
    }
    if wrong := [what for what, agrees in same.items() if not agrees]:
        found = f"{', '.join(wrong)} that would not come back the same"
        raise InputError(name, "export", found, wanted)
