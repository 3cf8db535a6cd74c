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
    squash,
)
from rococo_jax.data.captioned_images import read_captions
from rococo_jax.data.pictures import open_image
from rococo_jax.errors import InputError

SELF_MIXED = {1: 81, 10: 72, 100: 90}


def names(count: int) -> list[str]:
    return [f"image{number}.jpg" for number in range(count)]


def pairs_of(plan) -> list[list[int]]:
    return np.stack([plan.first, plan.partner, plan.batch], axis=1).tolist()


@pytest.mark.real_data
@pytest.mark.parametrize("seed", [1, 10, 100])
def test_pairs_and_boxes_of_the_5000_images_are_the_published_ones(real_data, seed):
    published = json.loads((real_data / "rococo" / "mix" / f"seed{seed}.json").read_text())
    images = read_captions(real_data / "rococo" / "annotations" / "coco_karpathy_test.json").items
    plan = make_plan([item.image for item in images], "patch", 0.9, seed)
    assert pairs_of(plan) == published["pairs"]
    assert plan.boxes.tolist() == published["boxes"]
    assert plan.self_mixed == SELF_MIXED[seed]


def pairs_and_centres_by_torch(count: int, seed: int) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """A real loader that shuffles, a real permutation for each batch, NumPy's global generator for the centres."""
    torch = pytest.importorskip("torch")

    class Places(torch.utils.data.Dataset):
        def __len__(self):
            return count

        def __getitem__(self, place):
            return place

    torch.manual_seed(seed)
    np.random.seed(seed)
    pairs, centres = [], []
    for number, batch in enumerate(torch.utils.data.DataLoader(Places(), batch_size=64, shuffle=True)):
        permutation = torch.randperm(len(batch))
        centres.append((np.random.randint(384), np.random.randint(384)))
        pairs += [[int(one), int(other), number] for one, other in zip(batch, batch[permutation], strict=True)]
    return pairs, centres


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 128, 281])
@pytest.mark.parametrize("seed", [0, 1, 7, 4_294_967_295])
def test_the_stream_is_that_of_a_live_loader_for_any_size_and_seed(count, seed):
    pairs, centres = pairs_and_centres_by_torch(count, seed)
    plan = make_plan(names(count), "patch", 0.75, seed)
    assert pairs_of(plan) == pairs
    half = SIDE // 4  # sqrt(1 - 0.75) is a half: boxes have the side 192
    expected = [
        [max(row - half, 0), max(column - half, 0), min(row + half, SIDE), min(column + half, SIDE)]
        for row, column in centres
    ]
    assert plan.boxes.tolist() == expected


def test_the_true_share_is_what_the_clipped_box_leaves():
    plan = make_plan(names(130), "patch", 0.9, 1)
    assert (plan.true_ratio >= 0.9).all()
    assert plan.true_ratio.max() > 0.92  # the first box is cut by the border
    mask = np.zeros((SIDE, SIDE))
    x1, y1, x2, y2 = plan.boxes[0]
    mask[x1:x2, y1:y2] = 1
    assert plan.true_ratio[0] == pytest.approx(1 - mask.mean())
    assert set(make_plan(names(10), "mix", 0.7).true_ratio) == {0.7}


@pytest.mark.parametrize("count", [2, 3, 63, 64, 65, 129, 281, 1000])
def test_strict_mixes_no_image_with_itself_and_keeps_every_other_published_pair(count):
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


def mixed_by_torch_and_pillow(images, pairs, method, ratio, boxes) -> list[np.ndarray]:
    """Independent of the project: Pillow squashes, torch mixes and rounds as its image writer does."""
    torch = pytest.importorskip("torch")
    pixels = [
        torch.from_numpy(np.array(image.convert("RGB").resize((384, 384), Image.BICUBIC))).permute(2, 0, 1).float()
        / 255
        for image in images
    ]
    result = []
    for one, other, batch in pairs:
        if method == "mix":
            mixed = ratio * pixels[one] + (1 - ratio) * pixels[other]
        else:
            x1, y1, x2, y2 = boxes[batch]
            mixed = pixels[one].clone()
            mixed[:, x1:x2, y1:y2] = pixels[other][:, x1:x2, y1:y2]
        result.append(mixed.mul(255).add_(0.5).clamp_(0, 255).permute(1, 2, 0).to(torch.uint8).numpy())
    return result


@pytest.fixture(scope="module")
def originals(real_data) -> list[Image.Image]:
    return [open_image(path) for path in sorted((real_data / "coco" / "originals" / "val2014").glob("*.jpg"))]


@pytest.mark.real_data
@pytest.mark.parametrize(("method", "ratio"), [("mix", 0.9), ("patch", 0.9)])
def test_the_48_originals_mix_as_torch_and_pillow_mix_them_and_so_do_their_jpegs(originals, method, ratio):
    assert len(originals) == 48
    plan = make_plan(names(48), method, ratio, 10)
    expected = mixed_by_torch_and_pillow(originals, pairs_of(plan), method, ratio, plan.boxes)

    squashed = [squash(image) for image in originals].__getitem__
    through_jpeg = [mix_place(plan, place, squashed) for place in range(48)]
    before_jpeg = [mix_place(dataclasses.replace(plan, protocol="strict"), place, squashed) for place in range(48)]
    # The promise is 1 of 255; every operation is rounded as torch rounds it, so the bytes are equal.
    np.testing.assert_array_equal(before_jpeg, np.stack(expected))
    for place in range(48):
        buffer = io.BytesIO()
        Image.fromarray(expected[place]).save(buffer, "JPEG")
        np.testing.assert_array_equal(through_jpeg[place], np.asarray(Image.open(io.BytesIO(buffer.getvalue()))))


def drawn_images(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)


def test_control_squashes_and_compresses_but_mixes_nothing():
    images = drawn_images(4)
    for method in ("mix", "patch"):
        plan = make_plan(names(4), method, 0.9, 1, "control")
        assert plan.variant == "control" and plan.ratio == 1.0
        for place in range(4):
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
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        make_plan(names(4), **arguments)


def test_one_image_cannot_be_mixed_strictly_and_none_not_at_all():
    with pytest.raises(InputError, match="at least two"):
        make_plan(names(1), protocol="strict")
    with pytest.raises(InputError, match="at least two"):
        make_plan([])
