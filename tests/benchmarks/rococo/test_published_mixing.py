"""The published mixing script, reproduced: its generator, its pairs and boxes, its pixels and its JPEG bytes."""

import dataclasses
import io
import json

import numpy as np
import pytest
from PIL import Image

from rococo_jax.benchmarks.rococo.published_mixing import (
    SIDE,
    decode_jpeg,
    encode_jpeg,
    make_plan,
    mix_place,
    plan_batches,
    resize_to_square,
)
from rococo_jax.data.caption_forms import read_captions
from rococo_jax.data.pictures import open_image
from tests.support.refusals import refused

SELF_MIXED = {1: 81, 10: 72, 100: 90}


def names(count: int) -> list[str]:
    return [f"image{number}.jpg" for number in range(count)]


def pairs_of(plan) -> list[list[int]]:
    return np.stack([plan.first, plan.partner, plan.batch], axis=1).tolist()


@pytest.mark.real_data
@pytest.mark.parametrize("seed", [1, 10, 100])
def test_pairs_and_boxes_of_the_5000_images_match_the_published_ones(real_data, seed):
    published = json.loads((real_data / "rococo" / "mix" / f"seed{seed}.json").read_text())
    images = read_captions(real_data / "rococo" / "annotations" / "coco_karpathy_test.json").items
    plan = make_plan([item.image for item in images], "patch", 0.9, seed)
    assert pairs_of(plan) == published["pairs"]
    assert plan.boxes.tolist() == published["boxes"]
    assert plan.self_mixed == SELF_MIXED[seed]


@pytest.mark.parametrize("count", [1, 2, 64, 65, 281])
@pytest.mark.parametrize("seed", [0, 7, 4_294_967_295])
def test_random_numbers_match_a_torch_data_loader_for_any_size_and_seed(count, seed):
    """A real loader that shuffles, a real permutation for each batch, NumPy's global generator for the centres."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed)
    np.random.seed(seed)
    pairs, boxes, half = [], [], SIDE // 4  # sqrt(1 - 0.75) is a half: boxes have the side 192
    for number, batch in enumerate(torch.utils.data.DataLoader(range(count), batch_size=64, shuffle=True)):
        permutation = torch.randperm(len(batch))
        centre = np.array([np.random.randint(384), np.random.randint(384)])
        boxes.append(np.clip([*(centre - half), *(centre + half)], 0, SIDE).tolist())
        pairs += [[*pair, number] for pair in torch.stack([batch, batch[permutation]], 1).tolist()]
    plan = make_plan(names(count), "patch", 0.75, seed)
    assert pairs_of(plan) == pairs and plan.boxes.tolist() == boxes


def test_the_true_ratio_is_the_area_outside_the_clipped_box():
    plan = make_plan(names(130), "patch", 0.9, 1)
    assert (plan.true_ratio >= 0.9).all()
    assert plan.true_ratio.max() > 0.92  # the first box is cut by the border
    mask = np.zeros((SIDE, SIDE))
    x1, y1, x2, y2 = plan.boxes[0]
    mask[x1:x2, y1:y2] = 1
    assert plan.true_ratio[0] == pytest.approx(1 - mask.mean())
    assert set(make_plan(names(10), "mix", 0.7).true_ratio) == {0.7}


@pytest.mark.parametrize("count", [2, 3, 63, 64, 65, 281])
def test_the_strict_protocol_mixes_no_image_with_itself_and_keeps_all_other_published_pairs(count):
    for seed in (1, 10, 100):
        paper, strict = (make_plan(names(count), "mix", 0.9, seed, protocol) for protocol in ("paper", "strict"))
        assert strict.self_mixed == 0
        np.testing.assert_array_equal(strict.first, paper.first)
        np.testing.assert_array_equal(np.sort(strict.partner), np.arange(count))
        changed = int((strict.partner != paper.partner).sum())
        alone = np.bincount(paper.batch[paper.first == paper.partner], minlength=1)
        assert changed <= np.where(alone == 1, 2, alone).sum()
        for places in plan_batches(strict):
            assert set(strict.partner[places]) == set(strict.first[places])


@pytest.mark.real_data
@pytest.mark.parametrize("method", ["mix", pytest.param("patch", marks=pytest.mark.slow)])
def test_mixed_real_images_and_their_jpegs_match_torch_and_pillow(real_data, method):
    torch, paths = (
        pytest.importorskip("torch"),
        sorted((real_data / "coco" / "originals" / "val2014").glob("*.jpg"))[:24],
    )
    images, plan = [open_image(path) for path in paths], make_plan(names(24), method, 0.9, 10)
    resized = [np.array(image.convert("RGB").resize((384, 384), Image.BICUBIC)) for image in images]
    pixels = torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).float() / 255
    own, other = pixels[plan.first], pixels[plan.partner]
    (x1, y1, x2, y2), mixed = plan.boxes[0], 0.9 * own + (1 - 0.9) * other
    if method == "patch":
        mixed = own.clone()
        mixed[..., x1:x2, y1:y2] = other[..., x1:x2, y1:y2]
    # Rounded as torch's image writer rounds.
    expected = mixed.mul(255).add_(0.5).clamp_(0, 255).permute(0, 2, 3, 1).to(torch.uint8).numpy()

    squashed = [resize_to_square(image) for image in images].__getitem__
    # The promise is 1 of 255; every operation is rounded as torch rounds it, so the bytes are equal.
    strict = dataclasses.replace(plan, protocol="strict")
    np.testing.assert_array_equal([mix_place(strict, place, squashed) for place in range(24)], expected)
    for place, image in enumerate(expected):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG")
        np.testing.assert_array_equal(mix_place(plan, place, squashed), np.asarray(Image.open(file)))


def test_the_control_resizes_and_compresses_images_without_mixing_them():
    images = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE, 3), dtype=np.uint8)
    for method in ("mix", "patch"):
        plan = make_plan(names(2), method, 0.9, 1, "control")
        assert plan.variant == "control" and plan.ratio == 1.0
        for place in range(2):
            expected = decode_jpeg(encode_jpeg(images[plan.first[place]]))
            np.testing.assert_array_equal(mix_place(plan, place, images.__getitem__), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "blend"}, "mix or patch"),
        ({"ratio": 1.01}, "from 0 to 1"),
        ({"ratio": -0.5}, "from 0 to 1"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"protocol": "loose"}, "paper, strict, control"),
        ({"images": names(1), "protocol": "strict"}, "at least two"),
        ({"images": []}, "at least two"),
    ],
)
def test_images_and_settings_that_cannot_be_mixed_are_refused(arguments, message):
    refused(message, make_plan, **{"images": names(4), **arguments})
