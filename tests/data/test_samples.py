"""Random parts of a sample: altered captions, hard positives and negatives, random crops and flips."""

import dataclasses
import json
from pathlib import Path

import grain.python as grain
import numpy as np
import pytest
from PIL import Image

from rococo_jax.data.augmentation import Augmentation, random_box
from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.errors import InputError
from rococo_jax.training.inputs.hard_positives import AddHardPositives, Partners, read_hard_positives
from tests.support.refusals import refused
from tests.support.tiny import tiny_tokenizer
from tests.support.training_pairs import PREPROCESSING, captions_of, take, texts_to_alter, tiny_input, write_pairs


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return open_pairs(*write_pairs(tmp_path_factory.mktemp("pairs"), 30))


def test_altered_captions_are_tokenised_together_with_their_originals(tmp_path):
    images, captions = write_pairs(tmp_path, 8)
    items = json.loads(Path(captions).read_text())
    for number, item in enumerate(items):
        item["caption"] = ["a dog runs near a tree"] if number % 2 else ["xyz"]
    Path(captions).write_text(json.dumps(items))
    (batch,) = take(tiny_input(open_pairs(images, captions), extra_text=[texts_to_alter()]), 1)
    assert batch["altered_ids"].shape == batch["altered_text_mask"].shape == (8, 2, 24)
    odd = batch["image_id"] % 2 == 1
    np.testing.assert_array_equal(batch["altered_valid"], np.repeat(odd[:, None], 2, axis=1))
    assert (batch["altered_ids"][odd] != batch["ids"][odd][:, None]).any(axis=2).all()
    assert (batch["altered_text_mask"][~odd].sum(axis=2) == 2).all()  # begin and end, and nothing between


def test_hard_positives_and_negatives_follow_their_caption(source):
    of_image = {image: Partners((f"tree {image}",), ("cat", "man")) for image in range(0, 30, 2)}
    partners = {caption: each for image, each in of_image.items() for caption in captions_of(image)}
    (batch,) = take(tiny_input(source, batch_size=30, extra_text=[AddHardPositives(partners, negatives=3)]), 1)
    even = batch["image_id"] % 2 == 0
    assert batch["positive_ids"].shape == (30, 24) and batch["negative_ids"].shape == (30, 3, 24)
    np.testing.assert_array_equal(batch["positive_valid"], even)
    np.testing.assert_array_equal(batch["negative_valid"], np.outer(even, [True, True, False]))
    expected = tiny_tokenizer().encode([f"tree {image}" for image in batch["image_id"][even]])
    found = zip(batch["positive_ids"][even], batch["positive_text_mask"][even], strict=True)
    assert [ids[mask].tolist() for ids, mask in found] == expected
    drawn = {tuple(row) for row in batch["negative_ids"][even][:, 0].tolist()}
    assert len(drawn) == 2  # either negative comes first somewhere


def test_a_sample_has_the_requested_number_of_hard_negatives():
    add = AddHardPositives({"a dog": Partners((), ("a cat", "a cow"))}, negatives=3)
    *drawn, padded = add.random_map({"caption": "a dog"}, np.random.default_rng(0))["hard_negatives"]
    assert sorted(drawn) == ["a cat", "a cow"] and padded is None


def test_grain_transforms_of_the_user_can_be_added_to_the_input(source):
    class Reverse(grain.MapTransform):
        def map(self, sample):
            return {**sample, "hard_positive": " ".join(reversed(sample["caption"].split()))}

    (batch,) = take(tiny_input(source, extra_text=[Reverse()]), 1)
    assert batch["positive_valid"].all() and (batch["positive_ids"] != batch["ids"]).any(axis=1).all()


ENTRIES = [
    {"caption": "a dog", "hard_positive": "one dog", "hard_negative": "a cat"},
    {"caption": "a dog", "hard_positive": "one dog", "hard_negative": "a man"},
    {"caption": "a car", "hard_positive": None},
]
ANNOTATION = {"image": "a.jpg", "originals": ["a dog", "a car"], "altered": ["a cat", None]}
OF_ENTRIES = {"a dog": Partners(("one dog",), ("a cat", "a man")), "a car": Partners((), ())}
FILES = {
    "lines": ("\n".join(map(json.dumps, ENTRIES)) + "\n", OF_ENTRIES),
    "a list": (ENTRIES, OF_ENTRIES),
    "an annotation": ({"items": [ANNOTATION]}, {"a dog": Partners((), ("a cat",)), "a car": Partners((), ())}),
    "an annotation with positives": (
        {"items": [{**ANNOTATION, "positives": ["one dog", None]}]},
        {"a dog": Partners(("one dog",), ("a cat",)), "a car": Partners((), ())},
    ),
}


