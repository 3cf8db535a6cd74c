"""Protocol of everything that can be evaluated. Each kind of model has its own file in this folder.

`open_model` in `evaluation.models` opens sources; `evaluate_model` takes any object of this protocol.

Every process has all embeddings and scores whole tasks on its own devices: each task is assigned to the process with
the fewest similarities so far. A large task therefore runs on one process, and the combined outcomes equal those of a
single process. Only outcomes are exchanged, about 72 bytes per query.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
from jax.sharding import Mesh

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.excluded_input import drop_truncated_duplicates
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import TEXTS, Embeddings
from rococo_jax.benchmarks.tasks import Outcome, Task
from rococo_jax.data.tokenizers import TokenRows
from rococo_jax.data.training_images import TrainingImages
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_image_sets, embed_texts
from rococo_jax.encoders.loading import LoadOptions, load_encoder
from rococo_jax.encoders.programs import Compute
from rococo_jax.encoders.protocol import Embeds, LoadedModel
from rococo_jax.errors import InputError
from rococo_jax.processes import gather
from rococo_jax.runtime import make_mesh


@runtime_checkable
class Model(Protocol):
    """Anything that can be evaluated. A kind inherits the defaults and overrides what differs.

    Attributes:
        name: name in tables.
        notes: notes for readers of its results, one sentence each; complete after `outcomes`.
        training_images: images the model was trained on, which must not count; None if unknown.
        encoder: the encoder whose embeddings are compared; None if there is no single one.
        versions: of the programs that made its numbers; None for those of this process.
    """

    name: str
    notes: Sequence[str] = ()
    training_images: TrainingImages | None = None
    encoder: Embeds | None = None
    versions: Mapping[str, Any] | None = None

    def describe(self) -> dict[str, Any]:
        """Return everything that decides its results, as JSON."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return facts about the model for readers of results."""
        return {}

    def check(self, benchmarks: Sequence[Benchmark], settings: Settings) -> None:
        """Check that the model can be evaluated as requested, before any image is read.

        Raises InputError: reranking is requested and the model does not score pairs; or as documented for the kind.
        """
        if settings.rerank:
            raise no_pairs(self.name)

    def adapt_benchmark(self, benchmark: Benchmark) -> Benchmark:
        """Return the benchmark with only what can be evaluated with this model, for `outcomes`."""
        return benchmark

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """Return the outcome of each of a benchmark's tasks. All processes must call it.

        Raises InputError: the model lacks what a task needs, or an image cannot be read.
        """
        ...


def identity_of(*parts: LoadedModel) -> list[dict[str, Any]]:
    """Return everything that decides the results of each loaded model of an evaluation, without its name.

    If one of them has no fingerprint, the first gets none, so that no stored result of the evaluation is reused.
    """
    described = [{key: value for key, value in part.describe().items() if key != "name"} for part in parts]
    if any(each.get("fingerprint", "") is None for each in described):
        described[0]["fingerprint"] = None
    return described


def no_pairs(name: str) -> InputError:
    """Return the error for a model that should score pairs and cannot."""
    return InputError(name, "score_pairs", "none", "a model that scores pairs, such as BLIP with its matching head")


@dataclasses.dataclass(frozen=True)
class Loading:
    """Source with the devices (by default all), the precision and the options with which it is loaded."""

    source: Any
    mesh: Mesh | None
    compute: Compute | None
    options: LoadOptions

    @functools.cached_property
    def loaded(self) -> LoadedModel:
        """The loaded encoder, or scorer of pairs if it has no embeddings. Raises InputError as `load_encoder`."""
        return self._load(self.source, options=self.options)

    @functools.cached_property
    def candidates(self) -> Embeds | None:
        """The other model, whose embeddings choose the candidates to score; None if none is named."""
        return None if self.options.candidates is None else self._load(self.options.candidates).require_embedder()

    @property
    def by_pairs(self) -> bool:
        """Whether the model is scored pair by pair: as the options request, or because it has no embeddings."""
        by = self.options.by or ("pairs" if self.options.candidates else "vectors")
        return by == "pairs" or self.loaded.embedder is None

    def _load(self, source: Any, **options: Any) -> LoadedModel:
        return load_encoder(source, mesh=self.mesh, compute=self.compute, **options)


def without_truncated_twins(token_rows: Callable[[Sequence[str]], TokenRows | None], benchmark: Benchmark) -> Benchmark:
    """Return the benchmark without altered texts that the tokenizer truncates to the same tokens as their originals."""
    rows = token_rows(benchmark.texts) if benchmark.texts else None
    if rows is None:
        return benchmark
    tasks, excluded = drop_truncated_duplicates(benchmark.tasks, rows)
    return dataclasses.replace(benchmark, tasks=tasks, excluded=(*benchmark.excluded, *excluded))


def embed_benchmark(encoder: Embeds, of_texts: Embeds, benchmark: Benchmark, cache: EmbeddingCache) -> Embeddings:
    """Return embeddings of every row of every table, of the texts by the second encoder, which is usually the same.

    Raises InputError: the encoder lacks a tower, an image cannot be read, or the embeddings of images and texts have
    different widths.
    """
    with embed_image_sets(encoder, list(benchmark.image_sets.values()), cache) as images:
        tables = {TEXTS: embed_texts(of_texts, benchmark.texts, cache)}
        tables |= zip(benchmark.image_sets, images(), strict=True)
    widths = {name: vectors.shape[1] for name, vectors in tables.items()}
    if len(set(widths.values())) > 1:
        images, texts = next(width for name, width in widths.items() if name != TEXTS), widths[TEXTS]
        sizes = f"{images} for images and {texts} for texts"
        raise InputError(encoder.name, "width of the embeddings", sizes, "the same width for both")
    return Embeddings(tables, logit_scale=encoder.logit_scale)


def score_tasks(tasks: Sequence[Task], embeddings: Embeddings, mesh: jax.sharding.Mesh) -> list[Outcome]:
    """Return the outcome of every task. All processes must pass the same tasks; each scores whole tasks.

    Raises InputError: as `Task.score`, on all processes.
    """
    mesh = make_mesh(jax.local_devices()) if mesh.is_multi_process else mesh
    process, count = jax.process_index(), jax.process_count()
    if count == 1:
        return [task.score(embeddings, mesh) for task in tasks]
    loads, mine = [0] * count, []
    for place in sorted(range(len(tasks)), key=lambda place: -tasks[place].queries_and_pairs[1]):
        least = loads.index(min(loads))
        loads[least] += tasks[place].queries_and_pairs[1]
        mine += [place] * (least == process)
    of_processes = gather("ranking", lambda: {place: tasks[place].score(embeddings, mesh) for place in mine})
    outcomes = {place: outcome for outcomes in of_processes for place, outcome in outcomes.items()}
    return [outcomes[place] for place in range(len(tasks))]
