"""The encoder's promises: a vector does not depend on its company, on padding, on batches, or on devices."""

import dataclasses
import itertools
import json
import re

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from rococo_jax.checkpoints import save_model
from rococo_jax.data.caption_forms import read_captions
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.encoders.programs import text_batches, text_tokens_at_once
from tests.support import reference_models
from tests.support.models import change_json, read_towers
from tests.support.refusals import refused
from tests.support.tiny import random_captions, tiny_encoder, tiny_spec


def random_images(count, size=32):
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), np.uint8)


@pytest.fixture(scope="module")
def encoder():
    return tiny_encoder()


@pytest.mark.parametrize("attention", ["causal", pytest.param("masked", marks=pytest.mark.slow)])
def test_text_embeddings_are_normalised_and_do_not_depend_on_batch_order_or_padding(attention):
    encoder = tiny_encoder(spec=tiny_spec(attention=attention))
    texts = random_captions(90, longest=4)
    together = encoder.encode_text(texts)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    order = np.random.default_rng(0).permutation(len(texts))
    np.testing.assert_array_equal(encoder.encode_text([texts[i] for i in order]), together[order])
    np.testing.assert_array_equal(encoder.encode_text(texts[17:18]), together[17:18])
    # Token ids are taken as well as strings.
    np.testing.assert_array_equal(encoder.encode_text(encoder.tokenizer.encode(texts[:5])), together[:5])
    # Padded to the whole context; float32 sums over other shapes round differently in the last bits.
    padded, mask = encoder.tokenizer.pad(encoder.tokenizer.encode(texts[:40]), 24)
    whole = nnx.jit(lambda model, ids, mask: model.text_embeddings(ids, mask))(encoder.model, padded, mask)
    np.testing.assert_allclose(together[:40], whole, atol=2e-6)


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.thorough), 8])
def test_embeddings_have_the_same_bits_on_any_number_of_devices(devices, encoder):
    """And features that are projected afterwards are the embeddings."""
    many, counts = tiny_encoder(devices=devices), []
    texts, images = random_captions(300, longest=4), random_images(37)
    of_texts, of_images = many.text_features(texts), many.image_features(images)
    np.testing.assert_array_equal(many.project_text_features(of_texts), encoder.encode_text(texts, counts.append))
    np.testing.assert_array_equal(many.project_image_features(of_images), encoder.encode_image(images, counts.append))
    np.testing.assert_array_equal(many.encode_image(images[5:6]), encoder.project_image_features(of_images[5:6]))
    assert sum(counts) == 300 + 37  # what `advance` is told counts every item once


def test_images_can_be_arrays_of_any_size_or_pixels_or_pil_images(encoder):
    images = random_images(19)
    expected = encoder.encode_image(images)
    np.testing.assert_array_equal(encoder.encode_image(images[3:4]), expected[3:4])
    np.testing.assert_array_equal(encoder.encode_image([Image.fromarray(image) for image in images]), expected)
    # Normalised here in NumPy, there on the device.
    pixels = ((images / 255 - 0.5) / 0.25).astype(np.float32)
    np.testing.assert_allclose(encoder.encode_image(pixels), expected, atol=2e-6)
    large = random_images(2, size=50)
    resized = np.stack([encoder.preprocessing.resize(Image.fromarray(image)) for image in large])
    np.testing.assert_array_equal(encoder.encode_image(large), encoder.encode_image(resized))


def test_float_pixels_that_were_never_normalised_are_refused(encoder):
    """As torchvision's ToTensor gives them; whatever the container, with a black image, and for one colour alone."""
    pixels = (random_images(5) / 255).astype(np.float32)
    black = np.concatenate([pixels, np.zeros_like(pixels[:1])])
    grey = np.full_like(pixels[:1], 0.5)
    dark = np.full_like(pixels, 3)
    for images in (pixels, jnp.asarray(pixels), list(pixels), pixels[:1], black, grey, dark, pixels.astype(np.float16)):
        refused("float pixels: found pixels of .* never normalised", encoder.encode_image, images)
    refused("float pixels: found pixels of 64 images", encoder.encode_image, itertools.repeat(pixels[0]))
    # A normalised batch may have images without a value below the mean, and may be of one colour.
    bright = np.full_like(pixels[:1], 0.3)
    normalised = np.asarray(encoder.preprocessing.normalise(jnp.asarray(random_images(5))))
    for images in (
        normalised,
        np.concatenate([bright, normalised]),
        np.full_like(bright, 1.7),
        -bright,
        normalised[:1],
    ):
        assert np.isfinite(encoder.encode_image(images)).all()


def test_a_model_that_reads_pixels_from_0_to_1_accepts_them(encoder):
    """As MobileCLIP."""
    plain = dataclasses.replace(encoder.preprocessing, mean=(0.0,) * 3, std=(1.0,) * 3)
    model, images = Encoder(encoder.model, plain, encoder.tokenizer, name="plain", mesh=encoder.mesh), random_images(3)
    pixels = (images / 255).astype(np.float32)
    np.testing.assert_allclose(model.encode_image(pixels), model.encode_image(images), atol=2e-6)


