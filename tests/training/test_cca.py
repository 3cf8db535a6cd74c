"""Closed-form heads: the right correlations, the right weights, and a choice of ridges that sees no held-out image."""

import tracemalloc

import numpy as np
import pytest
import scipy.linalg
import scipy.special
from sklearn.preprocessing import normalize

from rococo_jax.errors import InputError
from rococo_jax.training import join
from rococo_jax.training.join import (
    Regularisation,
    choose_regularisation,
    fit_heads,
    fit_logit_scale,
    image_tower_of,
    join_towers,
    text_tower_of,
)
from tests.support.tiny import tiny_encoder


def paired_features(images=120, captions=3, shared=6, seed=0):
    """Return features of images and, in any order, of captions: few common latent factors, linear mixing, and noise."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(images, shared))
    owner = rng.permutation(np.repeat(np.arange(images), captions))
    image_features = factors @ rng.normal(size=(shared, 20)) + 0.3 * rng.normal(size=(images, 20)) + 2.0
    text_features = factors[owner] @ rng.normal(size=(shared, 14)) + 0.3 * rng.normal(size=(len(owner), 14)) - 1.0
    return image_features.astype(np.float32), text_features.astype(np.float32), owner


def test_canonical_correlations_solve_the_generalised_eigenproblem():
    x, y, owner = paired_features()
    heads = fit_heads(x, y, owner, dim=10, regularisation=Regularisation(0.01, 0.03, 1.0))
    covariance = np.cov(np.concatenate([x[owner], y], axis=1), rowvar=False, bias=True, dtype=np.float64)
    a, b = covariance[:20, :20], covariance[20:, 20:]
    within = scipy.linalg.block_diag(a + 0.01 * np.trace(a) / 20 * np.eye(20), b + 0.03 * np.trace(b) / 14 * np.eye(14))
    across = covariance - scipy.linalg.block_diag(a, b)
    expected = scipy.linalg.eigh(across, within, eigvals_only=True)[::-1][:10]
    # float64 throughout; the spectra are computed by two different routes.
    np.testing.assert_allclose(heads.correlations, expected, rtol=1e-8)


def test_heads_are_the_same_if_the_faster_decomposition_does_not_converge(monkeypatch):
    """The decomposition failed to converge for 400 photographs and two towers of 384 features."""
    x, y, owner = paired_features()
    expected = fit_heads(x, y, owner, 10, Regularisation(0.01, 0.03, 1.0))

    def diverge(*arguments, **options):
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr(np.linalg, "svd", diverge)
    heads = fit_heads(x, y, owner, 10, Regularisation(0.01, 0.03, 1.0))
    np.testing.assert_allclose(heads.correlations, expected.correlations, rtol=1e-12)
    similarities = [each.project(x, y)[1] @ each.project(x, y)[0].T for each in (heads, expected)]
    np.testing.assert_allclose(*similarities, atol=1e-10)  # signs of directions are free, and those of both heads alike


def test_projected_features_are_whitened_and_weighted_by_powers_of_the_correlations():
    x, y, owner = paired_features()
    ridgeless = fit_heads(x, y, owner, dim=5, regularisation=Regularisation(0.0, 0.0, 2.0))
    projected = x[owner].astype(np.float64) @ ridgeless.image_kernel + ridgeless.image_bias
    np.testing.assert_allclose(projected.mean(0), 0, atol=1e-6)
    expected = np.diag(ridgeless.correlations**4)
    np.testing.assert_allclose(projected.T @ projected / len(projected), expected, atol=1e-6)


def test_fitted_heads_retrieve_held_out_images():
    x, y, owner = paired_features(images=240)
    seen, unseen = owner < 120, owner >= 120
    heads = fit_heads(x[:120], y[seen], owner[seen], 6, Regularisation(0.01, 0.01, 1.0))
    images, texts = heads.project(x[120:], y[unseen])
    right = ((texts @ images.T).argmax(1) == owner[unseen] - 120).mean()
    assert right > 0.5  # chance is 1 in 120


def test_cross_validation_chooses_a_ridge_if_features_outnumber_images():
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(60, 4))
    x, y = (np.hstack([factors + 0.1 * rng.normal(size=(60, 4)), rng.normal(size=(60, 50))]) for _ in range(2))
    chosen, score = choose_regularisation(x, y, np.arange(60), 4, ridges=(1e-9, 0.3), powers=(1.0,))
    assert max(chosen.image_ridge, chosen.text_ridge) == 0.3
    assert score > 20


def test_the_logit_scale_grows_if_matches_become_more_certain():
    rng = np.random.default_rng(0)
    images = normalize(rng.normal(size=(40, 16)))
    texts = [normalize(images + noise * rng.normal(size=images.shape)) for noise in (0.4, 0.15)]
    low, high = (fit_logit_scale(images, each, np.arange(40)) for each in texts)
    assert 1 < low < high <= 100


@pytest.mark.slow
def test_the_logit_scale_does_not_depend_on_blocks_and_takes_little_memory(monkeypatch):
    """All similarities of 1,000 images and 5,000 texts are 40 MB, and were held three times."""
    random = np.random.default_rng(0)
    images, noise = random.normal(size=(1000, 8)), random.normal(size=(5000, 8))
    text_image = np.repeat(np.arange(1000), 5)
    images, texts = (
        each / np.linalg.norm(each, axis=1, keepdims=True) for each in (images, images[text_image] + noise)
    )
    tracemalloc.start()
    scale = fit_logit_scale(images, texts, text_image)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6
    logits = np.multiply.outer(np.geomspace(1.0, 100.0, 41), (texts @ images.T)[:200])
    right = np.take_along_axis(logits, text_image[None, :200, None], axis=2)[..., 0]
    losses = (scipy.special.logsumexp(logits, axis=2) - right).mean(axis=1)
    monkeypatch.setattr(join, "SAMPLED_TEXTS", 5000)
    monkeypatch.setattr(join, "_ROWS_AT_ONCE", 7)
    assert fit_logit_scale(images, texts, text_image) == scale
    assert fit_logit_scale(images, texts[:200], text_image[:200]) == np.geomspace(1.0, 100.0, 41)[losses.argmin()]


def test_small_data_are_sampled_completely_and_large_data_reproducibly(monkeypatch):
    monkeypatch.setattr(join, "SAMPLED_TEXTS", 30)
    images, texts, text_image = np.arange(20)[:, None], np.arange(60)[:, None], np.repeat(np.arange(20), 3)
    few, of_few, index = join.sample_pairs(images[:10], texts[:30], text_image[:30], 10)
    assert (few == images[:10]).all() and (of_few == texts[:30]).all() and (index == text_image[:30]).all()
    first, second = (join.sample_pairs(images, texts, text_image, 15) for _ in range(2))
    assert all((one == two).all() for one, two in zip(first, second, strict=True))
    assert len(first[0]) == 15 and len(first[1]) == 30
    assert (first[0][first[2], 0] == text_image[first[1][:, 0]]).all(), "texts stay with their images"


def test_more_dimensions_than_features_are_refused():
    x, y, owner = paired_features()
    with pytest.raises(ValueError, match="dim 15 is larger than the narrower feature space, 14"):
        fit_heads(x, y, owner, 15, Regularisation(0.1, 0.1, 1.0))


@pytest.mark.parametrize(
    ("dim", "said"), [(0, "dimensions: found 0; wanted 1 to 6"), (6, "at least"), (1, "at least"), (7, "found 7")]
)
def test_more_dimensions_than_the_narrower_tower_are_refused(dim, said):
    towers = [tower_of(tiny_encoder()) for tower_of in (image_tower_of, text_tower_of)]
    images, texts = np.zeros((3, 8), np.float32), np.zeros((5, 6), np.float32)
    with pytest.raises(InputError, match=said):
        join_towers(*towers, images, texts, np.array([0, 0, 1, 2, 2]), dim, "joined")
