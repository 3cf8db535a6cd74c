"""Random crops, flips and resized views are of the shares and sizes that were asked for."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from rococo_jax.data.augmentation import Augmentation, random_box
from tests.support.refusals import refused
from tests.support.training_pairs import PREPROCESSING


def test_crops_keep_their_share_and_shape():
    rng = np.random.default_rng(0)
    boxes = np.array([random_box((200, 150), (0.3, 0.6), (3 / 4, 4 / 3), rng) for _ in range(500)])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert (boxes[:, :2] >= 0).all() and (boxes[:, 2] <= 200).all() and (boxes[:, 3] <= 150).all()
    # Sides are rounded to whole pixels, of 65 and more: a percent.
    share, ratio = width * height / (200 * 150), width / height
    assert (share > 0.3 * 0.98).all() and (share < 0.6 * 1.02).all() and share.std() > 0.05
    assert (ratio > 0.75 * 0.98).all() and (ratio < 4 / 3 * 1.02).all() and ratio.std() > 0.1


def test_a_ribbon_is_cropped_in_its_middle():
    rng = np.random.default_rng(0)
    assert random_box((1000, 10), (0.9, 1.0), (3 / 4, 4 / 3), rng) == (493, 0, 506, 10)


def test_half_of_the_images_are_mirrored():
    rng = np.random.default_rng(0)
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:, :8] = 255
    image, flip = Image.fromarray(pixels), Augmentation(flip=True)
    mirrored = sum(flip.apply(image, PREPROCESSING, rng)[0, 0, 0] == 0 for _ in range(400))
    assert 150 < mirrored < 250  # 5 standard deviations of a fair coin


def test_resized_views_show_the_whole_image_and_change_no_other_draw():
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
def test_impossible_crops_are_refused(bad):
    refused("augmentation: crop_scale", Augmentation, **bad)
