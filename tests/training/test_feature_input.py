"""Test batches of features of frozen towers: of the images and texts themselves, with noise, from pools, in parts."""

import tracemalloc

import jax
import numpy as np
import pytest

from rococo_jax.errors import InputError
from rococo_jax.training.inputs.batches import PairBatches, make_batches
from rococo_jax.training.inputs.feature_pool import Features, decode
from tests.support.input_world import IMAGES, captions_of, features_and_batches, order, pixels_of, resized
from tests.support.step_oracle import mix_row
from tests.support.tiny_runs import FEATURES_ALONE, with_a_broken_image

LIT = {"train__vision": "none", "data__cached_features": True}
SC_AND_VC = {"losses__sc__weight": 1.0, "losses__vc__weight": 1.0}


def rows_of(context, features: Features, rows) -> PairBatches:
    """Return the batches of a process that makes some of the rows."""
    return make_batches(context, lambda config, make: features, np.array(rows))


def test_each_process_reads_its_rows_of_the_same_batch(world):
    context = world.context(**FEATURES_ALONE)
    features, _ = features_and_batches(context)
    # Rows of devices that take turns on the mesh.
    parts = [rows_of(context, features, range(start, context.config.batch_size, 2)) for start in range(2)]
    for batch in world.take(2, **FEATURES_ALONE):
        for start, part in enumerate(parts):
            np.testing.assert_array_equal(next(part).images.features, batch.images.features[start::2])


def test_features_of_a_pair_and_of_its_altered_versions_get_the_same_noise(world):
    def take(noise: float) -> list:
        return world.take(2, **FEATURES_ALONE, **SC_AND_VC, data__feature_noise=noise)

    images = world.encoder.image_features(np.stack([pixels_of(number) for number in range(IMAGES)]))
    captions = [caption for number in range(IMAGES) for caption in captions_of(number)]
    texts = world.encoder.text_features(captions)
    for step, (batch, loud) in enumerate(zip(take(0.0), take(0.5), strict=True)):
        assert batch.images.pixels is None and batch.texts.ids is None
        np.testing.assert_array_equal(batch.image_id, order(3)[4 * step :][:4])
        np.testing.assert_allclose(batch.images.features, images[batch.image_id], atol=1e-5)
        for number, row in zip(batch.image_id, batch.texts.features, strict=True):
            assert np.abs(texts[3 * number : 3 * number + 3] - row).max(1).min() < 1e-5
        jax.tree.map(np.testing.assert_array_equal, loud.valid, batch.valid)
        for tower, (own, field, every) in enumerate((("images", "mixed", images), ("texts", "altered", texts))):
            found, still = getattr(loud, own).features, getattr(batch, own).features
            # The stream of rows 0 to 63.
            random = np.random.default_rng([3, step, 3, tower, 0])
            noise = 0.5 * every.std(0) * random.standard_normal((64, still.shape[1]), np.float32)[: len(still)]
            np.testing.assert_allclose(found - still, noise, atol=1e-4)
            added = loud.fields[field].features - batch.fields[field].features
            np.testing.assert_allclose(added[:, 0], noise, atol=1e-4)


def test_each_caption_of_an_image_is_drawn_equally_often(world):
    features, batches = features_and_batches(world.context(**FEATURES_ALONE))
    counts = np.zeros(3)
    for _ in range(100):
        batch = next(batches)
        for number, row in zip(batch.image_id, batch.texts.features, strict=True):
            (place,) = np.flatnonzero((features.texts[3 * number : 3 * number + 3] == row).all(axis=1))
            counts[place] += 1
    # Five standard deviations of 400 draws.
    assert counts.sum() == 400 and np.abs(counts / 400 - 1 / 3).max() < 5 * np.sqrt(2 / 9 / 400)


def test_noise_does_not_depend_on_how_rows_are_divided_among_processes(world, monkeypatch):
    monkeypatch.setattr("rococo_jax.training.inputs.feature_pool._NOISE_ROWS", 3)
    context = world.context(**FEATURES_ALONE, **SC_AND_VC, data__feature_noise=0.5)
    features, everything = features_and_batches(context)
    parts = {rows: rows_of(context, features, rows) for rows in ((3, 0), (1,), (2,))}
    for _ in range(3):
        batch = next(everything)
        for rows, part in parts.items():
            expected = jax.tree.map(lambda array, rows=rows: array[list(rows)], batch)
            jax.tree.map(np.testing.assert_array_equal, next(part), expected)


def test_prefetching_changes_no_batch_and_resumes_at_the_step_of_the_run(world):
    settings = {**FEATURES_ALONE, **SC_AND_VC, "data__feature_noise": 0.5}
    at_once = make_batches(world.context(**settings, data__prefetch=0))
    expected = [next(at_once) for _ in range(5)]
    ahead = make_batches(world.context(**settings, data__prefetch=3))
    jax.tree.map(np.testing.assert_array_equal, [next(ahead) for _ in range(2)], expected[:2])
    state = ahead.get_state()
    assert state["next_step"] == 2, "what is prepared does not count"
    next(ahead)
    ahead.set_state(state)
    jax.tree.map(np.testing.assert_array_equal, [next(ahead) for _ in range(3)], expected[2:])
    ahead.close()


