"""Steps over devices: padding in the last step of each length only, and smaller steps if memory runs out."""

import dataclasses
import itertools
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from rococo_jax.encoders import programs
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.device_steps import Prefetch
from rococo_jax.encoders.embedding import EmbeddingPass, embed_texts
from rococo_jax.encoders.programs import bucket_length, images_at_once, text_tokens_at_once
from rococo_jax.errors import InputError
from rococo_jax.models import VisionSpec
from rococo_jax.models.flops import image_flops
from tests.support.refusals import refused
from tests.support.tiny import random_captions, tiny_encoder, tiny_spec

pytestmark = pytest.mark.quick  # sizes, counts and tolerances, however the programs are compiled

CONTEXT = 77


@pytest.fixture
def counted_rows(monkeypatch) -> list[int]:
    """Record the rows of each step with padding; programs return the first number of each row."""
    rows: list[int] = []

    @jax.jit
    def first_number(array):
        return array.reshape(len(array), -1)[:, :1].astype(jnp.float32)

    def images(mesh, graph, preprocessing, products, state, pixels):
        rows.append(len(pixels))
        return first_number(pixels)

    def texts(mesh, graph, products, state, ids, mask):
        rows.append(ids.size)
        return first_number(ids)

    monkeypatch.setattr(programs, "image_features", images)
    monkeypatch.setattr(programs, "text_features", texts)
    return rows


@pytest.mark.parametrize(
    "devices", [pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow), 8]
)
def test_images_in_cached_parts_are_padded_in_the_last_step_only(devices, counted_rows, tmp_path):
    encoder = tiny_encoder(devices=devices)
    encoder._images_per_device = 128
    numbers = np.arange(5000)
    parts = np.split(numbers, range(512, 5000, 512))
    contents = [[str(number).encode() for number in part] for part in parts]

    def encode(items):
        return encoder.image_batches(np.full((32, 32, 3), number / 4096 - 1, np.float32) for number in items)

    cache = EmbeddingCache(tmp_path)
    for _ in range(2):
        features = EmbeddingPass(encoder, "images", parts, contents, encode, cache).features()
        np.testing.assert_array_equal(features[:, 0], numbers / 4096 - 1)
        # Nothing is computed the second time.
        assert set(counted_rows) == {128 * devices} and 5000 <= sum(counted_rows) < 5000 + 128 * devices
    assert len(list(tmp_path.glob("??/*.npy"))) == len(parts)


@pytest.mark.parametrize(
    ("devices", "tokens", "most_excess"),
    [
        (1, 256, 1.02),
        pytest.param(2, 256, 1.03, marks=pytest.mark.slow),
        pytest.param(8, 4096, 1.6, marks=pytest.mark.thorough),
    ],
)
def test_captions_are_padded_in_the_last_step_of_each_length_only(
    devices, tokens, most_excess, counted_rows, monkeypatch, tmp_path
):
    spec = tiny_spec()
    spec = dataclasses.replace(spec, text=dataclasses.replace(spec.text, context_length=CONTEXT))
    encoder = tiny_encoder(devices=devices, spec=spec)
    encoder._tokens_per_device = tokens
    # Lengths as CLIP's tokenizer produces them for COCO: 13.4 on average, a long tail.
    rng = np.random.default_rng(0)
    lengths = (8 + rng.gamma(3.4, 1.6, 25010)).round().clip(8, 60).astype(int).tolist()
    ids = {f"{number:05}": [number, *[5] * (length - 1)] for number, length in enumerate(lengths)}
    monkeypatch.setattr(encoder, "token_ids", lambda texts: [ids[x] if isinstance(x, str) else x for x in texts])
    features = embed_texts(encoder, list(ids), EmbeddingCache(tmp_path), features=True)
    np.testing.assert_array_equal(features[:, 0], np.arange(25010))
    padded = [bucket_length(length, CONTEXT) for length in lengths]
    assert len(set(padded)) <= 10
    assert sum(counted_rows) <= sum(padded) + len(set(padded)) * tokens * devices
    assert sum(counted_rows) <= most_excess * sum(padded)


def test_finished_parts_of_texts_are_cached_before_all_are_encoded(monkeypatch, tmp_path):
    encoder, kept = tiny_encoder(), []
    cache = EmbeddingCache(tmp_path)
    monkeypatch.setattr("rococo_jax.encoders.embedding._TEXTS_PER_PART", 20)
    text_batches = encoder.text_batches

    def watched(texts):
        for batch in text_batches(texts):
            kept.append(len(list(tmp_path.rglob("*.npy"))))
            yield batch

    monkeypatch.setattr(encoder, "text_batches", watched)
    embed_texts(encoder, random_captions(400), cache)
    assert kept[0] == 0 and kept[-1] >= 10


