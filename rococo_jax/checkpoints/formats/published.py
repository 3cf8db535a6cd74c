"""Convert a published checkpoint, `zoo:NAME`, as the table of published ones says that it is run.

A tag of open_clip is run with the image size of the architecture that is named and with the tag's preprocessing, as
`open_clip.create_model_and_transforms(ARCHITECTURE, pretrained=TAG)` does, even where the repository's own
configuration says otherwise: `ViT-SO400M-14-SigLIP-378/webli` are the weights of the 384-pixel repository at 378.
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

# Fields of our preprocessing by the rule that `inspect` prints.
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
    """Return the checkpoint, with the table's answers where the repository has none or open_clip would not ask it.

    Args:
        convert: the converter of a source, which takes the `options` of the caller.

    Raises InputError as `convert`; also where a `-quickgelu` architecture is named and the repository says otherwise.
    """
    place, source = published.resolve(), f"{ZOO}{published.name}"
    answered: dict[str, str] = {}
    try:
        checkpoint = convert(place, **options)
    except InputError as error:
        if error.field != "activation" or not published.activation or options.get("activation") is not None:
            raise
        checkpoint = convert(place, **{**options, "activation": published.activation})
        answered = dict.fromkeys(("image activation", "text activation"), source)
    if options.get("activation") is None:
        _check_activation(checkpoint, published, source)
    size = published.image_size
    if size and options.get("image_size") is None and checkpoint.spec.vision.image_size != size:
        stored = checkpoint.spec.vision.image_size
        say(f"{source}: read at {size} pixels, the size of {published.architecture}; its repository has {stored}")
        checkpoint = with_image_size(checkpoint, size)
        answered["image size"] = f"{source}: {published.architecture} of open_clip"
    if published.preprocessing and checkpoint.preprocessing is not None:
        checkpoint, changed = _with_preprocessing(checkpoint, published, source)
        answered |= dict.fromkeys(changed, source)
    facts = {"address": published.address, "licence": published.licence or "not known"}
    provenance = {**checkpoint.provenance, "source": source, "published": facts}
    provenance["read_from"] = {**provenance["read_from"], **answered}
    return checkpoint._replace(provenance=provenance)


def _check_activation(checkpoint: Checkpoint, published: Published, source: str) -> None:
    towers = (checkpoint.spec.vision, checkpoint.spec.text)
    activations = {getattr(tower, "activation", None) for tower in towers} & {*ACTIVATIONS}
    if not published.activation or activations <= {published.activation}:
        return
    found = f"{' and '.join(sorted(activations))} in the repository's configuration"
    if published.architecture.endswith(QUICK_GELU):
        plain = published.name.replace(f"{QUICK_GELU}/", "/")
        wanted = (
            f"{published.activation}, as {published.architecture} has it; or {ZOO}{plain}, or the argument activation"
        )
        raise InputError(source, "activation", found, wanted)
    say(f"{source}: {found} is used; the table has {published.activation}")


def _with_preprocessing(checkpoint: Checkpoint, published: Published, source: str) -> tuple[Checkpoint, list[str]]:
    """Return the checkpoint with the preprocessing of open_clip's tag, and the rules that this changes."""
    images = checkpoint.preprocessing
    tag = preprocessing_of_open_clip(published.preprocessing, Path(source), checkpoint.spec)
    changed = [rule for rule, fields in _FIELDS.items() if any(_differ(images, tag, field) for field in fields)]
    if not changed:
        return checkpoint, []
    fields = {field: getattr(tag, field) for rule in changed for field in _FIELDS[rule]}
    say(f"{source}: {', '.join(changed)} as open_clip's tag has it; its repository differs")
    return checkpoint._replace(preprocessing=dataclasses.replace(images, **fields)), changed


def _differ(images: Any, tag: Any, field: str) -> bool:
    ours, theirs = getattr(images, field), getattr(tag, field)
    if field in ("mean", "std"):
        return not np.allclose(ours, theirs, rtol=0, atol=1e-6)  # as decimals of either configuration
    return ours != theirs
