"""Mixed galleries: one image made alone is that of the gallery, and what it was mixed with is named."""

import json
from pathlib import Path

import numpy as np
import pytest

from rococo_jax.benchmarks.rococo.mixed_galleries import SQUARES, MixedImages, mix_one, partner_of, place_of
from rococo_jax.benchmarks.rococo.published_mixing import make_plan
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.data.images import FileImages
from rococo_jax.evaluation.inputs import open_benchmarks
from tests.support.world import seventy_pictures


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return seventy_pictures(tmp_path_factory.mktemp("pictures"))


def gallery_of(files, plan) -> MixedImages:
    return MixedImages(FileImages(tuple(files), tuple(files.values())), plan)


@pytest.mark.parametrize(("method", "protocol"), [("mix", "paper"), ("patch", "paper"), ("patch", "strict")])
def test_a_single_mixed_image_equals_that_of_the_gallery_and_its_note_names_the_partner(files, method, protocol):
    plan = make_plan(list(files), method, 0.8, 10, protocol)
    gallery = gallery_of(files, plan)
    alone = np.flatnonzero(plan.first == plan.partner).tolist()[:1]
    for place in [0, 69, *alone]:
        row = int(plan.first[place])
        name, partner = plan.images[row], partner_of(plan, place)
        assert place_of(plan, name) == place and gallery.note(row).startswith(f"{partner} mixed in")
        pair = {each: files[each] for each in (name, partner)}
        np.testing.assert_array_equal(mix_one(plan, place, pair), gallery.thumbnail(row))


def test_mixed_images_are_returned_in_the_requested_order(files):
    mixed = gallery_of(files, make_plan(list(files), "mix", 0.9, 1, "strict"))
    rows = [66, 3, 41, 3, 0]
    for row, image in zip(rows, mixed.read(rows), strict=True):
        np.testing.assert_array_equal(np.asarray(image), np.asarray(mixed.thumbnail(row)))
    # Each is decoded once: what was squashed is kept for the other galleries.
    assert mixed.originals.pixel_cache.get(66, SQUARES["white"]) is not None


@pytest.mark.parametrize("count", [1, 2])
def test_two_images_can_be_mixed_and_one_cannot(files, tmp_path, count):
    items = [{"image": name, "caption": [f"a dog {number}" for number in range(5)]} for name in list(files)[:count]]
    (tmp_path / "coco_karpathy_test.json").write_text(json.dumps(items))
    folder = next(iter(files.values())).parents[len(Path(items[0]["image"]).parts) - 1]
    (opened,) = open_benchmarks(Settings(mixed_galleries=("mix_0.9",), seeds=(1,)), images=folder, annotations=tmp_path)
    assert ("one image alone cannot be mixed" in opened.notes) == (count == 1)
    assert ("mix_0.9" in {task.variant for task in opened.tasks}) == (count == 2)


def test_seeds_and_mixed_galleries_belong_to_the_request_only_if_images_are_ranked(files, tmp_path):
    items = [{"image": name, "caption": [f"caption {place}"]} for place, name in enumerate(files)]
    (tmp_path / "coco_karpathy_test.json").write_text(json.dumps(items))
    folder = Path(str(next(iter(files.values())))[: -len(next(iter(files)))])

    def requested(**settings):
        opened = open_benchmarks(Settings(**settings), images=folder, annotations=tmp_path)
        return opened[0].requested

    asked = requested(mixed_galleries=("mix_0.9",), seeds=(10, 1))
    assert (asked["mixed_galleries"], asked["seeds"]) == (["mix_0.9"], [1, 10])
    assert requested(tasks=("image_to_text",)) == {"tasks": ["image_to_text"], "variants": {}}
    assert "seeds" not in requested(mixed_galleries=())
