"""The training input is a pure function of (data, settings, seed, step), and says what it cannot use."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rococo_jax.data.augmentation import Augmentation
from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.data.sample_order import SampleOrder
from rococo_jax.data.training_samples import DrawSample
from rococo_jax.errors import InputError
from tests.support.refusals import refused
from tests.support.tiny import tiny_tokenizer
from tests.support.training_pairs import (
    PREPROCESSING,
    assert_same_batches,
    captions_of,
    column,
    take,
    texts_to_alter,
    tiny_input,
    write_pairs,
)

IMAGES = 30


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return open_pairs(*write_pairs(tmp_path_factory.mktemp("pairs"), IMAGES))


def without(batches: list[dict], name: str) -> list[dict]:
    return [{key: array for key, array in batch.items() if key != name} for batch in batches]


def test_a_batch_contains_the_images_and_captions_of_its_ids(source):
    (batch,) = take(tiny_input(source), 1)
    assert batch["pixels"].shape == (8, 16, 16, 3) and batch["pixels"].dtype == np.uint8
    assert batch["sample_index"].tolist() == list(range(8))
    np.testing.assert_array_equal(batch["pixels"][:, 0, 0, 0], 2 * batch["image_id"] + 1)
    named = zip(batch["image_id"], batch["caption_index"], strict=True)
    tokenizer = tiny_tokenizer()
    ids, mask = tokenizer.pad(tokenizer.encode([captions_of(image)[which] for image, which in named]), 24)
    np.testing.assert_array_equal(batch["ids"], ids)
    np.testing.assert_array_equal(batch["text_mask"], mask)


@pytest.mark.parametrize("length", [2, 4, 24])
def test_texts_are_truncated_to_the_configured_length_and_keep_their_end_token(source, length):
    (batch,) = take(tiny_input(source, text_length=length), 1)
    assert batch["ids"].shape == (8, length)
    if length < 24:
        assert batch["text_mask"].all() and (batch["ids"][:, -1] == 2).all()


@pytest.mark.parametrize(("crop_scale", "size"), [(None, (32, 24)), ((0.25, 1.0), (64, 48))])
def test_draft_decoding_gives_a_reduced_jpeg_that_is_not_smaller_than_the_crop(crop_scale, size, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (192, 256, 3), np.uint8)
    for name in ("photo.jpg", "drawing.png"):
        Image.fromarray(noise).save(tmp_path / name)
    captions = [{"image": name, "caption": ["a dog"]} for name in ("photo.jpg", "drawing.png")]
    (tmp_path / "captions.json").write_text(json.dumps(captions))
    source, augmentation = open_pairs(str(tmp_path), str(tmp_path / "captions.json")), Augmentation(crop_scale)

    def pixels(decode):
        draw = DrawSample(source, SampleOrder(2, 2, 0), PREPROCESSING, augmentation, decode=decode)
        samples = [draw.random_map(position, np.random.default_rng(1)) for position in range(2)]
        return {source[sample["image_id"]].name: sample["pixels"] for sample in samples}

    reduced = Image.open(tmp_path / "photo.jpg")
    reduced.draft("RGB", size)
    assert reduced.size == size
    random = np.random.default_rng(1)
    random.random()  # the caption
    draft, exact = pixels("draft"), pixels("exact")
    expected = augmentation.apply(reduced, PREPROCESSING, random)
    np.testing.assert_array_equal(next(draft[name] for name in draft if "photo" in name), expected)
    assert [np.array_equal(draft[name], exact[name]) for name in sorted(draft)] == [True, False]


def test_removing_or_adding_a_view_does_not_change_the_others(source):
    plain = take(tiny_input(source), 3)
    assert_same_batches(take(tiny_input(source, preprocessing=None), 3), without(plain, "pixels"))  # opens no image
    both = take(tiny_input(source, augmentation=Augmentation(also_resized=True)), 3)
    assert_same_batches(without(both, "resized"), plain)
    assert column(both, "resized").shape == column(both, "pixels").shape


@pytest.mark.parametrize(
    "rows", [[[*range(4)], [*range(4, 8)]], np.arange(8).reshape(4, 2).tolist(), [[0, 1, 4, 7], [2, 3, 5, 6]]]
)
def test_each_process_reads_its_rows_of_the_batch_that_one_process_reads(source, rows):
    choices = {"extra_text": [texts_to_alter()], "augmentation": Augmentation(crop_scale=(0.5, 1.0), flip=True)}
    whole = take(tiny_input(source, **choices), 6)
    for own in rows:
        parts = [{name: each[own] if each.ndim else each for name, each in batch.items()} for batch in whole]
        assert_same_batches(take(tiny_input(source, rows=own, **choices), 6), parts)


def test_the_number_of_threads_does_not_change_batches(source):
    assert_same_batches(take(tiny_input(source, prefetch=3), 12), take(tiny_input(source, prefetch=0), 12))


@pytest.mark.parametrize("step", [1, 4, 9])
def test_a_resumed_run_continues_reading_where_it_stopped(source, step):
    whole = take(tiny_input(source), 12)
    first = tiny_input(source, prefetch=2)
    begin = first.get_state()
    assert_same_batches([next(first) for _ in range(step)], whole[:step])
    state = json.loads(json.dumps(first.get_state()))
    assert state["next_step"] == step
    resumed = tiny_input(source)
    resumed.set_state(state)
    assert_same_batches(take(resumed, 12 - step), whole[step:])
    assert_same_batches(take(tiny_input(source, start_step=step), 12 - step), whole[step:])
    first.set_state(begin)  # in the middle of reading
    assert_same_batches(take(first, 12), whole)


def test_captions_and_their_alterations_differ_between_epochs(source):
    batches = take(tiny_input(source, extra_text=[texts_to_alter()], batch_size=10), 9)
    epochs = []
    for part in (batches[:3], batches[3:6], batches[6:]):
        order = np.argsort(column(part, "image_id"))
        epochs.append([column(part, name)[order] for name in ("caption_index", "altered_ids")])
    for one, other in ((0, 1), (1, 2), (0, 2)):
        (captions, altered), (other_captions, other_altered) = epochs[one], epochs[other]
        same = captions == other_captions
        assert not same.all() and (altered[same] != other_altered[same]).any()


def test_another_seed_gives_other_batches(source):
    one, other = take(tiny_input(source, seed=1), 3), take(tiny_input(source, seed=2), 3)
    assert (column(one, "image_id") != column(other, "image_id")).any()


def test_captions_are_drawn_evenly_with_one_and_taken_in_turn_with_all(source):
    drawn = take(tiny_input(source, batch_size=30, preprocessing=None), 50)
    in_turn = take(tiny_input(source, batch_size=30, preprocessing=None, captions_per_image="all"), 50)
    # 1,500 draws of 5 captions: chi-square on 4 degrees of freedom stays below 18.5 with 99.9 %.
    counts = np.bincount(column(drawn, "caption_index"), minlength=5)
    assert ((counts - 300) ** 2 / 300).sum() < 18.5
    images, captions = column(in_turn, "image_id").reshape(50, 30), column(in_turn, "caption_index").reshape(50, 30)
    by_image = np.take_along_axis(captions, np.argsort(images, axis=1), axis=1).reshape(10, 5, 30)
    assert (np.sort(by_image, axis=1) == np.arange(5)[None, :, None]).all()
    assert len(np.unique(by_image[:, :, 0], axis=0)) > 5


# Broken images

BROKEN = {4, 9, 17}


@pytest.fixture
def broken(tmp_path):
    """24 images of which three are broken, each in its own way."""
    images, captions = write_pairs(tmp_path, 24)
    half, empty, text = (Path(images) / f"image{number:03}.png" for number in sorted(BROKEN))
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    empty.write_bytes(b"")
    text.write_text("no image")
    return open_pairs(images, captions)


def test_broken_images_are_replaced_and_counted_equally_on_all_processes_and_after_a_resume(broken):
    skip = {"on_decode_error": "skip"}
    whole = take(tiny_input(broken, **skip), 9)
    assert sum(batch["skipped_images"] for batch in whole) >= 9  # three an epoch; a substitute may be broken as well
    for batch in whole:
        assert len(set(batch["image_id"].tolist()) - BROKEN) == 8
        np.testing.assert_array_equal(batch["pixels"][:, 0, 0, 0], 2 * batch["image_id"] + 1)
    halves = [take(tiny_input(broken, rows=rows, **skip), 9) for rows in (range(4), range(4, 8))]
    for batch, *parts in zip(whole, *halves, strict=True):
        for name in ("image_id", "ids", "pixels"):
            np.testing.assert_array_equal(column(parts, name), batch[name])
        assert sum(part["skipped_images"] for part in parts) == batch["skipped_images"]
    assert_same_batches(take(tiny_input(broken, start_step=3, **skip), 6), whole[3:])


def test_a_broken_image_is_replaced_by_one_at_its_position_in_another_batch_of_the_epoch(tmp_path):
    images, captions = write_pairs(tmp_path, 30)
    order, source = SampleOrder(30, 7, 0), open_pairs(images, captions)
    draw = DrawSample(source, order, PREPROCESSING, on_decode_error="skip")
    files = sorted(Path(images).iterdir())
    bytes_of = {file: file.read_bytes() for file in files}
    for step, place in ((0, 5), (3, 5), (4, 6), (6, 0)):
        first = step - step % 4
        epoch = [order.batch(each)[place] for each in (*range(step, first + 4), *range(first, step))]
        for skipped, image in enumerate(epoch):
            sample = draw.random_map(7 * step + place, np.random.default_rng(0))
            assert (sample["image_id"], sample["skipped"]) == (image, skipped)
            files[image].write_bytes(b"")
        # All others after these.
        others = draw.random_map(7 * step + place, np.random.default_rng(0))
        assert others["image_id"] not in epoch and others["skipped"] >= 4
        for file, data in bytes_of.items():
            file.write_bytes(data)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_broken_image_stops_the_run_when_its_batch_is_due(broken, workers):
    order = SampleOrder(24, 8, 3)
    due = next(step for step in range(3) if BROKEN & set(order.batch(step).tolist()))
    with tiny_input(broken, on_decode_error="raise", workers=workers) as reading:
        for _ in range(due):
            next(reading)
        with pytest.raises(InputError, match=r"image0(04|09|17)\.png: image: found") as error:
            next(reading)
    assert Path(error.value.source).parent.name == "images"


def test_a_run_in_which_every_image_is_broken_ends_with_an_error(tmp_path):
    images, captions = write_pairs(tmp_path, 8)
    for path in Path(images).iterdir():
        path.write_bytes(b"")
    every = tiny_input(open_pairs(images, captions), on_decode_error="skip")
    refused("none that can be decoded", take, every, 1)


# Input that cannot be used


@pytest.mark.parametrize(
    ("choices", "field"),
    [
        ({"batch_size": 31}, "batch_size: found 31; wanted 1 to 30, the number of images"),
        ({"batch_size": 0}, "batch_size: found 0; wanted 1 to 30"),
        ({"captions_per_image": "two"}, "captions_per_image: found 'two'"),
        ({"on_decode_error": "ignore"}, "on_decode_error: found 'ignore'"),
        ({"text_length": 25}, "text_length: found 25; wanted 2 to 24"),
        ({"text_length": 1}, "text_length: found 1"),
    ],
)
def test_inconsistent_settings_are_refused_by_name(source, choices, field):
    refused(field, tiny_input, source, **choices)


def test_an_input_state_of_other_data_or_another_order_is_refused(source, tmp_path):
    state = tiny_input(source).get_state()
    older = {name: value for name, value in state.items() if name != "order"}
    fewer, other, moved = (
        open_pairs(*write_pairs(tmp_path / str(images * captions), images, captions))
        for images, captions in ((IMAGES - 1, 5), (IMAGES, 4), (IMAGES, 5))
    )
    for reading, saved, message in (
        (tiny_input(source, seed=4), state, "seed: found 4; wanted 3, with which the run began"),
        (tiny_input(source, batch_size=10), state, "batch_size: found 10; wanted 8"),
        (tiny_input(source), older, "order: found 2; wanted None, with which the run began"),
        (tiny_input(fewer), state, "images: found 29; wanted 30"),
        (tiny_input(other), state, "data: found"),
    ):
        refused(message, reading.set_state, saved)
    tiny_input(moved).set_state(state)
