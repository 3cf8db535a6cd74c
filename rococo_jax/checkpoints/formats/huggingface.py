"""Hugging Face folders and hub names, read and exported: configuration, weights, image processor, tokenizer.

`families` holds what only one family has. An export is exact, or refused: models that the files of a family cannot
express (pooling of both kinds, a residual head, towers of two families) are refused before anything is written, and
the folder is read back and compared before it gets its name.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.checkpoints.families import (
    FAMILIES,
    architectures,
    family_of_config,
    family_of_spec,
    has_own_code,
    naming_other_tasks,
)
from rococo_jax.checkpoints.families.base import Family
from rococo_jax.checkpoints.formats.base import Format, choose_tokenizer, has_tokenizer
from rococo_jax.checkpoints.lora import ADAPTER, ADAPTER_FILES, base_folder, with_adapter
from rococo_jax.checkpoints.names import write_tensors
from rococo_jax.checkpoints.parameters import (
    Checkpoint,
    ConversionOptions,
    checkpoint_of,
    finish_checkpoint,
    hash_parameters,
    sources_of_settings,
    with_interpolated_positions,
)
from rococo_jax.checkpoints.sentence_folder import MODULES, SENTENCE_FILES, check_modules, find_model_path
from rococo_jax.checkpoints.tensors import write_safetensors
from rococo_jax.checkpoints.weight_files import PICKLES, SAFETENSORS, find_weights, open_weights
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizer_files import TOKENIZER_FILES, for_open_clip, for_transformers
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.data.training_images import write_training_images
from rococo_jax.errors import InputError
from rococo_jax.hub_files import commit_of, find_folder
from rococo_jax.models import ModelSpec
from rococo_jax.progress import say
from rococo_jax.storage import atomic_directory, check_free_space, read_json_object, write_json

# In the order of `transformers`, which uses the second if the first has no section of an image processor.
_OPEN_CLIP_CONFIG = "open_clip_config.json"
_NESTED = "processor_config.json"
_PROCESSOR_FILES = (_NESTED, "preprocessor_config.json")
# The keys that record a setting; the first that is present counts.
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

    The pooling is by default that of a sentence-transformers folder, else the family's first. An adapter of PEFT is
    merged (`lora`). The tokenizer is None if the folder has no file for it. Without a file for the image processor the
    preprocessing is the family's default, and provenance says so.
    """
    root = _adapter_folder(find_folder(source, (*_FILES, *ADAPTER_FILES)))
    folder = _model_folder(source, root)
    base = base_folder(folder, _FILES, (*SAFETENSORS, *PICKLES))
    path = base / "config.json"
    config = read_json_object(path, "a Hugging Face config.json")
    family = family_of_config(config, path)
    if config.get("quantization_config") is not None:
        raise InputError(path, "quantization_config", "quantized weights", "weights of floating-point numbers")
    if base == folder == root and find_weights(folder) is None:
        # A repository without safetensors: download its pickled weights.
        find_folder(source, PICKLES, required=(*SAFETENSORS, *PICKLES))
    pipeline = root if folder != root else base
    check_modules(pipeline)
    with open_weights(base) as stored_tensors:
        tensors = with_adapter(stored_tensors, folder)
        with naming_other_tasks(path, config):
            spec, parameters = family.read(base, tensors, config, options.pooling)

    read_from = _sources_of_towers(config, spec, pipeline, options)
    preprocessing, tokenizer, tokenizer_from = None, None, None
    if spec.vision is not None:
        has_processor = any((folder / name).is_file() for name in _PROCESSOR_FILES)
        processor_folder = folder if has_processor else base
        preprocessing, pixels_from = _read_preprocessing(processor_folder, family, spec.vision.image_size)
        read_from |= pixels_from
    tokenizer_folder = folder if has_tokenizer(folder) else base
    if spec.text is not None and (options.tokenizer or has_tokenizer(tokenizer_folder)):
        read = functools.partial(family.read_tokenizer, config=config)
        tokenizer, tokenizer_from = choose_tokenizer(
            source, options.tokenizer, tokenizer_folder, str(tokenizer_folder), read
        )
    own_code = {"own_code": architectures(config) or "auto_map"} if has_own_code(config) else {}
    if own_code:
        say(f"{source}: has code of its own ({own_code['own_code']}), which is not run: read as a plain {family.name}")
    provenance = {
        "source": str(source),
        "format": "huggingface",
        "model_type": config["model_type"],
        "weights": tensors.origin,
        **family.notes(spec),
        **own_code,
        **({} if family.position_rule == "bicubic" else {"position_rule": family.position_rule}),
        **({} if tokenizer_from is None else {"tokenizer": tokenizer_from}),
        "read_from": read_from,
    }
    if commit := commit_of(root):
        provenance["commit"] = commit
    return Checkpoint(spec, parameters, preprocessing, tokenizer, provenance)


