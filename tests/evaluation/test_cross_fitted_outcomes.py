"""Each query and each pair of a cross-fitted model is that of the fold that has not seen its image."""

import dataclasses

import numpy as np
import pytest

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks import ClassifyTask
from rococo_jax.benchmarks.tasks.out_of_distribution import OutOfDistributionTask
from rococo_jax.metrics.retrieval import ranks
from tests.support.made_runs import CAPTIONS, IMAGES, made_benchmark, unit

FOLD = np.random.default_rng(5).integers(0, 2, IMAGES)
TASKS = [task for task in made_benchmark().tasks if task.variant in ("same_concept", "mix_0.9")][:2]


def embeddings(seed: int, **others):
    """Random vectors of a model."""
    rng = np.random.default_rng(seed)
    sizes = {ORIGINALS: IMAGES, TEXTS: 3 * CAPTIONS, "mix_0.9_seed1": IMAGES, "mix_0.9_seed10": IMAGES, **others}
    return Embeddings({name: unit(rng.normal(size=(rows, 16))) for name, rows in sizes.items()})


def outcomes(task, **others):
    """Of two models, as the folds are."""
    return [task.score(embeddings(seed, **others)) for seed in (0, 1)]


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


@pytest.mark.parametrize("task", made_benchmark().tasks[:4], ids=lambda task: f"{task.name} {task.variant}")
def test_the_shares_of_processes_join_to_the_whole(task):
    whole = task.score(embeddings(0))
    joined = task.joined([share.score(embeddings(0)).result for share in task.split(3)])
    assert (whole.differences is None) == (task.pairs is None)
    for name in ("statistics", "differences"):
        one, other = getattr(whole, name), getattr(joined, name)
        for field in () if one is None else dataclasses.fields(one):
            np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


def test_images_of_no_class_are_scored_by_the_first_fold():
    every, others = np.arange(IMAGES), np.arange(40)
    images = Rows.of(ORIGINALS, every)
    names = [f"{place}.jpg" for place in every]
    pets = ClassifyTask("pets", "clean", ("cat", "dog"), np.arange(2)[:, None], images, every, names, every % 2)
    task = OutOfDistributionTask("pets_ood", "far", pets, Rows.of("out_far", others), names[:40])
    both = outcomes(task, out_far=len(others))
    chosen = both[0].chosen_from(both, FOLD).counted
    scores = [each.counted for each in both]
    for name, found in chosen.ins.items():
        np.testing.assert_array_equal(found, np.where(FOLD, scores[1].ins[name], scores[0].ins[name]))
        np.testing.assert_array_equal(chosen.outs[name], scores[0].outs[name])
        assert (scores[0].outs[name] != scores[1].outs[name]).any()
