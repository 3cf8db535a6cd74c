"""Convert a checkpoint of another project: recognise its format and read it.

    FILE.npz                               big_vision
    FILE.pt, .pth, .bin                    OpenAI, or a state dict under its names
    folder or hub name, config.json        Hugging Face, if its `model_type` is known
    folder or hub name, modules.json       sentence-transformers, with a Hugging Face model in a subfolder
    folder or hub name, open_clip_config   open_clip
    zoo:NAME                               a published checkpoint in one of these formats (`checkpoints.zoo`)

To add a format, write a module with a `Format` and add it to `FORMATS`.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

from rococo_jax.checkpoints.formats.activation import ACTIVATIONS
from rococo_jax.checkpoints.formats.base import Format
from rococo_jax.checkpoints.formats.big_vision import BIG_VISION
from rococo_jax.checkpoints.formats.huggingface import HUGGINGFACE
from rococo_jax.checkpoints.formats.open_clip import OPEN_CLIP
from rococo_jax.checkpoints.formats.openai import OPENAI
from rococo_jax.checkpoints.formats.published import convert_published
from rococo_jax.checkpoints.parameters import Checkpoint, ConversionOptions, finish_checkpoint
from rococo_jax.checkpoints.zoo import find_published
from rococo_jax.data.training_images import read_training_images
from rococo_jax.errors import InputError
from rococo_jax.hub_files import MODEL_WANTED, find_folder

# The first that recognises a source reads it.
FORMATS: tuple[Format, ...] = (HUGGINGFACE, OPEN_CLIP, OPENAI, BIG_VISION)
FORMAT_NAMES = ("auto", *(each.name for each in FORMATS))


def convert(
    source: str | Path, *, source_format: str = "auto", image_size: int | None = None, **options: str | None
) -> Checkpoint:
    """Return the spec, parameters (float32, whatever the source stores), preprocessing, tokenizer and provenance.

    Args:
        source: a file, a folder, a hub name (`owner/name@REVISION`: a branch, tag or commit), or `zoo:NAME`.
        source_format: one of `FORMAT_NAMES`; `auto` recognises it.
        image_size: for images of another size than the checkpoint's.
        options: see `ConversionOptions`.

    Raises:
        InputError: the format is unknown or not the requested one, an option does not apply to it, or a part of the
            checkpoint is missing, unknown, damaged or inconsistent.
    """
    if (published := find_published(source)) is not None:
        convert_as_format = functools.partial(convert, source_format=source_format)
        return convert_published(published, convert_as_format, {"image_size": image_size, **options})
    source_type = find_format(source, source_format)
    is_declared = source_format == source_type.name
    conversion_options = ConversionOptions(**options, image_size=image_size, is_format_declared=is_declared)
    for option in sorted(frozenset().union(*(each.options for each in FORMATS)) - source_type.options):
        if (value := getattr(conversion_options, option)) is not None:
            expected = f"no value: the {source_type.name} format fixes it"
            raise InputError(option, str(source), value, expected)
    if conversion_options.activation not in (None, *ACTIVATIONS):
        raise InputError("activation", "activation", conversion_options.activation, " or ".join(ACTIVATIONS))
    checkpoint = finish_checkpoint(source_type.read(source, conversion_options), image_size)
    # Exports of this project keep the list of training images.
    training_images = read_training_images(source) if Path(source).is_dir() else None
    return checkpoint._replace(training_images=training_images)


def find_format(source: str | Path, source_format: str = "auto") -> Format:
    """Return the format of a checkpoint. Raises InputError if it has none, or not the requested one."""
    if source_format not in FORMAT_NAMES:
        raise InputError("source_format", "format", source_format, ", ".join(FORMAT_NAMES))
    candidates = [each for each in FORMATS if source_format in ("auto", each.name)]
    path = Path(source)
    if path.is_file():
        return _format_of_file(path, candidates)
    if not any(each.descriptions for each in candidates):
        suffixes = [suffix for each in candidates for suffix in each.suffixes]
        raise InputError(source, "model", "no file", f"a file of {source_format}: {', '.join(suffixes)}")
    if source_format != "auto":
        return candidates[0]
    return _format_of_folder(source, is_local=path.is_dir())


def _format_of_file(path: Path, candidates: Sequence[Format]) -> Format:
    for candidate in candidates:
        if path.suffix in candidate.suffixes:
            return candidate
    if path.suffix == ".safetensors":
        expected = "its folder, with the config.json (Hugging Face) or open_clip_config.json that describes the model"
        raise InputError(path, "model", "a .safetensors file alone: weights without an architecture", expected)
    suffixes = ", ".join(suffix for each in FORMATS for suffix in each.suffixes)
    expected = f"a file for {candidates[0].name}" if len(candidates) == 1 else f"{MODEL_WANTED} (files: {suffixes})"
    raise InputError(path, "model", f"a file {path.suffix or 'without a suffix'}", expected)


def _format_of_folder(source: str | Path, is_local: bool) -> Format:
    descriptions = [name for each in FORMATS for name in each.descriptions]
    folder = find_folder(source, descriptions, required=descriptions)
    for candidate in FORMATS:
        if candidate.is_folder(folder, is_local):
            return candidate
    problem = f"neither model.json nor {' nor '.join(each.descriptions[0] for each in FORMATS if each.descriptions)}"
    expected = "a model directory or a Hugging Face folder, or one of open_clip"
    raise InputError(folder, "model", problem, expected)
