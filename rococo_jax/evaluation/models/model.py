"""The contract of everything that can be evaluated. One file beside this one holds each kind of model.

A kind that a command line can name registers the form of its source with `opens_sources`; the file need only lie in
this folder.

Every process has all embeddings, and scores whole tasks on its own devices: each task goes to the process with the
fewest similarities so far. So one large task runs on one process, and the joined outcomes are those of one process
alone. Only outcomes are exchanged, some 72 bytes a query.
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
from rococo_jax.encoders.embedding import embed_texts, images_ahead
from rococo_jax.encoders.foreign import ForeignEncoder
from rococo_jax.encoders.loading import LoadOptions, load_encoder
from rococo_jax.encoders.pair_scoring import ForeignPairScorer
from rococo_jax.encoders.programs import Compute
from rococo_jax.encoders.protocol import FeatureEncoder, LoadedModel
from rococo_jax.encoders.token_scoring import TokenScorer
from rococo_jax.errors import InputError
from rococo_jax.processes import gather
from rococo_jax.runtime import make_mesh


@runtime_checkable
class Model(Protocol):
    """Anything that can be evaluated; a kind inherits the defaults and says what is its own.

    Attributes:
        name: what tables call it.
        notes: what a reader of its results must know, one sentence each; complete after `outcomes`.
        training_images: the images that must not count; None where that is not known.
        encoder: embeds further images for companions; None where there is no one encoder.
        versions: of the programs that made its numbers; None for those of this process.
    """

    name: str
    notes: Sequence[str] = ()
    training_images: TrainingImages | None = None
    encoder: FeatureEncoder | None = None
    versions: Mapping[str, Any] | None = None

    def describe(self) -> dict[str, Any]:
        """All that decides its results, as JSON."""
        ...

    def facts(self) -> dict[str, Any]:
        """Facts for a reader of results."""
        return {}

    def check(self, benchmarks: Sequence[Benchmark], settings: Settings) -> None:
        """Refuse what the model cannot do, before the first image is read.

        Raises InputError: settings ask for reranking, and the model scores no pairs; or as the kind says.
        """
        if settings.rerank:
            raise no_pairs(self.name)

    def as_read(self, benchmark: Benchmark) -> Benchmark:
        """The benchmark as it can be asked of the model; `outcomes` is called with it."""
        return benchmark

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """The outcome of each of a benchmark's tasks. All processes must call it.

        Raises InputError: the model lacks what a task needs, or an image cannot be read.
        """
        ...


def identity_of(*parts: LoadedModel) -> list[dict[str, Any]]:
    """Return for each of the loaded models of one evaluation what decides its results, without its name.

    Where one of them has no fingerprint, the first has none, so that no result of the evaluation is taken as it is.
    """
    described = [{key: value for key, value in part.describe().items() if key != "name"} for part in parts]
    if any(each.get("fingerprint", "") is None for each in described):
        described[0]["fingerprint"] = None
    return described


def no_pairs(name: str) -> InputError:
    """The error for a model that is asked to score pairs and cannot."""
    return InputError(name, "score_pairs", "none", "a model that scores pairs, such as BLIP with its matching head")


@dataclasses.dataclass(frozen=True)
class Loading:
    """How a source is loaded: devices (all by default), how towers compute, and what the source leaves open."""

    source: Any
    mesh: Mesh | None
    compute: Compute | None
    options: LoadOptions

    @functools.cached_property
    def loaded(self) -> LoadedModel:
        """What the source gives: vectors, or where it has none scores of pairs. Raises InputError as `load_encoder`."""
        return self._load(self.source, options=self.options, kinds=(TokenScorer, ForeignEncoder, ForeignPairScorer))

    @functools.cached_property
    def candidates(self) -> FeatureEncoder | None:
        """The further model whose vectors choose what is scored; None where none is named."""
        return None if self.options.candidates is None else self._load(self.options.candidates)

    @property
    def by_pairs(self) -> bool:
        """Whether the model is asked by pairs: as the options say, or for want of vectors."""
        by = self.options.by or ("pairs" if self.options.candidates else "vectors")
        return by == "pairs" or not self.loaded.has_vectors

    def _load(self, source: Any, **how: Any) -> LoadedModel:
        return load_encoder(source, mesh=self.mesh, compute=self.compute, **how)


# A source and how to load it -> the model; None where the source has another form.
Opener = Callable[[Any, Loading], Model | None]
OPENERS: list[Opener] = []


def opens_sources(opener: Opener) -> Opener:
    """Register the opener of a kind of model."""
    OPENERS.append(opener)
    return opener


def as_read_by(token_rows: Callable[[Sequence[str]], TokenRows | None], benchmark: Benchmark) -> Benchmark:
    """The benchmark without altered texts that are cut to what their originals are."""
    rows = token_rows(benchmark.texts) if benchmark.texts else None
    if rows is None:
        return benchmark
    tasks, excluded = drop_truncated_duplicates(benchmark.tasks, rows)
    return dataclasses.replace(benchmark, tasks=tasks, excluded=(*benchmark.excluded, *excluded))


def embed_benchmark(
    encoder: FeatureEncoder, of_texts: FeatureEncoder, benchmark: Benchmark, cache: EmbeddingCache
) -> Embeddings:
    """Unit vectors of every row of every table; the texts' by the second encoder, most often the same.

    Raises InputError: the encoder lacks a tower, an image cannot be read, or images and texts have different widths.
    """
    with images_ahead(encoder, list(benchmark.image_sets.values()), cache) as images:
        tables = {TEXTS: embed_texts(of_texts, benchmark.texts, cache)}
        tables |= zip(benchmark.image_sets, images(), strict=True)
    widths = {name: vectors.shape[1] for name, vectors in tables.items()}
    if len(set(widths.values())) > 1:
        images, texts = next(width for name, width in widths.items() if name != TEXTS), widths[TEXTS]
        found = f"{images} of an image and {texts} of a text"
        raise InputError(encoder.name, "width of the vectors", found, "one width for both")
    return Embeddings(tables, logit_scale=encoder.logit_scale)


def score_tasks(tasks: Sequence[Task], embeddings: Embeddings, mesh: jax.sharding.Mesh) -> list[Outcome]:
    """The outcome of every task; all processes must ask for the same; each scores whole tasks on its devices.

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
