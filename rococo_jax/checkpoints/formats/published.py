"""Convert a published checkpoint, `zoo:NAME`, with the settings of the table of published checkpoints.

A tag of open_clip gets the image size of the named architecture and the tag's preprocessing, as in
`open_clip.create_model_and_transforms(ARCHITECTURE, pretrained=TAG)`, even if the repository's own configuration
differs: `ViT-SO400M-14-SigLIP-378/webli` are the weights of the 384-pixel repository at 378 pixels.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.checkpoints.formats.activation import ACTIVATIONS
from rococo_jax.checkpoints.formats.open_clip import preprocessing_of_open_clip
from rococo_jax.checkpoints.parameters import Checkpoint, with_image_size
from rococo_jax.checkpoints.zoo import QUICK_GELU, ZOO, Published
from rococo_jax.errors import InputError
from rococo_jax.progress import say

# Fields of our preprocessing by the setting that `inspect` prints.
_FIELDS = {
    "mean": ("mean",),
    "std": ("std",),
    "interpolation": ("resample",),
    "resize": ("shortest_edge", "exact_size"),
    "crop": ("crop_size",),
}


def convert_published(
    published: Published, convert: Callable[..., Checkpoint], options: Mapping[str, Any]
) -> Checkpoint:
    """Return the checkpoint, with the table's settings if the repository has none or open_clip overrides them.

    Args:
        convert: converts a source with the `options` of the caller.

    Raises InputError as `convert`; also if a `-quickgelu` architecture is named and the repository has GELU.
    """
    place, source = published.resolve(), f"{ZOO}{published.name}"
    read_from: dict[str, str] = {}
    try:
        checkpoint = convert(place, **options)
    except InputError as error:
        if error.field != "activation" or not published.activation or options.get("activation") is not None:
            raise
        checkpoint = convert(place, **{**options, "activation": published.activation})
        read_from = dict.fromkeys(("image activation", "text activation"), source)
    if options.get("activation") is None:
        _check_activation(checkpoint, published, source)
    size = published.image_size
    if size and options.get("image_size") is None and checkpoint.spec.vision.image_size != size:
        stored = checkpoint.spec.vision.image_size
        say(f"{source}: read at {size} pixels, the size of {published.architecture}; its repository has {stored}")
        checkpoint = with_image_size(checkpoint, size)
        read_from["image size"] = f"{source}: {published.architecture} of open_clip"
    if published.preprocessing and checkpoint.preprocessing is not None:
        checkpoint, changes = _with_preprocessing(checkpoint, published, source)
        read_from |= dict.fromkeys(changes, source)
    facts = {"address": published.address, "licence": published.licence or "unknown"}
    provenance = {**checkpoint.provenance, "source": source, "published": facts}
    provenance["read_from"] = {**provenance["read_from"], **read_from}
    return checkpoint._replace(provenance=provenance)


def _check_activation(checkpoint: Checkpoint, published: Published, source: str) -> None:
    towers = (checkpoint.spec.vision, checkpoint.spec.text)
    activations = {getattr(tower, "activation", None) for tower in towers} & {*ACTIVATIONS}
    if not published.activation or activations <= {published.activation}:
        return
    activations_phrase = f"{' and '.join(sorted(activations))} in the repository's configuration"
    if published.architecture.endswith(QUICK_GELU):
        plain = published.name.replace(f"{QUICK_GELU}/", "/")
        expected = (
            f"{published.activation}, as {published.architecture} has it; or {ZOO}{plain}, or the argument activation"
        )
        raise InputError(source, "activation", activations_phrase, expected)
    say(f"{source}: {activations_phrase} is used; the table has {published.activation}")


def _with_preprocessing(checkpoint: Checkpoint, published: Published, source: str) -> tuple[Checkpoint, list[str]]:
    """Return the checkpoint with the preprocessing of open_clip's tag, and the settings that this changes."""
    stored = checkpoint.preprocessing
    of_tag = preprocessing_of_open_clip(published.preprocessing, Path(source), checkpoint.spec)
    changes = [name for name, fields in _FIELDS.items() if any(_differ(stored, of_tag, field) for field in fields)]
    if not changes:
        return checkpoint, []
    fields = {field: getattr(of_tag, field) for name in changes for field in _FIELDS[name]}
    say(f"{source}: {', '.join(changes)} as open_clip's tag has it; its repository differs")
    return checkpoint._replace(preprocessing=dataclasses.replace(stored, **fields)), changes


def _differ(stored: Any, of_tag: Any, field: str) -> bool:
    before, after = getattr(stored, field), getattr(of_tag, field)
    if field in ("mean", "std"):
        return not np.allclose(before, after, rtol=0, atol=1e-6)  # decimals of two configurations
    return before != after
