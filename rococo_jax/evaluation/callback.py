"""Evaluation during training: the same benchmark as `rococo evaluate`, its figures in one flat dictionary."""

from collections.abc import Callable, Mapping

import numpy as np

from rococo_jax.benchmarks.settings import Settings
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.evaluation.inputs import open_benchmarks
from rococo_jax.evaluation.runner import evaluate_model
from rococo_jax.runtime import cache_folder

_METRICS = ("r1", "fr1", "drop")


def make_evaluation(
    images: str, annotations: str, protocol: str = "paper", mixes: str = "none", keep: bool = True
) -> Callable[[Encoder], Mapping[str, float]] | None:
    """A function that evaluates a model, or None where no images are named.

    Its figures are `TASK/VARIANT/METRIC` in percent, and `score`: R@1 of the clean variants, averaged over the tasks.

    Args:
        images, annotations: as for `rococo evaluate`; missing images shrink the gallery.
        protocol, mixes: as for `rococo evaluate`.
        keep: keep features in the embedding cache; of use where towers are frozen.
    """
    if not images:
        return None
    mixed = () if mixes == "none" else tuple(mixes.split(","))
    settings = Settings(protocol=protocol, mixed_galleries=mixed, allow_missing_images=True)
    benchmarks = open_benchmarks(settings, images=images, annotations=annotations)
    cache = EmbeddingCache(cache_folder() / "embeddings" if keep else None)

    def evaluate(encoder: Encoder) -> dict[str, float]:
        results = evaluate_model(encoder, benchmarks, settings, cache).results
        figures = {
            f"{task}/{variant}/{metric}": float(values[metric])
            for task, variants in results["tasks"].items()
            for variant, values in variants.items()
            for metric in _METRICS
            if values.get(metric) is not None
        }
        clean = [variants["clean"]["r1"] for variants in results["tasks"].values()]
        return {"score": float(np.mean(clean)), **figures}

    return evaluate
