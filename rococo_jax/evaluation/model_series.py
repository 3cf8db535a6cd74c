"""Evaluate several models one after the other. After an interruption, the same call resumes.

A model's folder appears with its results or not at all. The embeddings of an interrupted model are in the cache.
"""

import gc
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.data.images import source_files
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.loading import LoadOptions
from rococo_jax.encoders.programs import Compute
from rococo_jax.errors import InputError, is_disk_full
from rococo_jax.evaluation.caption_baselines import TrainingCaptions
from rococo_jax.evaluation.journal import JOURNAL, write_journal
from rococo_jax.evaluation.models import open_model
from rococo_jax.evaluation.models.encoder import announce_pixels
from rococo_jax.evaluation.resume import holds
from rococo_jax.evaluation.runner import evaluate_into
from rococo_jax.processes import run_on_all_processes
from rococo_jax.progress import overall_progress, say
from rococo_jax.runtime import make_mesh


def evaluate_all(
    folders: Mapping[str, Path],
    out: Path,
    benchmarks: Sequence[Benchmark],
    settings: Settings,
    cache: EmbeddingCache,
    training: TrainingCaptions | None = None,
    compute: Compute | None = None,
    names: Mapping[str, str] | None = None,
    options: LoadOptions | None = None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Evaluate models one after the other; return their results, and the sources of those that failed.

    A model that cannot be loaded or evaluated, for any reason, is recorded in the journal and skipped, unless it is the
    only one. Each model is removed from memory before the next is loaded. Models of one architecture share compiled
    programs.

    Args:
        folders: folder for the results of each model.
        out: folder of the evaluation, for the journal.
        benchmarks, settings, cache, training: as in `evaluate_model`.
        compute: precision and batch size of this project's towers.
        names: names of models, if not those of their sources.
        options: parts that the sources do not specify.

    Raises:
        InputError: the only model failed, or an image cannot be read, so that every model would fail.
        OSError: the disk is full.
    """
    all_results, failed = [], []
    first = jax.process_index() == 0
    if options is None or options.image_size is None:
        announce_pixels([source for source, folder in folders.items() if not holds(folder, benchmarks)], benchmarks)

    def load_and_evaluate(source: str, folder: Path) -> tuple[dict[str, Any], bool]:
        # The model exists only inside this call, so that no two models are in memory at once.
        loading = {"mesh": make_mesh(jax.local_devices()), "compute": compute, "options": options}
        name, finished_before = (names or {}).get(source), overall.done
        try:
            model = run_on_all_processes(f"loading {source}", lambda: open_model(source, name=name, **loading))
            return evaluate_into(folder, model, benchmarks, settings, cache, training)
        finally:
            # Stored results and a model that failed need no work.
            overall.drop(work - (overall.done - finished_before))

    work = sum(benchmark.input_count for benchmark in benchmarks)
    with overall_progress(work * len(folders), is_shown=len(folders) * len(benchmarks) > 1) as overall:
        for place, (source, folder) in enumerate(folders.items(), 1):
            started = time.time()
            try:
                results, is_new = load_and_evaluate(source, folder)
            except Exception as error:  # one model's failure must not end the evaluation
                if len(folders) == 1 or _fails_every_model(error, benchmarks):
                    raise
                failed.append(source)
                is_input_error = isinstance(error, InputError)
                message = str(error) if is_input_error else f"{type(error).__name__}: {error}"
                trace = {} if is_input_error else {"traceback": traceback.format_exc()}
                if first:
                    entry = {"model": source, "event": "failed", "seconds": _since(started), "error": message}
                    write_journal(out / JOURNAL, **entry, **trace)
                    print(f"rococo: {source} skipped: {' '.join(message.split())}", file=sys.stderr)
            else:
                all_results.append(results)
                event = "evaluated" if is_new else "kept"
                entry = {"model": results["model"], "event": event, "source": source, "seconds": _since(started)}
                if first:
                    write_journal(out / JOURNAL, **entry)
                if first and len(folders) > 1:
                    say(
                        f"{place} of {len(folders)}: {results['model']} {event}, {_since(started)} s; {overall.words()}"
                    )
            # Modules contain reference cycles, which only the garbage collector frees.
            gc.collect()
    return all_results, failed


def _fails_every_model(error: Exception, benchmarks: Sequence[Benchmark]) -> bool:
    bad_input = isinstance(error, InputError)
    if jax.process_count() > 1 and not getattr(error, "is_on_all_processes", bad_input):
        # An error of a single process, for example because another process was lost.
        return True
    files = [source_files(images) for benchmark in benchmarks for images in benchmark.image_sets.values()]
    image_files = {str(path) for each in files if each is not None for path in each.paths}
    return is_disk_full(error) or (bad_input and error.source in image_files)


def _since(started: float) -> float:
    return round(time.time() - started, 2)
