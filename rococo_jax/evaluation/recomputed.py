"""Compute stored results again from stored embeddings: the same data, model and request, and nothing is embedded."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.own import own_benchmarks
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.programs import Compute, precision_of_evaluations
from rococo_jax.errors import InputError, object_of
from rococo_jax.evaluation.conditions import refuse_other_conditions
from rococo_jax.evaluation.inputs import open_benchmarks
from rococo_jax.evaluation.journal import journal_entries
from rococo_jax.evaluation.models import open_model
from rococo_jax.evaluation.resume import settings_for
from rococo_jax.evaluation.runner import evaluate_model, fingerprint
from rococo_jax.evaluation.sections import Evaluated


def recompute(
    path: Path, results: Mapping[str, Any], cache: Path, model: str | None = None, data: Path | None = None
) -> Iterator[tuple[str, Evaluated | None]]:
    """Yield the name of each benchmark with its results, computed again; None if its data cannot be found.

    Args:
        path: the results file.
        results: its contents.
        cache: folder of the embedding cache.
        model: source of the model; by default as the journal of the evaluation has it.
        data: folder of benchmarks in the documented layout; by default the folders in the results.

    Raises InputError: the model is unknown, model or data are others, or an embedding is not stored.
    """
    source = model or _source_of(path, results)
    compute = Compute(precision_of_evaluations(), None)
    loaded = open_model(source, compute=compute)
    loaded.name = results["model"]
    for name, about in object_of(results.get("benchmarks")).items():
        settings = _settings_of(results, name, object_of(object_of(about).get("request")))
        benchmark = _open(results, name, settings, data)
        if benchmark is None:
            yield name, None
            continue
        conditions = fingerprint(loaded, [benchmark], settings)
        refuse_other_conditions(path, results, conditions, [benchmark], results["model"])
        read_only = EmbeddingCache(cache, read_only=True)
        yield name, evaluate_model(loaded, [benchmark], settings, read_only)


def _source_of(path: Path, results: Mapping[str, Any]) -> str:
    """Return the source of the model, from the journal beside the results or above them."""
    sources = [entry["source"] for entry in journal_entries(path, results) if "source" in entry]
    if sources:
        return str(sources[-1])
    expected = "a journal.jsonl that names it, or `model`"
    raise InputError(path.parent, "model", f"no source of {results['model']!r}", expected)


def _settings_of(results: Mapping[str, Any], name: str, request: Mapping[str, Any]) -> Settings:
    about = object_of(object_of(results.get("data")).get(name))
    coverage, conditions = object_of(about.get("coverage")), object_of(results["fingerprint"]["data"].get(name))
    settings = Settings(
        protocol=results["protocol"],
        limit=coverage.get("limit") or 0,
        rerank=conditions.get("rerank") or 0,
        allow_missing_images=coverage.get("complete") is False,
    )
    return settings_for(request, settings)


def _open(results: Mapping[str, Any], name: str, settings: Settings, data: Path | None) -> Benchmark | None:
    """Open a benchmark of results; None if what is found there has another name."""
    about = object_of(object_of(results.get("data")).get(name))
    images, annotations = (Path(str(about.get(key, ""))) for key in ("images", "annotations"))
    root = data or annotations.parent.parent
    try:
        if data is not None or (root.is_dir() and name in own_benchmarks(root)):
            benchmarks = open_benchmarks(settings, data=root, names=[name])
        else:
            benchmarks = open_benchmarks(settings, images=images, annotations=annotations)
    except InputError:
        return None
    return next((benchmark for benchmark in benchmarks if benchmark.name == name), None)
