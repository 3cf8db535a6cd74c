"""Evaluate several models one after the other. Stopped at any point, the same call goes on where it was.

A model's folder appears with its results or not at all; the embeddings of a model that was under way are in the cache.
"""

import gc
import json
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
from rococo_jax.evaluation.companions import Companion
from rococo_jax.evaluation.models import open_model
from rococo_jax.evaluation.models.encoder import announce_pixels
from rococo_jax.evaluation.resume import holds
from rococo_jax.evaluation.runner import evaluate_into
from rococo_jax.processes import run_on_all_processes
from rococo_jax.progress import say
from rococo_jax.runtime import make_mesh


def evaluate_all(
    folders: Mapping[str, Path],
    out: Path,
    benchmarks: Sequence[Benchmark],
    settings: Settings,
    cache: EmbeddingCache,
    companions: Sequence[Companion] = (),
    compute: Compute | None = None,
    names: Mapping[str, str] | None = None,
    options: LoadOptions | None = None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Several models, one after the other: their results, and the sources of those that failed.

    A model that cannot be loaded or used, whatever the reason, is written into the journal and left out, unless it is
    the only one. A model is gone from memory before the next is loaded; programs compiled for one serve every other of
    its architecture.

    Args:
        folders: for each model, where its results go.
        out: the run's folder, for the journal.
        benchmarks, settings, cache, companions: as in `evaluate_model`.
        compute: how the towers of this project's models compute.
        names: what to call models, where not after their source.
        options: what the sources leave open.

    Raises:
        InputError: the only model failed, or an image cannot be read, which would fail every model alike.
        OSError: the disk is full.
    """
    all_results, failed = [], []
    first = jax.process_index() == 0
    announce_pixels([source for source, folder in folders.items() if not holds(folder, benchmarks)], benchmarks)

    def load_and_evaluate(source: str, folder: Path) -> tuple[dict[str, Any], bool]:
        # The model lives in this call alone, so that no two are in memory at once.
        how = {"mesh": make_mesh(jax.local_devices()), "compute": compute, "options": options}
        name = (names or {}).get(source)
        model = run_on_all_processes(f"loading {source}", lambda: open_model(source, name=name, **how))
        return evaluate_into(folder, model, benchmarks, settings, cache, companions)

    for place, (source, folder) in enumerate(folders.items(), 1):
        started = time.time()
        try:
            results, is_new = load_and_evaluate(source, folder)
        except Exception as error:  # a night's run must outlive whatever is wrong with one model
            if len(folders) == 1 or _fails_every_model(error, benchmarks):
                raise
            failed.append(source)
            known = isinstance(error, InputError)
            message = str(error) if known else f"{type(error).__name__}: {error}"
            trace = {} if known else {"traceback": traceback.format_exc()}
            if first:
                entry = {"model": source, "event": "failed", "seconds": _since(started), "error": message}
                write_journal(out / JOURNAL, **entry, **trace)
                print(f"rococo: {source} left out: {' '.join(message.split())}", file=sys.stderr)
        else:
            all_results.append(results)
            event = "evaluated" if is_new else "kept"
            entry = {"model": results["model"], "event": event, "source": source, "seconds": _since(started)}
            if first:
                write_journal(out / JOURNAL, **entry)
            if first and len(folders) > 1:
                say(f"{place} of {len(folders)}: {results['model']} {event}, {_since(started)} s")
        # Modules refer to each other in circles, which only the collector frees.
        gc.collect()
    return all_results, failed


def _fails_every_model(error: Exception, benchmarks: Sequence[Benchmark]) -> bool:
    bad_input = isinstance(error, InputError)
    if jax.process_count() > 1 and not getattr(error, "is_on_all_processes", bad_input):
        # An error of one process alone, as when another is lost.
        return True
    files = [source_files(images) for benchmark in benchmarks for images in benchmark.image_sets.values()]
    image_files = {str(path) for each in files if each is not None for path in each.paths}
    return is_disk_full(error) or (bad_input and error.source in image_files)


def _since(started: float) -> float:
    return round(time.time() - started, 2)


JOURNAL = "journal.jsonl"


def write_journal(path: Path, **entry: Any) -> None:
    """Adds a line. Short lines added by several processes do not mix."""
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **entry}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
