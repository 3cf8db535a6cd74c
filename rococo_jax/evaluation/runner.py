"""Every task for every model: embed once, score, write. Stopped at any point, the same call goes on where it was.

A model's folder appears with its results or not at all; the embeddings of a model that was under way are in the cache.

Several processes do it together: each embeds and scores its share, and process 0 writes. Images, annotations and models
must be there for each of them; no other file need be shared.
"""

import contextlib
import gc
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.checkpoints.hub import demo_folder
from rococo_jax.checkpoints.model_directory import MODEL_FILE, read_description
from rococo_jax.data.images import FileImages
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.compute import Compute
from rococo_jax.encoders.loading import LoadOptions
from rococo_jax.encoders.protocol import FeatureEncoder
from rococo_jax.errors import InputError, is_disk_full
from rococo_jax.evaluation.baselines import TrainingCaptions, baselines_of
from rococo_jax.evaluation.detector import detector_baselines, training_images
from rococo_jax.evaluation.embedding import embed_benchmark, score_tasks
from rococo_jax.evaluation.examples import Example, collect_examples, write_examples
from rococo_jax.evaluation.journal import JOURNAL, write_journal
from rococo_jax.evaluation.reranking import rerank_on_all_processes
from rococo_jax.evaluation.results import (
    PAIRS,
    PER_QUERY,
    RESULTS,
    is_whole_per_query,
    make_fingerprint,
    make_results,
    pair_table,
    per_query_table,
    read_results,
    with_checksum,
    write_per_query,
)
from rococo_jax.evaluation.seen_images import (
    CROSS_FITTED_NOTE,
    CrossFitted,
    choose_by_fold,
    load_any,
    mark_rows,
    seen_images,
    seen_notes,
    unseen_outcomes,
)
from rococo_jax.evaluation.stored import Stored
from rococo_jax.processes import broadcast_from_process_0, run_on_all_processes
from rococo_jax.progress import say
from rococo_jax.runtime import make_mesh
from rococo_jax.storage import hash_json, write_json


class Evaluated(NamedTuple):
    """What an evaluation of one model gives: the contents of its four files."""

    results: dict[str, Any]
    per_query: Any
    examples: list[Example]
    pairs: Any


def fingerprint(
    encoder: FeatureEncoder | CrossFitted | Stored, benchmarks: Sequence[Benchmark], settings: Settings
) -> dict[str, Any]:
    """All that decides an evaluation's results."""
    model = {key: value for key, value in encoder.describe().items() if key != "name"}
    model = {key: hash_json(value) if isinstance(value, dict) else value for key, value in model.items()}
    data = {benchmark.name: benchmark.fingerprint() for benchmark in benchmarks}
    return make_fingerprint(model=model, data=data, protocol=settings.protocol)


def evaluate_model(
    encoder: FeatureEncoder | CrossFitted | Stored,
    benchmarks: Sequence[Benchmark],
    settings: Settings,
    cache: EmbeddingCache,
    examples: bool = False,
    training: TrainingCaptions | None = None,
) -> Evaluated:
    """One model on all tasks of all benchmarks.

    Args:
        encoder: the model.
        benchmarks: opened with the same settings.
        settings: what is asked.
        cache: where embeddings are kept.
        examples: also choose errors to show, and make their pictures.
        training: captions for the baselines that see no image; without them, those that need none.

    Raises:
        InputError: the model has no image or no text tower, or no matching head to rerank with, or an image cannot be
            read, or one that it was trained on is met and settings refuse that.
    """
    if settings.rerank:
        encoder.require_matching()
    outcomes, notes, tables, pairs, shown = [], [], [], [], []
    met = {}
    baselines = {"captions": None if training is None else training.about, "tasks": baselines_of(benchmarks, training)}
    images = None
    if training is not None and training.folder is not None and not isinstance(encoder, CrossFitted):
        images = training_images(training.folder, training.image_names, benchmarks)
    # Asked of all benchmarks before the first image is read.
    for benchmark, seen in [(each, seen_images(encoder, each, settings.require_clean)) for each in benchmarks]:
        made = outcomes_of(encoder, benchmark, settings, cache)
        outcomes += made
        notes += benchmark.notes
        pairs.append(pair_table(made, benchmark))
        if images is not None:
            for task, variants in detector_baselines(encoder, benchmark, images, cache).items():
                baselines["tasks"].setdefault(task, {}).update(variants)
        if seen is not None:
            unseen, counts = unseen_outcomes(made, seen)
            outcomes += unseen
            met |= counts
            tables += [mark_rows(outcome, outcome.rows(benchmark), seen) for outcome in made]
        else:
            tables += [outcome.rows(benchmark) for outcome in made]
        if examples and jax.process_index() == 0:
            shown += collect_examples(benchmark, made)
    notes += [*seen_notes(met), *getattr(encoder, "notes", ())]
    if isinstance(encoder, CrossFitted):
        notes.append(CROSS_FITTED_NOTE)
    if settings.rerank:
        notes.append(f"reranked: the {settings.rerank} best of every query by the matching head's logit + cosine")
    made = make_results(
        encoder.name, settings.protocol, fingerprint(encoder, benchmarks, settings), outcomes, dict.fromkeys(notes)
    )
    data = {benchmark.name: dict(benchmark.data) for benchmark in benchmarks}
    results = {**made, "baselines": baselines, "data": data, "about": encoder.facts()}
    results |= {"training_images": met} if met else {}
    return Evaluated(results, per_query_table(tables), shown, per_query_table(pairs))


