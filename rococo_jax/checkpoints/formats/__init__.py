"""Any checkpoint of another project: find its format and convert it.

FILE.npz                               big_vision, or TIPSv2 by the names in it
FILE.pt, .pth, .bin                    OpenAI, or a state dict in its naming
folder or hub name, config.json        Hugging Face, where its `model_type` is known
folder or hub name, modules.json       sentence-transformers, with a model of Hugging Face in a subfolder
folder or hub name, open_clip_config   open_clip
zoo:NAME                               a published one of these (`checkpoints.zoo`)
"""

import functools
from collections.abc import Callable
from pathlib import Path

from rococo_jax.checkpoints.families import FAMILIES
from rococo_jax.checkpoints.formats.big_vision import read_big_vision
from rococo_jax.checkpoints.formats.huggingface import read_huggingface
from rococo_jax.checkpoints.formats.open_clip import CONFIG, read_open_clip
from rococo_jax.checkpoints.formats.openai import ACTIVATIONS, read_openai
from rococo_jax.checkpoints.formats.published import convert_published
from rococo_jax.checkpoints.formats.tips import is_tips, read_tips
from rococo_jax.checkpoints.lora import ADAPTER
from rococo_jax.checkpoints.parameters import Checkpoint, Choices, finish_checkpoint
from rococo_jax.checkpoints.sentence_folder import MODULES, find_model_path
from rococo_jax.checkpoints.weight_files import find_weights
from rococo_jax.checkpoints.zoo import find_published
from rococo_jax.data.training_images import read_training_images
from rococo_jax.errors import InputError
from rococo_jax.hub_files import MODEL_WANTED, find_folder
from rococo_jax.storage import read_json_object

_READERS: dict[str, Callable[[str | Path, Choices], Checkpoint]] = {
    "huggingface": read_huggingface,
    "openai": read_openai,
    "open_clip": read_open_clip,
    "big_vision": read_big_vision,
    "tips": read_tips,
}
FORMATS = ("auto", *_READERS)
_FORMS_THAT_CHOOSE = {"pooling": ("huggingface",), "activation": ("openai", "open_clip"), "heads": ("openai",)}
_SUFFIXES = {".npz": "big_vision", ".pt": "openai", ".pth": "openai", ".bin": "openai"}


def convert(
    source: str | Path, *, source_format: str = "auto", image_size: int | None = None, **choices: str | None
) -> Checkpoint:
    """The spec, parameters (float32 whatever the source holds), preprocessing, tokenizer and provenance of a model.

    Args:
        source: a file, a folder, a hub name (`owner/name@REVISION`: a branch, tag or commit), or `zoo:NAME`.
        source_format: one of `FORMATS`; `auto` finds out.
        image_size: for images of another size than the checkpoint's.
        choices: see `Choices`.

    Raises:
        InputError: the form is unknown or not the one asked for, an option does not apply to it, or something of the
            checkpoint is missing, unknown, broken or does not fit together.
    """
    if (published := find_published(source)) is not None:
        return convert_published(
            published, functools.partial(convert, source_format=source_format), {"image_size": image_size, **choices}
        )
    form = find_format(source, source_format)
    chosen = Choices(**choices, image_size=image_size, declared=source_format == form)
    for option, forms in _FORMS_THAT_CHOOSE.items():
        if (value := getattr(chosen, option)) is not None and form not in forms:
            wanted = f"no choice: it is fixed in the {form} form"
            raise InputError(option, str(source), value, wanted)
    if chosen.activation not in (None, *ACTIVATIONS):
        raise InputError("activation", "activation", chosen.activation, " or ".join(ACTIVATIONS))
    checkpoint = finish_checkpoint(_READERS[form](source, chosen), image_size)
    # Exports of this project keep the list.
    known = read_training_images(source) if Path(source).is_dir() else None
    return checkpoint._replace(training_images=known)


def find_format(source: str | Path, source_format: str = "auto") -> str:
    """The form of a checkpoint. Raises InputError where it has no known form, or not the one asked for."""
    if source_format not in FORMATS:
        raise InputError("source_format", "format", source_format, ", ".join(FORMATS))
    path = Path(source)
    if path.is_file():
        form = _SUFFIXES.get(path.suffix)
        form = "tips" if form == "big_vision" and is_tips(path) else form
        if form is None and path.suffix == ".safetensors":
            wanted = "its folder, with the config.json (Hugging Face) or open_clip_config.json that says what it is"
            raise InputError(source, "model", "a .safetensors file alone: weights without an architecture", wanted)
        if form is None or source_format not in ("auto", form):
            known = f"{MODEL_WANTED} (files: {', '.join(_SUFFIXES)})"
            wanted = known if source_format == "auto" else f"a file for {source_format}"
            raise InputError(source, "model", f"a file {path.suffix or 'without a suffix'}", wanted)
        return form
    if source_format in ("openai", "big_vision", "tips"):
        raise InputError(source, "model", "no file", f"a file of {source_format}: {', '.join(_SUFFIXES)}")
    if source_format != "auto":
        return source_format
    descriptions = ("config.json", CONFIG, ADAPTER, MODULES)
    folder = find_folder(source, descriptions, required=descriptions)
    has_config = (folder / "config.json").is_file() or (folder / ADAPTER).is_file()
    has_config = has_config or find_model_path(folder) is not None
    has_open_clip = (folder / CONFIG).is_file()
    if has_open_clip and not (has_config and _is_known_huggingface(folder, path.is_dir())):
        return "open_clip"
    if not has_config:
        wanted = "a model directory or a Hugging Face folder, or one of open_clip"
        raise InputError(folder, "model", f"neither model.json nor config.json nor {CONFIG}", wanted)
    return "huggingface"


def _is_known_huggingface(folder: Path, local: bool) -> bool:
    """Whether `config.json` beside an open_clip configuration is of a model that `transformers` reads, weights too."""
    if not (folder / "config.json").is_file():
        return False
    known = read_json_object(folder / "config.json", "a Hugging Face config.json").get("model_type") in FAMILIES
    return known and (not local or find_weights(folder) is not None)
