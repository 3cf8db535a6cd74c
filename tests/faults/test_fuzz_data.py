"""Test readers of benchmarks and of packed data on random damage: each returns a value or raises InputError.

What a damaged file still says is used as a command would: items are scored, samples are decoded.
"""

import contextlib
import dataclasses
import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rococo_jax.benchmarks.benchmark import find_benchmark
from rococo_jax.benchmarks.readers import two_by_two
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import TEXTS, Embeddings
from rococo_jax.checkpoints.formats.big_vision import open_npz
from rococo_jax.checkpoints.tensors import open_safetensors, write_safetensors
from rococo_jax.checkpoints.torch_archive import open_torch_archive
from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.data.pictures import decode_image
from rococo_jax.data.training_images import TrainingImages, read_training_images, write_training_images
from rococo_jax.evaluation.examples import EXAMPLES, Example, Side, read_examples, write_examples
from rococo_jax.evaluation.models.arrays import open_logits
from rococo_jax.evaluation.models.class_logits import read_labels
from rococo_jax.evaluation.models.stored_embeddings import StoredEmbeddings
from rococo_jax.evaluation.stored_counts import read_counts
from rococo_jax.storage import load_arrays
from rococo_jax.training.inputs.hard_positives import read_hard_positives
from tests.benchmarks.published_forms import FORMS, write
from tests.support import fuzz
from tests.support.fuzz import FUZZ, changed_bytes, changed_value, refuses
from tests.support.refusals import refused
from tests.support.tar_pairs import write_tar


def _open_choices(name: str, folder: Path) -> None:
    """Open a benchmark, and score its items with random vectors."""
    folders = {"images": folder / "images", "annotations": folder}
    benchmark = find_benchmark(name).open(folders, Settings(allow_missing_images=True))
    rng = np.random.default_rng(0)
    tables = {TEXTS: len(benchmark.texts), **{key: len(images) for key, images in benchmark.image_sets.items()}}
    embeddings = Embeddings({key: rng.normal(size=(rows, 4)) for key, rows in tables.items()})
    for task in benchmark.tasks:
        task.score(embeddings).rows(benchmark)
    for images in benchmark.image_sets.values():
        list(images.read(range(len(images))))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FORMS))
def test_changed_values_of_a_benchmark_are_read_or_refused(name, tmp_path_factory):
    form, folder = FORMS[name], tmp_path_factory.mktemp(name)
    write(form, folder)
    _open_choices(name, folder)

    @FUZZ
    @given(changed_value(form.rows))
    def check(changed):
        rows = changed if isinstance(changed, list) else [changed]
        try:
            write(dataclasses.replace(form, rows=rows), folder)
        except (TypeError, ValueError, AttributeError, IndexError, KeyError):
            return  # no table can hold it
        refuses(lambda: _open_choices(name, folder))

    fuzz.run(check)


@pytest.mark.parametrize("name", ["crepe", "winoground", "cola", "imagecode"])
def test_changed_bytes_of_a_benchmark_are_read_or_refused(name, tmp_path_factory):
    folder = tmp_path_factory.mktemp(name)
    write(FORMS[name], folder)
    fuzz.check(folder / FORMS[name].file, lambda path: _open_choices(name, folder), changed_bytes)


def _encoded(kind: str) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def _table(path: Path, columns: dict) -> None:
    pq.write_table(pa.table(columns), path)


def _read_tar(path: Path) -> None:
    for index in path.parent.glob("rococo-index-*"):
        index.unlink()
    source = open_pairs(str(path), allow_missing=True)
    for number in range(len(source)):
        source[number].open().convert("RGB")


ROWS = {"task": ["t2i"] * 2, "variant": ["danger"] * 2, "seed": [1, 1], "image": ["b.jpg", "a.jpg"], "unit": [1, 0],
        "riddles": [True, False]}  # fmt: skip
OF_ROWS = {
    "kinds": {"t2i": "riddle"},
    "variants": {"t2i": {"danger": {}}},
    "tasks": {"t2i": {"danger": {"riddles": 50.0}}},
}


def _examples(path: Path) -> None:
    right, wrong = Side("a dog", "a.jpg", _encoded("JPEG")), Side("a gun")
    write_examples(path.parent, [Example("t2i", "danger", None, "error", 0, "wrong", right, right, wrong, 0.3, 0.4)])


def _all_tensors(tensors) -> None:
    with tensors:
        for name in tensors.names:
            tensors.info(name), tensors.read(name)


def _open_pt(path: Path) -> None:
    _all_tensors(open_torch_archive(path))


def _pt(path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.ones(2, 3), "b": {"c": torch.zeros(4, dtype=torch.int64)}}, path)


def _logits(path: Path) -> None:
    np.savez(path, logits=np.arange(6.0).reshape(2, 3), classes=np.array(["a", "b", "c"]), names=np.array(["x", "y"]))


def _read_logits(path: Path) -> None:
    with contextlib.ExitStack() as stack:
        file = open_logits(path, stack)
        file.block(np.arange(file.shape[1]), slice(0, file.shape[0]))


def _vectors(path: Path) -> None:
    np.savez(path, image_names=np.array(["a"]), image_embeddings=np.ones((1, 2), np.float32),
             captions=np.array(["a dog"]), text_embeddings=np.ones((1, 2), np.float32))  # fmt: skip


def _table_of_vectors(path: Path) -> None:
    for side in ("image", "caption"):
        _table(path.with_name(f"{side}.parquet"), {side: ["a", "b"], "embedding": [[1.0, 2.0], [2.0, 1.0]]})


def _text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


