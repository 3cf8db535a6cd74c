"""Probabilities over a gallery from sums on devices: against SciPy in float64, and the same bits on all of them."""

import dataclasses

import jax
import numpy as np
import pytest
import scipy.special
import scipy.stats

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks import RankTask
from rococo_jax.benchmarks.tasks.rank import RankOutcome
from rococo_jax.benchmarks.variants import Variant
from rococo_jax.metrics.change import Confidence
from rococo_jax.runtime import make_mesh

IMAGES, PER_IMAGE, WIDTH, SCALE = 300, 5, 200, 100.0


@pytest.fixture(scope="module")
def asked() -> tuple[RankTask, Embeddings]:
    """Captions near their images, of which some are twice in the gallery, under their own image or another."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(IMAGES, WIDTH))
    texts = np.repeat(images, PER_IMAGE, axis=0) + 4.5 * rng.normal(size=(IMAGES * PER_IMAGE, WIDTH))
    texts[5:10], texts[22] = texts[:5], texts[21]
    unit = [(each / np.linalg.norm(each, axis=1, keepdims=True)).astype(np.float32) for each in (images, texts)]
    group = np.repeat(np.arange(IMAGES), PER_IMAGE)
    sides = Rows.of(ORIGINALS, np.arange(IMAGES)), Rows.of(TEXTS, np.arange(len(group)))
    clean = RankTask("image_to_text", "clean", *sides, np.arange(IMAGES), group, np.zeros(len(group), bool))
    tables = {ORIGINALS: unit[0], "fog_3": unit[0], TEXTS: unit[1]}
    return clean.on_images(Variant(corruption="fog", severity=3), "uncorrupted", None), Embeddings(
        tables, logit_scale=SCALE
    )


def score(asked, devices: int = 1, task: RankTask | None = None) -> RankOutcome:
    return (task or asked[0]).score(asked[1], make_mesh(jax.devices()[:devices]))


def test_confidence_and_entropy_match_scipy_in_float64(asked):
    task, tables = asked[0], {name: table.astype(np.float64) for name, table in asked[1].tables.items()}
    scores = tables["fog_3"] @ tables[TEXTS].T
    p = scipy.special.softmax(SCALE * scores, axis=1)
    confidences = score(asked).confidences
    # A float32 product of 200 terms is 2e-7 off, 2e-5 once scaled.
    np.testing.assert_allclose(confidences.confidence, p.max(axis=1), rtol=2e-5)
    np.testing.assert_allclose(
        confidences.uncertainty, scipy.stats.entropy(p, axis=1) / np.log(scores.shape[1]), atol=2e-5
    )
    top = scores >= scores.max(axis=1, keepdims=True) - 1e-9
    wrong = top & (task.query_group[:, None] != task.gallery_group)
    assert wrong.any(axis=1)[:2].any() and 0.1 < wrong.any(axis=1).mean() < 0.9
    np.testing.assert_array_equal(confidences.right, ~wrong.any(axis=1))
    assert top[np.arange(IMAGES), confidences.answer].all()
    assert (wrong[np.arange(IMAGES), confidences.answer] == wrong.any(axis=1)).all()


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.thorough), 8])
def test_confidences_have_the_same_bits_on_any_devices_and_for_any_split_of_the_queries(asked, devices):
    whole, other = score(asked).confidences, score(asked, devices).confidences
    shares = np.split(np.arange(IMAGES), [1, 8, 100])
    task = asked[0]
    some = [
        dataclasses.replace(task, queries=task.queries[share], query_group=task.query_group[share]) for share in shares
    ]
    shares = [score(asked, devices, each).confidences for each in some]
    for confidences in (other, Confidence.concatenate(shares)):
        for column in whole.columns():
            np.testing.assert_array_equal(getattr(confidences, column), getattr(whole, column), err_msg=column)