def _adapter_folder(folder: Path) -> Path:
    """Return the only subfolder with an adapter, where PEFT writes one that has a name; `folder` if it has a model.

    Raises InputError if there are several.
    """
    if any((folder / name).is_file() for name in ("config.json", ADAPTER, MODULES)):
        return folder
    folders = sorted(path.parent for path in folder.glob(f"*/{ADAPTER}"))
    if len(folders) > 1:
        names = ", ".join(each.name for each in folders)
        raise InputError(folder, "adapters", names, f"the folder of one adapter, such as {folders[0]}")
    return folders[0] if folders else folder


def _model_folder(source: str | Path, root: Path) -> Path:
    """Return the folder of the model itself: a subfolder in old sentence-transformers folders, else `root`."""
    inner = find_model_path(root)
    if inner is None:
        return root
    files = [f"{inner}/{name}" for name in (*_FILES, *PICKLES)]
    weights = [f"{inner}/{name}" for name in (*SAFETENSORS, *PICKLES)]
    return find_folder(source, files, required=weights) / inner


def _sources_of_towers(
    config: Mapping[str, Any], spec: ModelSpec, pipeline: Path, options: ConversionOptions
) -> dict[str, str]:
    """Return where each setting of the towers was read."""
    read_from = sources_of_settings("config.json", config, _TOWER_KEYS, "the library's default")
    if spec.text is not None and spec.text.attention != "causal":
        read_from["text pooling"] = "the library's default"
    pooling_files = [f"{path.parent.name}/{path.name}" for path in pipeline.glob("*_Pooling/config.json")]
    if options.pooling:
        pooling_files = ["the argument pooling"]
    if pooling_files:
        read_from |= dict.fromkeys(("image pooling", "text pooling"), pooling_files[0])
    return read_from


def is_huggingface_folder(folder: Path, has_weights: bool) -> bool:
    """Return whether a folder is read as a Hugging Face model, also where it is one of open_clip as well."""
    is_described = any((_adapter_folder(folder) / name).is_file() for name in ("config.json", ADAPTER))
    if not is_described and find_model_path(folder) is None:
        return False
    if not (folder / _OPEN_CLIP_CONFIG).is_file():
        return True
    # Repositories of open_clip have a config.json too, some of them of a model that transformers does not have, or of
    # code in the repository that reads open_clip's tensors.
    if not (folder / "config.json").is_file():
        return False
    config = read_json_object(folder / "config.json", "a Hugging Face config.json")
    is_known = config.get("model_type") in FAMILIES and not has_own_code(config)
    return is_known and (not has_weights or find_weights(folder) is not None)


HUGGINGFACE = Format(
    "huggingface",
    read_huggingface,
    descriptions=("config.json", ADAPTER, MODULES),
    is_folder=is_huggingface_folder,
    options=frozenset(("pooling",)),
)


def _read_preprocessing(folder: Path, family: Family, image_size: int) -> tuple[Preprocessing, Mapping[str, str]]:
    """Return the preprocessing, and where its settings were read; the family's default if the folder has no file."""
    for name in _PROCESSOR_FILES:
        config = read_json_object(folder / name, "an image processor") if (folder / name).is_file() else {}
        if not config or (name == _NESTED and "image_processor" not in config):
            continue
        settings = config.get("image_processor", config)
        preprocessing = Preprocessing.from_huggingface(family.processor_settings(settings), folder / name)
        if preprocessing.image_size != (image_size, image_size) and not family.interpolates_positions:
            height, width = preprocessing.image_size
            expected = f"{image_size} x {image_size}, as in config.json"
            raise InputError(folder / name, "size", f"images of {height} x {width} pixels", expected)
        return preprocessing, sources_of_settings(name, settings, _PIXEL_KEYS, "the library's default")
    preprocessing = Preprocessing.from_huggingface(family.processor).with_image_size(image_size)
    how = f"prepared as is usual for {family.name}: {preprocessing.describe_size()}"
    say(f"{folder}: no file of an image processor; images are {how}")
    return preprocessing, {setting: "the family's default" for setting in _PIXEL_KEYS if setting != "image size"}


