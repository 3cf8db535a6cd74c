"""Baselines of an evaluation's tasks, beside the figures of a model: what a scorer without the image gets."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from rococo_jax.benchmarks.baselines import figure, text_baselines
from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.data.captioned_images import read_captions
from rococo_jax.storage import hash_json


@dataclasses.dataclass(frozen=True)
class TrainingCaptions:
    """Captions that n-gram models are counted on.

    Attributes:
        captions: the texts.
        about: where they are from, how many, and their hash, for the results.
        image_names: of the images that they caption.
        folder: where these images are, for detectors of altered images; None for no detector.
    """

    captions: tuple[str, ...]
    about: dict[str, Any]
    image_names: tuple[str, ...] = ()
    folder: str | None = None


def read_training_captions(files: str, images: str | None = None) -> TrainingCaptions:
    """The captions of files in the Karpathy form or in JSON lines, several with commas; `images` is their folder.

    Raises:
        InputError: a file is missing or in another form.
    """
    items = [item for file in files.split(",") for item in read_captions(file)]
    made = training_captions((caption for item in items for caption in item.captions), files)
    about = made.about if images is None else {**made.about, "images": images}
    names = tuple(item.image for item in items)
    return dataclasses.replace(made, about=about, image_names=names, folder=images)


def training_captions(captions: Iterable[str], source: str) -> TrainingCaptions:
    """Captions with what results say of them."""
    texts = tuple(captions)
    return TrainingCaptions(texts, {"source": source, "captions": len(texts), "hash": hash_json(list(texts))})


def baselines_of(
    benchmarks: Sequence[Benchmark], training: TrainingCaptions | None
) -> dict[str, dict[str, dict[str, Any]]]:
    """`{TASK: {VARIANT: {BASELINE: {"preference", "interval", "pairs"}}}}` of every task that compares texts."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for benchmark in benchmarks:
        scorers = text_baselines(benchmark.texts, None if training is None else training.captions)
        of_variants: dict[tuple[str, str], list[Any]] = {}
        for task in benchmark.tasks:
            pairs = task.compared_texts() if hasattr(task, "compared_texts") else None
            for variant in filter(None, (task.variant, task.pooled)) if pairs is not None else ():
                of_variants.setdefault((task.name, variant), []).append(pairs)
        for (name, variant), runs in of_variants.items():
            groups = [group for _, _, group in runs]
            found.setdefault(name, {})[variant] = {
                baseline: figure([prefer(right.index, wrong.index) for right, wrong, _ in runs], groups)
                for baseline, prefer in scorers.items()
            }
    return found
