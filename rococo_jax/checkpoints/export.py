"""A model back as a Hugging Face folder: exact, or refused.

What a family's files cannot say (pooling of both kinds, a residual head, towers of two families) is refused before
anything is written; what was written is read back and compared before it gets its name.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from rococo_jax.checkpoints.export_config import config_of, family_of
from rococo_jax.checkpoints.export_files import processor_config, write_sentence_modules, write_tokenizer
from rococo_jax.checkpoints.families import table_of
from rococo_jax.checkpoints.huggingface import convert_huggingface
from rococo_jax.checkpoints.huggingface_config import spec_from_config
from rococo_jax.checkpoints.name_table import write_tensors
from rococo_jax.checkpoints.parameters import HasModelParts, hash_parameters, parameters_of
from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec
from rococo_jax.models.positions import resize_positions
from rococo_jax.storage import atomic_directory, check_free_space, write_json


def export_huggingface(encoder: HasModelParts, out: str | os.PathLike) -> str:
    """Writes the folder (`config.json`, `model.safetensors`, image processor, tokenizer). Returns the family's name.

    A CLIP or SigLIP that is used at another size than it was stored for gets its position embeddings interpolated;
    every other export converts back to the same bits.

    Raises:
        InputError: the Hugging Face form cannot express the model, `out` is taken, or the disk has no room.
    """
    out, spec, name = Path(out), encoder.model.spec, getattr(encoder, "name", "model")
    family = family_of(spec, name)
    parameters = {path: np.asarray(array) for path, array in parameters_of(encoder.model).items()}
    if family in ("clip", "siglip") and spec.vision is not None and spec.vision.position_grid is not None:
        spec, parameters = _interpolated(spec, parameters)
    config = config_of(spec, family)
    _refuse_what_would_be_lost(name, spec, config, family)
    tensors = write_tensors(parameters, table_of(spec, family, *_prefixes(spec, family)))
    check_free_space(out, sum(array.nbytes for array in tensors.values()))
    with atomic_directory(out) as folder:
        write_json(folder / "config.json", config)
        # Laid out row by row: a transposed view would be stored in the order of its memory.
        contiguous = {name: np.array(array, order="C") for name, array in tensors.items()}
        save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
        if encoder.preprocessing is not None and spec.vision is not None:
            write_json(folder / "preprocessor_config.json", processor_config(encoder.preprocessing, family))
        if encoder.tokenizer is not None and spec.text is not None:
            write_tokenizer(folder, encoder.tokenizer, family)
        if family == "bert":
            write_sentence_modules(folder, spec, parameters)
        _compare_with_what_was_written(folder, name, encoder, spec, hash_parameters(parameters))
    return family


def _prefixes(spec: ModelSpec, family: str) -> tuple[str, str]:
    """Where `transformers` 5 has the towers: under their names, but for a tower that is all of its model."""
    whole = spec.vision is None or spec.text is None
    heads = spec.vision_head.kind != "none" or (spec.text_head.kind != "none" and family == "clip")
    return ("", "") if family in ("dinov2", "bert") or (whole and not heads) else ("vision_model.", "text_model.")


def _interpolated(spec: ModelSpec, parameters: dict[str, np.ndarray]) -> tuple[ModelSpec, dict[str, np.ndarray]]:
    vision = dataclasses.replace(spec.vision, position_grid=None)
    positions = resize_positions(parameters["vision.positions"], vision.grid, vision.class_token)
    return dataclasses.replace(spec, vision=vision), {**parameters, "vision.positions": positions}


def _refuse_what_would_be_lost(name: str, spec: ModelSpec, config: dict[str, Any], family: str) -> None:
    """Raises InputError where `config` read back is not the spec; it names the field that is lost."""
    heads = {"visual_projection.weight": spec.vision_head, "text_projection.weight": spec.text_head}
    names = [tensor for tensor, head in heads.items() if head.kind != "none"]
    pooling = spec.text.pooling if family == "bert" and spec.text.pooling in ("cls", "mean") else None
    said = spec_from_config(config, Path(name), names, pooling)
    if family == "bert" and (spec.text_head.kind, spec.text_head.hidden) == ("linear", None):
        said = dataclasses.replace(said, text_head=spec.text_head)  # the dense module's
    if lost := _first_difference(spec, said, family):
        raise InputError(name, *lost)


def _first_difference(spec: ModelSpec, said: ModelSpec, family: str) -> tuple[str, str, str] | None:
    """(field, what the spec has, what the family's files can say), or None where nothing is lost."""
    for part in ("vision_head", "text_head", "vision", "text", "logit_bias"):
        ours, theirs = getattr(spec, part), getattr(said, part)
        if part == "vision" and family == "dinov2":
            # Its size is that of the stored positions; the image processor says at which size it is used.
            ours, theirs = (dataclasses.replace(each, image_size=1, position_grid=None) for each in (ours, theirs))
        if ours == theirs:
            continue
        wanted = f"only what the Hugging Face form of {family} can express"
        if not dataclasses.is_dataclass(ours) or not dataclasses.is_dataclass(theirs):
            return part, repr(ours), f"{theirs!r}: {wanted}"
        name = next(f.name for f in dataclasses.fields(ours) if getattr(ours, f.name) != getattr(theirs, f.name))
        return f"{part}.{name}", repr(getattr(ours, name)), f"{getattr(theirs, name)!r}: {wanted}"
    return None


def _compare_with_what_was_written(
    folder: Path, name: str, encoder: HasModelParts, spec: ModelSpec, weights: str
) -> None:
    model, preprocessing, tokenizer, provenance = convert_huggingface(folder)
    same = {
        "specification": model.spec == spec,
        "weights": provenance["weights_sha256"] == weights,
        "preprocessing": preprocessing == encoder.preprocessing or encoder.preprocessing is None,
        "tokenizer": (tokenizer and tokenizer.hash()) == (encoder.tokenizer and encoder.tokenizer.hash()),
    }
    if wrong := [what for what, agrees in same.items() if not agrees]:
        found = f"{', '.join(wrong)} that would not come back the same"
        raise InputError(name, "export", found, "what the Hugging Face form can express")
