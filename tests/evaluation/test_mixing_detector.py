"""The detector of altered images: Fisher's discriminant, fitted on images of no benchmark."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.tables import Embeddings
from rococo_jax.data.images import FileImages
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.errors import InputError
from rococo_jax.evaluation.companions import mixing_detector
from rococo_jax.evaluation.companions.mixing_detector import detector_baselines, fit_detector, training_images
from tests.support.made_runs import CAPTIONS, IMAGES, made_benchmark, unit
from tests.support.tiny import tiny_encoder


def test_the_direction_is_that_of_scikit_learn_without_a_ridge():
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(6, 6))
    unaltered, altered = rng.normal(size=(200, 6)) @ mixing, rng.normal(size=(200, 6)) @ mixing + 0.3
    found = fit_detector(unaltered.astype(np.float32), altered.astype(np.float32), ridge=0.0)
    oracle = LinearDiscriminantAnalysis(solver="lsqr")
    oracle.fit(np.concatenate([unaltered, altered]), np.repeat([1, 0], 200))
    wanted = oracle.coef_[0]
    # Inputs are rounded to float32.
    assert found @ wanted / np.linalg.norm(found) / np.linalg.norm(wanted) == pytest.approx(1, abs=1e-6)


def test_a_detector_tells_what_differs_on_average_and_nothing_else():
    rng = np.random.default_rng(1)
    weights = fit_detector(rng.normal(size=(300, 8)), rng.normal(size=(300, 8)) + np.eye(8)[0])
    test, shifted = rng.normal(size=(500, 8)), rng.normal(size=(500, 8)) + np.eye(8)[0]
    assert np.mean(test @ weights > shifted @ weights) > 0.7
    none = fit_detector(test, test)
    np.testing.assert_array_equal(none, 0)


def test_images_of_the_benchmark_are_no_training_images(tmp_path):
    for name in ("a.png", "b.png", "c.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    benchmark = Benchmark("rococo", ("b.png",), (), {}, ())
    found = training_images(str(tmp_path), ("a.png", "b.png", "missing.png", "c.png"), [benchmark])
    assert found.names == ("a.png", "c.png")
    with pytest.raises(InputError, match="at least two, in no benchmark"):
        training_images(str(tmp_path), ("a.png", "b.png"), [benchmark])


class Altered(FileImages):
    """Images altered as those of all seeds are."""

    def applied_to(self, images):
        return SimpleNamespace(name="mix 0.9")


def test_an_alteration_is_learned_once_for_all_seeds_and_told_by_its_shift(monkeypatch):
    rng, shift, embedded = np.random.default_rng(2), 3 * np.eye(8)[0], []
    altered_sets = {f"mix_0.9_seed{seed}": Altered(("a",), (Path("a"),)) for seed in (1, 10)}
    benchmark = dataclasses.replace(made_benchmark(), image_sets=altered_sets)
    tables = {name: unit(rng.normal(size=(IMAGES, 8)) + shift) for name in altered_sets}
    tables |= {"originals": unit(rng.normal(size=(IMAGES, 8))), "texts": unit(rng.normal(size=(3 * CAPTIONS, 8)))}

    def embed(encoder, images, cache):
        embedded.append(images.name)
        return unit(rng.normal(size=(300, 8)) + shift * (images.name != "originals"))

    monkeypatch.setattr(mixing_detector, "embed_benchmark", lambda *_: Embeddings(tables))
    monkeypatch.setattr(mixing_detector, "embed_images", embed)
    found = detector_baselines(tiny_encoder(), benchmark, FileImages(("a",), (Path("a"),)), EmbeddingCache(None))
    assert embedded == ["originals", "mix 0.9"] and found.keys() == {"text_to_image"}
    assert found["text_to_image"]["mix_0.9"]["detector"]["preference"] > 90
