"""The training input is a pure function of (data, settings, seed, step), and says what it cannot use."""

import dataclasses
import gc
import json
import pickle
import threading
import types
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import grain.python as grain
import jax
import numpy as np
import pytest
from PIL import Image

from rococo_jax.data import sample_order, training_input
from rococo_jax.data.augmentation import Augmentation, random_box
from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.data.chunk_memory import Buffers, OpenedSlots, Slots
from rococo_jax.data.sample_order import SampleOrder
from rococo_jax.data.training_samples import DrawSample
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.perturb.text.replacement import AlterCaptions, CaptionAlterer
from rococo_jax.training.inputs.hard_positives import AddHardPositives, Partners, read_hard_positives
from tests.support.refusals import refused
from tests.support.training_pairs import (
    PREPROCESSING,
    assert_same_batches,
    captions_of,
    column,
    take,
    tiny_input,
    write_pairs,
)

IMAGES = 30


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return open_pairs(*write_pairs(tmp_path_factory.mktemp("pairs"), IMAGES))


def texts_to_alter() -> AlterCaptions:
    return AlterCaptions([CaptionAlterer("same_concept", shipped_lexicon(), select="random")], count=2)


# The order


@pytest.mark.parametrize(("images", "batch_size"), [(10, 4), (10, 7), (10, 10), (11, 10), (13, 8), (100, 32), (20, 13)])
def test_an_epoch_has_whole_batches_and_no_image_twice(images, batch_size):
    order = SampleOrder(images, batch_size, seed=3)
    whole = images - images % batch_size
    epochs = np.array([order.image(position) for position in range(50 * whole)]).reshape(50, whole)
    assert all(len(set(epoch)) == whole for epoch in epochs.tolist())
    assert len(np.unique(epochs, axis=0)) > 45  # two of ten images' orders may agree by chance
    # Every image is left out by chance, the same for all: within 5 standard deviations.
    counts = np.bincount(epochs.ravel(), minlength=images)
    assert np.abs(counts - 50 * whole / images).max() <= 5 * np.sqrt(50 * whole / images * (1 - whole / images))
    assert [order.epoch(position) for position in (0, whole - 1, whole, 2 * whole)] == [0, 0, 1, 2]


@pytest.mark.parametrize(("images", "batch_size"), [(10, 7), (11, 10), (20, 13), (40, 13)])
def test_any_position_can_be_asked_for_by_itself(images, batch_size):
    order = SampleOrder(images, batch_size, seed=5)
    straight = [order.image(position) for position in range(50 * images)]
    jumping = SampleOrder(images, batch_size, seed=5)
    for position in np.random.default_rng(0).integers(0, len(straight), 200).tolist():
        assert SampleOrder(images, batch_size, seed=5).image(position) == straight[position]
        assert jumping.image(position) == straight[position]


def test_the_order_of_too_many_images_to_hold_is_a_permutation_too(monkeypatch):
    monkeypatch.setattr(sample_order, "_IN_MEMORY", 1000)
    order = SampleOrder(50_000, 64, seed=1)
    drawn = np.array([order.image(position) for position in range(2 * 49_984)]).reshape(2, 49_984)
    assert all(len(np.unique(epoch)) == 49_984 and epoch.max() < 50_000 for epoch in drawn)
    assert (drawn[0] == drawn[1]).sum() < 20  # one is expected


def test_places_in_the_order_are_evenly_taken():
    # 400 epochs of 8 images: each image stands at each place 50 times, give or take; chi-square on 49 degrees of
    # freedom stays below 85 with 99.9 %.
    drawn = np.array([[SampleOrder(8, 1, seed).image(place) for place in range(8)] for seed in range(400)])
    counts = np.stack([np.bincount(drawn[:, place], minlength=8) for place in range(8)])
    assert ((counts - 50) ** 2 / 50).sum() < 85


# Batches


