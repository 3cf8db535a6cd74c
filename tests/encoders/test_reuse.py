"""An item is embedded once: other parts, of other benchmarks, read what some part has, and compute the rest."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_texts
from rococo_jax.evaluation.models import model as evaluation_model
from tests.support.models import encoder_of
from tests.support.tiny import random_captions, tiny_encoder, tiny_spec, tiny_tokenizer


@pytest.fixture(scope="module")
def encoder():
    return tiny_encoder()


def test_only_new_items_of_the_same_model_are_computed(encoder, tmp_path):
    captions = sorted(set(random_captions(60, seed=3, longest=3)))
    plain, order = embed_texts(encoder, captions, EmbeddingCache(None)), np.arange(len(captions))
    for rows, computed in (
        (order[:40], 40), (order[:40], 0), (order[20:], len(captions) - 40), (order[::-1], 0),
    ):  # fmt: skip
        cache = EmbeddingCache(tmp_path)
        np.testing.assert_array_equal(embed_texts(encoder, [captions[row] for row in rows], cache), plain[rows])
        assert (cache.computed, cache.read) == (computed, len(rows) - computed)
    cache = EmbeddingCache(tmp_path)
    embed_texts(encoder_of(tiny_spec(), None, tiny_tokenizer()), captions[:5], cache)
    assert (cache.computed, cache.read) == (5, 0)


def test_damaged_indices_and_parts_are_computed_again(encoder, tmp_path):
    captions = sorted(set(random_captions(12, seed=5, longest=3)))
    expected = embed_texts(encoder, captions, EmbeddingCache(tmp_path))
    for path in tmp_path.rglob("*.npy"):
        path.write_bytes(path.read_bytes()[:40])
    cache = EmbeddingCache(tmp_path)
    np.testing.assert_array_equal(embed_texts(encoder, captions[:6], cache), expected[:6])
    assert cache.computed == 6


@pytest.mark.parametrize("rows", [2, 4])
def test_a_part_of_another_length_than_its_index_is_not_used(rows, tmp_path):
    items, about, cache = [b"a", b"b", b"c"], {"tower": "text"}, EmbeddingCache(tmp_path)
    cache.add(about, items, np.ones((rows, 5), np.float32))
    assert list(cache.find(about, items[:2])) == [] and cache.read == 0
    cache.add(about, items, np.ones((3, 5), np.float32))
    assert [found.tolist() for found, _ in cache.find(about, items[:2])] == [[0, 1]]


def test_an_undamaged_part_is_read_if_a_damaged_one_has_the_same_items(tmp_path):
    about = {"tower": "text"}
    EmbeddingCache(tmp_path).add(about, [b"a"], np.zeros((1, 5), np.float32))
    (damaged,) = tmp_path.glob("??/*.npy")
    damaged.write_bytes(damaged.read_bytes()[:-40])
    cache = EmbeddingCache(tmp_path)
    assert list(cache.find(about, [b"a"])) == []
    # A part that comes after it, in the order of keys.
    parts = ([b"a", bytes([number])] for number in range(256))
    cache.add(about, next(part for part in parts if cache.key(about, part) > damaged.stem), np.ones((2, 5)))
    ((rows, vectors),) = EmbeddingCache(tmp_path).find(about, [b"a"])
    assert rows.tolist() == [0] and vectors.tolist() == [[1.0] * 5]


def test_opening_a_cache_removes_old_leftovers_of_killed_processes(tmp_path):
    about, cache = {"tower": "text"}, EmbeddingCache(tmp_path)
    cache.put(cache.key(about, []), np.ones(3))  # has no index
    for number in range(3):
        cache.add(about, [bytes([number])], np.zeros((1, 5)))
    parts = sorted(tmp_path.glob("??/*.npy"))
    for orphan in parts[:2]:  # the process ended between the part and its index
        next(tmp_path.glob(f"index/*/{orphan.name}")).unlink()
    temporary = [folder / f".{parts[0].name}.0123abcd.part" for folder in (parts[2].parent, tmp_path / "values")]
    temporary += [next(tmp_path.glob("index/*")) / f".{parts[0].name}.89abcdef.part"]
    others = [parts[2].parent / "notes.part", tmp_path / ".a.npy.0123abcd.part"]
    for path in (*temporary, *others):
        path.write_bytes(b"half")
    whole = {*tmp_path.rglob("*.npy")} - {*parts[:2]}
    for path in (*whole, *others, parts[0], *temporary[:2]):
        os.utime(path, (1, 1))
    EmbeddingCache(tmp_path)
    assert not any(path.exists() for path in (parts[0], *temporary[:2]))
    assert all(path.exists() for path in (*whole, *others, parts[1], temporary[2]))  # these may be of running processes
    assert cache.get(cache.key(about, [])).tolist() == [1.0] * 3


def test_an_index_file_is_read_only_once_for_many_parts(tmp_path, monkeypatch):
    about, parts = {"tower": "vision"}, [[f"{part} {row}".encode() for row in range(4)] for part in range(20)]
    cache, reads, read = EmbeddingCache(tmp_path), [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads.append(path) or read(path))
    for number, items in enumerate(parts):
        assert list(cache.find(about, items)) == []
        cache.add(about, items, np.arange(4.0)[:, None] + 10 * number)
    others, mixed = EmbeddingCache(tmp_path), [b"new", *(items[row] for row in (3, 1) for items in parts)]
    reads.clear()
    vectors = {row: each for rows, found in others.find(about, mixed) for row, each in zip(rows, found, strict=True)}
    assert [float(vectors[place + 1][0]) for place in range(40)] == [10 * n + row for row in (3, 1) for n in range(20)]
    assert 0 not in vectors and others.read == 40 and len(set(reads)) == len(reads) == 40
    reads.clear()
    for items in parts:  # each finds its own part, and no index is read again
        assert sum(len(rows) for rows, _ in others.find(about, items)) == 4
    assert len(reads) == 20


class Drawn:
    """Images that say when the first of them is made."""

    name = "originals"

    def __init__(self, count: int):
        self.pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)
        self.begun = threading.Event()

    def __len__(self) -> int:
        return len(self.pixels)

    def runs(self, size: int) -> list[list[int]]:
        return [list(range(start, min(start + size, len(self)))) for start in range(0, len(self), size)]

    def content(self, row: int) -> bytes:
        return self.pixels[row].tobytes()

    def read(self, rows, prepare=None):
        self.begun.set()
        return iter([self.pixels[row] for row in rows])

    def thumbnail(self, row: int) -> Image.Image:
        return Image.fromarray(self.pixels[row])

    def note(self, row: int) -> str:
        return ""


def test_images_are_decoded_while_texts_are_encoded(encoder, monkeypatch):
    images, captions = Drawn(40), random_captions(20, longest=3)

    def texts_then_images(*rest):
        assert images.begun.wait(20)
        return embed_texts(*rest)

    monkeypatch.setattr(evaluation_model, "embed_texts", texts_then_images)
    benchmark = Benchmark("drawn", (), tuple(captions), {"originals": images}, ())
    tables = evaluation_model.embed_benchmark(encoder, encoder, benchmark, EmbeddingCache(None)).tables
    np.testing.assert_array_equal(tables["originals"], encoder.encode_image(images.pixels))
    np.testing.assert_array_equal(tables["texts"], encoder.encode_text(captions))