# A kind of file -> its name, what writes one, and what reads it.
KINDS = {
    "PNG": ("a.png", lambda path: path.write_bytes(_encoded("PNG")), lambda p: decode_image(p.read_bytes(), p)),
    "JPEG": ("a.jpg", lambda path: path.write_bytes(_encoded("JPEG")), lambda p: decode_image(p.read_bytes(), p)),
    ".npz": ("a.npz", lambda path: np.savez(path, **{"params/img/kernel": np.ones((2, 3)), "params/t": np.float16(0)}),
             lambda path: _all_tensors(open_npz(path))),
    "safetensors": ("a.safetensors", lambda path: write_safetensors(path, {"a": np.eye(3), "b": np.zeros(4, int)}),
                    lambda path: _all_tensors(open_safetensors(path))),
    ".pt": ("a.pt", _pt, _open_pt),
    "tar": ("a.tar", lambda path: write_tar(path, range(8, 16), form=0), _read_tar),
    "rows of a run": ("per_query.parquet", lambda path: _table(path, ROWS), lambda p: read_counts(p, OF_ROWS)),
    "examples": ("examples.parquet", _examples, lambda path: read_examples(path.parent)),
    "logits": ("logits.npz", _logits, _read_logits),
    "logits as .npy": ("logits.npy", lambda path: np.save(path, np.eye(3)), _read_logits),
    "embeddings": ("vectors.npz", _vectors, StoredEmbeddings),
    "embeddings as a table": ("image.parquet", _table_of_vectors, lambda path: StoredEmbeddings(path.parent)),
    "labels": ("labels.csv", _text("image,label\na.jpg,dog\nb.jpg,cat\n"), read_labels),
    "hard positives": (
        "hard.jsonl", _text('{"caption": "a dog", "hard_positive": "a hound", "hard_negative": "a cat"}\n'),
        read_hard_positives,
    ),
    "training images": (
        "training_images.txt", lambda path: write_training_images(path.parent, TrainingImages(frozenset(["0" * 16]))),
        lambda path: read_training_images(path.parent),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_changed_bytes_are_read_or_refused(name, tmp_path_factory):
    file, make, read = KINDS[name]
    path = tmp_path_factory.mktemp("kind") / file
    make(path)
    fuzz.check(path, read, changed_bytes)


def _pickled(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/data.pkl", content)
    return path


def test_a_pickle_of_any_bytes_in_a_zip_archive_is_read_or_refused(tmp_path):
    @FUZZ
    @given(st.binary(max_size=300))
    def check(content):
        refuses(lambda: _open_pt(_pickled(tmp_path / "a.pt", content)))

    fuzz.run(check)


def test_a_pickle_that_calls_functions_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, ("true",)

    refused("a.pt: pickle: found", _open_pt, _pickled(tmp_path / "a.pt", pickle.dumps(Evil())))


# Found by `tools/fuzz.py`.
@pytest.mark.parametrize("name", ["task", "unit", "riddles"])
def test_a_row_of_a_run_without_a_value_is_refused(name, tmp_path):
    _table(tmp_path / "rows.parquet", ROWS | {name: [None, ROWS[name][0]]})
    refused(f"{name}: found 1 rows without one", read_counts, tmp_path / "rows.parquet", OF_ROWS)


def test_names_stored_as_bytes_are_read_as_texts(tmp_path):
    path = tmp_path / "rows.parquet"
    _table(path, ROWS | {"variant": [b"danger"] * 2, "image": [b"b.jpg", b"a.jpg"]})
    counts = read_counts(path, OF_ROWS)["t2i", "danger"]
    assert counts.units.tolist() == ["a.jpg", "b.jpg"] and counts.on(counts.units)[:, :2].tolist() == [[1, 0], [1, 1]]


def test_a_field_name_that_is_not_a_text_is_refused(tmp_path):
    path = tmp_path / EXAMPLES
    _examples(path)
    # Arrow's schema is kept in base64 as well, and Parquet's own names are read without it.
    table = pq.read_table(path).replace_schema_metadata(None)
    pq.write_table(table, path, store_schema=False)
    content = path.read_bytes()
    name = dataclasses.fields(Side)[0].name.encode()
    assert name in content
    path.write_bytes(content.replace(name, b"\xee" + name[1:]))
    refused("contents", read_examples, tmp_path)


def test_a_header_that_is_not_valid_python_is_refused(tmp_path):
    path = tmp_path / "logits.npy"
    np.save(path, np.eye(3))
    path.write_bytes(path.read_bytes().replace(b"<f8", b"<,8"))
    for read in (_read_logits, lambda path: load_arrays(path, "an array")):
        refused(r"logits\.npy: contents", read, path)


def test_names_of_image_folders_may_contain_braces(tmp_path):
    (tmp_path / "Questions.csv").write_text("Question ID,Type,Statement\n1,{a} b},one\n2,{a} b},two\n")
    _, (record,) = two_by_two.mmvp_records(tmp_path / "Questions.csv")
    (item,) = two_by_two.mmvp_items(record)
    assert [image.file for image in item.images] == ["{a} b}/1.jpg", "{a} b}/2.jpg"]


def test_stored_embeddings_beyond_float32_are_refused(tmp_path):
    for side in ("image", "caption"):
        _table(tmp_path / f"{side}.parquet", {side: ["a", "b"], "embedding": [[1.0, 1e300], [2.0, 1.0]]})
    refused("row 0: found NaN or infinite", StoredEmbeddings, tmp_path)


def test_the_fuzz_test_finds_a_reader_that_raises_another_error():
    with pytest.raises(AssertionError, match="KeyError"):
        refuses(lambda: {}["x"])