def test_decoding_fills_one_array_and_builds_no_list_of_images(world):
    """Memory holds the array of all images and the few that are being decoded."""
    source, image = world.context().source, np.zeros((128, 128, 3), np.uint8)
    count = 600  # many more than wait to be taken, however busy the machine
    samples = [source[number % IMAGES] for number in range(count)]
    tracemalloc.start()
    pixels, chosen = decode(samples, range(count), lambda _: image.copy())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert chosen == list(range(count)) and pixels.nbytes == count * image.nbytes
    assert peak < 1.5 * pixels.nbytes


def test_the_configured_share_of_images_is_resized_without_cropping(world):
    views = np.stack([[view(number) for number in range(IMAGES)] for view in (pixels_of, resized)])
    features = world.encoder.image_features(views.reshape(-1, *views.shape[2:])).reshape(2, IMAGES, -1)
    batches = world.take(6, **FEATURES_ALONE, data__resize_prob=0.5)
    rows, numbers = (np.concatenate(each) for each in ([batch.images.features for batch in batches],
                                                       [batch.image_id for batch in batches]))  # fmt: skip
    distance = np.abs(features[:, numbers] - rows).max(-1)
    assert (distance.min(0) < 1e-5).all() and 5 <= distance.argmin(0).sum() <= 19


def test_training_draws_every_altered_caption_and_mixed_image_of_a_pool(world):
    pools = {"data__feature_pool__captions": 3, "data__feature_pool__mixed": 4}
    chosen = {**SC_AND_VC, "losses__vc__views": "crop,resize", "losses__vc__ratio": 0.6}
    features, batches = features_and_batches(world.context(**FEATURES_ALONE, **pools, **chosen))
    altered, mixed = (features.pools[field].features for field in ("altered", "mixed"))
    assert features.pools["altered"].valid.all()
    possible = [[c.replace("dog", new) for new in ("cat", "owl")] for n in range(IMAGES) for c in captions_of(n)]
    right = world.encoder.text_features([text for each in possible for text in each]).reshape(len(possible), 2, -1)
    distance = np.abs(altered[:, :, None] - right[:, None]).max(-1)
    assert distance.shape[1] == 3 and distance.min(-1).max() < 1e-5
    which = distance.argmin(-1)
    assert (which == which[:, :1]).all(1).mean() < 0.6  # draws of a pool differ
    drawn = {"altered": set(), "mixed": set()}
    for batch in (next(batches) for _ in range(6)):
        for row, number in enumerate(batch.image_id):
            caption = int(np.abs(features.texts - batch.texts.features[row]).max(1).argmin())
            assert features.first[number] <= caption < features.first[number + 1]
            for field, item in (("altered", caption), ("mixed", number)):
                (of_row,) = batch.fields[field].features[row]
                (places,) = np.nonzero((features.pools[field].features[item] == of_row).all(1))
                drawn[field] |= set(places.tolist())
                assert len(places)
    assert drawn == {"altered": {0, 1, 2}, "mixed": {0, 1, 2, 3}} and mixed.shape[1] == 4
    for place in range(4):
        images = np.stack([(pixels_of, resized)[place // 2](number) for number in range(IMAGES)])
        shuffled = np.random.default_rng([0, place]).permutation(IMAGES)
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), place), 0)
        method = ("mixup", "cutmix")[place % 2]
        rows = [mix_row(images[shuffled], row, key, method, 0.6, IMAGES)[0] for row in range(IMAGES)]
        np.testing.assert_allclose(mixed[shuffled, place], world.encoder.image_features(np.stack(rows)), atol=1e-4)


@pytest.mark.parametrize("choices", [{}, {"losses__sc__weight": 1.0, "losses__sc__count": 2}], ids=["pairs", "sc"])
def test_images_of_a_locked_tower_are_encoded_once_and_texts_at_every_step(world, choices):
    features = world.encoder.image_features(np.stack([pixels_of(number) for number in range(IMAGES)]))
    for one, other in zip(world.take(3, **LIT, **choices), world.take(3, **choices), strict=True):
        assert one.images.pixels is None
        np.testing.assert_allclose(one.images.features, features[one.image_id], atol=1e-5)
        texts, others = ((batch.image_id, batch.texts.ids, batch.fields, batch.valid) for batch in (one, other))
        jax.tree.map(np.testing.assert_array_equal, texts, others)


@pytest.mark.parametrize("settings", [{}, LIT, FEATURES_ALONE], ids=["pixels", "locked", "features"])
def test_broken_images_are_skipped_and_counted_or_stop_the_run(world, settings, tmp_path):
    broken = with_a_broken_image(world.folder / "images", tmp_path / "broken")
    batches = make_batches(world.context(data__images=broken, **settings))
    taken = [next(batches) for _ in range(11)]
    batches.close()
    shown = {bytes(row) for batch in taken for row in (batch.images.pixels if not settings else batch.images.features)}
    assert len(shown) == IMAGES - 1
    assert batches.counts["skipped_images"] == 1 if settings else batches.counts["skipped_images"] >= 1
    with pytest.raises(InputError, match=r"07\.png"):
        world.take(3, data__images=broken, data__on_decode_error="raise", **settings)
