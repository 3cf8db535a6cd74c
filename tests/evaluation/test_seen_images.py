"""Models know their training images: items on them are marked and told apart, refused on request, or cross-fitted."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rococo_jax.checkpoints import save_model
from rococo_jax.cli.main import main
from rococo_jax.data.training_images import (
    CROSS_FIT,
    FILE,
    TrainingImages,
    fold_of,
    read_training_images,
    training_images,
    write_training_images,
)
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_file
from tests.support.tiny import random_captions, tiny_encoder

IMAGES, ITEMS = 8, 16


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "coco" / "images").mkdir(parents=True)
    (folder / "sugar_crepe").mkdir()
    rng = np.random.default_rng(0)
    names = [f"{number:012}.jpg" for number in range(IMAGES)]
    for name in names:
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(folder / "coco" / "images" / name)
    right, wrong = random_captions(ITEMS, seed=1), random_captions(ITEMS, seed=2)
    items = {
        str(item): {"filename": names[item % IMAGES], "caption": right[item], "negative_caption": wrong[item]}
        for item in range(ITEMS)
    }
    (folder / "sugar_crepe" / "swap_att.json").write_text(json.dumps(items))
    return folder


@pytest.fixture(scope="module")
def names(data):
    return sorted(path.name for path in (data / "coco" / "images").iterdir())


def make_model(folder, seed, images):
    save_model(folder, tiny_encoder(seed))
    write_training_images(folder, images)
    return folder


def images_of(data, names):
    return training_images(names, [data / "coco" / "images" / name for name in names])


def evaluate(model, data, out, *more):
    words = ["evaluate", str(model), "--data", str(data), "--benchmarks", "sugarcrepe", "--out", str(out)]
    return main([*words, "--no-cache", "--no-report", *more])


def test_seen_items_are_marked_and_told_apart(data, names, tmp_path, capsys):
    model = make_model(tmp_path / "model", 0, images_of(data, names[:3]))
    assert evaluate(model, data, tmp_path / "out") == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    rows = pq.read_table(tmp_path / "out" / "per_query.parquet").to_pylist()
    assert {row["image"] for row in rows if row["seen"]} == set(names[:3]) and len(rows) == ITEMS
    unseen = [row["chosen"] == "right" for row in rows if not row["seen"]]
    found = results["tasks"]["sugarcrepe"]
    assert found["swap_att/unseen"]["ota"] == found["mean/unseen"]["ota"] == pytest.approx(100 * np.mean(unseen))
    assert results["sizes"]["sugarcrepe"]["swap_att/unseen"] == {"items": len(unseen), "images": IMAGES - 3}
    assert results["training_images"] == {"sugarcrepe": {"items": ITEMS, "seen": 6}}
    assert "6 of 16 items lie on images that the model was trained on" in capsys.readouterr().out.replace("\n", " ")
    assert evaluate(model, data, tmp_path / "other", "--require-clean") == 2
    assert "3 of the 8 images of sugarcrepe" in capsys.readouterr().err and not (tmp_path / "other").exists()


def test_a_clean_model_passes_and_an_unknown_one_does_not(data, tmp_path, capsys):
    other = make_model(tmp_path / "other", 0, TrainingImages(frozenset({"0" * 16})))
    assert evaluate(other, data, tmp_path / "out", "--require-clean") == 0
    assert "swap_att/unseen" not in json.loads((tmp_path / "out" / "results.json").read_text())["tasks"]["sugarcrepe"]
    unknown = make_model(tmp_path / "unknown", 0, None)
    assert evaluate(unknown, data, tmp_path / "never", "--require-clean") == 2
    assert "found not known" in capsys.readouterr().err


def test_a_cross_fitted_model_scores_each_item_by_the_fold_that_has_not_seen_it(data, names, tmp_path, capsys):
    folds = fold_of(names, [hash_file(data / "coco" / "images" / name) for name in names])
    assert 0 < folds.sum() < IMAGES
    whole = tmp_path / "whole"
    for fold in (0, 1):
        fitted = [name for name, own in zip(names, folds, strict=True) if own != fold]
        make_model(whole / f"fold_{fold}", fold, images_of(data, fitted))
    (whole / CROSS_FIT).write_text(json.dumps({"folds": ["fold_0", "fold_1"]}))
    scores = []
    for model in (whole / "fold_0", whole / "fold_1", whole):
        out = tmp_path / f"out_{model.name}"
        assert evaluate(model, data, out) == 0
        scores.append({row["item"]: row for row in pq.read_table(out / "per_query.parquet").to_pylist()})
    of_image = dict(zip(names, folds.tolist(), strict=True))
    for item, row in scores[2].items():
        assert row["right_score"] == scores[of_image[row["image"]]][item]["right_score"]
        assert not scores[of_image[row["image"]]][item]["seen"] and not row["seen"]
    assert evaluate(whole, data, tmp_path / "clean", "--require-clean") == 0
    shutil.copy(whole / "fold_0" / FILE, whole / "fold_1" / FILE)
    assert evaluate(whole, data, tmp_path / "never") == 2
    assert "of fold 1 among those that it was fitted on" in capsys.readouterr().err


def test_an_image_is_known_by_its_bytes_or_its_number_in_coco(data, names, tmp_path):
    known = images_of(data, names[:1])
    others = [f"val2014/COCO_val2014_{names[0]}", names[1], "x.jpg"]
    assert known.seen(others, ["0" * 64] * 3).tolist() == [True, False, False]
    assert known.seen(["renamed.jpg"], [hash_file(data / "coco" / "images" / names[0])]).tolist() == [True]
    write_training_images(tmp_path, known)
    assert read_training_images(tmp_path) == known and read_training_images(tmp_path / "none") is None
    (tmp_path / FILE).write_text("something else\n")
    with pytest.raises(InputError, match="training images"):
        read_training_images(tmp_path)
