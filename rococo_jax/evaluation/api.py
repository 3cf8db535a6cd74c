"""The benchmark as one call, for notebooks and scripts: a model, two folders, and the results as a dictionary."""

import os
from pathlib import Path
from typing import Any

from rococo_jax.encoders import Encoder, load_model
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.evaluation.inputs import read_inputs
from rococo_jax.evaluation.runner import evaluate_into, evaluate_model
from rococo_jax.evaluation.settings import Settings


def evaluate(
    model: Encoder | str | os.PathLike,
    images: str | os.PathLike,
    annotations: str | os.PathLike,
    *,
    out: str | os.PathLike | None = None,
    allow_missing_images: bool = False,
    cache: str | os.PathLike | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """What `rococo evaluate` writes into `results.json`: `["tasks"][task][variant][metric]` in percent.

    Args:
        model: from `load_model`, or anything that it takes.
        images: folder of the images that the annotations name.
        annotations: folder of annotation files.
        out: also write `results.json` and `per_query.parquet` into this folder, and take what is there as done.
        allow_missing_images: shrink the gallery to the images that are present.
        cache: folder to keep embeddings in; none by default.
        settings: fields of `evaluation.settings.Settings`, such as `protocol="strict"` or `seeds=(1,)`.

    Raises:
        InputError: the model, a folder or a setting cannot be used, or `out` holds results of something else.
        TypeError: there is no such setting.
    """
    asked = Settings(**settings)
    inputs = read_inputs(images, annotations, allow_missing_images)
    encoder = model if isinstance(model, Encoder) else load_model(model)
    kept = EmbeddingCache(cache)
    if out is None:
        return evaluate_model(encoder, inputs, asked, kept)[0]
    return evaluate_into(Path(out), encoder, inputs, asked, kept)[0]