def outcomes_of(
    encoder: FeatureEncoder | CrossFitted | Stored, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache
) -> list[Outcome]:
    """What every task of a benchmark makes of a model. All processes must call it.

    Raises:
        InputError: as `evaluate_model`.
    """
    if isinstance(encoder, CrossFitted):
        folds = [(fold, embed_benchmark(fold, benchmark, cache)) for fold in encoder.folds]
        return choose_by_fold([score_tasks(benchmark.tasks, each, fold.mesh) for fold, each in folds], benchmark)
    if hasattr(encoder, "outcomes_of"):  # similarities made elsewhere
        return encoder.outcomes_of(benchmark)
    embeddings = embed_benchmark(encoder, benchmark, cache)
    if settings.rerank:
        return rerank_on_all_processes(benchmark, embeddings, settings.rerank, encoder, cache)
    return score_tasks(benchmark.tasks, embeddings, encoder.mesh)


def evaluate_into(
    folder: Path,
    encoder: FeatureEncoder | CrossFitted | Stored,
    benchmarks: Sequence[Benchmark],
    settings: Settings,
    cache: EmbeddingCache,
    training: TrainingCaptions | None = None,
) -> tuple[dict[str, Any], bool]:
    """As `evaluate_model`, with the results written into `folder`. Results that are there already are taken as read.

    Returns:
        The results, and whether they were made now.

    Raises:
        InputError: `folder` holds the results of another model, protocol or data set.
    """
    wanted = run_on_all_processes("fingerprint", lambda: fingerprint(encoder, benchmarks, settings))
    done = broadcast_from_process_0(
        "results that are there", lambda: _results_in(folder, encoder.name, wanted, training)
    )
    if done is not None:
        return done, False
    before = cache.computed, cache.read
    results, table, examples, pairs = evaluate_model(
        encoder, benchmarks, settings, cache, examples=True, training=training
    )
    if jax.process_index() == 0:
        computed, read = cache.computed - before[0], cache.read - before[1]
        say(f"{encoder.name}: {computed:,} images and texts embedded, {read:,} read from the cache")
    results = with_checksum(results)

    def write() -> None:
        write_per_query(folder / PER_QUERY, table)
        write_per_query(folder / PAIRS, pairs)
        write_examples(folder, examples)
        # Last: results.json tells that the rest is there.
        write_json(folder / RESULTS, results)

    broadcast_from_process_0("results", write)
    return results, True