def export_huggingface(encoder: Any, out: str | os.PathLike) -> str:
    """Write an `Encoder` as a Hugging Face folder and return the name of its family.

    The folder has `config.json`, `model.safetensors`, and the files of image processor and tokenizer. A model that is
    used at another size than its positions are stored for is exported with interpolated positions, unless
    `transformers` interpolates them on reading. Every other export is converted back to the same bits.

    Raises InputError: the Hugging Face format cannot express the model, `out` exists, or the disk is full.
    """
    out, name, checkpoint = Path(out), encoder.name, checkpoint_of(encoder)
    family = family_of_spec(checkpoint.spec, name)
    checkpoint = as_library("transformers", checkpoint, name)
    if not family.interpolates_positions:
        spec, parameters = with_interpolated_positions(checkpoint.spec, checkpoint.parameters)
        checkpoint = checkpoint._replace(spec=spec, parameters=parameters)
    spec, preprocessing, tokenizer = checkpoint.spec, checkpoint.preprocessing, checkpoint.tokenizer
    parameters = {path: np.asarray(array) for path, array in checkpoint.parameters.items()}
    config = {**family.config(spec), "dtype": "float32"}
    back = family.spec_of_export(config, spec, Path(name))
    if back.vision is not None and family.interpolates_positions:
        # The configuration has the size of the stored positions, the image processor the size that is used.
        sizes = {field: getattr(spec.vision, field) for field in ("image_size", "position_grid", "position_rule")}
        back = dataclasses.replace(back, vision=dataclasses.replace(back.vision, **sizes))
    check_spec_round_trip(back, spec, name, f"only what the Hugging Face format of {family.name} can express")
    tensors = write_tensors(parameters, family.table(spec, *family.export_prefixes(spec)))
    check_free_space(out, sum(array.nbytes for array in tensors.values()))
    with atomic_directory(out) as folder:
        write_json(folder / "config.json", config)
        write_safetensors(folder / "model.safetensors", tensors)
        if preprocessing is not None and spec.vision is not None:
            family.write_processor(folder, preprocessing)
        if tokenizer is not None and spec.text is not None:
            family.write_tokenizer(folder, tokenizer)
            write_json(folder / "config.json", _with_token_ids(config, tokenizer))
        family.write_more(folder, spec, parameters)
        write_training_images(folder, checkpoint.training_images)
        expected = "a model that the Hugging Face format can express"
        check_round_trip(read_huggingface(folder, ConversionOptions()), checkpoint, name, expected)
    return family.name


def _with_token_ids(config: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a `config.json` with the ids of special tokens that it lacks; its library's defaults are those of CLIP."""
    first_id, end_id = tokenizer.encode([""])[0][:1], tokenizer.spec.eos_id
    start_id = first_id[0] if first_id and first_id[0] != end_id else None
    ids = {"bos_token_id": start_id, "eos_token_id": end_id, "pad_token_id": tokenizer.spec.pad_id}
    if "text_config" not in config:
        return {**ids, **config}
    return {**config, "text_config": {**ids, **config["text_config"]}}


def check_spec_round_trip(back: ModelSpec, spec: ModelSpec, name: str, expected: str) -> None:
    """Raise InputError, with the field, if an export of the model `name` would be read `back` with another spec."""
    for part in ("vision_head", "text_head", "vision", "text", "logit_bias"):
        ours, theirs = getattr(spec, part), getattr(back, part)
        if ours == theirs:
            continue
        if not dataclasses.is_dataclass(ours) or not dataclasses.is_dataclass(theirs):
            raise InputError(name, part, repr(ours), f"{theirs!r}: {expected}")
        field = next(f.name for f in dataclasses.fields(ours) if getattr(ours, f.name) != getattr(theirs, f.name))
        our_value, their_value = repr(getattr(ours, field)), repr(getattr(theirs, field))
        raise InputError(name, f"{part}.{field}", our_value, f"{their_value}: {expected}")


def as_library(library: str, checkpoint: Checkpoint, name: str) -> Checkpoint:
    """Return the model `name` with another library's treatment of texts and pixels; print a line if that changes it.

    Raises InputError if the library has no such cleaning of texts.
    """
    tokenizer, preprocessing = checkpoint.tokenizer, checkpoint.preprocessing
    if tokenizer is not None:
        tokenizer = (for_transformers if library == "transformers" else for_open_clip)(tokenizer)
        if tokenizer is not checkpoint.tokenizer:
            say(f"{name}: texts will be cleaned as {library} does; broken Unicode and entities change tokens")
    if preprocessing is not None and preprocessing.library != library:
        preprocessing = dataclasses.replace(preprocessing, library=library)
        say(f"{name}: images will be prepared as in {preprocessing.describe_library_behaviour()}")
    return checkpoint._replace(tokenizer=tokenizer, preprocessing=preprocessing)


def check_round_trip(read_back: Checkpoint, original: Checkpoint, name: str, expected: str) -> None:
    """Raise InputError if an export of the model `name` that was read back differs from the model."""
    back = finish_checkpoint(read_back)
    equal_parts = {
        "specification": back.spec == original.spec,
        "weights": back.provenance["weights_sha256"] == hash_parameters(original.parameters),
        "preprocessing": original.preprocessing is None or back.preprocessing == original.preprocessing,
        "tokenizer": _hash_of_tokenizer(back) == _hash_of_tokenizer(original),
    }
    if differences := [part for part, is_equal in equal_parts.items() if not is_equal]:
        raise InputError(name, "export", f"{', '.join(differences)} that would be read back differently", expected)


def _hash_of_tokenizer(checkpoint: Checkpoint) -> str | None:
    return None if checkpoint.tokenizer is None else checkpoint.tokenizer.hash()