@pytest.mark.parametrize("form", FILES)
def test_hard_positives_are_read_from_lines_lists_and_annotations(tmp_path, form):
    content, expected = FILES[form]
    path = tmp_path / ("a.jsonl" if form == "lines" else "a.json")
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    assert read_hard_positives(path) == expected


@pytest.mark.parametrize(
    ("line", "field"),
    [('{"caption": 3}', "caption of line 1"), ('["a"]', "line 1"), ('{"a": 1}', "line 1"), ("{", "line 1"),
     ("", "captions")],
)  # fmt: skip
def test_unusable_hard_positives_are_named(tmp_path, line, field):
    path = tmp_path / "a.jsonl"
    path.write_text(line)
    with pytest.raises(InputError) as error:
        read_hard_positives(path)
    assert error.value.field == field and error.value.source == str(path)


@pytest.mark.parametrize("positives", [5, None, [], ["a hound", "a dog"], "a"])
def test_annotations_of_unequal_columns_are_refused(tmp_path, positives):
    path = tmp_path / "altered.json"
    path.write_text(json.dumps({"items": [{"originals": ["a dog"], "positives": positives, "altered": ["a cat"]}]}))
    refused(r"item 0: found .* wanted originals, altered and .*positives of the same length", read_hard_positives, path)


# Random crops, flips and resized views


def test_crops_have_the_configured_area_and_aspect_ratio():
    rng = np.random.default_rng(0)
    boxes = np.array([random_box((200, 150), (0.3, 0.6), (3 / 4, 4 / 3), rng) for _ in range(500)])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert (boxes[:, :2] >= 0).all() and (boxes[:, 2] <= 200).all() and (boxes[:, 3] <= 150).all()
    # Sides are rounded to whole pixels, of 65 and more: a percent.
    share, ratio = width * height / (200 * 150), width / height
    assert (share > 0.3 * 0.98).all() and (share < 0.6 * 1.02).all() and share.std() > 0.05
    assert (ratio > 0.75 * 0.98).all() and (ratio < 4 / 3 * 1.02).all() and ratio.std() > 0.1


@pytest.mark.parametrize(("size", "box"), [((1000, 10), (485, 0, 515, 10)), ((10, 1000), (0, 490, 10, 510))])
def test_a_very_narrow_image_is_cropped_at_its_centre_to_the_nearest_ratio(size, box):
    assert random_box(size, (0.9, 1.0), (1 / 2, 3.0), np.random.default_rng(0)) == box


def test_half_of_the_images_are_mirrored_without_changing_their_crops():
    rng = np.random.default_rng(0)
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:, :8] = 255
    image, flip = Image.fromarray(pixels), Augmentation(flip=True)
    mirrored = sum(flip.apply(image, PREPROCESSING, rng)[0, 0, 0] == 0 for _ in range(400))
    assert 150 < mirrored < 250  # 5 standard deviations of a fair coin
    crop = Augmentation(crop_scale=(0.3, 1.0))
    for seed in range(8):  # of the same box
        one, other = np.random.default_rng(seed), np.random.default_rng(seed)
        pixels = crop.apply(image, PREPROCESSING, one)
        flipped = dataclasses.replace(crop, flip=True).apply(image, PREPROCESSING, other)
        assert any(np.array_equal(flipped, same) for same in (pixels, pixels[:, ::-1]))


def test_resized_views_show_the_complete_image_and_do_not_change_other_views():
    stripes = np.zeros((16, 48, 3), np.uint8)
    stripes[:, :8] = stripes[:, -8:] = 255  # only outside the centre crop
    image = Image.fromarray(stripes)
    crop = dataclasses.replace(PREPROCESSING, exact_size=None, shortest_edge=16, crop_size=(16, 16))
    for augmentation in (Augmentation(), Augmentation(crop_scale=(0.5, 1.0), flip=True)):
        both = dataclasses.replace(augmentation, also_resized=True)
        one, two = np.random.default_rng(0), np.random.default_rng(0)
        for _ in range(5):
            views = both.views(image, crop, one)
            np.testing.assert_array_equal(views["pixels"], augmentation.apply(image, crop, two))
            assert views["resized"][:, [0, -1]].min() > 200 and views["resized"].shape == views["pixels"].shape
    assert Augmentation().apply(image, crop, one).max() == 0
    shown = sum(Augmentation(resize_prob=0.25).apply(image, crop, one).max() > 0 for _ in range(400))
    assert 57 < shown < 143  # 5 standard deviations around a quarter


@pytest.mark.parametrize("bad", [{"crop_scale": (0.5, 0.1)}, {"crop_scale": (0.0, 1.0)}, {"crop_scale": (0.5, 1.5)}])
def test_invalid_crop_settings_are_refused(bad):
    refused("augmentation: crop_scale", Augmentation, **bad)
