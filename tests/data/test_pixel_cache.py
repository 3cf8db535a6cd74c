"""Files are decoded once for all galleries and all models, and what is kept of them has a bound."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from rococo_jax.benchmarks.benchmark import Benchmark, with_corrupted_images
from rococo_jax.benchmarks.rococo.mixed_galleries import MixedImages, mix_one
from rococo_jax.benchmarks.rococo.published_mixing import decode_jpeg, encode_jpeg, make_plan, resize_to_square
from rococo_jax.data import pictures as pictures_module
from rococo_jax.data.images import FileImages, read_images, run_tasks
from rococo_jax.data.pictures import open_image
from rococo_jax.data.pixel_cache import DiskBudget, PixelCache, PixelView
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.evaluation.models.model import embed_benchmark
from rococo_jax.perturb.images.mixing import apply_mixing
from tests.support.refusals import refused
from tests.support.tiny import random_captions, tiny_encoder
from tests.support.world import seventy_pictures

SMALL = PixelView("small", (8, 8, 3), lambda image: np.asarray(image.convert("RGB").resize((8, 8))))
GREY = PixelView("grey", (4, 4, 3), lambda image: np.asarray(image.convert("L").convert("RGB").resize((4, 4))))


@pytest.fixture
def decoded(monkeypatch):
    """Count how often each file is decoded from now on."""
    counts, decode, lock = Counter(), pictures_module.decode_image, threading.Lock()

    def counted(file, source, least_size=None):
        with lock:
            counts[str(source)] += 1
        return decode(file, source, least_size)

    monkeypatch.setattr(pictures_module, "decode_image", counted)
    return counts


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return seventy_pictures(tmp_path_factory.mktemp("pictures"))


def galleries(files) -> dict:
    """Originals, mixed with two seeds, control, and a corruption with the uncorrupted cut."""
    originals = FileImages(tuple(files), tuple(files.values()))
    plans = [make_plan(originals.names, "mix", 0.9, 1), make_plan(originals.names, "patch", 0.9, 10)]
    plans.append(make_plan(originals.names, protocol="control"))
    sets = [originals, *(MixedImages(originals, plan) for plan in plans)]
    benchmark = Benchmark("made", originals.names, tuple(random_captions(3)), {each.name: each for each in sets}, ())
    return with_corrupted_images(benchmark, ["brightness"], (3,))


@pytest.mark.slow
def test_a_file_is_decoded_only_once_for_all_galleries_and_models(files, decoded, monkeypatch):
    first, second = tiny_encoder(), tiny_encoder(seed=1)
    second.preprocessing = Preprocessing(exact_size=(32, 32), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    benchmark, third = galleries(files), tiny_encoder(seed=2)
    benchmark.image_sets["originals"].pixel_cache.announce(second.pixel_view)
    for images in benchmark.image_sets.values():
        images.pixel_cache.announce(first.pixel_view)  # as two models want it
    alone = {each: embed_benchmark(each, each, benchmark, EmbeddingCache(None)).tables for each in (first, second)}
    assert set(decoded.values()) == {1} and len(decoded) == len(files)
    resized = [first.preprocessing.resize(image) for image in galleries(files).image_sets["control"].read([3])]

    def made_again(*_):
        raise AssertionError("an image was made again")

    for place in ("benchmarks.rococo.mixed_galleries.MixedImages.thumbnail", "benchmarks.image_sets.find_corruption",
                  "data.preprocessing.Preprocessing.resize"):  # fmt: skip
        monkeypatch.setattr(f"rococo_jax.{place}", made_again)
    embed_benchmark(third, third, benchmark, EmbeddingCache(None))
    monkeypatch.undo()
    np.testing.assert_array_equal(benchmark.image_sets["control"].pixel_cache.get(3, first.pixel_view), resized[0])
    # Each gallery read from the files themselves gives the same vectors.
    for encoder, tables in alone.items():
        for name, images in galleries(files).image_sets.items():
            rows = [row for run in images.runs(64) for row in run][:5]
            pixels = [encoder.preprocessing.resize(image) for image in images.read(rows)]
            np.testing.assert_array_equal(encoder.encode_image(np.stack(pixels)), tables[name][rows])


@pytest.mark.parametrize(
    ("method", "protocol"),
    [
        ("mix", "paper"),
        pytest.param("patch", "paper", marks=pytest.mark.slow),
        pytest.param("mix", "control", marks=pytest.mark.slow),
    ],
)
def test_an_image_mixed_on_the_host_has_the_same_bytes_as_in_its_batch(files, method, protocol):
    plan = make_plan(list(files), method, 0.8, 10, protocol)
    places = np.flatnonzero(plan.batch == 0)
    first = plan.first[places].tolist()
    squashed = np.stack([resize_to_square(open_image(files[plan.images[index]])) for index in first])
    partners = np.array([first.index(image) for image in plan.partner[places]])
    boxes = np.broadcast_to(plan.boxes[0], (len(places), 4)).astype(np.int32)
    batch = apply_mixing(jnp.asarray(squashed), jnp.asarray(partners), plan.ratio, jnp.asarray(boxes), plan.method)
    for place in (0, 7, 63):
        one = decode_jpeg(encode_jpeg(np.asarray(batch.images[place])))
        np.testing.assert_array_equal(mix_one(plan, place, files), one)


def test_views_of_an_image_do_not_depend_on_the_cache(files, decoded):
    paths = tuple(files.values())[:6]
    expected = {view: [view.make(open_image(path)) for path in paths] for view in (SMALL, GREY)}
    decoded.clear()
    # DiskBudget for all, for three rows of one view, and for none.
    for bytes_, decodings in ((10**6, 6), (3 * 192, 6 + 3 + 6 + 6), (0, 24)):
        views = PixelCache(paths, lambda row: open_image(paths[row]), DiskBudget(bytes_))
        views.announce(GREY)
        for view in (SMALL, SMALL, GREY, GREY):
            found = [views.pixels(row, view) for row in range(6)]
            np.testing.assert_array_equal(found, expected[view])
        assert sum(decoded.values()) == decodings
        decoded.clear()


@pytest.mark.parametrize("announced", [[], [GREY, SMALL]])
def test_a_file_requested_by_many_threads_is_decoded_once(files, decoded, announced):
    paths = tuple(files.values())[:4]
    views = PixelCache(paths, lambda row: open_image(paths[row]), DiskBudget(10**6))
    for view in announced:
        views.announce(view)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: views.pixels(number % 4, SMALL if number % 3 else GREY), range(64)))
    # A second time where GREY was not announced at the first.
    assert decoded and set(decoded.values()) <= ({1} if announced else {1, 2})


def test_a_full_disk_disables_the_pixel_cache_without_changing_results(files, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rococo_jax.data.pixel_cache.os.pwrite", full)
    paths, room = tuple(files.values())[:3], DiskBudget(10**6)
    views = PixelCache(paths, lambda row: open_image(paths[row]), room)
    for _ in range(2):
        np.testing.assert_array_equal(views.pixels(1, SMALL), SMALL.make(open_image(paths[1])))
    assert room.reserve(1, 10**7) == 10**6


def test_the_first_bad_file_in_order_is_named_in_every_gallery(tmp_path):
    files = seventy_pictures(tmp_path)
    broken = sorted(files)[5]
    files[broken].write_bytes(files[broken].read_bytes()[:50])
    sets = galleries(files).image_sets
    for name in ("originals", "control", "uncorrupted"):
        rows = [row for run in sets[name].runs(64) for row in run]
        reading = read_images([(sets[name], rows)], Preprocessing(exact_size=(8, 8)).pixel_view)
        refused(f"{files[broken]}: image: found", list, reading)


def test_image_sets_from_elsewhere_are_read_a_few_rows_at_once():
    reads: list[int] = []

    class Made:
        name = "made"
        __len__ = runs = content = thumbnail = note = lambda self, *_: 4

        def read(self, rows, prepare=None):
            reads.append(len(rows))
            return (prepare(Image.new("RGB", (8, 8), (row, 0, 0))) for row in rows)

    found = list(read_images([(Made(), [3, 1]), (Made(), [2])], lambda image: image.getpixel((0, 0))[0]))
    assert found == [3, 1, 2]
    found = list(read_images([(Made(), range(50))], lambda image: image.getpixel((0, 0))[0]))
    assert found == list(range(50)) and max(reads) <= 8
    assert list(run_tasks([])) == []
