"""Companions of an evaluation: they add rows, notes or a part of the results without changing outcomes.

Each file of this folder holds one companion, which its `make` gives.
"""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.data.caption_forms import read_captions
from rococo_jax.data.tar_pairs import split_names
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.evaluation.models.model import Model
from rococo_jax.storage import hash_json


@dataclasses.dataclass(frozen=True)
class TrainingCaptions:
    """Captions that n-gram models are counted on.

    Attributes:
        captions: the texts.
        about: where they are from, how many, and their hash, for the results.
    """

    captions: tuple[str, ...]
    about: dict[str, Any]


def read_training_captions(files: str) -> TrainingCaptions:
    """The captions of files in the Karpathy form or in JSON lines, several with commas.

    Raises InputError: a file is missing or in another form.
    """
    captions = (text for file in split_names(files) for item in read_captions(file).items for text in item.captions)
    return training_captions(captions, files)


def training_captions(captions: Iterable[str], source: str) -> TrainingCaptions:
    """Captions with what results say of them."""
    texts = tuple(captions)
    return TrainingCaptions(texts, {"source": source, "captions": len(texts), "hash": hash_json(list(texts))})


@dataclasses.dataclass(frozen=True)
class Scored:
    """A model's outcomes on a benchmark, and how they came about."""

    model: Model
    benchmark: Benchmark
    outcomes: Sequence[Outcome]
    settings: Settings
    cache: EmbeddingCache


@dataclasses.dataclass(frozen=True)
class Beside:
    """Additions of a companion to a benchmark's outcomes.

    Attributes:
        seen: for each of the model's outcomes the rows on images that it was trained on; empty where that is not known.
        columns: of the per-query rows of each of the model's outcomes, by name; empty for no outcome.
        notes: what a reader must know, one sentence each.
        part: entries of `results.json`; nested objects are merged over companions and benchmarks.
    """

    seen: Sequence[Bool[np.ndarray, "_"] | None] = ()
    columns: Sequence[Mapping[str, np.ndarray]] = ()
    notes: Sequence[str] = ()
    part: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@runtime_checkable
class Companion(Protocol):
    """Adds to a model's outcomes; a companion inherits the defaults."""

    def check(self, model: Model, benchmarks: Sequence[Benchmark], settings: Settings) -> None:
        """Refuse what the settings do not allow, before the first image is read. Raises InputError."""

    def is_in(self, results: Mapping[str, Any]) -> bool:
        """Whether results contain the additions of this companion. Raises InputError: they are of other inputs."""
        return True

    def continuing(self, results: Mapping[str, Any]) -> "Companion":
        """Return the companion that adds the same to further benchmarks as it did to results, which may be empty.

        Raises InputError: what it needs for that is no longer there.
        """
        return self

    def beside(self, scored: Scored) -> Beside:
        """Additions to the outcomes. All processes must call it."""
        ...


def standard_companions(training: TrainingCaptions | None = None) -> list[Companion]:
    """Return a companion for each file of this folder, in the order of their names.

    Args:
        training: captions for the baselines that see no image; without them, those that need none.
    """
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return [importlib.import_module(f"{__name__}.{name}").make(training) for name in names]