def test_a_batch_holds_the_images_and_captions_that_it_names(source):
    (batch,) = take(tiny_input(source), 1)
    assert batch["pixels"].shape == (8, 16, 16, 3) and batch["pixels"].dtype == np.uint8
    assert batch["ids"].shape == batch["text_mask"].shape == (8, 24)
    assert batch["sample_index"].tolist() == list(range(8))
    np.testing.assert_array_equal(batch["pixels"][:, 0, 0, 0], 2 * batch["image_id"] + 1)
    from tests.support.tiny import tiny_tokenizer

    for row, (image, which) in enumerate(zip(batch["image_id"], batch["caption_index"], strict=True)):
        (ids,) = tiny_tokenizer().encode([captions_of(image)[which]])
        assert batch["ids"][row, : len(ids)].tolist() == ids
        assert batch["text_mask"][row].sum() == len(ids)


def test_texts_are_cut_with_their_end_kept(source):
    (batch,) = take(tiny_input(source, text_length=4), 1)
    assert batch["ids"].shape == (8, 4) and batch["text_mask"].all()
    assert (batch["ids"][:, -1] == 2).all()


def test_without_preprocessing_no_image_is_opened(source):
    with_pixels, without = take(tiny_input(source), 3), take(tiny_input(source, preprocessing=None), 3)
    assert_same_batches(without, [{k: v for k, v in batch.items() if k != "pixels"} for batch in with_pixels])


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_together_read_what_one_process_reads(source, processes):
    choices = {"extra_text": [texts_to_alter()], "augmentation": Augmentation(crop_scale=(0.5, 1.0), flip=True)}
    whole = take(tiny_input(source, **choices), 6)
    choices |= {"process_count": processes}
    parts = [take(tiny_input(source, process_index=index, **choices), 6) for index in range(processes)]
    joined = [
        {name: np.concatenate([part[name] for part in step]) if each.ndim else each for name, each in first.items()}
        for step, first in zip(zip(*parts, strict=True), whole, strict=True)
    ]
    assert_same_batches(joined, whole)


def test_a_process_reads_the_rows_of_its_devices_wherever_they_are_on_the_mesh(source):
    rows = [0, 1, 4, 7]
    for whole, own in zip(take(tiny_input(source), 3), take(tiny_input(source, rows=rows), 3), strict=True):
        assert_same_batches([own], [{k: v[rows] if v.ndim else v for k, v in whole.items()}])


