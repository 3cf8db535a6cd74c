"""Evaluation as one function call for notebooks and scripts, with the results as a dictionary."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.own import make_once
from rococo_jax.benchmarks.settings import Settings, as_tuples, one_or_more
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.loading import LoadOptions
from rococo_jax.encoders.programs import Compute, precision_of_evaluations
from rococo_jax.errors import InputError
from rococo_jax.evaluation.inputs import open_benchmarks
from rococo_jax.evaluation.models import open_model
from rococo_jax.evaluation.runner import evaluate_into, evaluate_model


def evaluate(
    model: Any,
    images: str | os.PathLike | None = None,
    annotations: str | os.PathLike | None = None,
    *,
    captions: str | os.PathLike | None = None,
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
    """Evaluate a model and return the contents of `results.json`.

    Results are under `["tasks"][task][variant][metric]`, most of them in percent.

    Args:
        model: an object of any framework with `encode_image` and `encode_text`, or with `score_pairs`; any source of
            `load_model`; or `file.py:function`, a function that returns such an object.
        images, annotations: the folders of one benchmark, which is recognised by its annotation files.
        captions: captions of `images` in any form, instead of `annotations`: a benchmark is made of them, once, and
            kept in the cache folder.
        data: folder of benchmarks in the documented layout, instead of `images` and `annotations`.
        benchmarks: one or several names; by default all whose files are under `data`.
        out: also write `results.json` and its tables into this folder. If it already has results of the same model,
            data and protocol, only missing parts are computed, and all results of the folder are returned.
        allow_missing_images: exclude images without a file, with a note in the results.
        cache: folder of the embedding cache; by default embeddings are not cached.
        precision: `float32`, `high` or `bfloat16`, for models of this project; see `encoders.programs`. By default
            `high` on TPUs and on GPUs from the A100 on, else `float32`.
        images_at_once: images per batch on each device; by default a fixed number, halved when memory runs out.
        model_arguments: keyword arguments of the function or adapter that `model` names.
        options: fields of `benchmarks.settings.Settings`, such as `protocol="strict"` or `seeds=1`, and of
            `LoadOptions`, such as `by="pairs"` or `query_prompt`.

    Raises:
        InputError: the model, a folder or a setting cannot be used, or `out` has results of another model or other
            data.
        TypeError: an option does not exist.
    """
    of_loading = {field.name for field in dataclasses.fields(LoadOptions)} & options.keys()
    loading = LoadOptions(arguments=model_arguments or {}, **{name: options.pop(name) for name in of_loading})
    requested = Settings(**as_tuples(options), allow_missing_images=allow_missing_images)
    names = one_or_more(benchmarks)
    if captions is not None:
        if images is None or annotations is not None or data is not None:
            raise InputError(
                "evaluate", "captions", "no images, or also annotations or data", "`captions` with `images`"
            )
        images, data = None, make_once(os.fspath(images), os.fspath(captions), allow_missing_images)
    suite = open_benchmarks(requested, images=images, annotations=annotations, data=data, names=names)
    compute = Compute(precision or precision_of_evaluations(), images_at_once)
    loaded = open_model(model, compute=compute, options=loading)
    embeddings = EmbeddingCache(cache)
    if out is None:
        return evaluate_model(loaded, suite, requested, embeddings).results
    return evaluate_into(Path(out), loaded, suite, requested, embeddings)[0]
