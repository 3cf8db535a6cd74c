"""Models know their training images: items on them are marked and told apart, or refused on request."""

import hashlib
import json
import shutil

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest

from rococo_jax.checkpoints import save_model
from rococo_jax.cli.main import main
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.pair_source import CaptionedImages
from rococo_jax.data.table_images import TableImage
from rococo_jax.data.tables import ArrowTable
from rococo_jax.data.training_images import (
    FILE,
    TrainingImages,
    read_training_images,
    source_images,
    training_images,
    write_training_images,
)
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_file
from tests.support.tiny import random_captions, tiny_encoder
from tests.support.tiny_runs import FEATURES_ALONE, write_config_file
from tests.support.world import noise, write_pictures, write_world

IMAGES, ITEMS = 8, 16


@pytest.fixture(scope="module")
def names():
    """Return names of images in the form of COCO."""
    return [f"{number:012}.jpg" for number in range(IMAGES)]


@pytest.fixture(scope="module")
def data(tmp_path_factory, names):
    """Drawn images, and items of SugarCrepe on them."""
    folder = tmp_path_factory.mktemp("data")
    write_pictures(folder / "coco" / "images", names, noise(40, 40))
    captions = zip(*(random_captions(ITEMS, seed, longest=6) for seed in (1, 2)), strict=True)
    items = {
        str(item): {"filename": names[item % IMAGES], "caption": right, "negative_caption": wrong}
        for item, (right, wrong) in enumerate(captions)
    }
    (folder / "sugar_crepe").mkdir()
    (folder / "sugar_crepe" / "swap_att.json").write_text(json.dumps(items))
    return folder


def make_model(folder, images):
    save_model(folder, tiny_encoder())
    write_training_images(folder, images)
    return folder


def images_of(data, names):
    return training_images(names, [data / "coco" / "images" / name for name in names])


def evaluate(model, data, out, *more):
    words = ["evaluate", str(model), "--data", str(data), "--benchmarks", "sugarcrepe", "--out", str(out)]
    return main([*words, "--no-cache", "--no-report", *more])


def test_items_on_training_images_are_marked_and_counted_separately(data, names, tmp_path, capsys):
    model = make_model(tmp_path / "model", images_of(data, names[:3]))
    assert evaluate(model, data, tmp_path / "out") == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    rows = pq.read_table(tmp_path / "out" / "per_query.parquet").to_pylist()
    assert {row["image"] for row in rows if row["seen"]} == set(names[:3]) and len(rows) == ITEMS
    unseen = [row["chosen"] == "right" for row in rows if not row["seen"]]
    found = results["tasks"]["sugarcrepe"]
    assert found["swap_att/unseen"]["ota"] == pytest.approx(100 * np.mean(unseen))
    assert results["sizes"]["sugarcrepe"]["swap_att/unseen"] == {"items": len(unseen), "images": IMAGES - 3}
    assert results["training_images"] == {"sugarcrepe": {"items": ITEMS, "seen": 6}}
    assert "6 of 16 items lie on images that the model was trained on" in capsys.readouterr().out.replace("\n", " ")
    assert evaluate(model, data, tmp_path / "other", "--require-clean") == 2
    assert "3 of the 8 images of sugarcrepe" in capsys.readouterr().err and not (tmp_path / "other").exists()


def test_a_variant_over_unseen_items_includes_parts_without_seen_items(data, names, tmp_path):
    (tmp_path / "coco").symlink_to(data / "coco")
    (tmp_path / "sugar_crepe").mkdir()
    items = json.loads((data / "sugar_crepe" / "swap_att.json").read_text())
    on_seen = {id for id, item in items.items() if item["filename"] in names[:3]}
    for part, ids in (("swap_att", set(items)), ("add_att", set(items) - on_seen), ("add_obj", on_seen)):
        kept = {id: item for id, item in items.items() if id in ids}
        (tmp_path / "sugar_crepe" / f"{part}.json").write_text(json.dumps(kept))
    model = make_model(tmp_path / "model", images_of(data, names[:3]))
    assert evaluate(model, tmp_path, tmp_path / "out") == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    found, sizes = results["tasks"]["sugarcrepe"], results["sizes"]["sugarcrepe"]
    # No item of `add_obj` is left.
    assert {name for name in found if name.endswith("/unseen")} == {
        *("all/unseen", "mean/unseen", "swap_att/unseen", "add_att/unseen")
    }
    assert found["add_att/unseen"] == found["add_att"]
    means = [found[f"{part}/unseen"]["ota"] for part in ("swap_att", "add_att")]
    assert found["mean/unseen"]["ota"] == pytest.approx(np.mean(means))
    assert (sizes["all"]["parts"], sizes["all/unseen"]["parts"], sizes["all/unseen"]["of_parts"]) == (3, 2, 7)
    assert sizes["all/unseen"]["items"] == 2 * (ITEMS - len(on_seen))