def test_worker_processes_change_nothing(source):
    workers = 2
    choices = {"extra_text": [texts_to_alter()], "augmentation": Augmentation(crop_scale=(0.5, 1.0))}
    alone = take(tiny_input(source, start_step=3, **choices), 9)
    with tiny_input(source, start_step=3, workers=workers, prefetch=2, **choices) as made:
        assert_same_batches([next(made) for _ in range(9)], alone)
        slots = list(made._ahead._opened._slots)
    # Used again: in a worker's queue and in the buffer it is read into, one in work, one on its way, one being copied.
    assert 1 <= len(slots) <= workers * (2 * (2 // workers) + 3)
    for slot in slots:
        with pytest.raises(FileNotFoundError):
            SharedMemory(slot)


def test_slots_hold_what_was_written_until_it_is_copied():
    slots, opened = Slots(), OpenedSlots()
    taken = [slots.take((rows, 2, 3)) for rows in (4, 3, 4)]
    for number, (array, _) in enumerate(taken):
        array[:] = number
    for number, (_, sent) in enumerate(taken):
        with opened.rows(pickle.loads(pickle.dumps(sent))) as array:
            assert array.shape == sent.shape and (array == number).all()
    names = {sent.slot for _, sent in taken}
    again = [slots.take((4, 2, 3))[1].slot for _ in range(4)]
    assert len(names) == 3 and names < set(again) and len(set(again)) == 4
    del array, taken
    opened.close()
    assert slots.take((2**22,))[1].slot not in again  # too large for any


def test_the_memory_of_a_batch_is_used_again_once_nobody_reads_it():
    """JAX's arrays on CPUs lie in the memory of a batch, and keep it; so does any view of any view."""
    buffers = Buffers()
    rows = buffers.take((8, 64), np.uint8)
    rows[:] = np.arange(8, dtype=np.uint8)[:, None]
    place, wanted = rows.ctypes.data, rows.copy()
    on_device = jax.device_put(rows[4:])
    assert on_device.unsafe_buffer_pointer() == place + 4 * 64  # else this would prove nothing
    held = [rows.reshape(4, 2, 64)[2:].reshape(4, 64), on_device]
    del rows, on_device
    while held:
        other = buffers.take((8, 64), np.uint8)
        assert other.ctypes.data != place
        other[:] = 99
        for each in held:
            np.testing.assert_array_equal(each, wanted[4:])
        del other, each
        held.pop(0)
    gc.collect()
    assert place in {each.ctypes.data for each in [buffers.take((8, 64), np.uint8) for _ in range(4)]}


def test_batches_are_joined_off_the_main_thread_in_memory_that_is_used_again(source, monkeypatch):
    join, joined = training_input.join_chunks, []

    def recorded(*given):
        batch = join(*given)
        # The memory below the array, which does not keep the array.
        joined.append((threading.current_thread(), batch["pixels"].base.base.obj))
        return batch

    monkeypatch.setattr(training_input, "join_chunks", recorded)
    monkeypatch.setattr(training_input, "_MOST_IN_CHUNK", 3)
    made = tiny_input(source, batch_size=14)
    for _ in range(12):
        next(made)
    threads, memories = zip(*joined, strict=True)
    assert threading.main_thread() not in threads
    # One in use, one being filled.
    assert len(memories) >= 12 and len(set(map(id, memories))) <= 2


@pytest.mark.parametrize("processes", [1, 2])
def test_chunks_are_joined_to_the_same_batches(source, processes, monkeypatch):
    choices = {"extra_text": [texts_to_alter()], "batch_size": 14, "process_count": processes}
    whole = [take(tiny_input(source, process_index=index, **choices), 3) for index in range(processes)]
    monkeypatch.setattr(training_input, "_MOST_IN_CHUNK", 3)  # seven rows in chunks of two and three
    for prefetch in (0, 2):
        cut = [tiny_input(source, process_index=index, prefetch=prefetch, **choices) for index in range(processes)]
        assert all(each._read_chunk.per_batch >= 14 / processes / 3 for each in cut)
        for found, wanted in zip(cut, whole, strict=True):
            assert_same_batches(take(found, 3), wanted)


def test_chunks_hold_64_to_256_rows_where_there_are_as_many():
    for rows in (1, 63, 64, 200, 509, 4096, 32768):
        for makers in (1, 2, 16, 200):
            chunks = training_input.chunks_in(rows, makers)
            assert rows / chunks <= 256 and (rows / chunks >= 64 or chunks == 1)
            assert chunks >= min(makers, rows // 64) and (chunks <= makers or chunks % makers == 0)


def test_shared_memory_bounds_what_workers_hold(source, monkeypatch):
    free = types.SimpleNamespace(free=2 * 10**9)
    monkeypatch.setattr(training_input.shutil, "disk_usage", lambda path: free)
    monkeypatch.setattr(training_input.Path, "is_dir", lambda path: True)
    # Half of 2 GB, for 4 workers: 12 chunks each where a chunk is 20 MB, of which 3 wait nowhere and the others twice.
    assert training_input.queue_length(4, 100, 20_000_000) == 4
    assert training_input.queue_length(4, 10, 20_000_000) == 3
    assert training_input.queue_length(4, 10, 50_000_000) == 1
    with pytest.raises(InputError, match=r"workers: found 4, which hold 2.00 GB of shared memory; wanted fewer: half"):
        training_input.queue_length(4, 10, 100_000_000)


def test_threads_change_nothing(source):
    assert_same_batches(take(tiny_input(source, prefetch=3), 12), take(tiny_input(source, prefetch=0), 12))


@pytest.mark.parametrize("step", [1, 4, 9])
def test_a_resumed_run_reads_on_where_it_stopped(source, step):
    whole = take(tiny_input(source), 12)
    first = tiny_input(source)
    take(first, step)
    state = json.loads(json.dumps(first.get_state()))
    assert state["next_step"] == step
    resumed = tiny_input(source)
    resumed.set_state(state)
    assert_same_batches(take(resumed, 12 - step), whole[step:])
    assert_same_batches(take(tiny_input(source, start_step=step), 12 - step), whole[step:])


def test_a_state_can_be_set_in_the_middle_of_reading(source):
    whole = take(tiny_input(source, prefetch=2), 6)
    reading = tiny_input(source, prefetch=2)
    state = reading.get_state()
    first = [next(reading) for _ in range(4)]
    reading.set_state(state)
    assert_same_batches([*first, *take(reading, 6)], whole[:4] + whole)


def test_captions_and_what_they_are_altered_to_differ_between_epochs(source):
    choices = {"extra_text": [texts_to_alter()], "batch_size": 10}
    batches = take(tiny_input(source, **choices), 9)
    names = ("caption_index", "altered_ids")
    epochs = []
    for epoch in range(3):
        part = batches[3 * epoch : 3 * epoch + 3]
        order = np.argsort(column(part, "image_id"))
        epochs.append([column(part, name)[order] for name in names])
    for one, other in ((0, 1), (1, 2), (0, 2)):
        (captions, altered), (other_captions, other_altered) = epochs[one], epochs[other]
        same = captions == other_captions
        assert not same.all() and (altered[same] != other_altered[same]).any()


def test_another_seed_is_another_run(source):
    one, other = take(tiny_input(source, seed=1), 3), take(tiny_input(source, seed=2), 3)
    assert (column(one, "image_id") != column(other, "image_id")).any()


def test_one_draws_captions_evenly_and_all_takes_them_in_turn(source):
    drawn = take(tiny_input(source, batch_size=30, preprocessing=None), 50)
    in_turn = take(tiny_input(source, batch_size=30, preprocessing=None, captions_per_image="all"), 50)
    # 1,500 draws of 5 captions: chi-square on 4 degrees of freedom stays below 18.5 with 99.9 %.
    counts = np.bincount(column(drawn, "caption_index"), minlength=5)
    assert ((counts - 300) ** 2 / 300).sum() < 18.5
    images, captions = column(in_turn, "image_id").reshape(50, 30), column(in_turn, "caption_index").reshape(50, 30)
    by_image = np.take_along_axis(captions, np.argsort(images, axis=1), axis=1).reshape(10, 5, 30)
    assert (np.sort(by_image, axis=1) == np.arange(5)[None, :, None]).all()
    assert len(np.unique(by_image[:, :, 0], axis=0)) > 5


# Texts that transforms add


def test_altered_captions_are_tokenised_beside_their_originals(tmp_path):
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


def test_hard_positives_and_negatives_go_with_their_caption(source):
    partners = {
        captions_of(image)[k]: Partners((f"tree {image}",), ("cat", "man"))
        for image in range(0, 30, 2)
        for k in range(5)
    }
    (batch,) = take(tiny_input(source, batch_size=30, extra_text=[AddHardPositives(partners, negatives=3)]), 1)
    even = batch["image_id"] % 2 == 0
    assert batch["positive_ids"].shape == (30, 24) and batch["negative_ids"].shape == (30, 3, 24)
    np.testing.assert_array_equal(batch["positive_valid"], even)
    np.testing.assert_array_equal(batch["negative_valid"], np.outer(even, [True, True, False]))
    from tests.support.tiny import tiny_tokenizer

    for row in np.flatnonzero(even):
        (ids,) = tiny_tokenizer().encode([f"tree {batch['image_id'][row]}"])
        assert batch["positive_ids"][row, : len(ids)].tolist() == ids
    drawn = {tuple(row) for row in batch["negative_ids"][even][:, 0].tolist()}
    assert len(drawn) == 2  # either negative comes first somewhere


def test_a_sample_has_as_many_hard_negatives_as_were_asked_for():
    add = AddHardPositives({"a dog": Partners((), ("a cat", "a cow"))}, negatives=3)
    *drawn, padded = add.random_map({"caption": "a dog"}, np.random.default_rng(0))["hard_negatives"]
    assert sorted(drawn) == ["a cat", "a cow"] and padded is None


def test_plain_maps_may_stand_among_the_transforms(source):
    class Reverse(grain.MapTransform):
        def map(self, sample):
            return {**sample, "hard_positive": " ".join(reversed(sample["caption"].split()))}

    (batch,) = take(tiny_input(source, extra_text=[Reverse()]), 1)
    assert batch["positive_valid"].all() and (batch["positive_ids"] != batch["ids"]).any(axis=1).all()


def test_hard_positives_are_read_from_lines_and_lists(tmp_path):
    entries = [
        {"caption": "a dog", "hard_positive": "one dog", "hard_negative": "a cat"},
        {"caption": "a dog", "hard_positive": "one dog", "hard_negative": "a man"},
        {"caption": "a car", "hard_positive": None},
    ]
    lines, whole = tmp_path / "a.jsonl", tmp_path / "a.json"
    lines.write_text("\n".join(map(json.dumps, entries)) + "\n")
    whole.write_text(json.dumps(entries))
    wanted = {"a dog": Partners(("one dog",), ("a cat", "a man")), "a car": Partners((), ())}
    assert read_hard_positives(lines) == read_hard_positives(whole) == wanted


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('{"caption": 3}', "caption of line 1"),
        ('["a"]', "line 1"),
        ('{"a": 1}', "line 1"),
        ("{", "line 1"),
        ("", "captions"),
    ],
)
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
    refused(r"item 0: found .* wanted originals, altered and positives of one length", read_hard_positives, path)


def test_altered_captions_of_an_annotation_are_hard_negatives(tmp_path):
    item = {"image": "a.jpg", "originals": ["a dog", "a car"], "altered": ["a cat", None]}
    path = tmp_path / "altered.json"
    path.write_text(json.dumps({"items": [item]}))
    assert read_hard_positives(path) == {"a dog": Partners((), ("a cat",)), "a car": Partners((), ())}
    path.write_text(json.dumps({"items": [{**item, "positives": ["one dog", None]}]}))
    assert read_hard_positives(path)["a dog"] == Partners(("one dog",), ("a cat",))


# Augmentation


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


def test_half_of_the_images_are_mirrored(source):
    rng = np.random.default_rng(0)
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:, :8] = 255
    flipped = [
        Augmentation(flip=True).apply(Image.fromarray(pixels), PREPROCESSING, rng)[0, 0, 0] == 0 for _ in range(400)
    ]
    assert 150 < sum(flipped) < 250  # 5 standard deviations of a fair coin


