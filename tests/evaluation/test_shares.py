"""The shares of a task that several processes score join to the outcome of the whole."""

import dataclasses

import numpy as np
import pytest

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings
from tests.support.made_runs import CAPTIONS, IMAGES, made_benchmark, unit


@pytest.mark.parametrize("task", made_benchmark().tasks[:4], ids=lambda task: f"{task.name} {task.variant}")
def test_the_shares_of_processes_join_to_the_whole(task):
    rng = np.random.default_rng(0)
    sizes = {ORIGINALS: IMAGES, TEXTS: 3 * CAPTIONS, "mix_0.9_seed1": IMAGES, "mix_0.9_seed10": IMAGES}
    embeddings = Embeddings({name: unit(rng.normal(size=(rows, 16))) for name, rows in sizes.items()})
    whole = task.score(embeddings)
    joined = task.joined([share.score(embeddings).result for share in task.split(3)])
    assert (whole.differences is None) == (task.pairs is None)
    for name in ("statistics", "differences"):
        one, other = getattr(whole, name), getattr(joined, name)
        for field in () if one is None else dataclasses.fields(one):
            np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))