def test_steps_on_an_accelerator_are_large_enough_to_hide_the_work_of_the_host():
    def unit(patch: int, width: int, layers: int, side: int = 224) -> tuple[int, float]:
        vision = VisionSpec(image_size=side, patch_size=patch, width=width, layers=layers, heads=width // 64,
                            mlp_width=4 * width, activation="gelu", norm_eps=1e-5, class_token=True, patch_bias=False,
                            norm_before_blocks=True, layer_scale=False, pooling="cls")  # fmt: skip
        spec = dataclasses.replace(tiny_spec(), vision=vision)
        return images_at_once(spec, "tpu"), images_at_once(spec, "tpu") * image_flops(spec) / 300e12

    # S/16, B/32, B/16, and L/14 at 336.
    sizes = {(16, 384, 12): 256, (32, 768, 12): 256, (16, 768, 12): 64, (14, 1024, 24, 336): 16}
    for size, expected in sizes.items():
        images, seconds = unit(*size)
        # Seconds of a device at 300 TFLOP/s; a step takes some 1.5 ms of the host.
        assert images == expected and 3 * 1.5e-3 < seconds < 25e-3, size
    # Small text towers have long units, up to where the padding of sixteen lengths would cost more.
    assert [text_tokens_at_once(tiny_spec(), platform) for platform in ("cpu", "gpu")] == [256, 16384]


def test_prefetched_items_are_bounded_and_end_with_their_consumer():
    begun, closed, threads = [], [], threading.active_count()

    def items():
        try:
            for number in range(10_000):
                begun.append(number)
                yield np.full(1000, number, np.uint8)
        finally:
            closed.append(True)

    reading = Prefetch(items(), most_bytes=100_000)
    deadline = time.monotonic() + 20
    while len(begun) < 97 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    # As many as take so many bytes, two, and one in hand.
    assert 97 <= len(begun) <= 103
    assert [int(row[0]) for row in itertools.islice(reading, 40)] == list(range(40))
    reading.close()
    assert threading.active_count() == threads and closed == [True]
    del begun[:]

    def photographs():  # of 40 kB each; the first one is no measure of the others
        for number in range(100):
            begun.append(number)
            yield Image.new("RGB", (1, 1) if number == 0 else (100, 100))

    reading = Prefetch(photographs(), most_bytes=200_000)
    time.sleep(0.3)
    reading.close()
    assert 6 <= len(begun) <= 7
    del begun[:]
    few = Prefetch(items(), count=2)
    assert next(few)[0] == 0
    few.close()
    assert len(begun) <= 6 and closed == [True, True]


def test_an_error_while_preparing_a_batch_is_raised_when_the_batch_is_due():
    def items():
        yield 1
        raise InputError("a.jpg", "image", "nothing", "something")

    made = Prefetch(items())
    assert next(made) == 1
    refused(r"a\.jpg", next, made)
    made.close()


def out_of_memory_above(rows: int, program, devices: int):
    def limited(*arguments):
        if len(arguments[-1]) > rows * devices:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")
        return program(*arguments)

    return limited


@pytest.mark.parametrize("devices", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_steps_that_run_out_of_memory_are_halved_until_they_fit(devices, monkeypatch, capsys):
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), np.uint8)
    texts = random_captions(200, longest=4)
    encoder = tiny_encoder(devices=devices)
    whole = encoder._tokens_per_device
    expected = encoder.encode_image(images), encoder.encode_text(texts)
    for name, rows in (("image_features", 4), ("text_features", 12)):
        program = getattr(programs, name)
        monkeypatch.setattr(programs, name, out_of_memory_above(rows, program, devices))
    # Other shapes round differently in the last bits.
    np.testing.assert_allclose(encoder.encode_image(images), expected[0], atol=2e-6)
    assert encoder._images_per_device == 4
    assert "out of device memory, continuing with 4 images at once" in capsys.readouterr().err
    np.testing.assert_allclose(encoder.encode_text(texts), expected[1], atol=2e-6)
    assert encoder._tokens_per_device < whole


def test_a_model_too_large_for_one_image_is_reported_in_one_line(monkeypatch):
    monkeypatch.setattr(programs, "image_features", out_of_memory_above(0, None, 1))
    images = np.zeros((3, 32, 32, 3), np.uint8)
    refused("tiny: memory of the device: found no room for one item", tiny_encoder().encode_image, images)


def test_a_step_that_was_halved_keeps_its_size_while_the_next_one_is_read():
    encoder = tiny_encoder(devices=1)

    def halved_by_another_thread():
        for row in range(8):
            encoder._images_per_device = min(encoder._images_per_device, 4) if row == 5 else encoder._images_per_device
            yield np.zeros((32, 32, 3), np.uint8)

    encoder._images_per_device = 8
    first = next(iter(encoder._batch_images(halved_by_another_thread())))
    assert (len(first.index), first.unit, encoder._images_per_device) == (8, 8, 4)
