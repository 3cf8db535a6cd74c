"""Every task for every model: embed once, rank, write. Stopped at any point, the same call goes on where it was.

A model's folder appears with its results or not at all; the embeddings of a model that was under way are in the cache.

Several processes do it together: each embeds and ranks its share, and process 0 writes. Images, annotations and models
must be there for each of them; no other file need be shared.
"""

import dataclasses
import errno
import gc
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from rococo_jax.benchmarks.altered_images import with_corrupted_images, with_mixed_images
from rococo_jax.benchmarks.rococo.build import rococo_from_set
from rococo_jax.benchmarks.tasks import CorruptedImages, RankBenchmark
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_images, embed_texts
from rococo_jax.encoders.inspection import inspect_model
from rococo_jax.errors import InputError
from rococo_jax.evaluation.embedding_altered import embed_corrupted, embed_mixed
from rococo_jax.evaluation.estimate import (
    Cost,
    Work,
    cost_of,
    measured_image_seconds,
    measured_rate,
    spec_before_loading,
    work_of,
)
from rococo_jax.evaluation.inputs import EvaluationInputs
from rococo_jax.evaluation.journal import JOURNAL, write_journal
from rococo_jax.evaluation.reranking import rerank_on_all_processes
from rococo_jax.evaluation.results import make_fingerprint, make_results, per_query_table, read_results, write_per_query
from rococo_jax.evaluation.settings import Settings
from rococo_jax.evaluation.shared_ranking import rank_on_all_processes
from rococo_jax.processes import broadcast_from_process_0, run_on_all_processes
from rococo_jax.runtime import make_mesh
from rococo_jax.storage import hash_json, write_json

RESULTS, PER_QUERY = "results.json", "per_query.parquet"


def make_benchmark(inputs: EvaluationInputs, settings: Settings) -> RankBenchmark:
    """RoCOCO over the images that are present, with what the settings ask for."""
    benchmark = rococo_from_set(inputs.annotations, settings.protocol, images=inputs.paths)
    wanted = tuple(task for task in benchmark.tasks if task.name in settings.tasks)
    benchmark = dataclasses.replace(benchmark, tasks=wanted)
    benchmark = with_mixed_images(benchmark, settings.mixes, settings.seeds, settings.protocol)
    return with_corrupted_images(benchmark, settings.corruptions, settings.severities)


def fingerprint(encoder: Encoder, inputs: EvaluationInputs, settings: Settings) -> dict[str, Any]:
    """All that decides an evaluation's results."""
    model = {key: value for key, value in encoder.describe().items() if key != "name"}
    model = {key: hash_json(value) if isinstance(value, dict) else value for key, value in model.items()}
    data = {**inputs.fingerprint(), **settings.fingerprint()}
    return make_fingerprint(model=model, data=data, protocol=settings.protocol)


def evaluate_model(
    encoder: Encoder, inputs: EvaluationInputs, settings: Settings, cache: EmbeddingCache
) -> tuple[dict[str, Any], Any]:
    """One model on all tasks: the contents of `results.json`, and the per-query table.

    Raises:
        InputError: the model has no image or no text tower, or no matching head to rerank with, or an image cannot be
            read.
    """
    if settings.rerank:
        encoder.require_matching()
    benchmark = make_benchmark(inputs, settings)
    paths = [inputs.paths[name] for name in benchmark.images]
    hashes = [inputs.hashes[name] for name in benchmark.images]
    texts = embed_texts(encoder, benchmark.captions, cache)
    images = [embed_images(encoder, paths, cache, hashes=hashes)]
    for derived in benchmark.derived:
        if isinstance(derived, CorruptedImages):
            images.append(embed_corrupted(encoder, derived, benchmark.images, paths, hashes, cache))
        else:
            images.append(embed_mixed(encoder, derived, paths, hashes, cache))
    notes, images = list(benchmark.notes), np.concatenate(images)
    if settings.rerank:
        files = paths, hashes
        outcomes = rerank_on_all_processes(benchmark, images, texts, settings.rerank, encoder, files, cache)
        notes.append(f"reranked: the {settings.rerank} best of every query by the matching head's logit + cosine")
    else:
        outcomes = rank_on_all_processes(benchmark, images, texts, encoder.mesh)
    if inputs.is_partial:
        notes.insert(0, _partial_note(inputs))
    made = make_results(encoder.name, settings.protocol, fingerprint(encoder, inputs, settings), outcomes, notes)
    results = {**made, "data": inputs.describe(), "about": describe_model(encoder)}
    return results, per_query_table(benchmark, outcomes, settings.protocol)


def describe_model(encoder: Encoder) -> dict[str, Any]:
    """What a reader of the results wants to know of the model: provenance, size, cost, and what to look at twice.

    Nothing in it decides a figure that the fingerprint does not hold already.
    """
    facts = inspect_model(encoder)
    told = ("provenance", "weights_sha256", "embedding_dimensions", "parameters", "flops", "warnings")
    preprocessing = encoder.preprocessing and encoder.preprocessing.describe()
    tokenizer = encoder.tokenizer and encoder.tokenizer.spec.to_json()
    return {**{key: facts[key] for key in told}, "preprocessing": preprocessing, "tokenizer": tokenizer}


def _partial_note(inputs: EvaluationInputs) -> str:
    wanted = len(inputs.annotations.clean)
    return (
        f"only {len(inputs.paths)} of {wanted} images were present: the gallery is smaller than the benchmark's, "
        "so recalls are not comparable with figures on the whole of it"
    )


