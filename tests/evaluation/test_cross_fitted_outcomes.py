"""Each query and each pair of a cross-fitted model is that of the fold that has not seen its image."""

import dataclasses

import numpy as np
import pytest

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings
from rococo_jax.metrics.retrieval import ranks
from tests.support.made_runs import CAPTIONS, IMAGES, made_benchmark

FOLD = np.random.default_rng(5).integers(0, 2, IMAGES)
TASKS = [task for task in made_benchmark().tasks if task.variant in ("same_concept", "mix_0.9")][:2]


def outcomes(task):
    """Of two models of random vectors, as the folds are."""

    def of_model(seed: int):
        rng = np.random.default_rng(seed)
        sizes = {ORIGINALS: IMAGES, TEXTS: 3 * CAPTIONS, "mix_0.9_seed1": IMAGES, "mix_0.9_seed10": IMAGES}
        drawn = {name: rng.normal(size=(rows, 16)).astype(np.float32) for name, rows in sizes.items()}
        return task.score(Embeddings({k: each / np.linalg.norm(each, axis=1)[:, None] for k, each in drawn.items()}))

    return [of_model(0), of_model(1)]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.parametrize("kept", [np.arange(IMAGES) >= 0, np.arange(IMAGES) >= IMAGES // 2, np.arange(IMAGES) % 3 == 0])
def test_queries_and_pairs_are_those_of_the_fold_of_their_image(task, kept):
    both = [each.only(kept[task.query_group], "kept") for each in outcomes(task)]
    chosen = both[0].chosen_from(both, FOLD)
    queries = np.flatnonzero(kept[task.query_group])
    for place, query in enumerate(queries):
        of_fold = both[FOLD[task.query_group[query]]]
        assert ranks(chosen.statistics, task.ties)[place] == ranks(of_fold.statistics, task.ties)[place]
    found = chosen.differences
    assert len(found) and len(np.unique(FOLD[task.pairs.group[found.pair]])) == 2
    for entry, pair in enumerate(found.pair):
        of_fold = both[FOLD[task.pairs.group[pair]]].differences
        for field in dataclasses.fields(found):
            if field.name != "pairs":
                assert getattr(found, field.name)[entry] == getattr(of_fold, field.name)[entry]
    assert (found.difference != both[0].differences.difference).any()
