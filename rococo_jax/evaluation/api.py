"""Evaluation as one call, for notebooks and scripts: a model, its data, and the results as a dictionary."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.settings import Settings, as_tuples, one_or_more
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.loading import LoadOptions
from rococo_jax.encoders.programs import Compute, precision_of_evaluations
from rococo_jax.evaluation.companions import standard_companions
from rococo_jax.evaluation.inputs import open_benchmarks
from rococo_jax.evaluation.models import open_model
from rococo_jax.evaluation.runner import evaluate_into, evaluate_model


def evaluate(
    model: Any,
    images: str | os.PathLike | None = None,
    annotations: str | os.PathLike | None = None,
    *,
    data: str | os.PathLike | None = None,
    benchmarks: str | Sequence[str] = (),
    out: str | os.PathLike | None = None,
    allow_missing_images: bool = False,
    cache: str | os.PathLike | None = None,
    precision: str | None = None,
    images_at_once: int | None = None,
    model_arguments: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Evaluate a model: the contents of `results.json`, with `["tasks"][task][variant][metric]`, most in percent.

    Args:
        model: an object of any framework with `encode_image` and `encode_text`, or with `score_pairs`, or what
            `load_model` takes, or `file.py:function` that returns such an object.
        images, annotations: the folders of one benchmark, which is recognised by its annotation files.
        data: instead of the two, the folder that holds benchmarks in the documented layout.
        benchmarks: one name or several; all whose files are under `data` by default.
        out: also write `results.json` and the tables beside it into this folder. What is missing is added to results of
            the same model, data and protocol that are there, and all results of the folder are returned.
        allow_missing_images: leave out images that have no file, with a note.
        cache: folder to keep embeddings in; none by default.
        precision: `float32`, `high` or `bfloat16`, for models of this project; see `encoders.programs`. By default
            `high` on TPUs and on GPUs from the A100 on, else `float32`.
        images_at_once: on each device; what fits by default.
        model_arguments: keyword arguments of a function or an adapter that `model` names.
        options: fields of `benchmarks.settings.Settings`, such as `protocol="strict"` or `seeds=1`, and of
            `LoadOptions`, such as `by="pairs"` or `query_prompt`.

    Raises:
        InputError: the model, a folder or a setting cannot be used, or `out` holds results of something else.
        TypeError: there is no such setting.
    """
    of_loading = {field.name for field in dataclasses.fields(LoadOptions)} & options.keys()
    loading = LoadOptions(arguments=model_arguments or {}, **{name: options.pop(name) for name in of_loading})
    requested = Settings(**as_tuples(options), allow_missing_images=allow_missing_images)
    names = one_or_more(benchmarks)
    opened = open_benchmarks(requested, images=images, annotations=annotations, data=data, names=names)
    compute = Compute(precision or precision_of_evaluations(), images_at_once)
    loaded = open_model(model, compute=compute, options=loading)
    embeddings, companions = EmbeddingCache(cache), standard_companions()
    if out is None:
        return evaluate_model(loaded, opened, requested, embeddings, companions).results
    return evaluate_into(Path(out), loaded, opened, requested, embeddings, companions)[0]