def test_texts_can_be_any_ordered_iterable(encoder, tmp_path):
    texts = ["a dog", "two birds on a wire"]
    expected = encoder.encode_text(texts)
    ids = encoder.tokenizer.encode(texts)
    for form in (tuple(texts), np.array(texts), (text for text in texts), ids, [np.array(row) for row in ids]):
        np.testing.assert_array_equal(encoder.encode_text(form), expected)
    mixed, half = (["a dog", 3], [ids[0], "a dog"]), ["half \ud83d"]
    for texts in ([1, 2], [None], [b"a dog"], [[1.5, 2.0]], *mixed, half, {"a": 1}, {"a"}):
        refused("text", encoder.encode_text, texts)
    refused("save_model: encoder: found a str", save_model, tmp_path / "model", "demo:plain")


def test_inputs_that_cannot_be_encoded_are_named(encoder):
    refused("25 tokens; wanted at most 24", encoder.encode_text, [[1] + [5] * 23 + [2]])
    refused(r"found \(40, 40, 3\); wanted \(32, 32, 3\)", encoder.encode_image, np.zeros((1, 40, 40, 3), np.float32))
    refused("wanted a non-empty sequence", encoder.encode_text, "a dog")
    refused(r"\(2, 32, 32\)", encoder.encode_image, np.zeros((2, 32, 32), np.uint8))


@pytest.mark.slow
def test_normalised_pixels_of_images_that_keep_their_shape_are_accepted_and_others_refused(tmp_path):
    reference = reference_models.siglip2(patches=9, patch_size=8)
    settings = {"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": 12, "patch_size": 8}
    folder = reference_models.saved(reference, tmp_path)
    colours = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings | colours))
    encoder = read_towers(folder)
    images = [Image.fromarray(random_images(1, size)[0]) for size in (20, 40)] + [Image.new("RGB", (400, 10), "red")]
    packed = np.stack([encoder.preprocessing.resize(image) for image in images])
    # The grid of the last one is 1 x 12, far above any normalised colour.
    pixels = np.asarray(encoder.preprocessing.normalise(jnp.asarray(packed)))
    assert pixels.max() > 10
    np.testing.assert_allclose(encoder.encode_image(pixels), encoder.encode_image(images), atol=2e-6)
    refused("float pixels: found values up to", encoder.encode_image, packed.astype(np.float32))


def test_a_crop_that_is_not_square_is_refused_when_the_model_is_read(tmp_path):
    folder = reference_models.saved(reference_models.dinov2(), tmp_path / "theirs")
    settings = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 40}, "do_center_crop": True}
    colours = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3}
    for height, width in ((40, 20), (20, 40)):
        crop = {"crop_size": {"height": height, "width": width}}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings | colours | crop))
        refused(f"preprocessing: found images of {height} x {width} pixels; wanted square", read_towers, folder)
        assert read_towers(folder, image_size=30).preprocessing.image_size == (30, 30)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings | colours | {"crop_size": 40}))
    save_model(tmp_path / "ours", read_towers(folder))
    change_json(tmp_path / "ours" / "model.json", lambda about: about["preprocessing"].update(crop_size=[40, 20]))
    refused("model.json: preprocessing: found images of 40 x 20", load_model, tmp_path / "ours")


def test_batches_cover_all_texts_once_and_waste_little_on_captions():
    counts = np.random.default_rng(0).normal(13.5, 2.5, 5000).round().clip(8, 60).astype(int)
    batches = list(text_batches(counts.tolist(), 77, tokens_per_device=1024))
    assert sorted(np.concatenate([batch.index for batch in batches])) == list(range(5000))
    assert all(counts[batch.index].max() <= batch.length for batch in batches)
    assert sum(batch.unit * batch.length for batch in batches) < 1.3 * counts.sum()


@pytest.mark.parametrize(
    ("tokens", "context_length", "length"),
    [
        (1, 77, 8),
        (8, 77, 8),
        (9, 77, 10),
        (16, 77, 16),
        (64, 77, 64),
        (65, 77, 77),
        (77, 77, 77),
        (10, 10, 10),
        (3, 5, 5),
    ],
)
def test_a_text_is_padded_only_to_the_next_length(tokens, context_length, length):
    assert [batch.length for batch in text_batches([tokens], context_length, tokens_per_device=1024)] == [length]


@pytest.mark.real_data
@pytest.mark.parametrize(("texts", "most"), [(128, 1.9), (500, 1.25), (1000, 1.15)])
def test_short_lists_of_captions_compute_little_padding_on_cpus(texts, most, real_data):
    items = read_captions(real_data / "coco" / "captions_test.json").items
    captions = [text for each in items for text in each.captions]
    # A token a word or mark, a start and an end, about as CLIP's tokenizer has it.
    counts = [len(re.findall(r"\w+|[^\w\s]", text)) + 2 for text in captions[:texts]]
    batches = text_batches(counts, 77, text_tokens_at_once(tiny_spec(), "cpu"))
    assert sum(batch.unit * batch.length for batch in batches) <= most * sum(counts)


def test_towers_that_see_their_padding_have_one_length():
    batches = list(text_batches([3, 9, 64], 64, tokens_per_device=640, devices=2, fixed_length=64))
    assert [(batch.length, batch.unit, len(batch.index)) for batch in batches] == [(64, 10, 3)]
