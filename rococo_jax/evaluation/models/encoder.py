"""An encoder as a model: embed a benchmark's tables once, cached, and score its tasks, or rerank the best."""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.lost_input import without_twins
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.checkpoints.hub import demo_folder
from rococo_jax.checkpoints.model_directory import MODEL_FILE, read_description
from rococo_jax.data.images import files_of
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.foreign import ForeignEncoder
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.model import Model, embed_benchmark, score_tasks
from rococo_jax.evaluation.reranking import rerank_on_all_processes


class EncoderModel(Model):
    """One encoder, of this project or of any other."""

    def __init__(self, encoder: Encoder | ForeignEncoder):
        self.encoder, self.training_images = encoder, encoder.training_images

    @property
    def name(self) -> str:
        """The encoder's name."""
        return self.encoder.name

    @name.setter
    def name(self, name: str) -> None:
        self.encoder.name = name

    def describe(self) -> dict[str, Any]:
        """Everything that decides its embeddings."""
        return {key: value for key, value in self.encoder.describe().items() if key != "name"}

    def facts(self) -> dict[str, Any]:
        """Provenance, size, cost and warnings of the encoder."""
        return self.encoder.facts()

    def check(self, benchmarks: Sequence[Benchmark], settings: Settings) -> None:
        """Raises InputError: settings ask for reranking, and the encoder has no matching head."""
        if settings.rerank:
            self.encoder.require_matching()

    def as_read(self, benchmark: Benchmark) -> Benchmark:
        """The benchmark without altered texts that the encoder cuts to what their originals are."""
        rows = self.encoder.token_rows(benchmark.texts) if benchmark.texts else None
        if rows is None:
            return benchmark
        tasks, lost = without_twins(benchmark.tasks, rows)
        return dataclasses.replace(benchmark, tasks=tasks, lost=(*benchmark.lost, *lost))

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """The outcome of each of a benchmark's tasks."""
        embeddings = embed_benchmark(self.encoder, benchmark, cache)
        if settings.rerank:
            return rerank_on_all_processes(benchmark, embeddings, settings.rerank, self.encoder, cache)
        return score_tasks(benchmark.tasks, embeddings, self.encoder.mesh)


def announce_pixels(sources: Sequence[str], benchmarks: Sequence[Benchmark]) -> None:
    """Make a file's pixels for all models when it is decoded for the first, and altered images once for models that
    take the same pixels. Only model directories tell their preprocessing before they are loaded.
    """
    views, models = {}, Counter()
    for source in sources:
        with contextlib.suppress(InputError, OSError):  # reported when the model's turn comes
            path = (demo_folder(source) or Path(source)) / MODEL_FILE
            preprocessing = read_description(path.parent)[1]["preprocessing"] if path.is_file() else None
            if preprocessing:
                view = Preprocessing.from_json(preprocessing, path).view
                views[view.key] = view
                models[view.key] += 1
    for images in (images for benchmark in benchmarks for images in benchmark.image_sets.values()):
        files = files_of(images)
        for key, view in views.items():
            if files is not None and (images is files or models[key] > 1):
                images.views.announce(view)
