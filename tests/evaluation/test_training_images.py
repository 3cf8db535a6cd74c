"""Models know their training images: items on them are marked and told apart, refused on request, or cross-fitted."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rococo_jax.checkpoints import save_model
from rococo_jax.cli.main import main
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.pair_source import FolderPairs, PairSource
from rococo_jax.data.table_images import TableImage
from rococo_jax.data.training_images import (
    CROSS_FIT,
    FILE,
    TrainingImages,
    fold_of,
    read_training_images,
    training_images,
    write_folds,
    write_training_images,
)
from rococo_jax.encoders import load_model
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_file
from rococo_jax.training.cross_fit import without_fold
from rococo_jax.training.run import _training_images
from tests.support.tiny import random_captions, tiny_encoder

IMAGES, ITEMS = 8, 16


def make_data(folder, images, items):
    """Drawn images under COCO's names, and items of SugarCrepe on them."""
    (folder / "coco" / "images").mkdir(parents=True)
    (folder / "sugar_crepe").mkdir()
    rng = np.random.default_rng(0)
    names = [f"{number:012}.jpg" for number in range(images)]
    for name in names:
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(folder / "coco" / "images" / name)
    right, wrong = (random_captions(items, seed, longest=6) for seed in (1, 2))
    made = {
        str(item): {"filename": names[item % images], "caption": right[item], "negative_caption": wrong[item]}
        for item in range(items)
    }
    (folder / "sugar_crepe" / "swap_att.json").write_text(json.dumps(made))
    return folder


def names_of(data):
    return sorted(path.name for path in (data / "coco" / "images").iterdir())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"), IMAGES, ITEMS)


@pytest.fixture(scope="module")
def names(data):
    return names_of(data)


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


@pytest.fixture(scope="module")
def crossed(tmp_path_factory):
    """A cross-fitted start, and a run from it: heads on features, one step."""
    folder = tmp_path_factory.mktemp("crossed")
    data = make_data(folder / "data", 24, 24)  # of which either half fills a batch
    names = names_of(data)
    folds = fold_of(names, [hash_file(data / "coco" / "images" / name) for name in names])
    for fold in (0, 1):
        fitted = [name for name, own in zip(names, folds, strict=True) if own != fold]
        make_model(folder / "start" / f"fold_{fold}", fold, images_of(data, fitted))
    write_folds(folder / "start", ("fold_0", "fold_1"))
    items = [{"image": name, "caption": random_captions(2, seed=place, longest=6)} for place, name in enumerate(names)]
    (folder / "captions.json").write_text(json.dumps(items))
    (folder / "config.py").write_text(
        "from rococo_jax.training.config import default_config\n\n\ndef get_config():\n"
        "    config = default_config()\n    config.steps, config.batch_size, config.log.tensorboard = 1, 8, False\n"
        "    config.train.vision = config.train.text = 'none'\n    config.data.cached_features = True\n"
        "    config.init.residual_head_width = 4\n    return config\n"
    )

    def train(out, start, *more):
        words = ["train", "--config", str(folder / "config.py"), "--workdir", str(folder / out), *more]
        overrides = {"init.model": start, "data.images": data / "coco" / "images"}
        overrides["data.captions"] = folder / "captions.json"
        return main([*words, *(f"--config.{key}={value}" for key, value in overrides.items())])

    assert train("run", folder / "start", "--cross-fit") == 0
    return folder, train, np.array(folds)


def test_cross_fitted_training_leaves_out_a_fold_each_and_is_evaluated_by_the_other(crossed, tmp_path):
    folder, train, folds = crossed
    data = folder / "data"
    names = names_of(data)
    known = [read_training_images(folder / "run" / f"fold_{fold}" / "model") for fold in (0, 1)]
    hashes = [hash_file(data / "coco" / "images" / name) for name in names]
    # Halves: no image trains both, and every image trains one.
    assert [each.seen(names, hashes).tolist() for each in known] == [(folds != fold).tolist() for fold in (0, 1)]
    for fold in (0, 1):
        config = json.loads((folder / "run" / f"fold_{fold}" / "config.json").read_text())
        assert config["init.model"] == str(folder / "start" / f"fold_{fold}") and config["data.left_out_fold"] == fold
    assert evaluate(folder / "run", data, tmp_path / "out", "--require-clean") == 0
    rows = pq.read_table(tmp_path / "out" / "per_query.parquet").to_pylist()
    halves = [load_model(folder / "run" / f"fold_{fold}" / "model") for fold in (0, 1)]
    images = [Image.open(data / "coco" / "images" / name) for name in names]
    of_images = [half.encode_image(images) for half in halves]
    right = random_captions(len(rows), seed=1, longest=6)
    of_texts = [half.encode_text(right) for half in halves]
    assert len(rows) == len(names)
    for row in rows:
        item, image = int(row["item"]), names.index(row["image"])
        own, other = (float(of_images[f][image] @ of_texts[f][item]) for f in (folds[image], 1 - folds[image]))
        assert abs(row["right_score"] - own) < 1e-5 < abs(own - other) and not row["seen"]
    # The same command finds both runs done.
    before = (folder / "run" / CROSS_FIT).read_text()
    assert train("run", folder / "start", "--cross-fit") == 0 and (folder / "run" / CROSS_FIT).read_text() == before


def test_cross_fitting_refuses_what_would_mix_the_halves(crossed, capsys):
    folder, train, _ = crossed
    known = images_of(folder / "data", names_of(folder / "data")[:5])
    make_model(folder / "seen", 0, known)
    for out, start, more, words in (
        ("never", folder / "seen", ["--cross-fit"], "images that are left out"),
        ("never", folder / "start", [], "a cross-fitted model"),
        ("never", folder / "start", ["--cross-fit", "--config.data.left_out_fold=1"], "leaves out each in turn"),
        ("never", folder / "start" / "fold_0", ["--config.data.left_out_fold=2"], "0 or 1"),
        ("run", folder / "start" / "fold_0", [], "cross-fitted runs"),
        ("run/fold_0", folder / "start", ["--cross-fit"], "not cross-fitted"),
    ):
        assert train(out, start, *more) == 2
        error = capsys.readouterr().err
        lines = [line for line in error.splitlines() if not line.startswith(("training in", "captions.json: "))]
        assert words in error and len(lines) == 1 and not (folder / "never").exists()
    # A residual head makes a new encoder, which must not forget what the model has seen.
    assert train("after", folder / "seen") == 0
    assert read_training_images(folder / "after" / "model").keys >= known.keys


def test_only_image_files_can_be_split():
    class Drawn(PairSource):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            raise IndexError

        def hash(self):
            return ""

    with pytest.raises(InputError, match="image folders"):
        without_fold(Drawn(), 0)
    with pytest.raises(InputError, match="both folds"):
        image = CaptionedImage("COCO_val2014_000000000001.jpg", ("a dog",))
        source = FolderPairs([image], [Path("nowhere.jpg")])
        without_fold(source, int(fold_of([image.image], ["0" * 64])[0]))


def test_images_inside_a_table_are_known_after_training():
    class Table:
        def schema(self):
            raise NotImplementedError

        read = schema

        def image(self, row, column):
            return b"bytes of a file"

    source = FolderPairs([CaptionedImage("a.jpg", ("a dog",))], [TableImage(Table(), 0, "image")])
    digest = hashlib.sha256(b"bytes of a file").hexdigest()
    assert _training_images(source, None).seen(["b.jpg"], [digest]).tolist() == [True]


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
