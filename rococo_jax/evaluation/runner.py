"""Every task for every model: embed once, rank, write. Stopped at any point, the same call goes on where it was.

A model's folder appears with its results or not at all; the embeddings of a model that was under way are in the cache.
"""

import dataclasses
import difflib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from rococo_jax.benchmarks.rococo import rococo_from_set
from rococo_jax.benchmarks.tasks import IMAGE_TO_TEXT, TEXT_TO_IMAGE, RankBenchmark
from rococo_jax.checkpoints import load_model
from rococo_jax.encoding import Encoder
from rococo_jax.errors import InputError
from rococo_jax.evaluation.cache import EmbeddingCache
from rococo_jax.evaluation.embedding import embed_images, embed_texts
from rococo_jax.evaluation.inputs import EvaluationInputs
from rococo_jax.evaluation.results import make_fingerprint, make_results, per_query_table, read_results, write_per_query
from rococo_jax.evaluation.scoring import rank_by_embeddings
from rococo_jax.storage import hash_json, write_json

TASKS = (IMAGE_TO_TEXT, TEXT_TO_IMAGE)
RESULTS, PER_QUERY, JOURNAL = "results.json", "per_query.parquet", "journal.jsonl"


def check_tasks(names: Sequence[str]) -> tuple[str, ...]:
    """The tasks asked for, in their own order.

    Raises:
        InputError: a name is no task; it suggests the nearest.
    """
    for name in names:
        if name not in TASKS:
            near = difflib.get_close_matches(name, TASKS, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise InputError("--tasks", "task", name, f"{' or '.join(TASKS)}{hint}")
    return tuple(task for task in TASKS if task in names)


def make_benchmark(inputs: EvaluationInputs, protocol: str, tasks: Sequence[str]) -> RankBenchmark:
    """RoCOCO over the images that are present, with the tasks asked for.

    Raises:
        InputError: the protocol is unknown, or nothing is left to rank.
    """
    benchmark = rococo_from_set(inputs.annotations, protocol, images=inputs.paths)
    return dataclasses.replace(benchmark, tasks=tuple(task for task in benchmark.tasks if task.name in tasks))


def fingerprint(encoder: Encoder, inputs: EvaluationInputs, protocol: str, tasks: Sequence[str]) -> dict[str, Any]:
    """All that decides an evaluation's results."""
    model = {key: value for key, value in encoder.describe().items() if key != "name"}
    model = {key: hash_json(value) if isinstance(value, dict) else value for key, value in model.items()}
    return make_fingerprint(model=model, data={**inputs.fingerprint(), "tasks": list(tasks)}, protocol=protocol)


def evaluate_model(
    encoder: Encoder, inputs: EvaluationInputs, protocol: str, tasks: Sequence[str], cache: EmbeddingCache
) -> tuple[dict[str, Any], Any]:
    """One model on all tasks: the contents of `results.json`, and the per-query table.

    Raises:
        InputError: the model has no image or no text tower, or an image cannot be read.
    """
    benchmark = make_benchmark(inputs, protocol, tasks)
    paths = [inputs.paths[name] for name in benchmark.images]
    hashes = [inputs.hashes[name] for name in benchmark.images]
    texts = embed_texts(encoder, benchmark.captions, cache)
    images = embed_images(encoder, paths, cache, hashes=hashes)
    outcomes = rank_by_embeddings(benchmark, images, texts, mesh=encoder.mesh)
    notes = list(benchmark.notes)
    if inputs.is_partial:
        notes.insert(0, _partial_note(inputs))
    made = make_results(encoder.name, protocol, fingerprint(encoder, inputs, protocol, tasks), outcomes, notes)
    results = {**made, "data": inputs.describe()}
    return results, per_query_table(benchmark, outcomes, protocol)


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
    protocol: str,
    tasks: Sequence[str],
    cache: EmbeddingCache,
) -> dict[str, Any]:
    """As `evaluate_model`, with the results written into `folder`. Results that are there already are taken as read.

    Raises:
        InputError: `folder` holds the results of another model, protocol or data set.
    """
    done = _results_in(folder, encoder.name, fingerprint(encoder, inputs, protocol, tasks))
    if done is not None:
        return done
    started = time.time()
    results, table = evaluate_model(encoder, inputs, protocol, tasks, cache)
    write_per_query(folder / PER_QUERY, table)
    # Last: results.json says that the rest is there.
    write_json(folder / RESULTS, results)
    write_journal(folder / JOURNAL, model=encoder.name, event="evaluated", seconds=round(time.time() - started, 2))
    return results


def evaluate_all(
    folders: Mapping[str, Path],
    out: Path,
    inputs: EvaluationInputs,
    protocol: str,
    tasks: Sequence[str],
    cache: EmbeddingCache,
    dtype: DTypeLike = jnp.float32,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Several models, one after the other: their results, and the sources of those that failed.

    A model that cannot be loaded or used is written into the journal and left out, unless it is the only one.

    Args:
        folders: for each model, where its results go.
        out: the run's folder, for the journal.
        inputs, protocol, tasks, cache: as in `evaluate_model`.
        dtype: of the towers' compute.

    Raises:
        InputError: the only model failed, or an image cannot be read, which would fail every model alike.
    """
    all_results, failed = [], []
    for source, folder in folders.items():
        try:
            encoder = load_model(source, dtype=dtype)
            all_results.append(evaluate_into(folder, encoder, inputs, protocol, tasks, cache))
        except InputError as error:
            if len(folders) == 1 or error.source in map(str, inputs.paths.values()):
                raise
            failed.append(source)
            write_journal(out / JOURNAL, model=source, event="failed", error=str(error))
            print(f"rococo: {source} left out: {error}", file=sys.stderr)
    return all_results, failed


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


def write_journal(path: Path, **entry: Any) -> None:
    """Adds a line with the time to the run's journal, which no result depends on."""
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **entry}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