def evaluate_into(
    folder: Path,
    encoder: Encoder,
    inputs: EvaluationInputs,
    settings: Settings,
    cache: EmbeddingCache,
) -> tuple[dict[str, Any], bool]:
    """As `evaluate_model`, with the results written into `folder`. Results that are there already are taken as read.

    Returns:
        The results, and whether they were made now.

    Raises:
        InputError: `folder` holds the results of another model, protocol or data set.
    """
    wanted = run_on_all_processes("fingerprint", lambda: fingerprint(encoder, inputs, settings))
    done = broadcast_from_process_0("results that are there", lambda: _results_in(folder, encoder.name, wanted))
    if done is not None:
        return done, False
    results, table = evaluate_model(encoder, inputs, settings, cache)

    def write() -> None:
        write_per_query(folder / PER_QUERY, table)
        # Last: results.json says that the rest is there.
        write_json(folder / RESULTS, results)

    broadcast_from_process_0("results", write)
    return results, True


def evaluate_all(
    folders: Mapping[str, Path],
    out: Path,
    inputs: EvaluationInputs,
    settings: Settings,
    cache: EmbeddingCache,
    dtype: DTypeLike = jnp.float32,
    names: Mapping[str, str] | None = None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Several models, one after the other: their results, and the sources of those that failed.

    A model that cannot be loaded or used, whatever the reason, is written into the journal and left out, unless it is
    the only one. A model is gone from memory before the next is loaded; programs compiled for one serve every other of
    its architecture.

    Args:
        folders: for each model, where its results go.
        out: the run's folder, for the journal.
        inputs, settings, cache: as in `evaluate_model`.
        dtype: of the towers' compute.
        names: what to call models, where not after their source.

    Raises:
        InputError: the only model failed, or an image cannot be read, which would fail every model alike.
        OSError: the disk is full.
    """
    all_results, failed = [], []
    first = jax.process_index() == 0
    for place, (source, folder) in enumerate(folders.items(), 1):
        started = time.time()
        try:
            results, made = _load_and_evaluate(
                source, folder, inputs, settings, cache, dtype, (names or {}).get(source)
            )
        except Exception as error:  # a night's run must outlive whatever is wrong with one model
            if len(folders) == 1 or _fails_every_model(error, inputs):
                raise
            failed.append(source)
            said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            trace = {} if isinstance(error, InputError) else {"traceback": traceback.format_exc()}
            if first:
                entry = {"model": source, "event": "failed", "seconds": _since(started), "error": said}
                write_journal(out / JOURNAL, **entry, **trace)
                print(f"rococo: {source} left out: {' '.join(said.split())}", file=sys.stderr)
        else:
            all_results.append(results)
            event = "evaluated" if made else "kept"
            entry = {"model": results["model"], "event": event, "source": source, "seconds": _since(started)}
            if first:
                write_journal(out / JOURNAL, **entry)
            if first and len(folders) > 1:
                print(f"{place} of {len(folders)}: {results['model']} {event}, {_since(started)} s", file=sys.stderr)
        # Modules refer to each other in circles, which only the collector frees.
        gc.collect()
    return all_results, failed


def estimate(
    folders: Mapping[str, Path], inputs: EvaluationInputs, settings: Settings, dtype: DTypeLike = jnp.float32
) -> tuple[list[Cost | None], int, Work, float, float]:
    """What `evaluate_all` will take, as `estimate_lines` prints it; models with results in their folder cost nothing.

    Raises:
        InputError: as `make_benchmark`, or an image among the few that are timed is not whole, or a model that is known
            already has no matching head to rerank with.
    """
    work = work_of(make_benchmark(inputs, settings), settings.rerank)
    waiting = [source for source, folder in folders.items() if not (folder / RESULTS).exists()]
    specs = [spec_before_loading(source) for source in waiting]
    for source, found in zip(waiting, specs, strict=True):
        if settings.rerank and found is not None and found[0].matching is None:
            raise InputError(source, "matching head", "none", "one, for --rerank, such as BLIP's for retrieval")
    rate, image_seconds = measured_rate(dtype), measured_image_seconds(list(inputs.paths.values()))
    costs = [found and cost_of(found[0], work, rate, image_seconds, found[1]) for found in specs]
    return costs, len(folders) - len(waiting), work, rate, image_seconds


def _load_and_evaluate(
    source: str,
    folder: Path,
    inputs: EvaluationInputs,
    settings: Settings,
    cache: EmbeddingCache,
    dtype: DTypeLike,
    name: str | None,
) -> tuple[dict[str, Any], bool]:
    """One model from its source. The encoder lives in this call alone, so that no two are in memory at once."""
    own_devices = make_mesh(jax.local_devices())
    encoder = run_on_all_processes(f"loading {source}", lambda: load_model(source, mesh=own_devices, dtype=dtype))
    encoder.name = name or encoder.name
    return evaluate_into(folder, encoder, inputs, settings, cache)


def _fails_every_model(error: Exception, inputs: EvaluationInputs) -> bool:
    if jax.process_count() > 1 and not getattr(error, "is_on_all_processes", isinstance(error, InputError)):
        # What one process alone came to, as when another is gone.
        return True
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    return isinstance(error, InputError) and error.source in map(str, inputs.paths.values())


def _since(started: float) -> float:
    return round(time.time() - started, 2)


def _results_in(folder: Path, model: str, wanted: dict[str, Any]) -> dict[str, Any] | None:
    path = folder / RESULTS
    if not path.exists():
        return None
    results = read_results(path)
    found = results["fingerprint"]
    if found == wanted and (folder / PER_QUERY).exists():
        return results
    different = [key for key in wanted if found.get(key) != wanted[key]]
    if different == ["versions", "comparable"] or not different:
        return None
    what = f"results of {results['model']!r} that differ in {', '.join(k for k in different if k != 'comparable')}"
    raise InputError(path, "fingerprint", what, f"results of {model!r} as asked for, or another --out")