def test_resized_views_show_the_whole_image_and_change_no_other_draw(source):
    stripes = np.zeros((16, 48, 3), np.uint8)
    stripes[:, :8] = stripes[:, -8:] = 255  # only outside the centre crop
    image = Image.fromarray(stripes)
    crop = dataclasses.replace(PREPROCESSING, exact_size=None, shortest_edge=16, crop_size=(16, 16))
    cropped, both = Augmentation(), Augmentation(also_resized=True)
    views = both.views(image, crop, np.random.default_rng(0))
    np.testing.assert_array_equal(views["pixels"], cropped.apply(image, crop, np.random.default_rng(0)))
    assert views["pixels"].max() == 0 and views["resized"][:, [0, -1]].min() > 200
    assert views["resized"].shape == views["pixels"].shape
    rng = np.random.default_rng(0)
    shown = [Augmentation(resize_prob=0.25).apply(image, crop, rng).max() > 0 for _ in range(400)]
    assert 57 < sum(shown) < 143  # 5 standard deviations around a quarter
    batches = take(tiny_input(source, augmentation=both), 2)
    assert_same_batches([{k: v for k, v in b.items() if k != "resized"} for b in batches], take(tiny_input(source), 2))


# Broken images


@pytest.fixture
def broken(tmp_path):
    """24 images of which three are broken, each in its own way."""
    images, captions = write_pairs(tmp_path, 24)
    folder = Path(images)
    whole = (folder / "image004.png").read_bytes()
    (folder / "image004.png").write_bytes(whole[: len(whole) // 2])
    (folder / "image009.png").write_bytes(b"")
    (folder / "image017.png").write_text("no image")
    return open_pairs(images, captions)


def test_broken_images_are_replaced_and_counted(broken):
    batches = take(tiny_input(broken, on_decode_error="skip"), 9)
    assert column(batches, "image_id").shape == (72,)
    assert sum(batch["skipped_images"] for batch in batches) >= 9  # three an epoch; a substitute may be broken as well
    for batch in batches:
        assert len(set(batch["image_id"].tolist())) == 8
        assert not {4, 9, 17} & set(batch["image_id"].tolist())
        np.testing.assert_array_equal(batch["pixels"][:, 0, 0, 0], 2 * batch["image_id"] + 1)


def test_substitutes_are_the_images_of_the_same_place_in_the_epochs_other_batches():
    order = SampleOrder(300, 70, 0)
    for step, place in ((0, 5), (3, 5), (4, 69), (6, 0)):
        epoch = [order.batch(each)[place] for each in range(step // 4 * 4, step // 4 * 4 + 4)]
        found = list(DrawSample._candidates(types.SimpleNamespace(order=order), 70 * step + place))
        assert found[0] == order.batch(step)[place] and sorted(found[:4]) == sorted(epoch)
        assert not set(found[1:4]) & set(order.batch(step).tolist())
        assert set(found) == set(range(300))


def test_replacements_are_the_same_on_all_processes_and_after_a_resume(broken):
    whole = take(tiny_input(broken, on_decode_error="skip"), 6)
    halves = [take(tiny_input(broken, on_decode_error="skip", process_index=i, process_count=2), 6) for i in (0, 1)]
    for step, batch in enumerate(whole):
        for name in ("image_id", "ids", "pixels"):
            np.testing.assert_array_equal(np.concatenate([half[step][name] for half in halves]), batch[name])
        assert halves[0][step]["skipped_images"] + halves[1][step]["skipped_images"] == batch["skipped_images"]
    assert_same_batches(take(tiny_input(broken, on_decode_error="skip", start_step=3), 3), whole[3:])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_stops_the_run_when_its_batch_is_due(broken, workers):
    order = SampleOrder(24, 8, 3)
    due = next(step for step in range(3) if {4, 9, 17} & set(order.batch(step).tolist()))
    with tiny_input(broken, on_decode_error="raise", workers=workers) as reading:
        for _ in range(due):
            next(reading)
        with pytest.raises(InputError, match=r"image0(04|09|17)\.png: image: found") as error:
            next(reading)
    assert Path(error.value.source).parent.name == "images"


def test_images_that_are_all_broken_are_an_error(tmp_path):
    images, captions = write_pairs(tmp_path, 8)
    for path in Path(images).iterdir():
        path.write_bytes(b"")
    with pytest.raises(InputError, match="none that can be decoded"):
        take(tiny_input(open_pairs(images, captions), on_decode_error="skip"), 1)


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
def test_settings_that_do_not_fit_are_named(source, choices, field):
    refused(field, tiny_input, source, **choices)


@pytest.mark.parametrize("length", [2, 24])
def test_the_shortest_and_the_longest_text_are_allowed(source, length):
    (batch,) = take(tiny_input(source, text_length=length, prefetch=0), 1)
    assert batch["ids"].shape[1] == length


@pytest.mark.parametrize("bad", [{"crop_scale": (0.5, 0.1)}, {"crop_scale": (0.0, 1.0)}, {"crop_scale": (0.5, 1.5)}])
def test_impossible_crops_are_refused(bad):
    refused("augmentation: crop_scale", Augmentation, **bad)


def test_a_state_of_other_data_or_another_order_is_refused(source, tmp_path):
    state = tiny_input(source).get_state()
    with pytest.raises(InputError, match="seed: found 4; wanted 3, with which the run began"):
        tiny_input(source, seed=4).set_state(state)
    with pytest.raises(InputError, match="batch_size: found 10; wanted 8"):
        tiny_input(source, batch_size=10).set_state(state)
    with pytest.raises(InputError, match="order: found 2; wanted None, with which the run began"):
        tiny_input(source).set_state({name: value for name, value in state.items() if name != "order"})
    fewer = open_pairs(*write_pairs(tmp_path / "fewer", IMAGES - 1))
    with pytest.raises(InputError, match="images: found 29; wanted 30"):
        tiny_input(fewer).set_state(state)
    other = open_pairs(*write_pairs(tmp_path / "other", IMAGES, captions=4))
    with pytest.raises(InputError, match="data: found"):
        tiny_input(other).set_state(state)
    moved = open_pairs(*write_pairs(tmp_path / "moved", IMAGES))
    tiny_input(moved).set_state(state)