def test_models_without_overlap_pass_and_models_with_unknown_training_images_do_not(data, tmp_path, capsys):
    other = make_model(tmp_path / "other", TrainingImages(frozenset({"0" * 16})))
    assert evaluate(other, data, tmp_path / "out", "--require-clean") == 0
    assert "swap_att/unseen" not in json.loads((tmp_path / "out" / "results.json").read_text())["tasks"]["sugarcrepe"]
    unknown = make_model(tmp_path / "unknown", None)
    assert evaluate(unknown, data, tmp_path / "never", "--require-clean") == 2
    assert "found not known" in capsys.readouterr().err


def test_an_incomplete_list_is_noted_and_refused_only_on_its_images(data, names, tmp_path, capsys):
    """Report that a model that was started from one of elsewhere may have more training images than its list."""
    known = images_of(data, names[:3])
    model = make_model(tmp_path / "model", TrainingImages(known.keys, complete=False))
    assert evaluate(model, data, tmp_path / "out") == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["training_images"] == {"sugarcrepe": {"items": ITEMS, "seen": 6}}
    assert any("also trained on images that are not known" in note for note in results["notes"])
    elsewhere = make_model(tmp_path / "elsewhere", TrainingImages(frozenset({"0" * 16}), complete=False))
    assert evaluate(elsewhere, data, tmp_path / "other", "--require-clean") == 0
    results = json.loads((tmp_path / "other" / "results.json").read_text())
    assert any("also trained on images that are not known" in note for note in results["notes"])
    assert evaluate(model, data, tmp_path / "never", "--require-clean") == 2
    assert "found 3 of the" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    ["{}/model", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("{}@latest", "{}/checkpoints/1"))],
)
def test_a_run_is_refused_only_on_its_training_images(source, data, names, tmp_path, capsys):
    """Trained on other images it passes; where one of them is the benchmark's, it is refused by every name."""
    for run in ("clean", "seen"):
        world = write_world(tmp_path / f"{run}_data", [random_captions(2, seed=number) for number in range(8)])
        make_model(world / "start", TrainingImages(frozenset()))
        if run == "seen":
            shutil.copy(data / "coco" / "images" / names[0], world / "images" / "00.png")
        write_config_file(world, steps=1, batch_size=8, checkpoint__every=1, **FEATURES_ALONE)
        assert main(["train", "--config", str(world / "config.py"), "--workdir", str(tmp_path / run)]) == 0
    assert evaluate(source.format(tmp_path / "clean"), data, tmp_path / "out", "--require-clean") == 0
    assert evaluate(source.format(tmp_path / "seen"), data, tmp_path / "never", "--require-clean") == 2
    assert "1 of the 8 images of sugarcrepe" in capsys.readouterr().err


@pytest.mark.slow
def test_a_trained_model_keeps_the_training_images_of_its_starting_model(data, names, tmp_path):
    """Residual heads make a new encoder, which must not forget them."""
    before = TrainingImages(frozenset({"0" * 16}))
    make_model(tmp_path / "start", before)
    items = [{"image": name, "caption": random_captions(2, seed=place)} for place, name in enumerate(names)]
    (tmp_path / "captions.json").write_text(json.dumps(items))
    settings = {"steps": 1, "batch_size": 8, "data__images": str(data / "coco" / "images")}
    write_config_file(tmp_path, **settings, init__residual_head_width=4, **FEATURES_ALONE)
    assert main(["train", "--config", str(tmp_path / "config.py"), "--workdir", str(tmp_path / "run")]) == 0
    assert read_training_images(tmp_path / "run" / "model") == images_of(data, names) | before


def test_images_inside_a_table_are_known_after_training(tmp_path):
    table = pyarrow.table({"image": [b"bytes of a file"]})
    with pyarrow.ipc.new_file(tmp_path / "t.arrow", table.schema) as file:
        file.write_table(table)
    image = TableImage(ArrowTable(tmp_path / "t.arrow"), 0, "image")
    source = CaptionedImages([CaptionedImage("a.jpg", ("a dog",))], [image])
    digest = hashlib.sha256(b"bytes of a file").hexdigest()
    assert source_images(source).images.contains(["b.jpg"], [digest]).tolist() == [True]


def test_a_training_image_is_recognised_by_its_bytes_or_its_coco_number(data, names, tmp_path):
    known = images_of(data, names[:1])
    others = [f"val2014/COCO_val2014_{names[0]}", names[1], "x.jpg"]
    assert known.contains(others, ["0" * 64] * 3).tolist() == [True, False, False]
    assert known.contains(["renamed.jpg"], [hash_file(data / "coco" / "images" / names[0])]).tolist() == [True]
    write_training_images(tmp_path, known)
    assert read_training_images(tmp_path) == known and read_training_images(tmp_path / "none") is None
    (tmp_path / FILE).write_text("something else\n")
    with pytest.raises(InputError, match="training images"):
        read_training_images(tmp_path)