def evaluate_all(
    folders: Mapping[str, Path],
    out: Path,
    benchmarks: Sequence[Benchmark],
    settings: Settings,
    cache: EmbeddingCache,
    compute: Compute | None = None,
    names: Mapping[str, str] | None = None,
    training: TrainingCaptions | None = None,
    options: LoadOptions | None = None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Several models, one after the other: their results, and the sources of those that failed.

    A model that cannot be loaded or used, whatever the reason, is written into the journal and left out, unless it is
    the only one. A model is gone from memory before the next is loaded; programs compiled for one serve every other of
    its architecture.

    Args:
        folders: for each model, where its results go.
        out: the run's folder, for the journal.
        benchmarks, settings, cache, training: as in `evaluate_model`.
        compute: how the towers of this project's models compute.
        names: what to call models, where not after their source.
        options: what the sources leave open.

    Raises:
        InputError: the only model failed, or an image cannot be read, which would fail every model alike.
        OSError: the disk is full.
    """
    all_results, failed = [], []
    first = jax.process_index() == 0
    _announce_pixels([source for source, folder in folders.items() if not (folder / RESULTS).exists()], benchmarks)
    for place, (source, folder) in enumerate(folders.items(), 1):
        started = time.time()
        try:
            results, made = _load_and_evaluate(
                source, folder, benchmarks, settings, cache, compute, (names or {}).get(source), training, options
            )
        except Exception as error:  # a night's run must outlive whatever is wrong with one model
            if len(folders) == 1 or _fails_every_model(error, benchmarks):
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
                say(f"{place} of {len(folders)}: {results['model']} {event}, {_since(started)} s")
        # Modules refer to each other in circles, which only the collector frees.
        gc.collect()
    return all_results, failed


def _announce_pixels(sources: Sequence[str], benchmarks: Sequence[Benchmark]) -> None:
    """Has a file's pixels for all models made when it is decoded for the first, and altered images made once for models
    that want the same pixels. Only model directories say beforehand what they want.
    """
    views, models = {}, Counter()
    for source in sources:
        with contextlib.suppress(InputError, OSError):  # reported when the model's turn comes
            path = (demo_folder(source) or Path(source)) / MODEL_FILE
            found = read_description(path.parent)[1]["preprocessing"] if path.is_file() else None
            if found:
                view = Preprocessing.from_json(found, path).view
                views[view.key] = view
                models[view.key] += 1
    for images in (images for benchmark in benchmarks for images in benchmark.image_sets.values()):
        for key, view in views.items():
            if isinstance(images, FileImages) or (models[key] > 1 and hasattr(images, "views")):
                images.views.announce(view)


def _load_and_evaluate(
    source: str,
    folder: Path,
    benchmarks: Sequence[Benchmark],
    settings: Settings,
    cache: EmbeddingCache,
    compute: Compute | None,
    name: str | None,
    training: TrainingCaptions | None,
    options: LoadOptions | None,
) -> tuple[dict[str, Any], bool]:
    """One model from its source. The encoder lives in this call alone, so that no two are in memory at once."""
    own_devices = make_mesh(jax.local_devices())
    encoder = run_on_all_processes(
        f"loading {source}", lambda: load_any(source, mesh=own_devices, compute=compute, options=options)
    )
    encoder.name = name or encoder.name
    return evaluate_into(folder, encoder, benchmarks, settings, cache, training)


def _fails_every_model(error: Exception, benchmarks: Sequence[Benchmark]) -> bool:
    if jax.process_count() > 1 and not getattr(error, "is_on_all_processes", isinstance(error, InputError)):
        # What one process alone came to, as when another is gone.
        return True
    return is_disk_full(error) or (isinstance(error, InputError) and error.source in _image_files(benchmarks))


def _image_files(benchmarks: Sequence[Benchmark]) -> set[str]:
    originals = [images for benchmark in benchmarks for images in benchmark.image_sets.values()]
    return {str(path) for images in originals for path in getattr(images, "paths", ())}


def _since(started: float) -> float:
    return round(time.time() - started, 2)


def _results_in(
    folder: Path, model: str, wanted: dict[str, Any], training: TrainingCaptions | None
) -> dict[str, Any] | None:
    path = folder / RESULTS
    if not path.exists():
        return None
    results = read_results(path)
    found = results["fingerprint"]
    # Results without pairs, or without the baselines asked for, are made again, from the cache of embeddings.
    captions = results.get("baselines", {}).get("captions")
    whole = all(is_whole_per_query(folder / name) for name in (PER_QUERY, PAIRS))
    if found == wanted and whole and (training is None or captions == training.about):
        # An encoder without a fingerprint may have changed since.
        return None if "fingerprint" in wanted["model"] and wanted["model"]["fingerprint"] is None else results
    different = [key for key in wanted if found.get(key) != wanted[key]]
    if different == ["versions", "comparable"] or not different:
        return None
    what = f"results of {results['model']!r} that differ in {', '.join(k for k in different if k != 'comparable')}"
    raise InputError(path, "fingerprint", what, f"results of {model!r} as asked for, or another --out")
